"""Evaluation sets: held-out prompts, each set with the reward that scores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from telescope.build import build_reward
from telescope.config import Config, EvalSetConfig
from telescope.data.files import read_rows
from telescope.data.loader import PromptSet
from telescope.roles.reward import Reward

_ROUNDING = 1e-9


@dataclass(frozen=True)
class EvalSet:
    """Held-out prompts and how they are scored."""

    name: str
    """Empty: the run's own held-out prompts."""
    prompts: PromptSet
    correct_score: float
    reward: Reward | None = None
    """None: the run's own reward."""

    @property
    def prefix(self) -> str:
        """How the names of its metrics start."""
        return f"eval/{self.name}/" if self.name else "eval/"

    def is_correct(self, score: float) -> bool:
        return score >= self.correct_score - _ROUNDING


def own_set(held_out: PromptSet | None, config: Config) -> list[EvalSet]:
    """The run's own held-out prompts as a set; empty if it has none."""
    return [EvalSet("", held_out, config.eval.correct_score)] if held_out is not None else []


def named_sets(config: Config, tokenizer: Any) -> list[EvalSet]:
    sets = config.eval.sets
    return [_named_set(name, chosen, config, tokenizer) for name, chosen in sets.items()]


def _named_set(name: str, chosen: EvalSetConfig, config: Config, tokenizer: Any) -> EvalSet:
    count = chosen.prompts or config.eval.prompts
    rows = read_rows(chosen.files, config.data.prompt_key)[:count]
    correct_score = chosen.correct_score
    if correct_score is None:
        correct_score = config.eval.correct_score
    reward = None
    if chosen.functions:
        own = {"functions": chosen.functions, "weights": chosen.weights}
        scored = config.reward.model_copy(update={**own, "model": None, "attention": None})
        config = config.model_copy(update={"reward": scored})
        reward = build_reward(config, tokenizer, torch.device("cpu"))
    return EvalSet(name, PromptSet(rows, tokenizer, config.data), correct_score, reward)
