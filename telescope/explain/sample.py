"""One response with every number PPO computed for it: what a trace, a table or a page is made from.

It comes from a ledger row, from numbers typed by hand, or from running the four roles on a prompt and a response.
Per-token lists are as long as the response, padding left out; `None` stands for what is not known.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

PER_TOKEN = (
    "rollout_log_probs", "old_log_probs", "ref_log_prob", "values", "token_level_scores", "kl",
    "token_level_rewards", "deltas", "attention", "baselines", "advantages", "returns", "whitened",
)  # fmt: skip
"""Columns of the batch (telescope.batch.COLUMNS) that a sample may have, in the order in which PPO makes them."""


@dataclass(frozen=True)
class Settings:
    """The scalars that went into the numbers."""

    estimator: str = "gae"
    gamma: float = 1.0
    lam: float = 0.95
    kl_coef: float = 0.0
    kl_kind: str = "k1"
    whiten: bool = True
    loss: str = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    clip_value: float | None = 0.2
    temperature: float = 1.0
    kl_loss_coef: float = 0.0
    kl_loss_kind: str = "k3"
    """KL to the reference in the actor's loss, besides or instead of the one in the rewards (kl_coef, kl_kind)."""
    lam_critic: float | None = None
    """λ of the critic's targets, where it is another."""
    lam_alpha: float | None = None
    """In place of lam: λ = 1 − 1/(this × tokens of the response)."""
    last_k: int = 1
    """Tokens at the end that share the outcome, where the estimator is last_token."""
    beta: float = 1.0
    tau_positive: float = 1.0
    tau_negative: float = 1.05
    ratio_cap: float = 20.0
    importance: str = "off"
    importance_cap: float = 2.0
    reject: str = "off"
    reject_low: float = 0.5
    reject_high: float = 2.0
    huber_delta: float | None = None
    """None: the critic's error is squared."""
    bins: int = 0
    """Of the critic's histogram, from value_low to value_high; 0: it says a number."""
    value_low: float = 0.0
    value_high: float = 0.0
    value_sigma: float = 0.0
    """σ of the Gaussian around a return, in the units of the returns."""


@dataclass(frozen=True)
class ActorUpdate:
    """What the policy loss computed for this response in one minibatch."""

    epoch: int
    minibatch: int
    """Both −1: of no run, but typed by hand."""
    old_log_probs: list[float]
    """As the loss used them: in the first minibatch they are the policy's own, so that the ratio is exactly 1."""
    log_probs: list[float]
    ratio: list[float]
    clipped: list[bool]
    dual_clipped: list[bool]
    loss: list[float]
    weight: list[float] = field(default_factory=list)
    """What the loss was multiplied by for the sampler's mismatch; 0: rejected."""
    selected: list[bool] = field(default_factory=list)
    """Tokens that clip_cov or kl_cov treats apart."""


@dataclass(frozen=True)
class CriticUpdate:
    """What the value loss computed for this response in one minibatch."""

    epoch: int
    minibatch: int
    values: list[float]
    """V under the weights of that moment; the values of the rollout are the sample's own column."""
    clipped: list[bool]
    loss: list[float]
    log_p: list[list[float]] = field(default_factory=list)
    """Of the bins from first_bin on, which hold the target."""
    first_bin: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    token_ids: list[int]
    token_bytes: list[bytes]
    """UTF-8 pieces; one Chinese character may be split over several tokens."""
    mask: list[int]
    """1 = the policy chose the token; 0 = a tool wrote it, or it is padding."""
    columns: dict[str, list[float]]
    settings: Settings = Settings()
    run: str = ""
    step: int = 0
    index: int = 0
    count: int = 1
    """Samples recorded for the step."""
    policy_version: int = 0
    prompt: str = ""
    prompt_index: int = 0
    response: str = ""
    score: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    truncated: bool = False
    bootstrap: float = 0.0
    """V after the last token where the response was cut off and that was asked for, else 0."""
    scale: float | None = None
    """What an estimator without a critic divides by."""
    whiten_mean: float | None = None
    whiten_std: float | None = None
    """μ and σ of the whole batch, σ = sqrt(variance + 1e-8): whitened = (A − μ)/σ."""
    actor_updates: list[ActorUpdate] = field(default_factory=list)
    critic_updates: list[CriticUpdate] = field(default_factory=list)
    padding: dict[int, dict[str, float]] = field(default_factory=dict)
    """Of numbers typed by hand: the slots after the end of the response, and what they held in `values` and rewards; not used."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def to_json(self) -> dict[str, Any]:
        """For the page and --json: bytes as lists of numbers, what is not finite as null (JSON has no NaN), everything else as it is."""
        return _finite({**asdict(self), "token_bytes": [list(b) for b in self.token_bytes]})


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
