"""Estimators without a critic.

Some compare the outcome o (the sum of a response's rewards) with a baseline b: of the same
prompt's other responses, or of the greedy response. Others divide the outcome over the tokens.
A group of one has nothing to be compared with: its baseline is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from telescope.algorithms.definitions import texts
from telescope.algorithms.definitions.base import (
    Actions,
    Comparison,
    Discounted,
    Estimator,
    Needs,
    Rule,
    Settings,
    Term,
    Token,
    Words,
    same,
)
from telescope.algorithms.definitions.notation import (
    added,
    enough,
    num,
    par,
    series,
    subscript,
)

EPS = 1e-6
"""Added to a group's standard deviation, and allowed as rounding in a squared norm."""


class LastTokenSettings(Settings):
    last_k: int = Field(1, ge=1, description="how many tokens at the end share the outcome")


class GrpoSettings(Settings):
    leave_one_out: bool = Field(
        False, description="μ and σ of the group's other responses, without this one"
    )


class GdpoSettings(Settings):
    whiten_over: Literal["tokens", "responses"] = Field(
        "tokens",
        description="what counts once in μ and σ of whitening: tokens as in verl, or responses as "
        "in the paper",
    )


# ---- statistics of a group, on plain numbers ----


def mean_of(numbers: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """The mean; 0 for a single number, and where all weights are 0."""
    weights = [1.0] * len(numbers) if weights is None else weights
    total = math.fsum(weights)
    if len(numbers) == 1 or total == 0:
        return 0.0
    return math.fsum(w * x for w, x in zip(weights, numbers, strict=True)) / total


def std_of(numbers: Sequence[float]) -> float:
    """The standard deviation with n − 1; 1 for a single number."""
    if len(numbers) == 1:
        return 1.0
    mean = mean_of(numbers)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))


def _compare_parts(group: Sequence[Actions], s: Any) -> list[Comparison]:
    totals = [0.0] * len(group)
    for name, weight in group[0].weights.items():
        scores = [response.parts[name] for response in group]
        scale = std_of(scores) + EPS
        for index, score in enumerate(scores):
            totals[index] += weight * (score - mean_of(scores)) / scale
    return [
        Comparison(advantages=[total] * len(response))
        for response, total in zip(group, totals, strict=True)
    ]


def _compare_greedy(group: Sequence[Actions], s: Any) -> list[Comparison]:
    return [Comparison([response.greedy_score] * len(response)) for response in group]


def _compare_by_norm(group: Sequence[Actions], s: Any) -> list[Comparison]:
    returns = [_suffix_sums(response["token_level_rewards"]) for response in group]
    norms = [_norms(response) for response in group]
    longest = max(len(response) for response in group)
    baselines = [[0.0] * len(response) for response in group]
    for k in range(longest):
        there = [row for row, response in enumerate(group) if k < len(response)]
        if len(there) < 2:
            continue
        weights = [norms[row][k] for row in there]
        if math.fsum(weights) <= EPS * (k + 1) * len(there):
            weights = [1.0] * len(there)
        numbers = [returns[row][k] for row in there]
        baseline = mean_of(numbers, weights)
        for row in there:
            baselines[row][k] = baseline
    return [Comparison(row) for row in baselines]


def _suffix_sums(rewards: Sequence[float]) -> list[float]:
    return [math.fsum(rewards[k:]) for k in range(len(rewards))]


def _norms(response: Actions) -> list[float]:
    """W_k = Σ_{j≤k} (1 − 2π_j + Σ_v π_j(v)²)"""
    total = 0.0
    norms = []
    for log_prob, squares in zip(
        response["old_log_probs"], response["sum_pi_squared"], strict=True
    ):
        total += max(1 - 2 * math.exp(log_prob) + squares, 0.0)
        norms.append(total)
    return norms


# ---- where a baseline comes from, term by term ----

