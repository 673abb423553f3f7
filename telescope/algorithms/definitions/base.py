"""What a definition is made of. Imports neither torch nor another subpackage.

A definition says everything about one estimator or loss: its name, what it needs, its settings,
its formula, its arithmetic on plain numbers, and what to say about it in Chinese and English.
The tensor function that trains is named by the definition and imported on first use.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, model_validator

Lang = Literal["zh", "en"]
Aggregation = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
    "prompt-mean",
]
"""How token losses become one number."""


class Settings(BaseModel):
    """Typed settings: frozen, unknown names refused, no infinite numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _read_toml_values(cls, data: Any) -> Any:
        """Reads "none" as None where a setting may be None, and refuses `true` as a number.

        TOML has no null, and Python counts True as 1.
        """
        if not isinstance(data, dict):
            return data
        read = dict(data)
        for name, value in data.items():
            info = cls.model_fields.get(name)
            if info is None:
                continue
            kinds = set(typing.get_args(info.annotation)) or {info.annotation}
            if type(None) in kinds and str(value).lower() == "none":
                read[name] = None
            elif isinstance(value, bool) and kinds <= {int, float, type(None)}:
                read[name] = str(value).lower()
        return read


class Discounted(Protocol):
    """Settings of any estimator: `credit.gamma` is there for all of them."""

    @property
    def gamma(self) -> float: ...


class NoSettings(Settings):
    """For a definition that has no settings of its own."""


@dataclass(frozen=True)
class Words:
    """What to say about a number, for an expert and for a twelve-year-old."""

    zh: str = ""
    en: str = ""
    kid_zh: str = ""
    kid_en: str = ""
    kid_formula_zh: str = ""
    """The formula in words, without symbols."""
    kid_formula_en: str = ""
    whole: bool = False
    """The expert's text replaces the meaning in the column table instead of following it."""
    claim: str = ""
    """What the expert's text claims, as an expression over the token's numbers. A test checks it
    wherever the text is shown. Empty: the text is a definition."""


@dataclass(frozen=True)
class Needs:
    """What an estimator asks of the other roles."""

    critic: bool = False
    """Values of a trained critic; without it V is 0 everywhere."""
    groups: bool = False
    """Several responses to each prompt."""
    greedy_baseline: bool = False
    """The score of the greedy response to each prompt."""
    sum_pi_squared: bool = False
    """Σ_v π(v|s_i)² of the sampling policy."""
    attention: bool = False
    """A weight for every token, from `reward.attention`."""
    score_parts: bool = False
    """Each part of the score by itself."""


class Actions:
    """The valid tokens of one response (those that the policy chose), as time steps 0, 1, 2, …

    Every column is a list with one number per step. Tokens that a tool wrote take no time step,
    so they are not here; `at` holds each step's index in the whole response.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[float]],
        *,
        at: Sequence[int] | None = None,
        bootstrap: float = 0.0,
        scale: float | None = None,
        greedy_score: float = 0.0,
        parts: Mapping[str, float] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.columns = {name: list(column) for name, column in columns.items()}
        length = len(next(iter(self.columns.values()), []))
        self.at = list(range(length)) if at is None else list(at)
        self.bootstrap = bootstrap
        self.scale = scale
        self.greedy_score = greedy_score
        self.parts = dict(parts or {})
        self.weights = dict(weights or {})

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, name: str) -> list[float]:
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def after(self, name: str, k: int, end: float = 0.0) -> float:
        """The column's number at the next step, or `end` after the last one."""
        if k + 1 < len(self):
            return self.columns[name][k + 1]
        return end

    @functools.cached_property
    def outcome(self) -> float:
        """The sum of the response's rewards."""
        return math.fsum(self["token_level_rewards"])


Step = Callable[[Actions, Any, int], float]
"""(response, settings, k) -> the number of step k. Later steps are already there."""


@dataclass(frozen=True)
class Rule:
    """How a column follows from other columns, step by step from the last to the first."""

    column: str
    inputs: tuple[str, ...]
    step: Step

    def apply(self, actions: Actions, settings: Any) -> None:
        """Adds the column to `actions`, unless it is there or an input is missing."""
        if self.column in actions or not all(name in actions for name in self.inputs):
            return
        made = [0.0] * len(actions)
        actions.columns[self.column] = made
        for k in reversed(range(len(actions))):
            made[k] = self.step(actions, settings, k)


