"""Estimators and losses that can be tried on a recorded step, and why others cannot."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from telescope.algorithms.definitions import ESTIMATORS, POLICY_LOSSES
from telescope.algorithms.definitions.base import Actions, Definition, Estimator, PolicyLoss, Words
from telescope.algorithms.definitions.critic import DELTAS
from telescope.explain.settings import Settings
from telescope.viewer.recorded import RecordedStep

NO_CRITIC = Words(
    zh="这次训练没有 critic，没有记录 V",
    en="this run has no critic: V was not recorded",
)
NO_GROUPS = Words(
    zh="每个提示只记录了一条回答，没有同组的回答可比",
    en="only one response of each prompt was recorded: there is no group to compare with",
)
NO_GREEDY = Words(
    zh="没有记录贪心回答的得分",
    en="the score of the greedy response was not recorded",
)
NO_SQUARES = Words(
    zh="没有记录每个位置的 Σπ²",
    en="Σπ² of each position was not recorded",
)
NO_ATTENTION = Words(
    zh="没有记录每个 token 的权重",
    en="a weight for each token was not recorded",
)
NO_PARTS = Words(
    zh="得分各部分的权重不知道",
    en="the weights of the score's parts are not known",
)
NOT_HERE = Words(
    zh="它的定义不在这里",
    en="its definition is not available here",
)
NO_UPDATES = Words(
    zh="没有记录策略的更新",
    en="no update of the policy was recorded",
)
NOT_MARKED = Words(
    zh="它在更新之前要标记一些 token，没有记录是哪些",
    en="it marks tokens before the update, and which ones was not recorded",
)


@dataclass(frozen=True)
class Setting:
    """A number that can be tried."""

    name: str
    value: float | None
    """As in the run, or the definition's own."""
    low: float | None
    high: float | None
    integer: bool
    optional: bool
    """None is a value too."""
    about: str


@dataclass(frozen=True)
class Offer:
    """An estimator or a loss."""

    name: str
    """As a recipe names it; for the user's own one that is file.py:object."""
    label: str
    formula: str
    words: Words
    settings: tuple[Setting, ...]
    needs: Mapping[str, bool]
    whiten: bool = False
    """Whether the run would whiten with it."""
    discounts: bool = False
    """Whether γ changes its advantages."""
    recursion: float | str | None = None
    """A[i] = δ[i] + γλ·A[i⁺] with this λ, or with the setting of this name. None: it is not."""
    why_not: Words | None = None
    note: Words | None = None

    def to_json(self) -> dict[str, Any]:
        own = {setting.name: setting for setting in self.settings}
        return {
            "name": self.name,
            "label": self.label,
            "formula": self.formula,
            "words": _both(self.words),
            "settings": [asdict(setting) for setting in self.settings],
            "needs": dict(self.needs),
            "whiten": self.whiten,
            "discounts": self.discounts,
            "recursion": self.recursion,
            "lam": own["lam"].value if "lam" in own else None,
            "n": own["n"].value if "n" in own else None,
            "available": self.why_not is None,
            "why_not": _both(self.why_not),
            "note": _both(self.note),
        }


def _both(words: Words | None) -> dict[str, str] | None:
    return None if words is None else {"zh": words.zh, "en": words.en}


def offers(step: RecordedStep) -> list[Offer]:
    """Every estimator that is known here: built in, of installed packages, and the run's own."""
    recorded = step.settings
    known = {name: ESTIMATORS[name] for name in ESTIMATORS}
    known.setdefault(recorded.estimator, recorded.estimator_definition)
    return [_offer(step, name, definition) for name, definition in known.items()]


def _offer(step: RecordedStep, name: str, definition: Estimator) -> Offer:
    tried = step.settings.change(estimator=name)
    left_to_estimator = step.settings.whiten == step.settings.estimator_definition.whiten
    needs = asdict(definition.needs)
    discounts, recursion = _found_by_trying(tried)
    return Offer(
        name=name,
        label=definition.name,
        formula=definition.formula,
        words=definition.words,
        settings=tuple(settings_of(definition, tried.credit)),
        needs={need: wanted for need, wanted in needs.items() if wanted},
        whiten=definition.whiten if left_to_estimator else step.settings.whiten,
        discounts=discounts,
        recursion=recursion,
        why_not=why_not(step, definition),
        note=_note(step, definition),
    )


def why_not(step: RecordedStep, definition: Estimator) -> Words | None:
    """Why the recorded columns do not allow this estimator; None: they do."""
    needs = definition.needs
    missing = {
        NOT_HERE: not definition.rules,
        NO_CRITIC: needs.critic and not step.has_critic,
        NO_GROUPS: needs.groups and not step.has_groups,
        NO_GREEDY: needs.greedy_baseline and step.of_rows("greedy_score") is None,
        NO_SQUARES: needs.sum_pi_squared and step.column("sum_pi_squared") is None,
        NO_ATTENTION: needs.attention and step.column("attention") is None,
        NO_PARTS: needs.score_parts and not step.part_weights,
    }
    return next((reason for reason, applies in missing.items() if applies), None)


