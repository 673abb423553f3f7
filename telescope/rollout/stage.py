"""Stage 1 of a training step: the batch of responses that it trains on.

Dynamic sampling: other prompts replace those whose responses all score alike. A comparison within
a group teaches nothing where all scores are equal. Yu et al. 2025 (DAPO), arXiv:2503.14476.
"""

from __future__ import annotations

from itertools import islice
from typing import Protocol

import torch

from telescope.algorithms.groups import is_flat
from telescope.batch import TokenBatch, merge
from telescope.config import RolloutConfig
from telescope.data.loader import DataLoader, Prompts
from telescope.data.seeds import mix_seed


class Generator(Protocol):
    """What the rollout needs of the actor."""

    def generate_sequences(
        self, prompts: Prompts, *, upcoming: Prompts | None = None
    ) -> TokenBatch:
        """Responses to the prompts."""


class Scorer(Protocol):
    """What the rollout needs of the reward."""

    def score(self, batch: TokenBatch) -> TokenBatch:
        """Adds the scores of all responses."""


class RolloutStage:
    """Asks the actor for responses, ahead of time and with dynamic sampling where configured."""

    def __init__(
        self, actor: Generator, reward: Scorer, data: DataLoader, config: RolloutConfig
    ) -> None:
        self.actor = actor
        self.reward = reward
        self.data = data
        self.config = config

    def generate_sequences(
        self, step: int, prompts: Prompts
    ) -> tuple[TokenBatch, dict[str, float]]:
        """The step's batch, and the metrics of dynamic sampling."""
        upcoming = None  # the next step's prompts, if they are to be answered during this step
        if self.config.one_step_off_policy and step + 1 < self.data.steps:
            upcoming = self.data.at(step + 1)
        batch = self.actor.generate_sequences(prompts, upcoming=upcoming)
        if not self.config.dynamic_sampling:
            return batch, {}
        return self._refill(batch, step)

    def _refill(self, batch: TokenBatch, step: int) -> tuple[TokenBatch, dict[str, float]]:
        """Replaces groups whose scores do not differ by groups of further prompts; adds metrics.

        Each of at most `dynamic_sampling` rounds asks as many further prompts as there are flat
        groups left. A group comes in whole, in the rows of the one it replaces. What is still flat
        in the end stays, so the batch keeps its size. Everything drawn follows from (seed, step,
        round): nothing has to be saved.
        """
        batch = self.reward.score(batch)
        own_score = sum(scores.total for scores in batch.scores) / len(batch)
        size = self.data.repeat
        further = self.data.further_prompts(step)
        flat = _flat_groups(batch, size)
        flat_at_first = len(flat)
        rounds_done = 0
        prompts_asked = 0
        while flat and rounds_done < self.config.dynamic_sampling:
            index = list(islice(further, len(flat)))
            if not index:
                break
            rounds_done += 1
            prompts_asked += len(index)
            seed = mix_seed(self.data.seed, step, 5, rounds_done)
            prompts = self.data.data.take(index, repeat=size, seed=seed)
            extra = self.reward.score(self.actor.generate_sequences(prompts))
            flat_extra = _flat_groups(extra, size)
            useful = [group for group in range(len(index)) if group not in flat_extra]
            replaced = flat[: len(useful)]
            flat = flat[len(useful) :]
            batch = _replace_groups(batch, replaced, extra, useful, size)
        return batch, {
            "rollout/flat_groups": flat_at_first,
            "rollout/own_score_mean": own_score,
            "rollout/refilled_groups": flat_at_first - len(flat),
            "rollout/refill_rounds": rounds_done,
            "rollout/refill_prompts": prompts_asked,
        }


def _flat_groups(batch: TokenBatch, size: int) -> list[int]:
    """Groups, counted in blocks of `size` rows, whose prompt's scores are all the same.

    A prompt may be in a step twice; its responses are then compared together.
    """
    prompts = [row.prompt_index for row in batch.info]
    scores_of: dict[int, list[float]] = {}
    for prompt, own in zip(prompts, batch.scores, strict=True):
        scores_of.setdefault(prompt, []).append(own.total)
    flat = []
    for group in range(len(batch) // size):
        if is_flat(scores_of[prompts[group * size]]):
            flat.append(group)
    return flat


def _replace_groups(
    batch: TokenBatch, old: list[int], extra: TokenBatch, new: list[int], size: int
) -> TokenBatch:
    """Replaces the groups `old` of the batch by the groups `new` of `extra`, with all columns."""
    if not new:
        return batch
    replaced = _rows_of(old, size)
    kept = sorted(set(range(len(batch))) - set(replaced))
    parts = [_numbered(extra.rows(torch.tensor(_rows_of(new, size))), replaced)]
    places = [replaced]
    if kept:
        parts.insert(0, _numbered(batch.rows(torch.tensor(kept)), kept))
        places.insert(0, kept)
    return merge(parts, places)


def _rows_of(groups: list[int], size: int) -> list[int]:
    return [size * group + i for group in groups for i in range(size)]


def _numbered(part: TokenBatch, samples: list[int]) -> TokenBatch:
    """The rows with these sample numbers."""
    return part.with_columns(sample=torch.tensor(samples, device=part.mask.device))
