"""A grid of samples: every condition under which a sentence may be said.

λ × γ × ending × tool tokens × length × outcome × token asked about are all combined. Whitening,
update, critic, KL, given or computed columns and value loss rotate through the cells with cycles of
different lengths, so that all pairs meet. Estimators without λ have cells of their own, and so do
samples whose advantages were whitened before they were given, or that have few columns.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from telescope.algorithms.definitions import ESTIMATORS
from telescope.explain.already_whitened import tell_apart
from telescope.explain.arithmetic import fill, moments
from telescope.explain.sample import ActorUpdate, CriticUpdate, Sample
from telescope.explain.settings import Settings

LAMS = (0.0, 0.5, 0.95, 1.0)
GAMMAS = (1.0, 0.9)
ENDINGS = ("ended", "cut", "stopped")
TOOLS = ("none", "middle", "tail")
LENGTHS = (1, 2, 6, 30)
OUTCOMES = (1.0, -0.5)
WHITENINGS = ("batch", "alone", "off", "batch", "given")
UPDATES = ("none", "first", "inside", "high", "low", "dual", "rejected")
CRITICS = (
    "none",
    "moved",
    "huber",
    "own_lam",
    "histogram",
    "plain",
    "near",
    "clipped",
    "none2",
    "far",
    "x",
)
KLS = (0.1, 0.0)
SOURCES = ("computed", "recorded", "computed")
RATIOS = {"first": 1.0, "inside": 1.1, "high": 1.5, "low": 0.6, "dual": 6.0, "rejected": 1.1}

OTHER_SETTINGS: tuple[dict[str, object], ...] = (
    {"loss": "cpi"},
    {"loss": "gspo"},
    {"loss": "cispo"},
    {"dual_clip": 3.0},
    {"kl_kind": "abs"},
    {"kl_kind": "mse"},
    {"kl_kind": "low_var_kl"},
    {"entropy_coef": 0.01},
    {"entropy_coef": 0.004, "entropy_target": 0.5},
    {"aggregation": "token-sum"},
    {"aggregation": "seq-mean-token-sum"},
    {"aggregation": "seq-mean-token-mean"},
    {"aggregation": "seq-mean-token-sum-norm"},
)


@dataclass(frozen=True)
class Cell:
    """A sample, the token asked about, and the conditions it was made for."""

    name: str
    sample: Sample
    token: int


def cells() -> Iterator[Cell]:
    """Every cell, the same ones each time."""
    number = 0
    combined = itertools.product(LAMS, GAMMAS, ENDINGS, TOOLS, LENGTHS, OUTCOMES)
    for lam, gamma, ending, tools, length, outcome in combined:
        for place in ("first", "middle", "last"):
            given = {"lam": lam, "gamma": gamma}
            name = f"λ={lam} γ={gamma} {ending} tools={tools} T={length} score={outcome} {place}"
            yield _cell(name, number, given, ending, tools, length, outcome, place)
            number += 1
    for lam, gamma in itertools.product(LAMS, GAMMAS):
        given = {"lam": lam, "gamma": gamma}
        for _ in range(3):
            yield _unrelated(f"λ={lam} γ={gamma} A and R do not follow", number, given)
            number += 1
    others = [name for name in ESTIMATORS.built_in if name != "gae"]
    combined = itertools.product(others, GAMMAS, ENDINGS, TOOLS, OUTCOMES)
    for estimator, gamma, ending, tools, outcome in combined:
        given = {"estimator": estimator, "gamma": gamma}
        name = f"{estimator} γ={gamma} {ending} tools={tools} score={outcome}"
        yield _cell(name, number, given, ending, tools, 6, outcome, "middle")
        number += 1
    combined = itertools.product(LAMS, GAMMAS, ENDINGS, (2, 6), (True, False))
    for lam, gamma, ending, length, whiten in combined:
        given = {"lam": lam, "gamma": gamma, "whiten": whiten}
        name = f"λ={lam} γ={gamma} {ending} T={length} whiten={whiten} already whitened"
        yield _already_whitened(name, number, given, ending, length)
        number += 1
    # Seven numbers in a row have seven different updates.
    for given, _ in itertools.product(OTHER_SETTINGS, UPDATES):
        place = ("first", "middle", "last")[number % 3]
        yield _cell(
            str(given), number, dict(given), "ended", "none", 6, OUTCOMES[number % 2], place
        )
        number += 1
    groups = [name for name in others if ESTIMATORS[name].needs.groups]
    for estimator, outcome, equal in itertools.product(groups, OUTCOMES, (True, False)):
        name = f"{estimator} score={outcome} no scale, equal={equal}"
        yield _without_scale(name, number, estimator, outcome, equal)
        number += 1
    yield from _kl_cells(number)
    yield from _typed_cells(number)


def _typed_cells(number: int) -> Iterator[Cell]:
    """Some columns alone, and rewards that are all above 0."""
    kinds = itertools.product(("critic", "actor", "dense"), GAMMAS, ENDINGS, (1, 6))
    for kind, gamma, ending, length in kinds:
        settings = Settings.of(lam=0.95, gamma=gamma, kl_coef=0.1)
        full = fill(_sample(random.Random(number), settings, ending, "none", length, 1.0))
        columns = _typed_columns(kind, full)
        sample = replace(full, columns=columns, whiten_mean=None, whiten_std=None)
        if kind == "critic":
            sample = _with_critic(sample, ("moved", "far")[number % 2])
        yield Cell(f"typed {kind} γ={gamma} {ending} T={length}", sample, number % length)
        number += 1


def _typed_columns(kind: str, full: Sample) -> dict[str, list[float]]:
    names = {
        "critic": ("values", "returns"),
        "actor": ("old_log_probs", "whitened"),
        "dense": ("values",),
    }
    columns = {name: full.columns[name] for name in names[kind]}
    if kind == "dense":
        columns["token_level_rewards"] = [0.02 + 0.1 * t for t in range(len(full))]
    return columns


def _unrelated(name: str, number: int, given: dict[str, object]) -> Cell:
    """Advantages and returns that do not follow from the other columns: a fault in a run."""
    cell = _cell(name, number, given, "ended", "none", 6, 1.0, "middle")
    chance = random.Random(number)
    wrong = {key: [round(chance.gauss(0.3, 0.5), 3) for _ in range(6)] for key in _CREDIT}
    columns = {**cell.sample.columns, **wrong}
    columns.pop("whitened", None)
    predicted = [replace(update, loss=[], clipped=[]) for update in cell.sample.critic_updates]
    sample = replace(cell.sample, columns=columns, critic_updates=predicted)
    return replace(cell, sample=sample)


_CREDIT = ("advantages", "returns")


def _already_whitened(
    name: str, number: int, given: dict[str, object], ending: str, length: int
) -> Cell:
    """Advantages as another framework records them: whitened, next to raw returns."""
    settings = Settings.of(**given, kl_coef=0.1)
    sample = fill(_sample(random.Random(number), settings, ending, "none", length, 1.0))
    mean, std = moments(sample.columns["advantages"])
    columns = {key: sample.columns[key] for key in ("token_level_rewards", "values", "returns")}
    columns["advantages"] = [(a - mean) / std for a in sample.columns["advantages"]]
    sample = replace(sample, columns=columns, whiten_mean=None, whiten_std=None)
    return Cell(name, tell_apart([sample])[0], number % length)


def _without_scale(name: str, number: int, estimator: str, outcome: float, equal: bool) -> Cell:
    """A response compared with its group without a division; `equal`: its outcome is the baseline."""
    cell = _cell(name, number, {"estimator": estimator}, "ended", "none", 6, outcome, "middle")
    inputs = ("old_log_probs", "ref_log_prob", "rollout_log_probs", "token_level_scores", "values")
    columns = {key: cell.sample.columns[key] for key in inputs if key in cell.sample.columns}
    bare = replace(cell.sample, columns=columns, scale=None, actor_updates=[], critic_updates=[])
    baseline = math.fsum(fill(bare).columns["token_level_rewards"]) if equal else 0.3
    columns["baselines"] = [baseline] * len(bare)
    return replace(cell, sample=bare)


def _cell(
    name: str,
    number: int,
    given: dict[str, object],
    ending: str,
    tools: str,
    length: int,
    outcome: float,
    place: str,
) -> Cell:
    whitening = WHITENINGS[number % len(WHITENINGS)]
    update = UPDATES[number % len(UPDATES)]
    critic = CRITICS[number % len(CRITICS)]
    source = SOURCES[number % len(SOURCES)]
    beta = KLS[number // 2 % len(KLS)]
    settings = _settings(given, whitening, update, critic, beta)
    sample = _sample(random.Random(number), settings, ending, tools, length, outcome)
    if whitening == "batch":
        sample = replace(sample, whiten_mean=0.12, whiten_std=0.4)
    if update != "none":
        sample = _with_update(sample, update)
    if critic not in ("none", "none2"):
        sample = _with_critic(sample, critic)
    if source == "recorded":
        sample = fill(sample)
    valid = [t for t, m in enumerate(sample.mask) if m]
    at = {"first": 0, "middle": len(valid) // 2, "last": -1}[place]
    tags = f"{whitening} update={update} critic={critic} {source} β={beta}"
    return Cell(f"{name} | {tags}", sample, valid[at])


def _settings(
    given: dict[str, object], whitening: str, update: str, critic: str, beta: float
) -> Settings:
    names: dict[str, object] = {**given, "kl_coef": beta, "clip_low": 0.2, "clip_high": 0.2}
    if whitening == "off":
        names["whiten"] = False
    if update == "dual":
        names["dual_clip"] = 3.0
    if update == "rejected":
        names |= {"reject": "token", "reject_high": 1.05}
    if critic == "huber":
        names |= {"value_loss": "huber", "huber_delta": 0.1}
    if critic == "histogram":
        names["value_loss"] = "hl_gauss"
    if critic == "own_lam" and "estimator" not in given:
        names["lam_critic"] = 1.0
    if critic == "plain":
        names["clip_value"] = None
    return _made(**names)


@functools.cache
def _made(**names: object) -> Settings:
    return Settings.of(**names)


def _sample(
    chance: random.Random,
    settings: Settings,
    ending: str,
    tools: str,
    length: int,
    outcome: float,
) -> Sample:
    mask = _mask(tools, length)
    size = len(mask)
    old = [-chance.uniform(0.05, 2.0) for _ in mask]
    last = max(t for t, m in enumerate(mask) if m)
    scores = [0.0] * size
    scores[last] = outcome
    columns = {
        "old_log_probs": old,
        "ref_log_prob": [x + chance.gauss(0.0, 0.4) for x in old],
        "token_level_scores": scores,
    }
    if settings.estimator_definition.needs.critic:
        columns["values"] = [round(chance.uniform(-0.2, 0.9), 3) * m for m in mask]
    else:
        columns["values"] = [0.0] * size
        columns["baselines"] = [0.3 * m for m in mask]
        columns["attention"] = [m / sum(mask) for m in mask]
    if settings.actor.reject != "off":
        columns["rollout_log_probs"] = [x - 0.1 * (t % 2) for t, x in enumerate(old)]
    bootstraps = ending == "cut" and settings.estimator_definition.needs.critic
    return Sample(
        token_ids=list(range(size)),
        token_bytes=[f"w{t}".encode() for t in range(size)],
        mask=mask,
        columns=columns,
        settings=settings,
        score=outcome,
        parts={"task": outcome},
        truncated=ending != "ended",
        bootstrap=0.35 if bootstraps else 0.0,
        scale=0.4 if settings.estimator_definition.needs.groups else None,
    )


def _kl_cells(number: int) -> Iterator[Cell]:
    """Other KL estimates, and a KL in the loss as well."""
    kinds = itertools.product(("abs", "k2", "k3"), (0.0, 0.05), OUTCOMES)
    for kind, weight, outcome in kinds:
        given: dict[str, object] = {"lam": 0.95, "kl_kind": kind, "kl_loss_coef": weight}
        name = f"λ=0.95 kl={kind} in the loss={weight} score={outcome}"
        yield _cell(name, number, given, "ended", "none", 6, outcome, "middle")
        number += 1


def _mask(tools: str, length: int) -> list[int]:
    mask = [1] * length
    if tools == "middle":
        middle = max(length // 2, 1)
        return [*mask[:middle], 0, 0, *mask[middle:]]
    return [*mask, 0] if tools == "tail" else mask


def _with_update(sample: Sample, update: str) -> Sample:
    old = sample.columns["old_log_probs"]
    step = math.log(RATIOS[update])
    new = [x + step for x in old]
    return replace(sample, actor_updates=[ActorUpdate(0, 0, old, new, [], [], [], [])])


def _with_critic(sample: Sample, critic: str) -> Sample:
    moves = {"far": 0.9, "clipped": 0.7, "near": 0.01}
    move = moves.get(critic, 0.1)
    values = [(v + move) * m for v, m in zip(sample.columns["values"], sample.mask, strict=True)]
    return replace(sample, critic_updates=[CriticUpdate(0, 0, values, [], [])])
