"""Batches with masks of any pattern, for laws that hold on every batch."""

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from telescope.algorithms import (
    gae,
    monte_carlo_returns,
    n_step_advantages,
    td_errors,
)

law = settings(max_examples=60, deadline=None, derandomize=True)

MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)

# holes at the start, inside, at the end; no token; one token; every token
HOLES = torch.tensor(
    [
        [0, 0, 1, 1, 1, 1, 1],
        [1, 1, 0, 0, 1, 0, 1],
        [1, 1, 1, 0, 0, 0, 0],
        [0] * 7,
        [0, 0, 0, 1, 0, 0, 0],
        [1] * 7,
    ]
)


def close(ours: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=atol)


def tensor(numbers) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass
class Rows:
    """A batch of responses with masks of any pattern, and the scalars of GAE."""

    rewards: Tensor
    values: Tensor
    mask: Tensor
    bootstrap: Tensor
    gamma: float
    lam: float

    def gae(self, **changed):
        return gae(
            self.rewards,
            self.values,
            self.mask,
            **{"gamma": self.gamma, "lam": self.lam, "bootstrap": self.bootstrap} | changed,
        )

    def td_errors(self):
        return td_errors(
            self.rewards, self.values, self.mask, gamma=self.gamma, bootstrap=self.bootstrap
        )

    def observed(self):
        return monte_carlo_returns(
            self.rewards, self.mask, gamma=self.gamma, bootstrap=self.bootstrap
        )

    def n_step(self, n: int):
        return n_step_advantages(
            self.rewards, self.values, self.mask, n=n, gamma=self.gamma, bootstrap=self.bootstrap
        )

    def kept(self, x: Tensor) -> Tensor:
        return x.where(self.mask.bool(), 0.0)

    def actions(self):
        """(row, its mask-1 positions in order) of every row."""
        return [(b, row.nonzero()[:, 0].tolist()) for b, row in enumerate(self.mask)]


@st.composite
def rows(draw) -> Rows:
    length = draw(st.integers(1, 9))
    mask = torch.tensor(
        draw(
            st.lists(
                st.lists(st.integers(0, 1), min_size=length, max_size=length),
                min_size=1,
                max_size=3,
            )
        )
    )
    seed, fraction = draw(st.integers(0, 99)), st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])
    shape = tuple(mask.shape)
    return Rows(
        noise(*shape, seed=seed),
        noise(*shape, seed=seed + 100),
        mask,
        noise(shape[0], seed=seed + 200),
        draw(fraction),
        draw(fraction),
    )
