"""A plan as a table: a column per number of GPUs, a block of rows per kind of GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from telescope.config import Config
from telescope.scale.plan.job import Job
from telescope.scale.plan.memory import Memory, memories
from telescope.scale.plan.sampling import is_vllm
from telescope.scale.plan.shapes import GIB, NO_CRITIC
from telescope.scale.plan.times import Network, networks, seconds_of

ALWAYS = {"weights", "optimizer", "gradients", "gathered", "activations", "logits"}
"""Parts that are shown of a GPU that trains even where they are zero."""

NETWORK = {
    "sampling": "weights, to sample",
    "gathers": "weight all-gathers",
    "scatters": "gradient reductions",
    "batch": "the batch",
}
PHASES = {
    "loading": "loading",
    "sampling": "sampling",
    "scoring": "scoring",
    "forward": "forward passes",
    "updating": "updating",
    "sending": "weights on their way to samplers",
    "saving": "saving",
}


def table(jobs: Sequence[Job]) -> str:
    """A table with a column per job. The jobs differ in their number of GPUs only."""
    config = jobs[0].config
    gib = jobs[0].rates.gib
    found = [memories(job) for job in jobs]
    fits = [all(kind.peak <= gib * GIB for kind in column.values()) for column in found]
    times = [seconds_of(job) for job in jobs]
    speeds = [job.total * job.response / t.step for job, t in zip(jobs, times, strict=True)]
    lines = [
        *_assumptions(jobs),
        _row("GPUs", [str(job.gpus) for job in jobs]),
        *_kinds_of_gpus(jobs),
        _row("backend", ["ray" if job.is_sharded else "local" for job in jobs]),
        _row("rows per GPU", [f"{job.rows}{'*' * _has_too_few_rows(job)}" for job in jobs]),
    ]
    for kind in _kinds(found):
        columns = [column.get(kind, Memory()) for column in found]
        several = len(_kinds(found)) > 1
        lines += [
            f"memory of a GPU that {kind}, GiB" if several else "memory per GPU, GiB",
            *_rows(columns, GIB, ".1f", _parts(config), shown=ALWAYS if kind == "trains" else ()),
            f"peak of each phase, GPU that {kind}, GiB" if several else "peak of each phase, GiB",
            *_rows(columns, GIB, ".1f", PHASES),
        ]
    lines.append(_row(f"fits in {gib:g} GiB", ["yes" if fit else "no" for fit in fits]))
    received = [networks(job) for job in jobs]
    for kind in _kinds(received):
        traffic = [column.get(kind, Network()) for column in received]
        title = "network per GPU and step, GB"
        if len(_kinds(received)) > 1:
            title = f"network per step, GPU that {kind}, GB"
        shown = NETWORK if kind == "trains" else ()
        lines += [title, *_rows(traffic, 1e9, ".2f", NETWORK, shown=shown)]
    lines += [
        "seconds per step",
        *_rows(times, 1, ".2f", {"decode": "decode"}, shown={"decode"}),
        *_rows(times, 1, ".2f", {"score": "reward model"}),
        *_rows(times, 1, ".2f", {
            "forward": "values, log-probs",
            "update_critic": "critic update",
            "update_actor": "actor update",
            "network": "exposed communication",
            "step": "step",
        }, shown={"forward", "update_critic", "update_actor", "network", "step"}),
        _row("response tokens/s", [f"{speed:,.0f}" for speed in speeds]),
    ]  # fmt: skip
    return "\n".join([*lines, *_notes(jobs)])


def _notes(jobs: Sequence[Job]) -> list[str]:
    """What must be known of the figures, a line each."""
    notes = []
    if any(_has_too_few_rows(job) for job in jobs):
        notes.append("* fewer rows than GPUs: some have none")
    if any(seconds_of(job).is_ahead for job in jobs):
        notes.append("a step takes the longer one of decoding and the rest: it samples ahead")
    unknown = _unknown_settings(jobs)
    if unknown:
        notes.append(f"not in these figures: {', '.join(unknown)}")
    never = _never_run(jobs)
    if never:
        notes.append(f"arithmetic only, never run on a GPU: {', '.join(never)}")
    return notes


def _kinds(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(kind for column in columns for kind in column))


def _kinds_of_gpus(jobs: Sequence[Job]) -> list[str]:
    """How many GPUs do what, unless all do the same."""
    ray = jobs[0].config.ray
    if not any(len(memories(job)) > 1 for job in jobs):
        return []
    tensor_parallel = jobs[0].tensor_parallel
    each = f", {tensor_parallel} per sampler" if tensor_parallel > 1 else ""
    counts = {
        "train": [job.workers for job in jobs],
        "train the critic": [ray.critic_workers] * len(jobs),
        f"sample{each}": [ray.samplers] * len(jobs),
        "score": [ray.reward_workers] * len(jobs),
    }
    return [
        _row(f"  that {what}", [str(number) for number in numbers])
        for what, numbers in counts.items()
        if any(numbers)
    ]


def _parts(config: Config) -> dict[str, str]:
    other = "off" if config.model.gradient_checkpointing else "on"
    return {
        "weights": "weights: actor, critic, reference",
        "reward": "weights of the reward model",
        "optimizer": "float32 master weights, Adam",
        "gradients": "gradients",
        "gathered": "gathered for a layer (FSDP)",
        "activations": "activations of one micro-batch",
        "activations_other": f"  with checkpointing {other}",
        "logits": "logits chunk, head's gradient",
        "unpacked": "a quantised matrix in use",
        "graphs": "kept by CUDA graphs of updates",
        "sampling_weights": "policy, to sample",
        "cache": "KV cache",
        "vllm": "vLLM besides weights and cache",
        "host": "in host memory instead",
    }


def _assumptions(jobs: Sequence[Job]) -> list[str]:
    job = jobs[0]
    config = job.config
    rates = job.rates
    checkpointing = "on" if config.model.gradient_checkpointing else "off"
    reward = f", reward model {job.reward.critic / 1e9:.2f}B" if job.reward else ""
    return [
        f"actor {job.actor.policy / 1e9:.2f}B weights, critic {job.critic.critic / 1e9:.2f}B"
        f"{reward}, {config.model.dtype}, gradient checkpointing {checkpointing}",
        *_frozen_base(jobs),
        f"{job.total} rows per step, {job.prompt} prompt + {job.response} response tokens each",
        f"assumed per GPU: {rates.tflops:g} TFLOP/s in training, "
        f"{rates.bandwidth:g} TB/s of memory, {rates.network:g} GB/s of network\n",
    ]


def _frozen_base(jobs: Sequence[Job]) -> list[str]:
    """What is frozen, and who shares it."""
    job = jobs[0]
    if not job.lora:
        return []
    model = job.config.model
    base = "frozen weights" if model.quantize == "none" else f"frozen weights in {model.quantize}"
    owners = "of actor and reference" if model.reference_path is None else "of the actor"
    sharing = [each.shared_base for each in jobs]
    if any(sharing) and job.critic is not NO_CRITIC:
        where = "" if all(sharing) else " on one GPU"
        owners = f"shared by actor, critic and reference{where}"
    count = job.roles[1].trained / 1e6
    return [
        f"LoRA of rank {model.lora_rank}: {count:.1f}M weights per adapter set; {base} {owners}"
    ]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<38}" + "".join(f"{cell:>10}" for cell in cells)


def _rows(
    columns: Sequence[Any],
    unit: float,
    form: str,
    names: Mapping[str, str],
    shown: Any = (),
) -> list[str]:
    """A row per attribute in `names`; those that are zero everywhere only if in `shown`."""
    rows = []
    for attribute, name in names.items():
        numbers = [getattr(column, attribute) / unit for column in columns]
        if any(numbers) or attribute in shown:
            rows.append(_row(f"  {name}", [f"{number:{form}}" for number in numbers]))
    return rows


def _has_too_few_rows(job: Job) -> bool:
    return job.total < job.workers


def _unknown_settings(jobs: Sequence[Job]) -> list[str]:
    """The settings of this recipe that the estimates do not know."""
    config = jobs[0].config
    offloads = config.actor.offload_optimizer or config.critic.offload_optimizer
    offloads = offloads or config.model.offload_reference
    on_ray = config.backend == "ray" or any(job.is_sharded for job in jobs)
    on_the_controller = on_ray and not config.ray.reward_workers
    given: dict[str, Any] = {
        "reward.model, which the controller's CPU runs": config.reward.model and on_the_controller,
        "the time that offloading takes": offloads,
    }
    return [name for name, value in given.items() if value]


def _never_run(jobs: Sequence[Job]) -> list[str]:
    """What of this plan no GPU has run (docs/scale.md, docs/performance.md)."""
    config = jobs[0].config
    optimizers = {config.actor.optimizer, config.critic.optimizer}
    offloads = config.actor.offload_optimizer or config.critic.offload_optimizer
    given: dict[str, Any] = {
        "more than one GPU": any(job.gpus > 1 for job in jobs),
        "8-bit weights": config.model.quantize == "int8",
        "8-bit moments": optimizers != {"adamw"},
        "offloading": offloads or config.model.offload_reference,
        "reward.model": config.reward.model,
        "LoRA above 7B": jobs[0].lora and jobs[0].actor.policy > 8e9,
        "vLLM above 135M": is_vllm(jobs[0]) and jobs[0].actor.policy > 2e8,
    }
    return [name for name, value in given.items() if value]
