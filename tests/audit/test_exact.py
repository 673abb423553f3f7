"""The audit against exact values: every continuation enumerated, with its probability."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope import ledger
from telescope.audit.findings import Audit
from telescope.build import build_local_roles
from telescope.config import Config
from telescope.run import checkpoint
from telescope.run.audit import audit_run
from telescope.run.saved import SavedRun
from tests.tiny import EOS

CONTINUATIONS = 400
STEP = 3
GAMMA = 0.9
BETA = 0.1
LIMIT = 3
TOP_K = 3
TEMPERATURE = 1.5


def score(ids: list[int]) -> float:
    """The reward of the run, written out again."""
    return (sum((k + 1) * token for k, token in enumerate(ids)) % 7) / 6


class Enumerated:
    """Expected returns by enumeration, with Hugging Face's own forward."""

    def __init__(self, config: Config) -> None:
        roles = build_local_roles(config)
        self.reference: Any = roles.reference.model
        self.policy: Any = roles.actor.model
        path = config.run_dir / "checkpoints" / f"step_{STEP - 1:06d}"
        SavedRun(config, path, checkpoint.check(path)).load_weights("actor", self.policy)
        self.value = cache(self.value)  # type: ignore[method-assign]

    def log_probs(self, model: Any, ids: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        return torch.log_softmax(logits.double() / TEMPERATURE, -1)

    def value(self, prompt: tuple[int, ...], written: tuple[int, ...]) -> float:
        """E[G] of the state: Σ_a p(a)·(r(a) + γ·value after it)."""
        own = self.log_probs(self.policy, prompt + written)
        start = self.log_probs(self.reference, prompt + written)
        best = own.topk(TOP_K).indices.tolist()
        mass = own[best].exp().sum()
        total = 0.0
        for token in best:
            after = (*written, token)
            reward = -BETA * float(own[token] - start[token])
            if token == EOS or len(after) == LIMIT:
                reward += score(list(after))
                future = 0.0
            else:
                future = self.value(prompt, after)
            total += float(own[token].exp() / mass) * (reward + GAMMA * future)
        return total


@pytest.fixture(scope="module")
def audit(critic_run: Config) -> Audit:
    return audit_run(critic_run.run_dir, step=STEP, continuations=CONTINUATIONS)


@pytest.fixture(scope="module")
def exact(critic_run: Config) -> Enumerated:
    return Enumerated(critic_run)


def rows_of(run: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ledger.read(run, STEP).to_pylist()
    return rows


def test_every_mean_outcome_is_near_the_exact_value(
    audit: Audit, exact: Enumerated, critic_run: Config
) -> None:
    """Returns lie within 1.2 of one another. By Hoeffding a mean of 400 is off by more than 0.18
    with probability 2·exp(−2·400·(0.18/1.2)²) = 3e−8."""
    rows = rows_of(critic_run.run_dir)
    inside = 0
    for post in audit.posts:
        row = rows[post.sample]
        truth = exact.value(tuple(row["prompt_ids"]), tuple(row["responses"][: post.token]))
        assert abs(post.mean - truth) < 0.18
        assert abs(post.mean - truth) < 4.5 * post.error + 0.01
        inside += post.low <= truth <= post.high
    assert len(audit.posts) >= 16
    assert inside >= 0.9 * len(audit.posts)  # 95 % are expected


def test_what_was_predicted_is_what_the_ledger_holds(audit: Audit, critic_run: Config) -> None:
    rows = rows_of(critic_run.run_dir)
    for post in audit.posts:
        assert post.predicted == rows[post.sample]["values"][post.token]
        assert post.length == len(rows[post.sample]["responses"])
    assert len({post.predicted for post in audit.posts}) > 8


def test_decided_signs_are_those_of_the_exact_advantages(
    audit: Audit, exact: Enumerated, critic_run: Config
) -> None:
    rows = rows_of(critic_run.run_dir)
    decided = 0
    agreed = 0
    for token in audit.tokens:
        row = rows[token.sample]
        prompt = tuple(row["prompt_ids"])
        written = tuple(row["responses"][: token.token + 1])
        is_last = len(written) == len(row["responses"])
        after = 0.0 if is_last else exact.value(prompt, written)
        before = exact.value(prompt, written[:-1])
        truth = row["token_level_rewards"][token.token] + GAMMA * after - before
        if token.is_decided:
            decided += 1
            agreed += token.mean * truth > 0
    assert decided >= 8
    assert agreed >= 0.95 * decided
