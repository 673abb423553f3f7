"""One response with every number PPO computed for it: what a trace, a table or a page shows.

It comes from a ledger row, from numbers typed by hand (then they are `Typed`, with the precision of
their digits), or from running all roles on a prompt and a response. Per-token lists are as long as
the response, without padding; `None` stands for what is not known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from telescope.explain.settings import Settings

SAMPLE_COLUMNS = (
    "rollout_log_probs",
    "old_log_probs",
    "ref_log_prob",
    "values",
    "token_level_scores",
    "kl",
    "token_level_rewards",
    "deltas",
    "attention",
    "baselines",
    "advantages",
    "returns",
    "whitened",
    "entropy",
)
"""Columns of the batch that a sample may have, in the order in which PPO makes them."""


@dataclass(frozen=True)
class ActorUpdate:
    """What the policy loss computed for this response in one minibatch."""

    epoch: int
    minibatch: int
    """Epoch and minibatch are −1 if the numbers were typed by hand."""
    old_log_probs: list[float]
    """As the loss used them. In the first minibatch they are the policy's own: the ratio is 1."""
    log_probs: list[float]
    ratio: list[float] = field(default_factory=list)
    clipped: list[bool] = field(default_factory=list)
    dual_clipped: list[bool] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    """What each token's loss was multiplied by: importance weights for the sampler's mismatch; 0:
    the token was rejected or masked."""
    selected: list[bool] = field(default_factory=list)
    """Tokens that the loss marked before the update."""
    top_entropy: list[bool] = field(default_factory=list)
    """Tokens among the `actor.top_entropy` with the largest entropy."""


@dataclass(frozen=True)
class CriticUpdate:
    """What the value loss computed for this response in one minibatch."""

    epoch: int
    minibatch: int
    values: list[float]
    """V under the weights of this update. The values of the rollout are a column of the sample."""
    clipped: list[bool] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    log_p: list[list[float]] = field(default_factory=list)
    """HL-Gauss: log p of the bins around the target, from `first_bin` on."""
    first_bin: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Remark:
    """A sentence about a recorded step, in both languages."""

    zh: str
    en: str

    def said(self, lang: str) -> str:
        return self.zh if lang == "zh" else self.en


@dataclass(frozen=True)
class Sample:
    """A response: its tokens, their columns, and the updates it took part in."""

    token_ids: list[int]
    token_bytes: list[bytes]
    """UTF-8 pieces; one Chinese character may be split over several tokens."""
    mask: list[int]
    """1 = the policy chose the token; 0 = a tool wrote it, or it is padding."""
    columns: dict[str, list[float]]
    settings: Settings = field(default_factory=Settings.of)
    run: str = ""
    step: int = 0
    index: int = 0
    count: int = 1
    """Samples recorded for the step."""
    policy_version: int = 0
    prompt: str = ""
    prompt_index: int = 0
    """Responses to one prompt have the same: they are a group."""
    response: str = ""
    score: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    """Other columns of the prompt's row in the data, such as the right answer."""
    truncated: bool = False
    bootstrap: float = 0.0
    """V after the last token of a truncated response if the run bootstraps from it, else 0."""
    scale: float | None = None
    """What an estimator without a critic divides by."""
    greedy_score: float | None = None
    """Score of the greedy response to the same prompt, where it was typed."""
    part_weights: dict[str, float] = field(default_factory=dict)
    """How much each of `parts` counts, where that was typed."""
    reward_mean: float | None = None
    reward_std: float | None = None
    """μ_r and σ_r of the batch, where `credit.whiten_rewards` divided the rewards by σ_r."""
    whiten_mean: float | None = None
    whiten_std: float | None = None
    """μ and σ of the whole batch, σ = sqrt(variance + 1e-8): whitened = (A − μ)/σ."""
    already_whitened: bool = False
    """The given advantages turned out to be whitened ones: they are in `whitened`, and the raw ones
    are known only if rewards or returns give them. Name the row `whitened`, or set
    `whiten = false`, to say so."""
    actor_updates: list[ActorUpdate] = field(default_factory=list)
    critic_updates: list[CriticUpdate] = field(default_factory=list)
    faults: tuple[Remark, ...] = ()
    """What a check of another trainer's batch found wrong."""
    rules: tuple[Remark, ...] = ()
    """Where another trainer's rules differ from ours: shown where a number does not agree."""
    assumed: tuple[str, ...] = ()
    """Settings that another trainer did not say and its numbers do not show."""
    rounding: dict[str, float] = field(default_factory=dict)
    """Column in half precision -> how far a number may be off by rounding, relative to itself."""
    padding: dict[int, dict[str, float]] = field(default_factory=dict)
    """Numbers typed by hand after the last valid token: slot -> column -> number.
    They are shown, but nothing is computed from them."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @functools.cached_property
    def written(self) -> list[int]:
        """Indices of the valid tokens: those that the policy wrote."""
        return [t for t, m in enumerate(self.mask) if m]

    def numbers(self, name: str) -> list[float]:
        """A column at the valid tokens."""
        column = self.columns[name]
        return [column[t] for t in self.written]

    def spread(self, numbers: Sequence[float]) -> list[float]:
        """A column with these numbers at the valid tokens, and 0 elsewhere."""
        column = [0.0] * len(self)
        for t, x in zip(self.written, numbers, strict=True):
            column[t] = x
        return column

    def to_json(self) -> dict[str, Any]:
        """The sample as JSON: bytes become lists of numbers, NaN and infinity become null."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["settings"] = self.settings.by_name()
        plain["token_bytes"] = [list(piece) for piece in self.token_bytes]
        plain["actor_updates"] = [asdict(update) for update in self.actor_updates]
        plain["critic_updates"] = [asdict(update) for update in self.critic_updates]
        for name in ("faults", "rules"):
            plain[name] = [asdict(remark) for remark in plain[name]]
        finite: dict[str, Any] = _finite(plain)
        return finite


def _finite(value: Any) -> Any:
    """`value` with None in place of every NaN and infinity."""
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_finite(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