Baseline = Callable[[Sequence[Actions], int, Any], list[Term]]
"""(group, index, settings) -> where the baseline and the scale of response `index` come from."""


def _compare_by(baseline: Baseline) -> Callable[[Sequence[Actions], Any], list[Comparison]]:
    """Compares with the results of these terms; without them the baseline is 0, the scale 1."""

    def compare(group: Sequence[Actions], s: Any) -> list[Comparison]:
        found = []
        for index, response in enumerate(group):
            terms = {term.name: term for term in baseline(group, index, s)}
            b = terms["baseline"].result if "baseline" in terms else 0.0
            scale = 1.0
            if "scale" in terms and terms["scale"].variant != "equal":
                scale = terms["scale"].result + EPS
            found.append(Comparison([b] * len(response), scale))
        return found

    return compare


def _outcomes(group: Sequence[Actions]) -> list[float]:
    return [response.outcome for response in group]


def _others(group: Sequence[Actions], index: int) -> list[float]:
    """The outcomes of the other responses."""
    return [response.outcome for k, response in enumerate(group) if k != index]


def _average(formula: str, outcomes: Sequence[float], result: float, variant: str) -> Term:
    substituted = f"({added(outcomes, enough(outcomes))})/{len(outcomes)}"
    return Term("baseline", formula, substituted, result, outcomes, variant=variant)


def _deviation(whose: str, outcomes: Sequence[float], variant: str | None = None) -> Term:
    mean = mean_of(outcomes)
    squares = math.fsum((o - mean) ** 2 for o in outcomes)
    below = len(outcomes) - 1
    formula = f"σ_{whose} = √(Σ(o − μ_{whose})²/{below})"
    substituted = f"√({num(squares)}/{below})"
    return Term("scale", formula, substituted, std_of(outcomes), outcomes, variant=variant)


def _own(group: Sequence[Actions], index: int, variant: str) -> Term:
    """b is the response's own outcome: its advantage is 0."""
    o = group[index].outcome
    return Term("baseline", "b = o", num(o), o, [o], variant=variant)


def _by_mean(group: Sequence[Actions], index: int, s: Any) -> list[Term]:
    """b is the mean of the group's outcomes."""
    outcomes = _outcomes(group)
    return [_average("b = μ_group", outcomes, mean_of(outcomes), "mean")]


def _by_others(group: Sequence[Actions], index: int, s: Any) -> list[Term]:
    """b is the mean of the outcomes of the others."""
    others = _others(group, index)
    if not others:
        return []
    mean = math.fsum(others) / len(others)
    return [_average(f"b = (Σo − o)/{len(others)}", others, mean, "others")]


def _by_mean_and_std(group: Sequence[Actions], index: int, s: Any) -> list[Term]:
    if not s.leave_one_out:
        return [*_by_mean(group, index, s), _deviation("group", _outcomes(group))]
    others = _others(group, index)
    std = std_of(others) if len(others) > 1 else 0.0
    away = abs(group[index].outcome - mean_of(_outcomes(group)))
    if std > EPS * (1 + away):
        scale = _deviation("others", others, variant="others")
    else:  # dividing by it would blow up any difference
        scale = Term("scale", "1: σ_others = 0", "1", 1.0, variant="equal")
    return [*_by_others(group, index, s), scale]


def _by_success(group: Sequence[Actions], index: int, s: Any) -> list[Term]:
    """b is the mean of the group's outcomes, and so is the scale."""
    (mean,) = _by_mean(group, index, s)
    if mean.result > 0:
        scale = replace(mean, name="scale", formula="μ_group", variant="success")
        return [mean, scale]
    return [_own(group, index, "no_success")]


def _by_length(group: Sequence[Actions], index: int, s: Any) -> list[Term]:
    """b is the mean weighed by length."""
    lengths = [float(len(response)) for response in group]
    outcomes = _outcomes(group)
    products = [length * o for length, o in zip(lengths, outcomes, strict=True)]
    total = math.fsum(products)
    substituted = f"{num(total)}/{num(math.fsum(lengths))}"
    result = mean_of(outcomes, lengths)
    return [Term("baseline", "b = Σ(l·o)/Σl", substituted, result, products, variant="by_length")]