def _note(step: RecordedStep, definition: Estimator) -> Words | None:
    """What to know about a comparison within groups of which a part was recorded."""
    cut = len(step.incomplete_groups)
    if not definition.needs.groups or not cut:
        return None
    every = len(step.groups)
    size = step.group_size
    return Words(
        zh=f"{every} 组中有 {cut} 组没有记全（每组 {size} 条）：只和记录下来的回答比较",
        en=f"{cut} of {every} groups were recorded in part ({size} responses each): "
        "the comparison takes the recorded ones",
    )


def settings_of(definition: Definition, section: Any) -> Iterator[Setting]:
    """The numbers among a definition's own settings, with their limits."""
    for name, info in definition.settings.model_fields.items():
        kinds = str(info.annotation)
        if "float" not in kinds and "int" not in kinds:
            continue
        limits = {type(limit).__name__: limit for limit in info.metadata}
        low = getattr(limits.get("Ge"), "ge", getattr(limits.get("Gt"), "gt", None))
        high = getattr(limits.get("Le"), "le", getattr(limits.get("Lt"), "lt", None))
        yield Setting(
            name=name,
            value=getattr(section, name, info.default),
            low=low,
            high=high,
            integer="float" not in kinds,
            optional="None" in kinds,
            about=info.description or "",
        )


# ---- found by trying ----


@functools.lru_cache(256)
def _found_by_trying(settings: Settings) -> tuple[bool, float | str | None]:
    """Whether γ changes the estimator's advantages, and its λ if they are GAE's."""
    definition = settings.estimator_definition
    return _discounts(definition, settings), _recursion(definition, settings)


def _tried(definition: Estimator, settings: Settings) -> Actions:
    """Three tokens of the first of two responses, with their credit."""
    columns = {
        "token_level_rewards": [0.1, -0.2, 1.0],
        "values": [0.5, 0.7, 0.2],
        "old_log_probs": [-0.1, -0.2, -0.3],
        "sum_pi_squared": [0.5, 0.6, 0.7],
        "attention": [0.2, 0.5, 0.3],
    }
    responses = [Actions(columns, bootstrap=0.4) for _ in range(2)]
    for response in responses:
        DELTAS.apply(response, settings)
    definition.fill_group(responses, settings.credit)
    return responses[0]


def _discounts(definition: Estimator, settings: Settings) -> bool:
    if not definition.rules:
        return False
    found = [_tried(definition, settings.change(gamma=gamma)) for gamma in (1.0, 0.5)]
    known = [x["advantages"] for x in found if "advantages" in x]
    return len(known) == 2 and known[0] != known[1]


def _recursion(definition: Estimator, settings: Settings) -> float | str | None:
    """λ of an estimator whose advantages are GAE's: a number, or the setting that holds it."""
    if definition.lam is None or definition.compare is not None:
        return None
    has_setting = "lam" in definition.settings.model_fields
    lams = (0.3, 0.8) if has_setting else (None,)
    for lam in lams:
        changed = settings if lam is None else settings.change(lam=lam, lam_alpha=None)
        if not _is_gae(definition, changed):
            return None
    return "lam" if has_setting else definition.lam(settings.credit, 1)


def _is_gae(definition: Estimator, settings: Settings) -> bool:
    """Whether three tokens get GAE's advantages."""
    actions = _tried(definition, settings)
    assert definition.lam is not None
    decay = settings.gamma * definition.lam(settings.credit, len(actions))
    expected = 0.0
    for delta, found in zip(actions["deltas"][::-1], actions["advantages"][::-1], strict=True):
        expected = delta + decay * expected
        if not math.isclose(expected, found, abs_tol=1e-9):
            return False
    return True


# ---- policy losses ----


def loss_offers(step: RecordedStep) -> list[Offer]:
    """Every policy loss that is known here."""
    recorded = step.settings
    known: dict[str, PolicyLoss] = {name: POLICY_LOSSES[name] for name in POLICY_LOSSES}
    own = recorded.policy_loss_definition
    if own is not None:
        known.setdefault(recorded.loss, own)
    return [_loss_offer(step, name, definition) for name, definition in known.items()]


def _loss_offer(step: RecordedStep, name: str, definition: PolicyLoss) -> Offer:
    tried = step.settings.change(loss=name)
    reason = NO_UPDATES if step.update is None else None
    if reason is None and definition.select is not None and not _are_marked(step):
        reason = NOT_MARKED
    return Offer(
        name=name,
        label=definition.name,
        formula=definition.formula,
        words=definition.words,
        settings=tuple(settings_of(definition, tried.actor)),
        needs={},
        why_not=reason,
    )


def _are_marked(step: RecordedStep) -> bool:
    """Whether the run's own loss marked tokens."""
    own = step.settings.policy_loss_definition
    return (
        own is not None
        and own.select is not None
        and any(np.any(row) for row in (step.update or {}).get("selected", []))
    )
