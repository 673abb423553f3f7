"""Dynamic sampling: prompts whose responses all score alike teach a comparison nothing, so others take their place."""

from __future__ import annotations

from itertools import islice
from typing import Any, Protocol

import torch

from telescope.batch import TokenBatch, merge
from telescope.data.loader import DataLoader
from telescope.data.seeds import mix_seed

_SPREAD = 1e-6  # scores that differ by less are equal: rounding is no lesson


class Scorer(Protocol):
    """What refill needs of the reward: the score of each response, before anything else is computed."""

    def score(self, batch: TokenBatch) -> TokenBatch: ...


def refill(
    batch: TokenBatch, step: int, actor: Any, reward: Scorer, data: DataLoader, *, rounds: int
) -> tuple[TokenBatch, dict[str, float]]:
    """The step's batch with groups whose scores do not differ replaced by groups of further prompts, and how many there were.

    Each of at most `rounds` rounds asks as many further prompts as there are flat groups left. A group comes in whole or not at all, in
    the rows of the one that goes; what is still flat in the end stays, so that the batch keeps its size. Everything drawn follows
    from (seed, step, round), so nothing has to be saved. Yu et al. 2025 (DAPO), arXiv:2503.14476.
    """
    if not rounds:
        return batch, {}
    batch = reward.score(batch)
    size, further = data.repeat, data.further(step)
    flat = _flat(batch, size)
    metrics = {
        "rollout/flat_groups": len(flat),
        "rollout/own_score_mean": sum(batch.info["score"]) / len(batch),
    }
    done = asked = 0
    while flat and done < rounds and (index := list(islice(further, len(flat)))):
        done, asked = done + 1, asked + len(index)
        more = data.data.take(index, repeat=size, seed=mix_seed(data.seed, step, 5, done))
        extra = reward.score(actor.generate_sequences(more))
        dull = _flat(extra, size)
        good = [group for group in range(len(index)) if group not in dull]
        places, flat = flat[: len(good)], flat[len(good) :]
        batch = _replaced(batch, places, extra, good, size)
    refilled = metrics["rollout/flat_groups"] - len(flat)
    return batch, metrics | {
        "rollout/refilled_groups": refilled,
        "rollout/refill_rounds": done,
        "rollout/refill_prompts": asked,
    }


def _flat(batch: TokenBatch, size: int) -> list[int]:
    """Groups, counted in blocks of `size` rows, whose prompt's scores are all the same."""
    prompts, scores = batch.info["prompt_index"], batch.info["score"]
    of: dict[int, list[float]] = {}
    for prompt, score in zip(
        prompts, scores, strict=True
    ):  # a prompt may be in a step twice: then it is one group
        of.setdefault(prompt, []).append(score)
    return [
        group
        for group in range(len(batch) // size)
        if max(s := of[prompts[group * size]]) - min(s) <= _SPREAD
    ]


def _replaced(
    batch: TokenBatch, places: list[int], extra: TokenBatch, good: list[int], size: int
) -> TokenBatch:
    """The batch with the groups at `places` exchanged for the groups `good` of `extra`, all their columns together."""
    if not good:
        return batch
    going, coming = (
        [size * group + i for group in groups for i in range(size)] for groups in (places, good)
    )
    stay = sorted(set(range(len(batch))) - set(going))
    parts = [
        (source.rows(torch.tensor(rows)), to)
        for source, rows, to in ((batch, stay, stay), (extra, coming, going))
        if rows
    ]
    numbered = [
        part.with_columns(sample=torch.tensor(to, device=part.mask.device)) for part, to in parts
    ]
    return merge(numbered, [to for _, to in parts])