def _by_second_best(group: Sequence[Actions], index: int, s: Any) -> list[Term]:
    """b is the second best outcome for the best response, and its own outcome for any other."""
    outcomes = _outcomes(group)
    term = replace(_own(group, index, "not_best"), inputs=outcomes)
    if index == outcomes.index(max(outcomes)):
        b = max(_others(group, index), default=0.0)
        term = Term("baseline", "b = second best o", num(b), b, outcomes, variant="best")
    return [term, _deviation("group", outcomes)]


# ---- advantages of one response, once it has been compared ----


def _outcome_less_baseline(x: Actions, s: Any, k: int) -> float:
    return (x.outcome - x["baselines"][k]) / (x.scale or 1.0)


def _return_less_baseline(x: Actions, s: Any, k: int) -> float:
    return x["returns"][k] - x["baselines"][k]


def _discounted(x: Actions, s: Discounted, k: int) -> float:
    return x["token_level_rewards"][k] + s.gamma * x.after("returns", k)


def _undiscounted(x: Actions, s: Any, k: int) -> float:
    return x["token_level_rewards"][k] + x.after("returns", k)


def _share(weights: Callable[[Actions, Any], Sequence[float]], *needed: str) -> Rule:
    """The outcome, divided over the tokens by `weights`."""

    def step(x: Actions, s: Any, k: int) -> float:
        return share_of(weights(x, s), k) * x.outcome

    return Rule("advantages", ("token_level_rewards", *needed), step)


def share_of(weights: Sequence[float], k: int) -> float:
    """w_k/Σw; weights that are all 0 count as equal."""
    total = math.fsum(weights)
    return weights[k] / total if total else 1 / len(weights)


def _equal(x: Actions, s: Any) -> list[float]:
    return [1.0] * len(x)


def _at_the_end(x: Actions, s: Any) -> list[float]:
    shared = min(s.last_k, len(x))
    return [0.0] * (len(x) - shared) + [1.0] * shared


def _attention(x: Actions, s: Any) -> list[float]:
    return x["attention"]


SAME = same("returns", "advantages")
COMPARED = (
    Rule("advantages", ("token_level_rewards", "baselines"), _outcome_less_baseline),
    SAME,
)


# ---- one token, term by term ----


def _baseline_terms(
    token: Token,
    rewards: Sequence[float],
    at: Sequence[int],
    gamma: float,
    symbol: str,
    unit: str = "σ_group",
) -> list[Term]:
    """The sum of these rewards, and how far it is above the token's baseline, in units of `unit`"""
    if not token.has("baselines"):
        return []
    i = subscript(token.index)
    outcome = series("r", at, rewards, gamma)
    b = token.number("baselines")
    scale = 1.0 if token.actions.scale is None else token.actions.scale
    digits = enough([outcome.total, -b])
    whole = symbol == "o"
    variant = "whole" if whole else "from_here"
    formula = f"{symbol} − b" if whole else f"{symbol} − b{i}"
    substituted = f"{num(outcome.total, digits)} − {par(b, digits)}"
    if scale != 1:
        formula = f"({formula})/({unit} + 1e-6)"
        substituted = f"({substituted})/{num(scale)}"
    total = Term(
        "outcome",
        f"{symbol} = {outcome.formula}",
        outcome.substituted,
        outcome.total,
        outcome.terms,
        checked=False,
        variant=variant,
    )
    advantage = Term(
        "advantage",
        f"A{i} = {formula}",
        substituted,
        (outcome.total - b) / scale,
        [*outcome.terms, outcome.total / scale, b / scale],
        state="baseline",
        variant=variant,
    )
    return [total, advantage]


