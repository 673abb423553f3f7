"""From the task's score of a response to what is paid for it: normalised, clipped, less a penalty for length, in that order."""

from __future__ import annotations

import torch
from torch import Tensor

from telescope.algorithms import Moments, last_actions, overlong_penalty
from telescope.batch import TokenBatch
from telescope.config import RewardConfig

METRICS = ("overlong", "shaped_mean", "clipped", "norm_mean", "norm_std")


class Shaping:
    """paid = clip((score − μ)/σ, ±`clip`) + overlong, each step only where it is configured; `limit` is the longest response.

    μ and σ are of all responses trained on so far, this step's included: with those of the batch alone the same answer would be
    worth another amount at every step, by the luck of the batch, and the critic's targets would move with it.
    """

    def __init__(self, config: RewardConfig, limit: int) -> None:
        self.config, self.limit, self.moments = config, limit, Moments()

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        """The batch with what is paid in its token_level_scores, and what was done to them in its info. `score` stays the task's."""
        config, mask = self.config, batch.mask
        if not (config.normalise or config.clip is not None or config.overlong_tokens):
            return batch
        if config.normalise:
            self.moments = self.moments.add(batch.info["score"])
        score = torch.tensor(batch.info["score"], dtype=torch.float64)
        normal, overlong = self._normal(score), self._overlong(batch.host("response"))
        paid = self._clip(normal) + overlong
        std = self.moments.std if config.normalise else 1.0
        # scores on several tokens keep their proportions; what moves their sum goes where a single score would, on the last token
        rest = (paid - score / std).to(mask.device)[:, None] * last_actions(mask).double()
        batch = batch.with_columns(
            token_level_scores=(batch["token_level_scores"].double() / std + rest).float()
        )
        if "greedy_score" in batch:
            greedy = self._clip(self._normal(batch["greedy_score"].double().cpu()))
            greedy = greedy + self._overlong(
                [len(ids) for ids in batch.info["greedy_response_ids"]]
            )
            batch = batch.with_columns(greedy_score=greedy.float().to(mask.device))
        info = {"shaping/shaped_mean": paid.tolist()}
        if config.normalise:
            info |= {
                "shaping/norm_mean": [self.moments.mean] * len(batch),
                "shaping/norm_std": [std] * len(batch),
            }
        if config.clip is not None:
            info["shaping/clipped"] = (normal.abs() > config.clip).double().tolist()
        if config.overlong_tokens:
            info |= {"score/overlong": overlong.tolist(), "weight/overlong": [1.0] * len(batch)}
        return batch.with_info(**info)

    def _normal(self, score: Tensor) -> Tensor:
        return (score - self.moments.mean) / self.moments.std if self.config.normalise else score

    def _clip(self, score: Tensor) -> Tensor:
        return (
            score if self.config.clip is None else score.clamp(-self.config.clip, self.config.clip)
        )

    def _overlong(self, lengths: list[int]) -> Tensor:
        if not self.config.overlong_tokens:
            return torch.zeros(len(lengths), dtype=torch.float64)
        tokens, penalty = self.config.overlong_tokens, self.config.overlong_penalty
        return overlong_penalty(
            torch.tensor(lengths), limit=self.limit, tokens=tokens, penalty=penalty
        )
