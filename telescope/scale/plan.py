"""telescope plan: a table of what a recipe takes, a column per number of GPUs. Imports no torch."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from telescope.config import Config, load_config
from telescope.config.checks import one_process_settings
from telescope.errors import TelescopeError
from telescope.scale import fit
from telescope.scale.estimate import (
    GIB,
    NO_CRITIC,
    SHAPES,
    Job,
    Rates,
    Shape,
    memory_of,
    network_of,
    seconds_of,
)

# ---- the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `telescope plan` that are not settings."""
    parser.add_argument(
        "--gpus",
        help="numbers of GPUs, a column each (default 1,8,64,512; 1 if the recipe is for one)",
    )
    parser.add_argument(
        "--suggest",
        action="store_true",
        help="instead: the fewest changes of settings with which the recipe fits one GPU",
    )
    parser.add_argument(
        "--shape",
        choices=SHAPES,
        help="size of the model; default: from config.json, if model.path is a folder",
    )
    parser.add_argument(
        "--prompt-tokens", type=int, help="tokens per prompt; default: data.max_prompt_tokens"
    )
    parser.add_argument(
        "--response-tokens",
        type=int,
        help="tokens per response; default: rollout.max_response_tokens",
    )
    rates = (
        ("--gpu-gib", Rates.gib, "GiB of memory per GPU"),
        ("--tflops", Rates.tflops, "TFLOP/s per GPU that training reaches"),
        ("--bandwidth", Rates.bandwidth, "TB/s of a GPU's memory, for decoding"),
        ("--network", Rates.network, "GB/s between a GPU and the others"),
    )
    for option, default, text in rates:
        parser.add_argument(
            option, type=float, default=default, help=f"{text} (default %(default)g)"
        )


def run(
    chosen: argparse.Namespace, recipe: Path | None, overrides: Sequence[tuple[str, str]]
) -> str:
    """The table for the chosen options and settings, or what would make the recipe fit."""
    config = load_config(recipe, overrides)
    gpus = _numbers_of_gpus(chosen.gpus, config)
    prompt = chosen.prompt_tokens
    if prompt is None:
        prompt = config.data.max_prompt_tokens
    response = chosen.response_tokens
    if response is None:
        response = config.rollout.max_response_tokens
    positive = {
        "tflops": chosen.tflops,
        "bandwidth": chosen.bandwidth,
        "network": chosen.network,
        "gpu_gib": chosen.gpu_gib,
        "prompt_tokens": prompt,
        "response_tokens": response,
    }
    for name, number in positive.items():
        if not 0 < number < math.inf:
            raise TelescopeError(f"--{name.replace('_', '-')} {number:g}: give a positive number")
    actor = _actor_shape(config, chosen.shape)
    critic = _critic_shape(config, actor)
    rates = Rates(chosen.tflops, chosen.bandwidth, chosen.network, chosen.gpu_gib)

    def changed(settings: fit.Settings) -> Job:
        other = load_config(recipe, [*overrides, *settings])
        return Job(other, 1, actor, critic, prompt, response, rates)

    if chosen.suggest:
        return fit.suggestion(changed)
    jobs = [Job(config, number, actor, critic, prompt, response, rates) for number in gpus]
    return table(jobs)


def plan_of(config: Config, gpus: int, prompt_tokens: int) -> str:
    """The table of a config for one number of GPUs."""
    actor = _actor_shape(config, None)
    critic = _critic_shape(config, actor)
    response_tokens = config.rollout.max_response_tokens
    return table([Job(config, gpus, actor, critic, prompt_tokens, response_tokens)])


def _numbers_of_gpus(text: str | None, config: Config) -> list[int]:
    for_one = one_process_settings(config)
    if text is None:
        return [1] if for_one else [1, 8, 64, 512]
    try:
        gpus = [int(number) for number in text.split(",")]
    except ValueError:
        gpus = []
    if min(gpus, default=0) <= 0:
        raise TelescopeError(f"--gpus {text}: give positive numbers, such as --gpus 1,8,64")
    if for_one and max(gpus) > 1:
        raise TelescopeError(f"--gpus {text}: {for_one[0]} is for one process; leave out --gpus")
    return gpus


def _actor_shape(config: Config, name: str | None) -> Shape:
    path = config.model.path
    if name is None and path == "smollm2":
        name = "135M"
    shape = SHAPES[name] if name else read_shape(path)
    if shape is None:
        raise TelescopeError(
            f"model.path = {path!r} is no folder with a config.json: "
            f"name a shape, --shape {'|'.join(SHAPES)}"
        )
    return shape


def _critic_shape(config: Config, actor: Shape) -> Shape:
    if config.model.critic_path:
        return read_shape(config.model.critic_path) or actor
    return actor if config.credit.by_critic else NO_CRITIC


def read_shape(path: str) -> Shape | None:
    """The shape in a model folder's config.json; None if there is no such folder."""
    file = Path(path).expanduser() / "config.json"
    if not file.is_file():
        return None
    config: dict[str, Any] = json.loads(file.read_text("utf-8"))
    config = config.get("text_config", config)
    if any("experts" in key for key in config):
        raise TelescopeError(f"{file} is of a mixture of experts: a plan is for dense models")
    try:
        hidden = config["hidden_size"]
        heads = config["num_attention_heads"]
        return Shape(
            hidden=hidden,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            intermediate=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            tied=config.get("tie_word_embeddings", False),
        )
    except KeyError as key:
        raise TelescopeError(
            f"{file} has no {key}: a plan is for Llama-like models; "
            "name a shape with --shape instead"
        ) from None


