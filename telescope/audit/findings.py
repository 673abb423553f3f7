"""From audited states to what they say: calibration, ranks, errors by place, wrong signs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, pvariance
from typing import Any, Literal

from telescope.audit.states import Chosen, state_of
from telescope.audit.statistics import Estimate, exactly, gain, line, spearman
from telescope.explain.sample import Sample

BINS = 5
NO_SIDE = 1e-6
"""Credit below this is rounding: it says neither more nor less."""
PLACES = ("start", "middle", "end")
CREDITS = ("advantages", "whitened", "deltas")
"""Columns whose sign says whether a token is written more or less often."""


@dataclass(frozen=True)
class Post:
    """A state of a response: what was predicted there, and what continuations earned."""

    sample: int
    token: int
    """The state is the one before this token."""
    length: int
    """Tokens of the response."""
    prompt: int
    state: int
    """Equal states of several responses have one number, and the same continuations."""
    predicted: float | None
    mean: float
    low: float
    high: float
    error: float

    @property
    def place(self) -> str:
        """Which third of the response."""
        return PLACES[min(3 * self.token // self.length, 2)]


@dataclass(frozen=True)
class Judged:
    """A token: its recorded credit, and its advantage by continuations."""

    sample: int
    token: int
    credit: dict[str, float]
    """Its numbers in CREDITS."""
    mean: float
    low: float
    high: float

    @property
    def is_decided(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def is_wrong(self, name: str) -> bool:
        """Whether the recorded credit has the other sign."""
        return self.has_side(name) and self.credit[name] * self.mean < 0

    def has_side(self, name: str) -> bool:
        """Whether the recorded credit is not 0."""
        return abs(self.credit[name]) > NO_SIDE


@dataclass(frozen=True)
class Audit:
    """Everything that RUN/audit/step_000050.json holds."""

    run: str
    step: int
    checkpoint: int
    """The checkpoint whose policy wrote the continuations; 0: the model before training."""
    needed: int
    """The checkpoint whose policy wrote the responses of the step."""
    continuations: int
    """Of each state."""
    states: int
    estimate: Literal["values", "baselines"] | None
    """What is audited: the critic's values, or what an estimator without critic compares with."""
    settings: dict[str, Any]
    """What a return is made of: gamma, kl_coef, kl_kind, bootstrap_truncated."""
    posts: list[Post]
    tokens: list[Judged]
    prompts: dict[int, str]
    """Text of the prompts by number."""
    seconds: float = 0.0
    device: str = ""
    date: str = ""


@dataclass(frozen=True)
class Errors:
    """How far predictions are off, over some states."""

    count: int
    predicted: float
    """Mean prediction."""
    outcome: float
    """Mean outcome of the continuations."""
    mean_error: float
    """Prediction − outcome; above 0 is too high."""
    typical_error: float
    """Root mean square of the error, less what sampling noise adds to it."""


@dataclass(frozen=True)
class Signs:
    """How often recorded credit has the wrong sign."""

    tokens: int
    decided: int
    """Tokens whose interval excludes 0: only those are judged."""
    wrong: dict[str, int]
    """Name in CREDITS -> decided tokens with the wrong sign."""
    zero: dict[str, int] = field(default_factory=dict)
    """Name in CREDITS -> decided tokens where it is 0, so that it takes no side."""


@dataclass(frozen=True)
class Summary:
    """What the audit says. Without predictions only `signs` is there."""

    signs: Signs
    overall: Errors | None = None
    outside: int = 0
    """States whose prediction is outside the 95 % interval."""
    intercept: float | None = None
    slope: float | None = None
    """outcome = intercept + slope·prediction, by least squares. None: predictions are all equal."""
    rank_correlation: float | None = None
    explained: float | None = None
    """Share of the outcomes' variance between states that predictions explain."""
    bins: list[Errors] = field(default_factory=list)
    """By prediction, lowest first, equally many states each."""
    places: dict[str, Errors] = field(default_factory=dict)
    """By third of the response."""
    prompts: list[tuple[int, Errors]] = field(default_factory=list)
    """By prompt, the largest errors first."""


def posts_of(
    samples: Mapping[int, Sample], chosen: Chosen, found: Sequence[Estimate], column: str | None
) -> list[Post]:
    """The audited states of each response, in order. `found` has one estimate per state number."""
    posts = []
    places = sorted({(row, token + k) for row, token in chosen.tokens for k in (0, 1)})
    for row, token in places:
        sample = samples[row]
        if token == len(sample):  # the end: nothing is left to predict
            continue
        number = chosen.states[state_of(sample, token)]
        predicted = sample.columns[column][token] if column else None
        place = (row, token, len(sample), sample.prompt_index, number)
        posts.append(Post(*place, predicted, **asdict(found[number])))
    return posts