def _compared_terms(token: Token, s: Any, unit: str = "σ_group") -> list[Term]:
    if not token.has("token_level_rewards"):
        return []
    x = token.actions
    return _baseline_terms(token, x["token_level_rewards"], x.at, 1.0, "o", unit)


def _from_here_terms(token: Token, gamma: float) -> list[Term]:
    if not token.has("token_level_rewards"):
        return []
    x = token.actions
    rewards = x["token_level_rewards"][token.k :]
    symbol = f"G{subscript(token.index)}"
    return _baseline_terms(token, rewards, x.at[token.k :], gamma, symbol)


def _reinforce_terms(token: Token, s: Any) -> list[Term]:
    """The rewards from the token on, in full and from the next token's A."""
    if not token.has("token_level_rewards"):
        return []
    x = token.actions
    i = subscript(token.index)
    rewards = series("r", x.at[token.k :], x["token_level_rewards"][token.k :], s.gamma)
    formula = f"A{i} = {rewards.formula}"
    terms = [
        Term("advantage_sum", formula, rewards.substituted, rewards.total, rewards.terms),
    ]
    if token.is_last or not token.has("advantages"):
        return terms
    r = token.number("token_level_rewards")
    later = x.after("advantages", token.k)
    after = subscript(x.at[token.k + 1])
    digits = enough([r, s.gamma * later])
    substituted = f"{num(r, digits)} + {num(s.gamma, digits)}·{par(later, digits)}"
    formula = f"A{i} = r{i} + γ·A{after}"
    terms.append(Term("advantage", formula, substituted, r + s.gamma * later, [r, later]))
    return terms


def _parts_terms(token: Token, s: Any) -> list[Term]:
    """Shown, not recomputed: the group's statistics of every part are not recorded."""
    if not token.has("advantages"):
        return []
    a = token.number("advantages")
    formula = f"A{subscript(token.index)} = Σ w·(part − μ)/σ"
    return [Term("advantage", formula, num(a), a, checked=False, state="parts")]


def _share_terms(weights: Callable[[Actions, Any], Sequence[float]], *needed: str) -> Any:
    def terms(token: Token, s: Any) -> list[Term]:
        if not token.has("token_level_rewards", *needed):
            return []
        x = token.actions
        i = subscript(token.index)
        w = share_of(weights(x, s), token.k)
        outcome = series("r", x.at, x["token_level_rewards"], 1.0)
        share = Term(
            "advantage",
            f"A{i} = w{i}·({outcome.formula})",
            f"{num(w)}·({outcome.substituted})",
            w * outcome.total,
            outcome.terms,
            state="share",
        )
        return [share]

    return terms


# ---- the definitions ----

_HOME = "telescope.algorithms.estimators"


def _compared(baseline: Baseline, **fields: Any) -> Estimator:
    """An estimator that compares the outcome of a response with those of its group."""
    usual: dict[str, Any] = {
        "needs": Needs(groups=True),
        "whiten": False,
        "rules": COMPARED,
        "compare": _compare_by(baseline),
        "baseline_terms": baseline,
        "terms": _compared_terms,
        "texts": texts.COMPARED,
    }
    return Estimator(**(usual | fields))


GRPO = _compared(
    _by_mean_and_std,
    name="grpo",
    verl="compute_grpo_outcome_advantage",
    formula="A[i] = (o − μ_group)/(σ_group + 1e-6)",
    paper="Shao et al. 2024, arXiv:2402.03300",
    tensor=f"{_HOME}:grpo_credit",
    settings=GrpoSettings,
    kl_in="loss",
    terms=lambda token, s: _compared_terms(token, s, "σ_others" if s.leave_one_out else "σ_group"),
    words=Words(
        zh="结果减去同组均值，再除以同组的标准差",
        en="the outcome less the group's mean, over the group's standard deviation",
    ),
)

