"""Estimators that ask a critic: GAE, its two ends λ = 1 and λ = 0, and n-step.

    δ[i] = r[i] + γ·V[i⁺] − V[i]      A[i] = δ[i] + γλ·A[i⁺]      R[i] = A[i] + V[i]

i⁺ is the next valid token (one that the policy chose). After the last one V is 0, or the
bootstrap value where the response was cut off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pydantic import Field

from telescope.algorithms.definitions import texts
from telescope.algorithms.definitions.base import (
    Actions,
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
    exact,
    num,
    one_step,
    par,
    plus,
    series,
    subscript,
    weight_of,
)


class GaeSettings(Settings):
    lam: float = Field(
        0.95, ge=0, le=1, description="λ: 0 trusts the critic, 1 the observed reward"
    )
    lam_critic: float | None = Field(
        None, ge=0, le=1, description="λ of the critic's targets; default: lam"
    )
    lam_alpha: float | None = Field(
        None, gt=0, description="λ by length instead of lam: 1 − 1/(this × tokens of the response)"
    )


class NStepSettings(Settings):
    n: int = Field(4, ge=1, description="rewards that are waited for before V takes over")


class _Gae(GaeSettings):
    """With `credit.gamma`, which is there for all estimators."""

    gamma: float


# ---- arithmetic on plain numbers ----


def td_error(x: Actions, s: Discounted, k: int) -> float:
    """δ_k = r_k + γ·V_{k+1} − V_k"""
    later = x.after("values", k, end=x.bootstrap)
    return x["token_level_rewards"][k] + s.gamma * later - x["values"][k]


def discounted_return(x: Actions, s: Discounted, k: int) -> float:
    """G_k = r_k + γ·G_{k+1}"""
    return x["token_level_rewards"][k] + s.gamma * x.after("returns", k, end=x.bootstrap)


def gae_lam(s: _Gae, tokens: int) -> float:
    """λ for a response of so many tokens."""
    if s.lam_alpha is None:
        return s.lam
    return max(1 - 1 / (s.lam_alpha * max(tokens, 1)), 0.0)


def _gae_advantage(x: Actions, s: _Gae, k: int) -> float:
    return x["deltas"][k] + s.gamma * gae_lam(s, len(x)) * x.after("advantages", k)


def _gae_return(x: Actions, s: _Gae, k: int) -> float:
    if s.lam_critic is None:
        return x["advantages"][k] + x["values"][k]
    later = x.after("returns", k) - x.after("values", k)
    return x["values"][k] + x["deltas"][k] + s.gamma * s.lam_critic * later


def _n_step_advantage(x: Actions, s: Any, k: int) -> float:
    gamma = s.gamma
    return math.fsum(gamma**j * delta for j, delta in enumerate(x["deltas"][k : k + s.n]))


def _observed_advantage(x: Actions, s: Discounted, k: int) -> float:
    return x["deltas"][k] + s.gamma * x.after("advantages", k)


def advantage_plus_value(x: Actions, s: Any, k: int) -> float:
    return x["advantages"][k] + x["values"][k]


DELTAS = Rule("deltas", ("token_level_rewards", "values"), td_error)
RETURNS = Rule("returns", ("advantages", "values"), advantage_plus_value)


# ---- one token, term by term ----


def sum_of_deltas(
    token: Token, decay: float, *, name: str, left: str, variant: str | None = None
) -> list[Term]:
    """The advantage as a sum of all later δ, each weighed by a power of γλ."""
    if not token.has("deltas"):
        return []
    at = token.actions.at[token.k :]
    total = series("δ", at, token.actions["deltas"][token.k :], decay)
    term = Term(name, f"{left} = {total.formula}", total.substituted, total.total, total.terms)
    return [replace(term, variant=variant)]


def recursion(token: Token, decay: float) -> list[Term]:
    """The same advantage from the next token's."""
    if not token.has("deltas", "advantages"):
        return []
    i = subscript(token.index)
    delta = token.number("deltas")
    if token.is_last:
        term = Term("advantage", f"A{i} = δ{i}", num(delta), delta, [delta, 0.0], state="last")
        return [term]
    later = token.actions.after("advantages", token.k)
    digits = exact(lambda d, decay, later: d + decay * later, delta, decay, later)
    substituted = f"{num(delta, digits)} + {num(decay, digits)}·{par(later, digits)}"
    formula = f"A{i} = δ{i} + γλ·A{_next(token)}"
    term = Term("advantage", formula, substituted, delta + decay * later, [delta, later])
    return [term if decay else replace(term, variant="one_step")]


