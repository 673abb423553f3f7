"""Bias and variance of GAE by λ, measured where the truth is known: what question 14 of `telescope explain` is tried out on.

A reward keeps a part of the one before it and adds luck of its own, r_t = φ·r_{t−1} + ε_t with r_{−1} = 0, so that rewards covary and
V(s_t) = r_{t−1}·Σ_k γ^k·φ^{k+1} over the tokens left. The target of the first token, R_0 = A_0 + V(s_0), is measured rather than A_0: an
error of V(s_0) is in A_0 at every λ, the same whichever token is chosen, so that the policy's gradient does not feel it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from telescope.algorithms import gae, monte_carlo_returns
from telescope.explain.notation import listed, num

EPISODES, TOKENS, GAMMA = 100_000, 6, 0.99
LAMS = (0.0, 0.5, 0.9, 0.95, 1.0)
KEEPS, LUCK = 0.6, 0.5
"""φ, and the standard deviation of ε."""
OFFSET, NOISE = 1.0, 3.0
"""A critic that is wrong says V + OFFSET; an erratic one is off by chance in every state, with this standard deviation."""


@dataclass(frozen=True)
class Target:
    """R_0 with one critic, for each of LAMS."""

    bias: list[float]
    """Mean less the true V(s_0)."""
    variance: list[float]


@dataclass(frozen=True)
class Simulation:
    exact: Target
    high: Target
    erratic: Target
    return_variance: float
    """Var(G_0) = variance_sum + covariance."""
    variance_sum: float
    """Σ γ^{2k}·Var(r_k)"""
    covariance: float
    """Σ_{j≠k} γ^{j+k}·Cov(r_j, r_k)"""
    error: float
    """Two standard errors of the least certain mean."""


def simulate(*, keeps: float = KEEPS, seed: int = 0) -> Simulation:
    make = torch.Generator().manual_seed(seed)
    luck, noise = torch.randn(
        2, EPISODES, TOKENS, dtype=torch.float64, generator=make
    )  # [B, T] each
    step, mask = torch.arange(TOKENS, dtype=torch.float64), torch.ones(EPISODES, TOKENS)
    gap = step - step[:, None]  # from token j (row) on to token t
    rewards = (
        LUCK * luck @ torch.where(gap >= 0, keeps ** gap.clamp(min=0), 0.0)
    )  # r_t = Σ_{j≤t} φ^{t−j}·ε_j
    ahead = torch.stack(
        [(GAMMA**step * keeps ** (step + 1))[: TOKENS - t].sum() for t in range(TOKENS)]
    )  # Σ_k γ^k·φ^{k+1} at each t
    truth = torch.nn.functional.pad(rewards, (1, -1)) * ahead  # V(s_t), of the reward before it

    def target(values: Tensor) -> Target:
        first = torch.stack(
            [gae(rewards, values, mask, gamma=GAMMA, lam=lam)[1][:, 0] for lam in LAMS]
        )  # [λ, B]
        return Target((first - truth[:, 0]).mean(1).tolist(), first.var(1).tolist())

    exact, high, erratic = target(truth), target(truth + OFFSET), target(truth + NOISE * noise)
    returns = monte_carlo_returns(rewards, mask, gamma=GAMMA)[:, 0]
    covariance = torch.cov((GAMMA**step * rewards).T)  # [T, T]
    own = covariance.trace()
    return Simulation(
        exact,
        high,
        erratic,
        return_variance=float(returns.var()),
        variance_sum=float(own),
        covariance=float(covariance.sum() - own),
        error=2 * (max(exact.variance + high.variance + erratic.variance) / EPISODES) ** 0.5,
    )


def facts() -> dict[str, str]:
    """Every number that a text may name, rows of them by λ."""
    found = simulate()

    def row(numbers: Sequence[float]) -> str:
        return listed([round(x, 2) for x in numbers])

    out = {
        "episodes": str(EPISODES),
        "tokens": str(TOKENS),
        "gamma": num(GAMMA),
        "lams": row(LAMS),
        "keeps": num(KEEPS),
    }
    out |= {"offset": num(OFFSET), "noise": num(NOISE), "error": num(round(found.error, 2))}
    for name, critic in {
        "exact": found.exact,
        "high": found.high,
        "erratic": found.erratic,
    }.items():
        out |= {f"{name}_bias": row(critic.bias), f"{name}_var": row(critic.variance)}
    sums = {"var_G": found.return_variance, "var_sum": found.variance_sum, "cov": found.covariance}
    out |= {name: num(round(x, 2)) for name, x in sums.items()}
    return {f"sim_{name}": text for name, text in out.items()}