def judged(
    samples: Mapping[int, Sample], chosen: Chosen, found: Sequence[Estimate], gamma: float
) -> list[Judged]:
    """The advantage of each audited token: r + γ·(outcome after it) − outcome before it."""
    tokens = []
    for row, token in sorted(chosen.tokens):
        sample = samples[row]
        before = found[chosen.states[state_of(sample, token)]]
        after = exactly(sample.bootstrap)
        if token + 1 < len(sample):
            after = found[chosen.states[state_of(sample, token + 1)]]
        reward = sample.columns["token_level_rewards"][token]
        own = gain(reward, gamma, after, before)
        credit = {name: sample.columns[name][token] for name in CREDITS if name in sample.columns}
        tokens.append(Judged(row, token, credit, own.mean, own.low, own.high))
    return tokens


def summarise(audit: Audit) -> Summary:
    """Computes everything that is said about an audit."""
    signs = _signs(audit.tokens)
    posts = _distinct(audit.posts)
    if audit.estimate is None or not posts:
        return Summary(signs)
    # A baseline stands for the expected outcome before the first token.
    from_start = audit.estimate == "baselines"
    main = [post for post in posts if post.token == 0] if from_start else posts
    predicted = [_prediction(post) for post in main]
    outcomes = [post.mean for post in main]
    fit = line(predicted, outcomes)
    outside = [post for post in main if not post.low <= _prediction(post) <= post.high]
    return Summary(
        signs,
        overall=_errors(main),
        outside=len(outside),
        intercept=fit[0] if fit else None,
        slope=fit[1] if fit else None,
        rank_correlation=spearman(predicted, outcomes) if fit else None,
        explained=_explained(main),
        bins=_bins(main),
        places=_places(posts),
        prompts=_by_prompt(main),
    )


def _distinct(posts: Sequence[Post]) -> list[Post]:
    """Each state with each of its predictions once: a group's responses share their first state."""
    found: dict[tuple[int, float | None], Post] = {}
    for post in posts:
        found.setdefault((post.state, post.predicted), post)
    return list(found.values())


def _prediction(post: Post) -> float:
    assert post.predicted is not None
    return post.predicted


def _errors(posts: Sequence[Post]) -> Errors:
    off = [_prediction(post) - post.mean for post in posts]
    noise = fmean([post.error**2 for post in posts])
    squares = fmean([x * x for x in off])
    return Errors(
        count=len(posts),
        predicted=fmean([_prediction(post) for post in posts]),
        outcome=fmean([post.mean for post in posts]),
        mean_error=fmean(off),
        typical_error=math.sqrt(max(squares - noise, 0.0)),
    )


def _explained(posts: Sequence[Post]) -> float | None:
    """1 − variance of the error / variance of the outcome, both without sampling noise."""
    noise = fmean([post.error**2 for post in posts])
    total = pvariance([post.mean for post in posts]) - noise
    left = pvariance([_prediction(post) - post.mean for post in posts]) - noise
    return 1 - max(left, 0.0) / total if total > noise else None


def _bins(posts: Sequence[Post]) -> list[Errors]:
    ordered = sorted(posts, key=_prediction)
    count = min(BINS, len({post.predicted for post in posts}))
    ends = [len(ordered) * k // count for k in range(count + 1)]
    return [_errors(ordered[a:b]) for a, b in itertools.pairwise(ends)]


def _places(posts: Sequence[Post]) -> dict[str, Errors]:
    by_place = {name: [post for post in posts if post.place == name] for name in PLACES}
    return {name: _errors(some) for name, some in by_place.items() if some}


def _by_prompt(posts: Sequence[Post]) -> list[tuple[int, Errors]]:
    of_prompt: dict[int, list[Post]] = {}
    for post in posts:
        of_prompt.setdefault(post.prompt, []).append(post)
    found = [(prompt, _errors(some)) for prompt, some in of_prompt.items()]
    return sorted(found, key=lambda one: (-one[1].typical_error, one[0]))


def _signs(tokens: Sequence[Judged]) -> Signs:
    decided = [token for token in tokens if token.is_decided]
    names = [name for name in CREDITS if tokens and name in tokens[0].credit]
    wrong = {name: sum(token.is_wrong(name) for token in decided) for name in names}
    zero = {name: sum(not token.has_side(name) for token in decided) for name in names}
    return Signs(len(tokens), len(decided), wrong, zero)