# ---- the table


def table(jobs: Sequence[Job]) -> str:
    """A table with a column per job. The jobs differ in their number of GPUs only."""
    config = jobs[0].config
    gib = jobs[0].rates.gib
    other = "off" if config.model.gradient_checkpointing else "on"
    memories = [memory_of(job) for job in jobs]
    networks = [network_of(job) for job in jobs]
    times = [seconds_of(*one) for one in zip(jobs, memories, networks, strict=True)]
    speeds = [job.total * job.response / t.step for job, t in zip(jobs, times, strict=True)]
    lines = [
        *_assumptions(jobs[0]),
        _row("GPUs", [str(job.gpus) for job in jobs]),
        _row("backend", ["ray" if job.is_sharded else "local" for job in jobs]),
        _row("rows per GPU", [f"{job.rows}{'*' * _has_too_few_rows(job)}" for job in jobs]),
        "memory per GPU, GiB",
        *_rows(memories, GIB, ".1f", {
            "weights": "weights: actor, critic, reference",
            "optimizer": "float32 master weights, Adam",
            "gradients": "gradients",
            "gathered": "gathered for a layer (FSDP)",
            "activations": "activations of one micro-batch",
            "activations_other": f"  with checkpointing {other}",
            "logits": "logits chunk, head's gradient",
            **({"unpacked": "a quantised matrix in use"} if jobs[0].quantized else {}),
            "cache": "KV cache",
            **({"host": "in host memory instead"} if memories[0].host else {}),
        }),
        "peak of each phase, GiB",
        *_rows(memories, GIB, ".1f", {
            "loading": "loading",
            "sampling": "sampling",
            "forward": "forward passes",
            "updating": "updating",
            "saving": "saving",
        }),
        _row(f"fits in {gib:g} GiB", ["yes" if m.peak <= gib * GIB else "no" for m in memories]),
        "network per GPU and step, GB",
        *_rows(networks, 1e9, ".2f", {
            "sampling": "actor gathered whole, to sample",
            "gathers": "weight all-gathers",
            "scatters": "gradient reductions",
            "batch": "the batch",
        }),
        "seconds per step",
        *_rows(times, 1, ".2f", {
            "decode": "decode",
            "forward": "values, log-probs",
            "update_critic": "critic update",
            "update_actor": "actor update",
            "network": "exposed communication",
            "step": "step",
        }),
        _row("response tokens/s", [f"{speed:,.0f}" for speed in speeds]),
    ]  # fmt: skip
    if any(_has_too_few_rows(job) for job in jobs):
        lines.append("* fewer rows than GPUs: some have none")
    unknown = _unknown_settings(config)
    if unknown:
        lines.append(f"not in these figures: {', '.join(unknown)}")
    return "\n".join(lines)


def _assumptions(job: Job) -> list[str]:
    config = job.config
    rates = job.rates
    checkpointing = "on" if config.model.gradient_checkpointing else "off"
    return [
        f"actor {job.actor.policy / 1e9:.2f}B weights, critic {job.critic.critic / 1e9:.2f}B, "
        f"{config.model.dtype}, gradient checkpointing {checkpointing}",
        *_frozen_base(job),
        f"{job.total} rows per step, {job.prompt} prompt + {job.response} response tokens each",
        f"assumed per GPU: {rates.tflops:g} TFLOP/s in training, "
        f"{rates.bandwidth:g} TB/s of memory, {rates.network:g} GB/s of network\n",
    ]


def _frozen_base(job: Job) -> list[str]:
    """What is frozen, and who shares it."""
    if not job.lora:
        return []
    model = job.config.model
    base = "frozen weights" if model.quantize == "none" else f"frozen weights in {model.quantize}"
    owners = "of actor and reference" if model.reference_path is None else "of the actor"
    if job.shared_base and job.critic is not NO_CRITIC:
        owners = "shared by actor, critic and reference"
    count = job.roles[1].trained / 1e6
    return [
        f"LoRA of rank {model.lora_rank}: {count:.1f}M weights per adapter set; {base} {owners}"
    ]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<38}" + "".join(f"{cell:>10}" for cell in cells)


def _rows(columns: Sequence[Any], unit: float, form: str, names: dict[str, str]) -> list[str]:
    """A row per attribute in `names`."""
    rows = []
    for attribute, name in names.items():
        numbers = [getattr(column, attribute) / unit for column in columns]
        rows.append(_row(f"  {name}", [f"{number:{form}}" for number in numbers]))
    return rows


def _has_too_few_rows(job: Job) -> bool:
    return job.total < job.gpus


def _unknown_settings(config: Config) -> list[str]:
    """The settings of this recipe that the estimates do not know."""
    offloads = config.actor.offload_optimizer or config.critic.offload_optimizer
    offloads = offloads or config.model.offload_reference
    given: dict[str, Any] = {
        "rollout.engine = 'vllm'": config.rollout.engine == "vllm",
        "rollout.one_step_off_policy": config.rollout.one_step_off_policy,
        "ray.samplers": config.ray.samplers,
        "ray.critic_workers": config.ray.critic_workers,
        "ray.reward_workers": config.ray.reward_workers,
        "the time that offloading takes": offloads,
        "the time that adapters take": config.model.lora_rank,
    }
    return [name for name, value in given.items() if value]
