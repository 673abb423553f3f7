"""Every definition says the same twice: its scalar arithmetic and its tensor function agree on
random masked batches.

The tests run over the registries. A new estimator, loss or KL estimate is covered once it is
registered.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from telescope.algorithms import ESTIMATORS, KL_ESTIMATES, POLICY_LOSSES, VALUE_LOSSES, kl_penalty
from telescope.algorithms.definitions.base import Actions, PredictedToken, UpdatedToken
from telescope.batch import Scores, TokenBatch
from telescope.config import ActorConfig, CreditConfig, CriticConfig
from telescope.credit import compute_advantages
from tests.algorithms.random_settings import settings_of
from tests.fakes import hand_batch

compared = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much],
)
PARTS = {"a": 0.7, "b": -0.4}  # weights of the parts of a score


def of(section: Any, name: str, data: st.DataObject, model: Any, **more: Any) -> Any:
    """The config section of this definition, with random settings."""
    try:
        return section.of(name, **data.draw(settings_of(model)), **more)
    except ValidationError:
        assume(False)


@st.composite
def masks(draw: st.DrawFn) -> list[list[int]]:
    """Up to six rows of up to six tokens; at least one row has a token."""
    width = draw(st.integers(1, 6))
    row = st.lists(st.integers(0, 1), min_size=width, max_size=width)
    mask = draw(st.lists(row, min_size=1, max_size=6))
    assume(any(map(any, mask)))
    return mask


class Noise:
    """Random numbers [B, T] or [B] that depend on one seed only."""

    def __init__(self, mask: list[list[int]], seed: int) -> None:
        self.mask = torch.tensor(mask)
        self.generator = torch.Generator().manual_seed(seed)

    def tokens(self, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(self.mask.shape, generator=self.generator, dtype=torch.float64)

    def shares(self) -> Tensor:
        """Between 0 and 1."""
        return torch.rand(self.mask.shape, generator=self.generator, dtype=torch.float64)

    def rows(self) -> Tensor:
        return torch.randn(len(self.mask), generator=self.generator, dtype=torch.float64)


def at_actions(column: Tensor, mask: Tensor) -> list[list[float]]:
    """Each row's numbers at its mask-1 positions."""
    return [row[on.bool()].tolist() for row, on in zip(column, mask, strict=True)]


def assert_close(ours: list[float], wanted: list[float], what: str) -> None:
    assert ours == pytest.approx(wanted, rel=1e-4, abs=1e-5), what


# ---- estimators ----


def batch_of(mask: list[list[int]], seed: int, groups: list[int]) -> TokenBatch:
    """A batch after stage 2 with everything that any estimator asks for."""
    noise = Noise(mask, seed)
    log_probs = noise.shares().log()
    batch = hand_batch(mask).with_columns(
        group=torch.tensor(groups),
        token_level_scores=noise.tokens() * noise.mask,
        values=noise.tokens(),
        old_log_probs=log_probs,
        ref_log_prob=log_probs + noise.tokens(0.3),
        bootstrap=noise.rows(),
        attention=noise.shares(),
        sum_pi_squared=noise.shares(),
        greedy_score=noise.rows(),
    )
    parts = {name: noise.rows().tolist() for name in PARTS}
    scores = [
        Scores(0.0, {name: column[row] for name, column in parts.items()}, PARTS)
        for row in range(len(mask))
    ]
    return batch.with_info(scores=scores)


def responses_of(batch: TokenBatch) -> list[Actions]:
    names = ("token_level_rewards", "values", "old_log_probs", "attention", "sum_pi_squared")
    columns = {name: at_actions(batch[name], batch.mask) for name in names}
    return [
        Actions(
            {name: columns[name][row] for name in names},
            bootstrap=float(batch["bootstrap"][row]),
            greedy_score=float(batch["greedy_score"][row]),
            parts=batch.scores[row].parts,
            weights=PARTS,
        )
        for row in range(len(batch))
    ]