MAXRL = _compared(
    _by_success,
    name="maxrl",
    formula="A[i] = (o − μ_group)/(μ_group + 1e-6), 0 where μ_group ≤ 0",
    paper="Tajwar et al. 2026, arXiv:2602.02710",
    tensor=f"{_HOME}:maxrl_credit",
    kl_in="loss",
    terms=lambda token, s: _compared_terms(token, s, "μ_group"),
    words=Words(
        zh="结果减去同组均值，再除以这个均值：越少答对的题，答对一次算得越多",
        en="the outcome less the group's mean, over that mean: the rarer a success, the more it "
        "counts",
    ),
)

DR_GRPO = _compared(
    _by_mean,
    name="dr_grpo",
    verl="compute_grpo_outcome_advantage",
    formula="A[i] = o − μ_group",
    paper="Liu et al. 2025, arXiv:2503.20783",
    tensor=f"{_HOME}:dr_grpo_credit",
    kl_in="loss",
    words=Words(
        zh="结果减去同组均值，不除以标准差",
        en="the outcome less the group's mean, not divided by its spread",
    ),
)

RLOO = _compared(
    _by_others,
    name="rloo",
    verl="compute_rloo_outcome_advantage",
    formula="A[i] = o − mean of the others of the group",
    paper="Ahmadian et al. 2024, arXiv:2402.14740",
    tensor=f"{_HOME}:rloo_credit",
    words=Words(
        zh="结果减去同组其他回答的均值",
        en="the outcome less the mean of the group's other responses",
    ),
)

REINFORCE = Estimator(
    name="reinforce++",
    verl="compute_reinforce_plus_plus_outcome_advantage",
    formula="A[i] = G[i], G[i] = r[i] + γ·G[i⁺]",
    paper="Hu et al. 2025, arXiv:2501.03262",
    tensor=f"{_HOME}:reinforce_credit",
    rules=(
        Rule("returns", ("token_level_rewards",), _discounted),
        same("advantages", "returns"),
    ),
    terms=_reinforce_terms,
    words=Words(
        zh="从这个 token 起得到的折扣奖励，在整批上白化",
        en="the discounted rewards from this token on, whitened over the batch",
    ),
    texts=texts.REWARDS_ONLY,
)

REINFORCE_BASELINE = _compared(
    _by_mean,
    name="reinforce++_baseline",
    verl="compute_reinforce_plus_plus_baseline_outcome_advantage",
    formula="A[i] = o − μ_group, then whitened over the batch",
    paper="Hu et al. 2025, arXiv:2501.03262",
    tensor=f"{_HOME}:dr_grpo_credit",
    whiten=True,
    kl_in="loss",
    words=Words(
        zh="结果减去同组均值，再在整批上白化",
        en="the outcome less the group's mean, whitened over the batch",
    ),
)

REMAX = Estimator(
    name="remax",
    verl="compute_remax_outcome_advantage",
    formula="A[i] = G[i] − score of the greedy response",
    paper="Li et al. 2024, arXiv:2310.10505",
    tensor=f"{_HOME}:remax_credit",
    needs=Needs(greedy_baseline=True),
    whiten=False,
    rules=(
        Rule("returns", ("token_level_rewards",), _discounted),
        Rule("advantages", ("returns", "baselines"), _return_less_baseline),
    ),
    compare=_compare_greedy,
    terms=lambda token, s: _from_here_terms(token, s.gamma),
    words=Words(
        zh="从这里起得到的奖励，减去同一提示的贪心回答的得分",
        en="the rewards from here on, less the score of the greedy response",
    ),
    texts=texts.COMPARED,
)

OPO = _compared(
    _by_length,
    name="opo",
    verl="compute_opo_outcome_advantage",
    formula="A[i] = o − Σ l·o / Σ l over the group, l the tokens of each",
    paper="Hao et al. 2025, arXiv:2505.23585",
    tensor=f"{_HOME}:opo_credit",
    words=Words(
        zh="结果减去同组按长度加权的均值",
        en="the outcome less the group's mean weighed by length",
    ),
)

