"""Bias and variance of GAE for several λ, measured where the true value is known.

Question 14 of `telescope explain` quotes these numbers. The process: a reward keeps a part φ of the
one before it and adds noise,

    r_t = φ·r_{t−1} + ε_t      r_{−1} = 0      V(s_t) = r_{t−1}·Σ_k γ^k·φ^{k+1}

where the sum runs over the tokens left. So rewards covary, and V is known exactly.

What is measured is the target of the first token, R_0 = A_0 + V(s_0), not A_0 itself. An error of
V(s_0) is in A_0 for every λ, but it is the same for every choice of token, so it does not change
the policy gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from telescope.algorithms import gae, monte_carlo_returns
from telescope.algorithms.definitions.notation import listed, num

EPISODES = 100_000
TOKENS = 6
GAMMA = 0.99
LAMS = (0.0, 0.5, 0.9, 0.95, 1.0)
KEEPS = 0.6
"""φ."""
LUCK = 0.5
"""Standard deviation of ε."""
OFFSET = 1.0
"""A biased critic says V + OFFSET."""
NOISE = 3.0
"""A noisy critic says V plus noise of this standard deviation, drawn for every state."""


@dataclass(frozen=True)
class Target:
    """R_0 with one critic, for each of LAMS."""

    bias: list[float]
    """Mean minus the true V(s_0)."""
    variance: list[float]


@dataclass(frozen=True)
class Simulation:
    exact: Target
    high: Target
    """With the biased critic."""
    erratic: Target
    """With the noisy critic."""
    return_variance: float
    """Var(G_0) = variance_sum + covariance."""
    variance_sum: float
    """Σ γ^{2k}·Var(r_k)"""
    covariance: float
    """Σ_{j≠k} γ^{j+k}·Cov(r_j, r_k)"""
    error: float
    """Two standard errors of the least certain mean."""


def simulate(*, keeps: float = KEEPS, seed: int = 0) -> Simulation:
    """Draws the episodes, and measures R_0 with three critics."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, EPISODES, TOKENS)
    luck, noise = torch.randn(shape, dtype=torch.float64, generator=generator)  # [B, T] each
    mask = torch.ones(EPISODES, TOKENS)
    step = torch.arange(TOKENS, dtype=torch.float64)
    discount = GAMMA**step  # [T]
    rewards = LUCK * luck @ _carried(step, keeps)  # r_t = Σ_{j≤t} φ^{t−j}·ε_j
    previous = torch.nn.functional.pad(rewards, (1, -1))  # r_{t−1}
    truth = previous * _value_per_reward(discount, step, keeps)  # V(s_t)

    def target(values: Tensor) -> Target:
        returns = [gae(rewards, values, mask, gamma=GAMMA, lam=lam)[1][:, 0] for lam in LAMS]
        first = torch.stack(returns)  # [λ, B]
        bias = (first - truth[:, 0]).mean(1)
        return Target(bias.tolist(), first.var(1).tolist())

    exact = target(truth)
    high = target(truth + OFFSET)
    erratic = target(truth + NOISE * noise)
    largest_variance = max(exact.variance + high.variance + erratic.variance)
    returns = monte_carlo_returns(rewards, mask, gamma=GAMMA)[:, 0]
    covariance = torch.cov((discount * rewards).T)  # [T, T]
    variance_sum = covariance.trace()
    return Simulation(
        exact,
        high,
        erratic,
        return_variance=float(returns.var()),
        variance_sum=float(variance_sum),
        covariance=float(covariance.sum() - variance_sum),
        error=2 * (largest_variance / EPISODES) ** 0.5,
    )


def _carried(step: Tensor, keeps: float) -> Tensor:
    """[j, t]: the part φ^{t−j} of ε_j that is in r_t."""
    gap = step - step[:, None]
    return torch.where(gap >= 0, keeps ** gap.clamp(min=0), 0.0)


def _value_per_reward(discount: Tensor, step: Tensor, keeps: float) -> Tensor:
    """[t]: Σ_k γ^k·φ^{k+1} over the tokens left at t."""
    terms = discount * keeps ** (step + 1)
    return torch.stack([terms[: TOKENS - t].sum() for t in range(TOKENS)])


def facts() -> dict[str, str]:
    """Returns every number that an answer may quote, as text. A list has one number per λ."""
    found = simulate()
    numbers = {
        "gamma": GAMMA,
        "keeps": KEEPS,
        "offset": OFFSET,
        "noise": NOISE,
        "error": round(found.error, 2),
        "var_G": round(found.return_variance, 2),
        "var_sum": round(found.variance_sum, 2),
        "cov": round(found.covariance, 2),
    }
    texts = {name: num(value) for name, value in numbers.items()}
    texts["episodes"] = str(EPISODES)
    texts["tokens"] = str(TOKENS)
    texts["lams"] = _row(LAMS)
    critics = {"exact": found.exact, "high": found.high, "erratic": found.erratic}
    for name, target in critics.items():
        texts[f"{name}_bias"] = _row(target.bias)
        texts[f"{name}_var"] = _row(target.variance)
    return {f"sim_{name}": text for name, text in texts.items()}


def _row(numbers: Sequence[float]) -> str:
    return listed([round(x, 2) for x in numbers])
