"""Reward shaping: from the task's score of a response to its shaped score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from telescope.algorithms import Moments, last_actions, overlong_penalty
from telescope.batch import Scores, ShapedScore, TokenBatch
from telescope.config import RewardConfig

SHAPING_METRICS = ("overlong", "shaped_mean", "clipped", "norm_mean", "norm_std")


def shapes(config: RewardConfig) -> bool:
    """Whether anything is done to the task's score."""
    rescales = config.scale != 1 or config.shift != 0
    return bool(rescales or config.normalise or config.clip is not None or config.overlong_tokens)


class Shaping:
    """shaped = clip((scale·score + shift − μ)/σ, ±`clip`) + overlong, each step if it is set.

    μ and σ are of all responses trained on so far, this step's included. With those of the batch
    alone, the same answer would be worth another amount at every step, by the luck of the batch,
    and the critic's targets would move with it; `normalise = "batch"` does so all the same.
    `limit` is the longest possible response.
    """

    def __init__(self, config: RewardConfig, limit: int) -> None:
        self.config = config
        self.limit = limit
        self.moments = Moments()
        self.fixed = False
        """μ and σ stay as they are: these responses are not trained on."""

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        """Sets token_level_scores to the shaped scores, and records in `info` what was done.

        The `total` of a row's scores stays the task's.
        """
        config = self.config
        if not shapes(config):
            return batch
        score = torch.tensor([scores.total for scores in batch.scores], dtype=torch.float64)
        if config.normalise and not self.fixed:
            before = Moments() if config.normalise == "batch" else self.moments
            self.moments = before.add(self._rescale(score).tolist())
        normalised = self._normalise(score)
        overlong = self._overlong(batch.host("response"))
        paid = self._clip(normalised) + overlong
        batch = batch.with_columns(token_level_scores=self._pay(batch, score, paid))
        if "greedy_score" in batch:
            batch = batch.with_columns(greedy_score=self._pay_greedy(batch))
        shaped = self._records(normalised, paid)
        batch = batch.with_info(shaped=shaped)
        if config.overlong_tokens:
            batch = batch.with_info(scores=_with_overlong(batch.scores, overlong.tolist()))
        return batch

    def _pay(self, batch: TokenBatch, score: Tensor, paid: Tensor) -> Tensor:
        """Scores per token [B, T] that add up to the shaped scores, `paid` [B].

        Scores on several tokens keep their proportions. What changes their sum goes on the last
        token, where a single score would be.
        """
        factor = self.config.scale / self._std()
        rest = (paid - factor * score).to(batch.mask.device)
        on_last = rest[:, None] * last_actions(batch.mask).double()
        return (factor * batch["token_level_scores"].double() + on_last).float()

    def _pay_greedy(self, batch: TokenBatch) -> Tensor:
        """The greedy responses' scores, shaped like those they are compared with."""
        lengths = [len(row.greedy.ids) for row in batch.info if row.greedy is not None]
        greedy = self._clip(self._normalise(batch["greedy_score"].double().cpu()))
        greedy = greedy + self._overlong(lengths)
        return greedy.float().to(batch.mask.device)

    def _records(self, normalised: Tensor, paid: Tensor) -> list[ShapedScore]:
        config = self.config
        moments = self.moments
        return [
            ShapedScore(
                paid=amount,
                norm_mean=moments.mean if config.normalise else None,
                norm_std=moments.std if config.normalise else None,
                clipped=None if config.clip is None else abs(score) > config.clip,
            )
            for amount, score in zip(paid.tolist(), normalised.tolist(), strict=True)
        ]

    def _std(self) -> float:
        return self.moments.std if self.config.normalise else 1.0

    def _rescale(self, score: Tensor) -> Tensor:
        return self.config.scale * score + self.config.shift

    def _normalise(self, score: Tensor) -> Tensor:
        score = self._rescale(score)
        if not self.config.normalise:
            return score
        return (score - self.moments.mean) / self.moments.std

    def _clip(self, score: Tensor) -> Tensor:
        limit = self.config.clip
        return score if limit is None else score.clamp(-limit, limit)

    def _overlong(self, lengths: Sequence[int]) -> Tensor:
        """The penalty of each response for its length, float64 [B]."""
        if not self.config.overlong_tokens:
            return torch.zeros(len(lengths), dtype=torch.float64)
        return overlong_penalty(
            torch.tensor(lengths),
            limit=self.limit,
            tokens=self.config.overlong_tokens,
            penalty=self.config.overlong_penalty,
        )


def _with_overlong(scores: Sequence[Scores], penalties: Sequence[float]) -> list[Scores]:
    """The scores with the penalty as one more part, of weight 1."""
    return [
        replace(
            own,
            parts={**own.parts, "overlong": penalty},
            weights={**own.weights, "overlong": 1.0},
        )
        for own, penalty in zip(scores, penalties, strict=True)
    ]
