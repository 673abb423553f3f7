"""The cases of benchmarks/doctor.py: planted faults and healthy runs.

A case changes settings, multiplies some, or breaks the trainer by a patch. A patch breaks one line
the way that the bug would in somebody's own trainer.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from telescope.config import Config

HERE = Path(__file__).resolve().parent
REWARDS = HERE / "_doctor_rewards.py"
RECIPE = HERE.parent / "recipes" / "smollm2-arithmetic.toml"
SEEDS = (0, 1, 2)
STALE_UPDATES = 8
SAMPLER_TEMPERATURE = 1.5

Patch = Callable[[Any], "Iterator[None] | None"]
"""Breaks a trainer; a generator function also mends what it broke outside of the trainer."""

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


# ---- patches


def sampler_temperature(trainer: Any) -> None:
    """The sampler draws at another temperature than the one that the trainer assumes."""
    sampler = trainer.roles.actor.sampler
    sampler.config = sampler.config.model_copy(update={"temperature": SAMPLER_TEMPERATURE})


def value_after_token(trainer: Any) -> Iterator[None]:
    """The critic's shift by one is missing: V[i] has seen token i."""
    from telescope.models.forward import ValueOutput
    from telescope.roles import critic

    right = critic.value_forward

    def unshifted(model: Any, batch: Any) -> ValueOutput:
        found = right(model, batch)
        lengths = batch["response_mask"].sum(1).long()
        values = found.values.roll(-1, dims=1)
        rows = lengths > 0
        last = (lengths - 1).clamp(min=0)
        index = rows.nonzero().squeeze(1)
        values = values.index_put((index, last[index]), found.final[index])
        return found._replace(values=values)

    critic.value_forward = unshifted
    yield
    critic.value_forward = right


def stale_samples(trainer: Any) -> None:
    """The sampler has the weights of some updates ago, and says so."""
    sampler = trainer.roles.actor.sampler
    sampler.model = copy.deepcopy(sampler.model)
    history: dict[int, dict[str, Any]] = {}

    def load_weights(named: Any, version: int) -> None:
        if version not in history:
            history[version] = {name: weight.clone() for name, weight in named}
        old = max(version - STALE_UPDATES, min(history))
        sampler.model.load_state_dict(history[old], strict=False)
        sampler.version = old
        for forgotten in [past for past in history if past < old]:
            del history[forgotten]

    sampler.load_weights = load_weights


def sign_flipped(trainer: Any) -> Iterator[None]:
    """The advantage reaches the loss with the wrong sign."""
    import telescope.trainer as module

    right = module.compute_advantages

    def flipped(batch: Any, *given: Any, **named: Any) -> Any:
        credited = right(batch, *given, **named)
        return credited.with_columns(whitened=-credited["whitened"])

    module.compute_advantages = flipped
    yield
    module.compute_advantages = right


def one_prompt(trainer: Any) -> None:
    """The data has one prompt, again and again."""
    data = trainer.dataloader.data
    for name in ("ids", "texts", "data"):
        setattr(data, name, getattr(data, name)[:1])


def foreign_form(trainer: Any) -> None:
    """Prompts come in a form that the model has never seen, without its chat template."""
    tokenizer = trainer.roles.actor.tokenizer
    for data in (trainer.dataloader.data, trainer.held_out):
        data.texts = [f"Q: {text} A:" for text in data.texts]
        data.ids = [tokenizer(text).input_ids for text in data.texts]


def broken_tool(trainer: Any) -> None:
    """Every call of the tool raises."""
    environment = trainer.roles.actor.tools.environment
    answer = environment.step

    def fail(state: Any, text: str) -> str | None:
        if answer(state, text) is not None:
            raise ConnectionError("the service is not reachable")
        return None

    environment.step = fail


# ---- cases


@dataclass(frozen=True)
class Case:
    """A run to make: what differs from the base, and which findings are right."""

    name: str
    what: str
    expected: tuple[str, ...] = ()
    """Findings that name the cause; none: the run is healthy."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    """Settings of the base that are multiplied."""
    reward: str = ""
    """A function of _doctor_rewards.py instead of the task's own."""
    patch: Patch | None = None
    toy: str = ""
    """A built-in task with a tool: it has a model of its own."""

    @property
    def is_faulty(self) -> bool:
        return bool(self.expected)


FAULTS = (
    Case("lr-high", "actor lr × 100", ("lr_too_high",), factors={"actor.lr": 100}),
    Case("lr-low", "actor lr × 0.001", ("lr_too_low",), factors={"actor.lr": 0.001}),
    Case(
        "bonus",
        "entropy bonus of 1.0",
        ("entropy_explosion",),
        settings={"actor.entropy_coef": 1.0},
    ),
    Case(
        "cut-off",
        "limit of 4 tokens, an answer needs 7",
        ("mostly_truncated",),
        settings={"rollout.max_response_tokens": 4},
    ),
    Case("dead-critic", "critic lr 1e-9", ("critic_useless",), settings={"critic.lr": 1e-9}),
    Case("constant", "reward is 0.5 for everything", ("constant_reward",), reward="constant"),
    Case(
        "partial",
        "partial credit for large numbers, the full mark is never reached",
        ("partial_credit", "over_optimisation"),
        reward="larger",
    ),
    Case(
        "flat-groups",
        "GRPO, the score depends on the prompt alone",
        ("flat_groups",),
        settings={"credit.estimator": "grpo", "rollout.batch_size": 8, "rollout.n": 4},
        reward="prompt_only",
    ),
    Case(
        "mismatch",
        f"sampler at temperature {SAMPLER_TEMPERATURE}, trainer at 1",
        ("other_temperature", "sampler_mismatch"),
        patch=sampler_temperature,
    ),
    Case("value-shift", "V has seen its token", ("values_after_token",), patch=value_after_token),
    Case("stale", f"samples {STALE_UPDATES} updates old", ("stale_samples",), patch=stale_samples),
    Case("one-prompt", "one prompt repeated", ("repeated_data",), patch=one_prompt),
)

