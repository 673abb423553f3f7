"""Follow-ups about other settings and tokens: over which responses, and about which token."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from telescope.explain.arithmetic import fill
from telescope.explain.ask.conversation import Conversation
from telescope.explain.ask.retry import retry
from telescope.explain.example import BATCH, RIGHT
from telescope.explain.sample import Sample
from tests.explain.samples import demo


def conversation(sample: Sample, batch: Sequence[Sample]) -> Conversation:
    return Conversation(sample, batch=lambda: batch)


def test_another_lambda_is_whitened_over_all_responses_of_the_batch() -> None:
    """With λ = 1, A is the sum of all later rewards less V, here worked out by hand."""
    every = []
    for other in BATCH:
        full = fill(other).columns
        rewards = full["token_level_rewards"]
        values = full["values"]
        every += [math.fsum(rewards[t:]) - values[t] for t in range(len(rewards))]
    mean = statistics.mean(every)
    std = math.sqrt(statistics.variance(every) + 1e-8)
    tried = fill(retry(RIGHT, {"lam": 1.0}, "en", BATCH))
    assert (tried.whiten_mean, tried.whiten_std) == pytest.approx((mean, std))
    assert tried.columns["whitened"][0] == pytest.approx((every[0] - mean) / std)
    alone = fill(retry(RIGHT, {"lam": 1.0}, "en"))
    assert alone.whiten_std != pytest.approx(std)


def test_the_recorded_lambda_gives_the_recorded_numbers() -> None:
    tried = fill(retry(RIGHT, {"lam": 0.95}, "en", BATCH))
    assert tried.columns["whitened"] == pytest.approx(fill(RIGHT).columns["whitened"])


def test_a_clip_range_leaves_the_advantages_as_they_are() -> None:
    tried = fill(retry(RIGHT, {"clip_low": 0.1, "clip_high": 0.1}, "en"))
    assert tried.columns["whitened"] == fill(RIGHT).columns["whitened"]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (BATCH, "(All 2 responses of the batch recomputed; μ and σ are over all of them.)"),
        ([*BATCH, replace(demo(), index=2)], "over the 3 recorded responses of this step"),
        ([], "(Only this response is here: μ and σ are its own;"),
    ],
)
def test_the_reply_says_which_responses_were_whitened(batch: list[Sample], said: str) -> None:
    asked = conversation(RIGHT, batch)
    asked.ask("what does whitening do")
    assert said in asked.ask("what if λ=1").text
    assert said not in asked.ask("and ε=0.1, with the old settings").text
    assert "μ" not in asked.ask("for a 12-year-old").text


def test_an_example_stays_with_the_token_that_was_named() -> None:
    asked = conversation(RIGHT, BATCH)
    asked.ask("为什么优势 A 不等于 δ")
    assert "token 3" in asked.ask("举个例子").text  # the instructive one
    asked.ask("第 0 个 token 呢")
    assert "以 token 0" in asked.ask("举个例子").text
    again = conversation(RIGHT, BATCH)
    assert again.ask("token 1 的优势 A 为什么不等于 δ").token == 1
    assert "以 token 1" in again.ask("举个例子").text