def rewards_then_value(token: Token, gamma: float, n: int, *, name: str, left: str) -> list[Term]:
    """n rewards, then the value of the state they lead to, less V: TD(0), n-step, Monte Carlo."""
    x = token.actions
    if not token.has("token_level_rewards", "values"):
        return []
    ahead = range(token.k, len(x))
    at = [x.at[k] for k in ahead[:n]]
    rewards = series("r", at, x["token_level_rewards"][token.k : token.k + n], gamma)
    steps = min(n, len(ahead))
    v = token.number("values")
    state = "V_end"
    value = x.bootstrap
    if steps < len(ahead):
        state = f"V{subscript(x.at[ahead[steps]])}"
        value = x["values"][ahead[steps]]
    later = gamma**steps * value
    digits = enough(rewards.terms, later, -v)
    formula = rewards.formula
    substituted = added(rewards.terms, digits)
    if state != "V_end" or value:
        formula += f" + {weight_of(gamma, steps)}{state}"
        substituted += f" {'+' if value >= 0 else '−'} {num(abs(later), digits)}"
    term = Term(
        name,
        f"{left} = {formula} − V{subscript(token.index)}",
        f"{substituted} − {par(v, digits)}",
        rewards.total + later - v,
        [*rewards.terms, value, v],
    )
    return [replace(term, variant="cut") if state == "V_end" and value else term]


def from_next_return(token: Token, gamma: float) -> list[Term]:
    """A = r + γ·R of the next token − V."""
    later = "V_end" if token.is_last else f"R{_next(token)}"
    return _from_next(token, gamma, "advantage", "A", "returns", later)


def delta_term(token: Token, gamma: float) -> list[Term]:
    """δ = r + γ·V of the next state − V."""
    made = _from_next(token, gamma, "delta", "δ", "values", f"V{_next(token)}")
    return [replace(term, variant=_end_of(token)) for term in made]


def _from_next(
    token: Token, gamma: float, name: str, symbol: str, column: str, later_symbol: str
) -> list[Term]:
    """r + γ·(the column's next number) − V."""
    if not token.has("token_level_rewards", "values", column):
        return []
    i = subscript(token.index)
    r = token.number("token_level_rewards")
    v = token.number("values")
    later = token.actions.after(column, token.k, end=token.actions.bootstrap)
    formula = f"{symbol}{i} = r{i} + γ·{later_symbol} − V{i}"
    substituted = one_step(r, gamma, later, v)
    return [Term(name, formula, substituted, r + gamma * later - v, [r, v, later])]


def return_from_advantage(token: Token, *, variant: str | None = None) -> list[Term]:
    """R = A + V, the critic's target."""
    if not token.has("advantages", "values"):
        return []
    i = subscript(token.index)
    a = token.number("advantages")
    v = token.number("values")
    term = Term("return", f"R{i} = A{i} + V{i}", plus(a, v), a + v, [a, v])
    return [replace(term, variant=variant)]


def _end_of(token: Token) -> str | None:
    """last: nothing follows the token; cut: V_end stands for what would have followed."""
    if not token.is_last:
        return None
    return "cut" if token.actions.bootstrap else "last"


def mix_of(token: Token, gamma: float, lam: float) -> str:
    """What a λ-return is made of: which words are true of it.

    observed: only rewards that came (observed_cut: and V_end). one_step: a reward and the next V.
    mixed: rewards and later V.
    """
    waits_for_the_end = token.is_last or lam == 1 or gamma == 0
    if waits_for_the_end:
        return "observed_cut" if token.actions.bootstrap and gamma else "observed"
    return "mixed" if lam else "one_step"


def _next(token: Token) -> str:
    return "_end" if token.is_last else subscript(token.actions.at[token.k + 1])


def _gae_terms(token: Token, s: _Gae) -> list[Term]:
    lam = gae_lam(s, len(token.actions))
    decay = s.gamma * lam
    i = subscript(token.index)
    mix = mix_of(token, s.gamma, lam)
    terms = sum_of_deltas(token, decay, name="advantage_sum", left=f"A{i}", variant=mix)
    terms += recursion(token, decay)
    if s.lam_critic is None or not token.has("deltas", "values"):
        return terms + return_from_advantage(token, variant=mix)
    if not token.has("advantages"):
        return terms
    at = token.actions.at[token.k :]
    later = series("δ", at, token.actions["deltas"][token.k :], s.gamma * s.lam_critic)
    v = token.number("values")
    digits = enough(later.terms, v)
    term = Term(
        "return",
        f"R{i} = V{i} + {later.formula}",
        f"{num(v, digits)} + {added(later.terms, digits)}",
        v + later.total,
        [*later.terms, v],
        variant=mix_of(token, s.gamma, s.lam_critic),
    )
    return [*terms, term]


def _monte_carlo_terms(token: Token, s: Any) -> list[Term]:
    i = subscript(token.index)
    every = len(token.actions)
    terms = rewards_then_value(token, s.gamma, every, name="advantage_sum", left=f"A{i}")
    return terms + from_next_return(token, s.gamma) + return_from_advantage(token)


def _td0_terms(token: Token, s: Any) -> list[Term]:
    if not token.has("deltas"):
        return []
    i = subscript(token.index)
    delta = token.number("deltas")
    term = Term("advantage", f"A{i} = δ{i}", num(delta), delta, [delta])
    return [term, *return_from_advantage(token)]


