"""The settings of a run of benchmarks/doctor.py, from its case and its job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _doctor_cases import REWARDS, Case

if TYPE_CHECKING:
    from telescope.config import Config

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "smollm2-arithmetic.toml"
LARGE_BATCH = 128
"""Responses per step with another model than the built-in one."""

SMALL: dict[str, Any] = {
    "steps": 40,
    "rollout": {"batch_size": 32},
    "actor": {"lr": 4e-4, "epochs": 1, "minibatches": 2},
    "critic": {"epochs": 1, "minibatches": 2},
    "eval": {"every": 10, "samples": 64, "prompts": 64},
    "checkpoint": {"every": 0, "keep": 1},
    "ledger": {"samples": "all"},
    "log": {"every": 1000},
}
"""What makes the built-in job small enough for one core: it still learns."""


@dataclass(frozen=True)
class Job:
    """What every case changes: a model, and where and how long it is trained."""

    model: str = "builtin"
    device: str = "cpu"
    steps: int | None = None
    responses: int | None = None
    """Per step."""


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"actor.lr": 1} as {"actor": {"lr": 1}}."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        section = reduce(lambda inner, part: inner.setdefault(part, {}), sections, tree)
        section[name] = value
    return tree


def base_settings(case: Case, job: Job) -> dict[str, Any]:
    """The job that a case changes: the built-in one, or the SmolLM2 recipe with its model."""
    import tomllib

    from telescope.config import BUILTIN_RECIPE
    from telescope.config.load import merge

    if case.toy:
        tool = {"rollout.environment": case.toy, "rollout.max_response_tokens": 32}
        recipe = merge(tomllib.loads(BUILTIN_RECIPE.read_text("utf-8")), nested(tool))
    elif job.model == "builtin":
        recipe = tomllib.loads(BUILTIN_RECIPE.read_text("utf-8"))
    else:
        recipe = tomllib.loads(RECIPE.read_text("utf-8"))
        large = {**SMALL, "rollout": {"batch_size": LARGE_BATCH}, "actor": {}, "critic": {}}
        recipe = merge(merge(recipe, large), {"model": {"path": job.model}})
        return merge(recipe, {"device": job.device})
    return merge(merge(recipe, SMALL), {"device": job.device})


def settings_of(case: Case, seed: int, job: Job) -> dict[str, Any]:
    """Everything that a case's run sets, besides where it is."""
    from telescope.config.load import merge

    base = base_settings(case, job)
    changed = dict(case.settings)
    for key, factor in case.factors.items():
        section, name = key.split(".")
        changed[key] = base[section][name] * factor
    if case.reward:
        changed["reward.functions"] = [f"{REWARDS}:{case.reward}"]
    if case.name == "reward-scale":
        parts = ("verdict", "sum") if job.model == "builtin" else ("gym_score",)
        changed["reward.weights"] = dict.fromkeys(parts, 100.0 / len(parts))
        changed["eval.correct_score"] = 100.0
    responses = job.responses or base["rollout"]["batch_size"]
    changed["rollout.batch_size"] = case.settings.get("rollout.batch_size", responses)
    if "rollout.n" in case.settings:
        changed["rollout.batch_size"] = max(responses // case.settings["rollout.n"], 1)
    if job.steps:
        changed["steps"] = job.steps
    return merge(merge(base, nested(changed)), {"seed": seed})


def config_of(case: Case, seed: int, folder: Path, job: Job = Job()) -> Config:  # noqa: B008
    """The settings of a case's run, in its folder."""
    from telescope.config.load import merge, validate

    place = {"name": f"{case.name}-{seed}", "dir": str(folder)}
    return validate(merge(settings_of(case, seed, job), place))


def digest_of(case: Case, seed: int, job: Job) -> str:
    """Changes if the run would be another one."""
    settings = settings_of(case, seed, job)
    settings.get("reward", {}).pop("functions", None)  # a path; the case names the function
    told = json.dumps([case.what, case.reward, settings], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


@contextmanager
def broken(case: Case, trainer: Any) -> Iterator[None]:
    """Applies a case's patch for as long as the trainer is used."""
    patched = case.patch(trainer) if case.patch else None
    with patched or nullcontext():
        yield
