"""telescope plan --suggest: the fewest changes of settings with which a recipe fits one GPU.

Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from telescope.config import Config
from telescope.errors import TelescopeError
from telescope.scale.plan.job import Job
from telescope.scale.plan.memory import Memory, memory_of
from telescope.scale.plan.shapes import GIB
from telescope.scale.plan.table import PHASES

Settings = tuple[tuple[str, str], ...]
MakeJob = Callable[[Settings], Job]
"""The job of the recipe with some settings changed."""

MARGIN = 0.9
"""Share of the card that an estimate may fill: CUDA itself and gaps between tensors take memory."""

_STATES: Settings = (("actor.offload_optimizer", "true"), ("critic.offload_optimizer", "true"))


@dataclass(frozen=True)
class Fit:
    """Changes with which the recipe fits, and what it then takes."""

    changes: Settings
    job: Job
    memory: Memory


def search(make_job: MakeJob) -> list[Fit]:
    """The smallest set of changes that fits; of two as small, the one that is tried first.

    If it trains adapters where the recipe trains all weights, the smallest set that keeps to all
    weights comes second, if there is one.
    """
    start = make_job(())
    found: list[Fit] = []
    for changes in _sets(start):
        try:
            job = make_job(changes)
        except TelescopeError:
            continue  # settings that exclude each other
        memory = memory_of(job).without_graphs()
        is_new = not found or not job.lora
        if is_new and memory.peak <= MARGIN * job.rates.memory:
            found.append(Fit(changes, job, memory))
            if job.lora == start.lora:
                break
    return found


def _sets(start: Job) -> Iterator[Settings]:
    """Sets of changes: none, then small ones first, then in this order.

    All have bfloat16, which costs nothing on a GPU.
    """
    config = start.config
    every: list[list[Settings]] = [
        [(("model.gradient_checkpointing", "true"),)],
        _smaller_micro_batches(start),
        [] if start.lora else [(("model.lora_rank", "16"),)],
        [(("model.quantize", "nf4"),)],
        [(("actor.optimizer", "adamw8bit"), ("critic.optimizer", "adamw8bit"))],
        [(*_STATES, ("model.offload_reference", "true")), _STATES],
    ]
    useful = []
    for variants in every:
        changing = [kept for variant in variants if (kept := _changing(config, variant))]
        if changing:
            useful.append(changing)
    yield ()
    bf16 = _changing(config, (("model.dtype", "bfloat16"),))
    for count in range(len(useful) + 1):
        for chosen in itertools.combinations(useful, count):
            for picked in itertools.product(*chosen):
                yield tuple(itertools.chain(bf16, *picked))


def _smaller_micro_batches(start: Job) -> list[Settings]:
    """Halves, quarters, … of the micro-batches, as long as they hold a row."""
    config = start.config
    tokens = max(config.actor.micro_batch_tokens, config.critic.micro_batch_tokens) // 2
    sizes = []
    while tokens >= start.row:
        roles = ("actor", "critic")
        sizes.append(tuple((f"{role}.micro_batch_tokens", str(tokens)) for role in roles))
        tokens //= 2
    return sizes


def _changing(config: Config, settings: Settings) -> Settings:
    """Those of the settings that the recipe has otherwise. A critic of zeros has none."""
    kept = []
    for name, value in settings:
        section, _, key = name.partition(".")
        now = str(getattr(getattr(config, section), key)).lower()
        if now != value and (section != "critic" or config.credit.by_critic):
            kept.append((name, value))
    return tuple(kept)


# ---- the words


def suggestion(make_job: MakeJob) -> str:
    """What to change so that the recipe fits, as lines to paste, and the peak of each phase."""
    gib = make_job(()).rates.gib
    found = search(make_job)
    if not found:
        return (
            f"nothing that was tried fits {gib:g} GiB: use a smaller model, fewer tokens "
            "(rollout.max_response_tokens, data.max_prompt_tokens), or more GPUs (docs/scale.md)"
        )
    best, *others = found
    if best.changes:
        parts = [f"fits {gib:g} GiB with these settings in the recipe:", as_toml(best.changes)]
    else:
        parts = [f"fits {gib:g} GiB as it is"]
    parts.append(_peaks(best.memory))
    for other in others:
        parts.append("or, training all weights instead of adapters:")
        parts += [as_toml(other.changes), _peaks(other.memory)]
    parts.append(
        f"This is arithmetic, not a measurement. It leaves {1 - MARGIN:.0%} of the card free."
    )
    return "\n\n".join(parts)


def as_toml(settings: Settings) -> str:
    """The settings as sections of a recipe."""
    sections: dict[str, list[str]] = {}
    for name, value in settings:
        section, _, key = name.partition(".")
        plain = value.isdecimal() or value == "true"
        text = value if plain else f'"{value}"'
        sections.setdefault(section, [f"[{section}]"]).append(f"{key} = {text}")
    return "\n\n".join("\n".join(lines) for lines in sections.values())


def _peaks(memory: Memory) -> str:
    peaks = {phase: getattr(memory, phase) for phase in PHASES}
    cells = [f"{phase} {peak / GIB:.1f}" for phase, peak in peaks.items() if peak > 0]
    if memory.host:
        cells.append(f"in host memory {memory.host / GIB:.1f}")
    return f"peak of each phase, GiB: {', '.join(cells)}"