def same(column: str, source: str) -> Rule:
    """The column equals another one."""
    return Rule(column, (source,), lambda actions, settings, k: actions[source][k])


@dataclass(frozen=True)
class Comparison:
    """What comparing the responses of a group says about one of them."""

    baselines: list[float] | None = None
    """What the outcome is compared with, one number per step."""
    scale: float | None = None
    """What the difference is divided by; None: 1."""
    advantages: list[float] | None = None
    """The advantages themselves, where they are not one difference."""


@dataclass(frozen=True)
class Term:
    """One line of an explanation: formula, numbers substituted, result."""

    name: str
    formula: str
    substituted: str
    result: float
    inputs: Sequence[float] = ()
    """The numbers that went in. They set the tolerance of the comparison with the record."""
    checked: bool = True
    """False: shown for comparison; the record holds another number."""
    state: str | None = None
    """What happened to this token, e.g. `clipped`. It chooses the words."""
    variant: str | None = None
    """Which form of the formula this is. It chooses the words."""
    ties: bool = False
    """Two branches are equal up to rounding, so that the recorded state counts."""


@dataclass(frozen=True)
class Token:
    """Step k of a response, for an estimator's terms."""

    actions: Actions
    k: int

    @property
    def index(self) -> int:
        """The token's index in the whole response."""
        return self.actions.at[self.k]

    def has(self, *names: str) -> bool:
        return all(name in self.actions for name in names)

    def number(self, name: str) -> float:
        return self.actions[name][self.k]

    @property
    def is_last(self) -> bool:
        return self.k + 1 == len(self.actions)


@dataclass(frozen=True)
class UpdatedToken:
    """One token in one update of the policy."""

    index: int
    ratio: float
    advantage: float
    """Â, as the loss uses it."""
    log_prob: float
    log_ratio: float
    selected: bool
    """Chosen by the loss's `select` function."""
    log_ratios: Sequence[float]
    """Of all tokens of the response that take part in the update."""
    advantages: Sequence[float]
    """Of the same tokens."""


@dataclass(frozen=True)
class Objective:
    """What a policy loss makes of one token, on plain numbers. The loss is its negative."""

    value: float
    clipped: bool = False
    dual_clipped: bool = False
    formula: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the formula besides ρ and Â, by their symbol."""


@dataclass(frozen=True)
class PredictedToken:
    """One token in one update of the critic."""

    index: int
    value: float
    """V under the weights of this update."""
    old_value: float
    target: float
    log_p: Sequence[float] = ()
    """A histogram's log-probabilities of the bins around the target."""
    first_bin: int = 0


@dataclass(frozen=True)
class PredictionError:
    """What a value loss makes of one token, on plain numbers."""

    loss: float
    clipped: bool = False


Implementation = str | Callable[..., Any]
"""A tensor function, or where it is: 'package.module:function'."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What every algorithm has."""

    name: str
    formula: str
    tensor: Implementation
    words: Words
    """What it does, in a sentence."""
    settings: type[Settings] = NoSettings
    paper: str = ""
    verl: str = ""
    """verl's function for the same thing, in verl/trainer/ppo/core_algos.py. Empty: it has none."""
    texts: Mapping[str, Words] = field(default_factory=dict)
    """Words of its terms, by `term`, `term:state` or `term:variant`."""

    def implementation(self) -> Callable[..., Any]:
        """The tensor function. Imports torch."""
        return load_implementation(self.tensor)