GRPO_PASSK = _compared(
    _by_second_best,
    name="grpo_passk",
    verl="compute_grpo_passk_outcome_advantage",
    formula="A[i] = (best − second best)/(σ_group + 1e-6) for the best, 0 for the others",
    paper="Tang et al. 2025, arXiv:2503.19595",
    tensor=f"{_HOME}:grpo_passk_credit",
    kl_in="loss",
    words=Words(
        zh="只有同组最好的回答得到优势：比第二名好多少",
        en="only the group's best response gets credit: how far it is ahead of the second",
    ),
)

GDPO = Estimator(
    name="gdpo",
    formula="A[i] = Σ_k w_k·(score_k − μ_k)/(σ_k + 1e-6) over the group",
    paper="Liu et al. 2026, arXiv:2601.05242",
    tensor=f"{_HOME}:gdpo_credit",
    settings=GdpoSettings,
    needs=Needs(groups=True, score_parts=True),
    kl_in="loss",
    rules=(SAME,),
    compare=_compare_parts,
    terms=_parts_terms,
    words=Words(
        zh="得分的每个部分各自在同组内标准化，再加权相加",
        en="each part of the score is standardised within its group, then weighed and added",
    ),
    texts=texts.COMPARED,
)

OPTIMAL_TOKEN_BASELINE = Estimator(
    name="optimal_token_baseline",
    verl="compute_optimal_token_baseline_advantage",
    formula="A[i] = G[i] − Σ W[i]·G[i] / Σ W[i] over the group",
    paper="Li et al. 2026, arXiv:2602.07078",
    tensor=f"{_HOME}:optimal_token_baseline_credit",
    needs=Needs(groups=True, sum_pi_squared=True),
    whiten=False,
    rules=(
        Rule("returns", ("token_level_rewards",), _undiscounted),
        Rule("advantages", ("returns", "baselines"), _return_less_baseline),
    ),
    compare=_compare_by_norm,
    terms=lambda token, s: _from_here_terms(token, 1.0),
    words=Words(
        zh="从这里起得到的奖励，减去同组同一位置上方差最小的基线",
        en="the rewards from here on, less the least-variance baseline of the same position",
    ),
    texts=texts.COMPARED,
)

UNIFORM = Estimator(
    name="uniform",
    formula="A[i] = o/T",
    tensor=f"{_HOME}:uniform_credit",
    rules=(_share(_equal), SAME),
    terms=_share_terms(_equal),
    words=Words(zh="结果平均分给每个 token", en="every token gets the same share of the outcome"),
    texts=texts.SHARED,
)

LAST_TOKEN = Estimator(
    name="last_token",
    formula="A[i] = o/last_k on the last tokens, last_k of them, else 0",
    tensor=f"{_HOME}:last_token_credit",
    settings=LastTokenSettings,
    rules=(_share(_at_the_end), SAME),
    terms=_share_terms(_at_the_end),
    words=Words(zh="结果只分给最后几个 token", en="only the last tokens share the outcome"),
    texts=texts.SHARED,
)

ATTENTION = Estimator(
    name="attention",
    formula="A[i] = w[i]/Σw · o",
    tensor=f"{_HOME}:attention_credit",
    needs=Needs(attention=True),
    rules=(_share(_attention, "attention"), SAME),
    terms=_share_terms(_attention, "attention"),
    words=Words(
        zh="结果按 reward.attention 给的权重分给每个 token",
        en="the outcome divided by the weights that reward.attention gives",
    ),
    texts=texts.SHARED,
)

ESTIMATORS = (
    GRPO,
    MAXRL,
    DR_GRPO,
    RLOO,
    REINFORCE,
    REINFORCE_BASELINE,
    REMAX,
    OPO,
    GRPO_PASSK,
    GDPO,
    OPTIMAL_TOKEN_BASELINE,
    UNIFORM,
    LAST_TOKEN,
    ATTENTION,
)