@pytest.mark.parametrize("name", list(ESTIMATORS))
@compared
@given(masks(), st.integers(0, 10**6), st.data())
def test_the_credit_of_every_token_is_the_same_by_scalars_and_by_tensors(
    name: str, mask: list[list[int]], seed: int, data: st.DataObject
) -> None:
    estimator = ESTIMATORS[name]
    gamma = data.draw(st.sampled_from([0.0, 0.5, 0.97, 1.0]))
    config = of(CreditConfig, name, data, estimator.settings, gamma=gamma)
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(mask), max_size=len(mask)))
    batch = compute_advantages(batch_of(mask, seed, groups), config, kl_coef=0.1)
    responses = responses_of(batch)
    for group in set(groups):
        members = [x for x, of_group in zip(responses, groups, strict=True) if of_group == group]
        estimator.fill_group(members, config)
    for column in ("advantages", "returns", "baselines"):
        if column not in batch:
            continue
        wanted = at_actions(batch[column], batch.mask)
        for row, response in enumerate(responses):
            if response:
                assert_close(response[column], wanted[row], f"{column} of row {row}")


# ---- losses ----


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
@compared
@given(masks(), st.integers(0, 10**6), st.data())
def test_the_policy_loss_of_every_token_is_the_same_by_scalars_and_by_tensors(
    name: str, mask: list[list[int]], seed: int, data: st.DataObject
) -> None:
    loss = POLICY_LOSSES[name]
    config = of(ActorConfig, name, data, loss.settings)
    noise = Noise(mask, seed)
    old = (0.9 * noise.shares() + 0.05).log()
    new = (0.9 * noise.shares() + 0.05).log()
    advantages = noise.tokens()
    tensors = [new, old, advantages, noise.mask]
    selected = noise.shares() < 0.3 if loss.select is not None else torch.zeros_like(new).bool()
    if loss.select is not None:
        tensors.append(selected & noise.mask.bool())
    terms = loss.call(*tensors, settings=config)
    for row, on in enumerate(noise.mask.bool()):
        actions = on.nonzero()[:, 0].tolist()
        log_ratio = (new - old)[row].tolist()
        for t in actions:
            token = UpdatedToken(
                index=t,
                ratio=math.exp(log_ratio[t]),
                advantage=float(advantages[row, t]),
                log_prob=float(new[row, t]),
                log_ratio=log_ratio[t],
                selected=bool(selected[row, t]),
                log_ratios=[log_ratio[k] for k in actions],
                advantages=[float(advantages[row, k]) for k in actions],
            )
            objective = loss.objective(token, config)
            assert -objective.value == pytest.approx(float(terms.loss[row, t]), rel=1e-6, abs=1e-9)
            assert objective.clipped == bool(terms.clipped[row, t])
            assert objective.dual_clipped == bool(terms.dual_clipped[row, t])


@pytest.mark.parametrize("name", list(VALUE_LOSSES))
@compared
@given(masks(), st.integers(0, 10**6), st.data())
def test_the_value_loss_of_every_token_is_the_same_by_scalars_and_by_tensors(
    name: str, mask: list[list[int]], seed: int, data: st.DataObject
) -> None:
    loss = VALUE_LOSSES[name]
    config = of(CriticConfig, name, data, loss.settings)
    noise = Noise(mask, seed)
    values, old, returns = noise.tokens(), noise.tokens(), noise.tokens()
    rows = hand_batch(mask).with_columns(values=old, returns=returns)
    prediction = SimpleNamespace(values=values, logits=None)
    if loss.histogram is not None:
        bins = loss.histogram(config).count
        shape = (*noise.mask.shape, bins)
        prediction.logits = torch.randn(shape, generator=noise.generator, dtype=torch.float64)
    terms = loss.implementation()(prediction, rows, config)
    for row, t in noise.mask.nonzero().tolist():
        token = PredictedToken(
            index=t,
            value=float(values[row, t]),
            old_value=float(old[row, t]),
            target=float(returns[row, t]),
            log_p=() if terms.log_p is None else terms.log_p[row, t].tolist(),
            first_bin=0 if terms.first_bin is None else int(terms.first_bin[row, t]),
        )
        error = loss.error(token, config)
        assert error.loss == pytest.approx(float(terms.loss[row, t]), rel=1e-5, abs=1e-6)
        assert error.clipped == bool(terms.clipped[row, t])


@pytest.mark.parametrize("kind", list(KL_ESTIMATES))
@compared
@given(st.floats(-40, 40))
def test_a_kl_estimate_is_the_same_by_scalars_and_by_tensors(kind: str, d: float) -> None:
    tensor = kl_penalty(torch.tensor(d, dtype=torch.float64), torch.zeros(()).double(), kind)
    assert KL_ESTIMATES[kind].scalar(d) == pytest.approx(float(tensor), rel=1e-9, abs=1e-12)
