"""What is known of each row beside its tensors: texts, token ids, scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Response:
    """One response, as text and as the token ids that were sampled."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    """Without padding; tokens that a tool wrote are included."""
    last_turn: str | None = None
    """What the policy wrote after the last reply of a tool; None in a run without tools."""
    paid: list[tuple[int, float]] = field(default_factory=list)
    """Token and amount of each reward that the environment paid on a turn."""
    state: Any = None
    """What the environment reports of its last state."""

    @property
    def final_text(self) -> str:
        """The policy's last turn. Without tools that is the whole response."""
        return self.text if self.last_turn is None else self.last_turn


@dataclass(frozen=True)
class ToolUse:
    """How often a response called a tool."""

    calls: int
    failures: int
    """Calls that raised an error or took too long."""
    error: str | None = None
    """What the last failure said."""


@dataclass(frozen=True)
class Scores:
    """What the reward functions said about one response."""

    total: float
    """The task's score: the weighted sum of the parts, before shaping."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Score of each reward function that applies, by name.

    Shaping adds `overlong`, which `total` leaves out.
    """
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each part."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Extra metrics of the reward functions, as "part/metric"."""


@dataclass(frozen=True)
class ShapedScore:
    """What shaping made of one score. A field is None where that step is not configured."""

    paid: float
    """The shaped score of the response, summed over its tokens."""
    norm_mean: float | None = None
    norm_std: float | None = None
    clipped: bool | None = None


@dataclass(frozen=True)
class RowInfo:
    """One row of a batch, beside its tensors. Later stages fill in what starts as None."""

    prompt: str = ""
    prompt_index: int = 0
    """Place of the prompt in the data."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The row's other columns in the data."""
    response: Response = field(default_factory=Response)
    tools: ToolUse | None = None
    greedy: Response | None = None
    """The greedy response to the same prompt, for estimators that need one as a baseline."""
    scores: Scores | None = None
    """Made by reward.compute_reward(batch)."""
    shaped: ShapedScore | None = None
    """Made by reward.compute_reward(batch) where shaping is configured."""