def _n_step_terms(token: Token, s: Any) -> list[Term]:
    i = subscript(token.index)
    terms = rewards_then_value(token, s.gamma, s.n, name="advantage", left=f"A{i}")
    return terms + return_from_advantage(token)


GAE = Estimator(
    name="gae",
    verl="compute_gae_advantage_return",
    formula="A[i] = δ[i] + γλ·A[i⁺]",
    paper="Schulman et al. 2016, arXiv:1506.02438",
    tensor="telescope.algorithms.estimators:gae_credit",
    settings=GaeSettings,
    needs=Needs(critic=True),
    rules=(
        DELTAS,
        Rule("advantages", ("deltas",), _gae_advantage),
        Rule("returns", ("advantages", "deltas", "values"), _gae_return),
        RETURNS,
    ),
    terms=_gae_terms,
    lam=gae_lam,
    return_name=Words(zh="λ-return", en="λ-returns"),
    words=Words(
        zh="广义优势估计：之后每一步的意外 δ 都算进来，隔 k 步乘 (γλ)ᵏ",
        en="generalized advantage estimation: a later δ counts (γλ)ᵏ, k steps ahead",
    ),
    texts=texts.CREDIT,
)

MONTE_CARLO = Estimator(
    name="monte_carlo",
    formula="A[i] = G[i] − V[i], G[i] = r[i] + γ·G[i⁺]",
    paper="Sutton & Barto 2018, section 3.3",
    tensor="telescope.algorithms.estimators:monte_carlo_credit",
    needs=Needs(critic=True),
    rules=(
        DELTAS,
        Rule("returns", ("token_level_rewards",), discounted_return),
        Rule("advantages", ("deltas",), _observed_advantage),
    ),
    terms=_monte_carlo_terms,
    lam=lambda s, tokens: 1.0,
    return_name=Words(zh="实际的折扣和", en="the observed discounted sums"),
    words=Words(
        zh="蒙特卡洛：实际得到的折扣奖励之和，减去写之前的预期",
        en="Monte Carlo: the discounted rewards that really came, less what was expected",
    ),
    texts=texts.OBSERVED,
)

TD0 = Estimator(
    name="td0",
    formula="A[i] = δ[i]",
    paper="Sutton & Barto 2018, section 6.1",
    tensor="telescope.algorithms.estimators:td0_credit",
    needs=Needs(critic=True),
    rules=(DELTAS, same("advantages", "deltas"), RETURNS),
    terms=_td0_terms,
    lam=lambda s, tokens: 0.0,
    return_name=Words(zh="一步 TD 目标", en="one-step TD targets"),
    words=Words(
        zh="TD(0)：只看一步，后面的意外不计入",
        en="TD(0): one step only, later surprises do not count",
    ),
    texts=texts.ONE_STEP,
)

N_STEP = Estimator(
    name="n_step",
    formula="A[i] = Σ_{k<n} γ^k·δ[i+k]",
    paper="Sutton & Barto 2018, section 7.1",
    tensor="telescope.algorithms.estimators:n_step_credit",
    settings=NStepSettings,
    needs=Needs(critic=True),
    rules=(DELTAS, Rule("advantages", ("deltas",), _n_step_advantage), RETURNS),
    terms=_n_step_terms,
    return_name=Words(zh="n 步回报", en="n-step returns"),
    words=Words(
        zh="n 步：等 n 步的奖励，之后交给 critic 的价值",
        en="n-step: waits for n rewards, then trusts the critic's value",
    ),
    texts=texts.N_STEP,
)

ESTIMATORS = (GAE, MONTE_CARLO, TD0, N_STEP)


def compare_terms(
    token: Token, gamma: float, *, used: str, ns: Iterable[int], lams: Iterable[float], lam: float
) -> list[Term]:
    """Other estimates of the same token's advantage: TD(0), n-step, GAE with each λ, Monte Carlo.

    Only the one that the run used can be checked against the record.
    """
    i = subscript(token.index)
    every = len(token.actions)
    terms = _marked(
        rewards_then_value(token, gamma, 1, name=TD0.name, left=f"A{i}[TD(0)]"), used == TD0.name
    )
    for n in ns:
        terms += _marked(
            rewards_then_value(token, gamma, n, name="n_step", left=f"A{i}[n={n}]"), False
        )
    for other in lams:
        made = sum_of_deltas(token, gamma * other, name=GAE.name, left=f"A{i}[λ={num(other)}]")
        terms += _marked(made, used == GAE.name and other == lam)
    observed = rewards_then_value(token, gamma, every, name=MONTE_CARLO.name, left=f"A{i}[MC]")
    return terms + _marked(observed, used == MONTE_CARLO.name)


def _marked(terms: list[Term], checked: bool) -> list[Term]:
    return [replace(term, checked=checked) for term in terms]