@dataclass(frozen=True, kw_only=True)
class Estimator(Definition):
    """How rewards (and values, if there is a critic) become advantages and returns.

    `tensor(batch, settings)` returns a `telescope.algorithms.Credit`. `rules` are the same on plain
    numbers, for one response. An estimator that compares responses also has `compare`.
    """

    rules: tuple[Rule, ...]
    needs: Needs = Needs()
    whiten: bool = True
    """Whether the paper whitens the advantages over the batch."""
    kl_in: Literal["reward", "loss"] = "reward"
    """Where the paper has the KL to the reference: by default its weight goes there."""
    compare: Callable[[Sequence[Actions], Any], list[Comparison]] | None = None
    """Baseline and scale of each response of one group."""
    baseline_terms: Callable[[Sequence[Actions], int, Any], list[Term]] | None = None
    """Lines that say where the baseline (and the scale) of response `index` of a group comes from.
    Their names are `baseline` and `scale`."""
    terms: Callable[[Token, Any], list[Term]] | None = None
    """Lines of the explanation of A and R; without it they are made from `formula`."""
    lam: Callable[[Any, int], float] | None = None
    """λ as GAE would have it, for a response of so many tokens; None without a critic."""
    return_name: Words = Words(zh="回报", en="returns")

    def fill_group(self, responses: Sequence[Actions], settings: Any) -> None:
        """Adds every column that follows, to the responses of one group."""
        if self.compare is not None:
            for actions, found in zip(responses, self.compare(responses, settings), strict=True):
                actions.scale = found.scale
                if found.baselines is not None:
                    actions.columns["baselines"] = list(found.baselines)
                if found.advantages is not None:
                    actions.columns["advantages"] = list(found.advantages)
        for actions in responses:
            self.fill(actions, settings)

    def fill(self, actions: Actions, settings: Any) -> None:
        """Adds every column that follows from those that one response has."""
        for rule in self.rules:
            rule.apply(actions, settings)


@dataclass(frozen=True, kw_only=True)
class PolicyLoss(Definition):
    """What the actor minimises.

    `tensor(log_probs, old_log_probs, advantages, mask, **settings)` returns
    `telescope.algorithms.PolicyTerms`. `objective` is the same on plain numbers, for one token.
    """

    objective: Callable[[UpdatedToken, Any], Objective]
    terms: Callable[[UpdatedToken, Any], list[Term]] | None = None
    """Lines of the explanation; without it they are made from `objective`."""
    aggregation: Aggregation = "token-mean"
    """How the paper turns token losses into one number."""
    select: Implementation | None = None
    """Marks tokens of a minibatch before its updates: `select(…, generator=…, **settings)`."""
    adapt: Callable[[Any, float], Any] | None = None
    """(settings, KL of the step) -> settings of the next step. Only `beta` may change."""

    def call(self, *tensors: Any, settings: Settings) -> Any:
        """The tensor function with the settings that it takes."""
        return self._call(self.implementation(), *tensors, settings=settings)

    def call_select(self, *tensors: Any, settings: Settings, generator: Any) -> Any:
        assert self.select is not None
        function = load_implementation(self.select)
        return self._call(function, *tensors, settings=settings, generator=generator)

    def _call(self, function: Callable[..., Any], *tensors: Any, settings: Any, **more: Any) -> Any:
        """Calls a function with those of this definition's settings that it has a parameter for."""
        parameters = inspect.signature(function).parameters
        names = [name for name in self.settings.model_fields if name in parameters]
        arguments = {name: getattr(settings, name) for name in names}
        arguments |= {name: value for name, value in more.items() if name in parameters}
        return function(*tensors, **arguments)


@dataclass(frozen=True, kw_only=True)
class ValueLoss(Definition):
    """What the critic minimises.

    `tensor(prediction, batch, settings)` returns `telescope.algorithms.ValueTerms`; `prediction`
    has `values` [B, T] and, for a histogram, `logits` [B, T, K].
    """

    error: Callable[[PredictedToken, Any], PredictionError]
    terms: Callable[[PredictedToken, Any], list[Term]]
    histogram: Callable[[Any], Bins] | None = None
    """The bins of a critic that predicts a histogram."""


@dataclass(frozen=True)
class Bins:
    """`count` bins of equal width over [low, high], whose probabilities a critic predicts."""

    count: int
    low: float
    high: float

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.count

    def __str__(self) -> str:
        return f"{self.count} bins from {self.low:g} to {self.high:g}"


def load_implementation(where: Implementation) -> Callable[..., Any]:
    if not isinstance(where, str):
        return where
    module, _, name = where.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)
