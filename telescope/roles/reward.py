"""The reward: plain Python functions, a reward model, or a weighted sum of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from telescope.algorithms import Moments
from telescope.batch import Response, Scores, TokenBatch
from telescope.errors import TelescopeError
from telescope.roles.calling import Caller, Returned
from telescope.roles.functions import RewardFunction, read_score
from telescope.roles.shaping import SHAPING_METRICS, Shaping

_OTHER_METRICS = {"kl", "kl_coef", "score_mean", "token_reward_mean", *SHAPING_METRICS}
"""Metrics called reward/<name> that are not parts of the reward."""
ENVIRONMENT = "environment"
"""The part that the environment pays on its own turns."""


class Reward:
    """Scores responses with all functions; each is reported by name.

    `weights` are the functions' weights, 1 by default. `attention` is a function that weighs
    tokens, for estimators that share the outcome by attention. `shape` turns the task's score into
    the shaped score.

    The score is Σ weight·score over the functions that apply to a response; the other weights stay
    as they are. A response to which none applies is an error. With `every_part`, so is one to which
    not all apply.
    """

    def __init__(
        self,
        functions: Mapping[str, RewardFunction],
        weights: Mapping[str, float] | None = None,
        attention: RewardFunction | None = None,
        shape: Shaping | None = None,
        caller: Caller | None = None,
        *,
        every_part: bool = False,
    ) -> None:
        self.functions = dict(functions)
        self.weights = dict(weights or {})
        self.attention = attention
        self.shape = shape
        self.caller = caller or Caller()
        self.every_part = every_part
        self.step = 0
        """The training step that the responses belong to: functions may ask for it."""
        for name in sorted(self.functions):
            if name in _OTHER_METRICS or name == ENVIRONMENT:
                raise TelescopeError(
                    f"a reward function cannot be called {name!r}: "
                    f"reward/{name} is another metric; rename it"
                )
        for name in self.weights:
            if name not in self.functions and name != ENVIRONMENT:
                raise TelescopeError(
                    f"reward.weights names {name!r}; the parts are {', '.join(self.functions)}"
                )

    def compute_reward(self, batch: TokenBatch) -> TokenBatch:
        """Adds token_level_scores: the task's scores, shaped where that is configured.

        Responses that have been scored already are not scored again.
        """
        if "token_level_scores" not in batch:
            batch = self.score(batch)
        return batch if self.shape is None else self.shape(batch)

    def score(self, batch: TokenBatch, *, evaluation: bool = False) -> TokenBatch:
        """Adds the task's own scores: token_level_scores, and `scores` of every row's info.

        Also adds what some estimators need: greedy_score if the batch has greedy responses, and
        attention if that function is given.
        """
        responses = [row.response for row in batch.info]
        token_scores = torch.zeros(batch.mask.shape)
        parts: dict[str, list[float | None]] = {}
        returned = self._score_parts(batch, responses, evaluation)
        for name, found in returned.items():
            tokens, parts[name] = _place(name, found.scores, batch)
            token_scores += self._weight(name) * tokens
        device = batch["input_ids"].device
        batch = batch.with_columns(token_level_scores=token_scores.to(device))
        batch = batch.with_info(scores=self._row_scores(parts, returned, batch))
        greedy = [row.greedy for row in batch.info if row.greedy is not None]
        if greedy:
            greedy_score = torch.tensor(
                self._greedy_scores(batch, greedy, evaluation), device=device
            )
            batch = batch.with_columns(greedy_score=greedy_score)
        if self.attention is not None:
            attention = self._attention_weights(batch, responses, self.attention)
            batch = batch.with_columns(attention=attention.to(device))
        return batch

    def take_trouble(self) -> list[str]:
        """What has failed and was tried again since the last call, in words."""
        found: list[str] = []
        for function in self.functions.values():
            trouble: list[str] = getattr(function, "trouble", [])
            found += trouble
            trouble.clear()
        return found

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: mean and variance of the scores so far, if shaping uses them."""
        return {"moments": asdict(self.shape.moments)} if self.shape is not None else {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        if self.shape is not None and "moments" in state:
            self.shape.moments = Moments(**state["moments"])

    def _weight(self, name: str) -> float:
        return self.weights.get(name, 1.0)

    def _call(
        self,
        functions: Mapping[str, RewardFunction],
        batch: TokenBatch,
        responses: Sequence[Response],
        evaluation: bool,
    ) -> dict[str, Returned]:
        return self.caller.call(functions, batch, responses, step=self.step, evaluation=evaluation)

    def _score_parts(
        self, batch: TokenBatch, responses: Sequence[Response], evaluation: bool
    ) -> dict[str, Returned]:
        """What all functions say, and what the environment has paid."""
        returned = self._call(self.functions, batch, responses, evaluation)
        if not self.functions or any(response.paid for response in responses):
            returned[ENVIRONMENT] = Returned([_paid_tokens(response) for response in responses])
        return returned

    def _row_scores(
        self,
        parts: Mapping[str, list[float | None]],
        returned: Mapping[str, Returned],
        batch: TokenBatch,
    ) -> list[Scores]:
        scores = []
        for row in range(len(batch)):
            own = {}
            metrics = {}
            for name, values in parts.items():
                value = values[row]
                if value is not None:
                    own[name] = value
                for metric, numbers in returned[name].metrics.items():
                    number = numbers[row]
                    if number is not None:
                        metrics[f"{name}/{metric}"] = number
            self._check_applies(own, f"response {row}", batch.info[row].prompt)
            weights = {name: self._weight(name) for name in own}
            total = sum(weights[name] * value for name, value in own.items())
            scores.append(Scores(total, own, weights, metrics))
        return scores

    def _check_applies(self, own: Mapping[str, float], which: str, prompt: str) -> None:
        """Refuses a response that has no score, or not all of them where all are needed."""
        if not own:
            raise TelescopeError(
                f"no reward function applies to {which} (prompt {prompt[:60]!r}): "
                f"{', '.join(self.functions)} returned None; return a number from at least one"
            )
        if self.every_part and len(own) < len(self.functions):
            missing = [name for name in self.functions if name not in own]
            raise TelescopeError(
                f"credit.estimator compares the parts of the score, and {', '.join(missing)} "
                f"returned None for {which} (prompt {prompt[:60]!r}): return a number"
            )

    def _greedy_scores(
        self, batch: TokenBatch, greedy: Sequence[Response], evaluation: bool
    ) -> list[float]:
        """Scores of the greedy responses; scores per token are added up."""
        returned = self._score_parts(batch, greedy, evaluation)
        totals = []
        for row, info in enumerate(batch.info):
            own = {}
            for name, found in returned.items():
                score = found.scores[row]
                if score is not None:
                    number = read_score(name, score, f"greedy response {row}")
                    own[name] = sum(number) if isinstance(number, list) else number
            self._check_applies(own, f"greedy response {row}", info.prompt)
            totals.append(sum(self._weight(name) * number for name, number in own.items()))
        return totals

    def _attention_weights(
        self, batch: TokenBatch, responses: Sequence[Response], function: RewardFunction
    ) -> Tensor:
        returned = self._call({"attention": function}, batch, responses, evaluation=False)
        weights, _ = _place("attention", returned["attention"].scores, batch, optional=False)
        if bool((weights < 0).any()):
            raise TelescopeError(
                "reward.attention returned a weight below 0: shares of the credit are 0 or more"
            )
        return weights


def _paid_tokens(response: Response) -> list[float]:
    """What the environment has paid on each token."""
    tokens = [0.0] * len(response.ids)
    for place, amount in response.paid:
        tokens[place] += amount
    return tokens


def _place(
    name: str, scores: Sequence[Any], batch: TokenBatch, *, optional: bool = True
) -> tuple[Tensor, list[float | None]]:
    """Puts scores on tokens, [B, T]: one per response on its last valid token, a list one by one.

    Also returns each row's sum; None where the function does not apply, if that is `optional`.
    """
    tokens = torch.zeros(batch.mask.shape)
    lengths = batch.host("response")
    last = batch.host("last")
    rows: list[float | None] = []
    for row, score in enumerate(scores):
        if score is None and optional:
            rows.append(None)
            continue
        text = batch.info[row].response.text
        number = read_score(name, score, f"response {row} ({text[:60]!r})")
        if isinstance(number, list):
            if len(number) != lengths[row]:
                raise TelescopeError(
                    f"reward function {name!r} returned {len(number)} token scores for "
                    f"response {row}, which has {lengths[row]} tokens: return one number for the "
                    "response, or one per token"
                )
            tokens[row, : lengths[row]] = torch.tensor(number)
            rows.append(sum(number))
        else:
            if last[row] >= 0:  # an empty response has no action that could get credit
                tokens[row, last[row]] = number
            rows.append(number)
    return tokens, rows