UNSEEN = (
    Case(
        "value-clip",
        "clip_value 0.0001",
        ("value_clip_binds",),
        settings={"critic.clip_value": 1e-4},
    ),
    Case("sign", "advantage with the wrong sign", ("law_broken",), patch=sign_flipped),
    Case("reward-scale", "scores × 100", ("reward_scale",)),
    Case(
        "tool", "calculator always fails", ("failing_tools",), patch=broken_tool, toy="calculator"
    ),
    Case("form", "prompts in a foreign form", ("prompt_format",), patch=foreign_form),
)
"""Faults that no threshold was tuned on, with any seed."""

GROUPS = {"rollout.batch_size": 8, "rollout.n": 4}

HEALTHY = (
    Case("base", "the built-in job"),
    Case("lambda-1", "λ = 1", settings={"credit.lam": 1.0}),
    Case("grpo", "GRPO, 4 per prompt", settings={"credit.estimator": "grpo", **GROUPS}),
    Case("rloo", "RLOO, 4 per prompt", settings={"credit.estimator": "rloo", **GROUPS}),
    Case("reinforce", "REINFORCE++", settings={"credit.estimator": "reinforce++"}),
    Case("lr-half", "actor lr × 0.5", factors={"actor.lr": 0.5}),
    Case("lr-quarter", "actor lr × 0.25", factors={"actor.lr": 0.25}),
    Case(
        "lora", "LoRA of rank 8, lr × 5", settings={"model.lora_rank": 8}, factors={"actor.lr": 5}
    ),
    Case("kl-off", "no KL penalty", settings={"credit.kl_coef": 0.0}),
    Case("no-bonus", "no entropy bonus", settings={"actor.entropy_coef": 0.0}),
    Case("long-limit", "limit of 16 tokens", settings={"rollout.max_response_tokens": 16}),
    Case("calculator", "the built-in job with a calculator", toy="calculator"),
)

CASES = FAULTS + HEALTHY + UNSEEN


def is_for_tuning(case: Case, seed: int) -> bool:
    """Whether a run is in the half that thresholds may look at.

    The halves alternate: even cases tune on seeds 0 and 2, odd ones on seed 1. Unseen faults are
    never tuned on.
    """
    return case not in UNSEEN and (CASES.index(case) + seed) % 2 == 0


# ---- settings


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"actor.lr": 1} as {"actor": {"lr": 1}}."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        section = reduce(lambda inner, part: inner.setdefault(part, {}), sections, tree)
        section[name] = value
    return tree


def base_settings(case: Case, model: str, device: str) -> dict[str, Any]:
    """The job that a case changes: the built-in one, or the SmolLM2 recipe with `model`."""
    import tomllib

    from telescope.config import BUILTIN_RECIPE
    from telescope.config.load import merge

    if case.toy:
        tool = {"rollout.environment": case.toy, "rollout.max_response_tokens": 32}
        recipe = merge(tomllib.loads(BUILTIN_RECIPE.read_text("utf-8")), nested(tool))
    elif model == "builtin":
        recipe = tomllib.loads(BUILTIN_RECIPE.read_text("utf-8"))
    else:
        recipe = tomllib.loads(RECIPE.read_text("utf-8"))
        large = {**SMALL, "rollout": {"batch_size": 128}, "actor": {}, "critic": {}}
        return merge(merge(recipe, large), {"model": {"path": model}, "device": device})
    return merge(merge(recipe, SMALL), {"device": device})


def settings_of(case: Case, seed: int, *, model: str, device: str) -> dict[str, Any]:
    """Everything that a case's run sets, besides where it is."""
    from telescope.config.load import merge

    base = base_settings(case, model, device)
    changed = dict(case.settings)
    for key, factor in case.factors.items():
        section, name = key.split(".")
        changed[key] = base[section][name] * factor
    if case.reward:
        changed["reward.functions"] = [f"{REWARDS}:{case.reward}"]
    if case.name == "reward-scale":
        parts = ("verdict", "sum") if model == "builtin" else ("gym_score",)
        changed["reward.weights"] = dict.fromkeys(parts, 100.0 / len(parts))
        changed["eval.correct_score"] = 100.0
    return merge(merge(base, nested(changed)), {"seed": seed})


def config_of(
    case: Case, seed: int, folder: Path, *, model: str = "builtin", device: str = "cpu"
) -> Config:
    """The settings of a case's run, in its folder."""
    from telescope.config.load import merge, validate

    place = {"name": f"{case.name}-{seed}", "dir": str(folder)}
    return validate(merge(settings_of(case, seed, model=model, device=device), place))


def digest_of(case: Case, seed: int, *, model: str, device: str) -> str:
    """Changes if the run would be another one."""
    settings = settings_of(case, seed, model=model, device=device)
    settings.get("reward", {}).pop("functions", None)  # a path; the case names the function
    told = json.dumps([case.what, case.reward, settings], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


@contextmanager
def broken(case: Case, trainer: Any) -> Iterator[None]:
    """Applies a case's patch for as long as the trainer is used."""
    with ExitStack() as mending:
        made = case.patch(trainer) if case.patch else None
        if made is not None:
            next(made)
            mending.callback(next, made, None)
        yield
