"""The reward: plain Python functions, a reward model, or a weighted sum of several, each reported by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from telescope.algorithms import Moments
from telescope.batch import TokenBatch
from telescope.errors import TelescopeError
from telescope.roles import shaping

RewardFunction = Callable[..., Sequence[float] | Sequence[Sequence[float]]]
"""f(prompts, completions, **columns) -> a float per sample, or a list of floats per sample: one for each response token.

`columns` are the data's own columns; prompt_ids and response_ids, the tokens; last_turns, what the policy wrote after a tool had
its last word (without tools the same as completions, which hold what tools wrote). Arguments a function does not take are left out.
"""


class Reward:
    def __init__(
        self,
        functions: Mapping[str, RewardFunction],
        weights: Mapping[str, float] | None = None,
        attention: RewardFunction | None = None,
        shape: shaping.Shaping | None = None,
    ) -> None:
        self.functions, self.weights, self.attention, self.shape = (
            dict(functions),
            dict(weights or {}),
            attention,
            shape,
        )
        taken = sorted(
            {"kl", "kl_coef", "score_mean", "token_reward_mean", *shaping.METRICS}
            & set(self.functions)
        )
        if taken:
            raise TelescopeError(
                f"a reward function cannot be called {taken[0]!r}: reward/{taken[0]} is another metric; rename it"
            )
        unknown = [name for name in self.weights if name not in self.functions]
        if unknown:
            raise TelescopeError(
                f"reward.weights names {unknown[0]!r}; the parts are {', '.join(self.functions)}"
            )

    def compute_reward(self, batch: TokenBatch) -> TokenBatch:
        """Adds token_level_scores, what is paid: the task's scores (unless the batch has them), shaped where that is configured."""
        batch = batch if "score" in batch.info else self.score(batch)
        return self.shape(batch) if self.shape is not None else batch

    def score(self, batch: TokenBatch) -> TokenBatch:
        """The task's own scores as token_level_scores, and `score` with every part by name in the batch's info.

        And what an estimator asks for besides: greedy_score where the actor has answered greedily too, attention if that is given.
        """
        scores = torch.zeros(batch.mask.shape)
        parts: dict[str, list[float]] = {}
        for name, function in self.functions.items():
            part = _place(name, _call(name, function, batch), batch)  # [B, T], and per row
            scores += self.weights.get(name, 1.0) * part.tokens
            parts[name] = part.rows
        score = [
            sum(self.weights.get(name, 1.0) * rows[i] for name, rows in parts.items())
            for i in range(len(batch))
        ]
        device = batch["input_ids"].device
        batch = batch.with_columns(token_level_scores=scores.to(device))
        if "greedy_response" in batch.info:
            batch = batch.with_columns(
                greedy_score=torch.tensor(self._greedy(batch), device=device)
            )
        if self.attention is not None:
            weights = _place("attention", _call("attention", self.attention, batch), batch).tokens
            if bool((weights < 0).any()):
                raise TelescopeError(
                    "reward.attention returned a weight below 0: shares of the credit are 0 or more"
                )
            batch = batch.with_columns(attention=weights.to(device))
        weight = {f"weight/{name}": [self.weights.get(name, 1.0)] * len(batch) for name in parts}
        return batch.with_info(
            score=score, **{f"score/{name}": rows for name, rows in parts.items()}, **weight
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"moments": asdict(self.shape.moments)} if self.shape is not None else {}

    def load(self, state: Mapping[str, Any]) -> None:
        if self.shape is not None and "moments" in state:
            self.shape.moments = Moments(**state["moments"])

    def _greedy(self, batch: TokenBatch) -> list[float]:
        """The greedy responses' scores, dense ones added up."""
        greedy = batch.with_info(
            **{
                name.removeprefix("greedy_"): of
                for name, of in batch.info.items()
                if name.startswith("greedy_")
            }
        )
        total = [0.0] * len(batch)
        for name, function in self.functions.items():
            for i, score in enumerate(_call(name, function, greedy)):
                numbers = _numbers(name, score, f"greedy response {i}")
                total[i] += self.weights.get(name, 1.0) * (
                    sum(numbers) if isinstance(numbers, list) else numbers
                )
        return total


class RewardModel:
    """A sequence-classification model as a reward function: one number for prompt and response.

    With the actor's own vocabulary it reads the sampled ids; otherwise it gets the text in its own tokens, chat messages
    through its own template. Rows of equal length go together, up to `tokens` tokens: nothing is padded, so nothing can be read off it.
    """

    def __init__(
        self, model: Any, tokenizer: Any, actor_tokenizer: Any, *, tokens: int = 16_384
    ) -> None:
        self.model, self.tokenizer, self.tokens = model, tokenizer, tokens
        self.same_tokens = tokenizer.get_vocab() == actor_tokenizer.get_vocab()
        for config in (model.config, model.config.get_text_config()):
            config.pad_token_id = (
                -1
            )  # HF looks for the last token that is not pad, and pad may be EOS

    @torch.no_grad()
    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        prompt_ids: Sequence[list[int]],
        response_ids: Sequence[list[int]],
        messages: Sequence[Any] | None = None,
        **_: Any,
    ) -> list[float]:
        if self.same_tokens:
            ids = [list(p) + list(r) for p, r in zip(prompt_ids, response_ids, strict=True)]
        else:
            chats = messages or [None] * len(prompts)
            ids = [
                self._encode(p, c, m) for p, c, m in zip(prompts, completions, chats, strict=True)
            ]
        scores = [0.0] * len(ids)
        for length in sorted({len(row) for row in ids}):
            same = [i for i, row in enumerate(ids) if len(row) == length]
            rows = max(self.tokens // max(length, 1), 1)
            for first in range(0, len(same), rows):
                chunk = same[first : first + rows]
                input_ids = torch.tensor([ids[i] for i in chunk], device=self.model.device)
                logits = self.model(
                    input_ids=input_ids, attention_mask=torch.ones_like(input_ids)
                ).logits
                for i, score in zip(chunk, logits.squeeze(-1).float().tolist(), strict=True):
                    scores[i] = score
        return scores

    def _encode(self, prompt: str, completion: str, messages: Any) -> list[int]:
        if messages is None:
            return list(self.tokenizer(prompt + completion).input_ids)
        if not self.tokenizer.chat_template:
            raise TelescopeError(
                "the prompts are chat messages, but the reward model's tokenizer has no chat template"
            )
        text = self.tokenizer.apply_chat_template(
            [*messages, {"role": "assistant", "content": completion}], tokenize=False
        )
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)


@dataclass(frozen=True)
class _Part:
    tokens: Tensor
    """[B, T]"""
    rows: list[float]
    """Sum over each row's tokens."""


def _call(name: str, function: RewardFunction, batch: TokenBatch) -> list[Any]:
    """What the function returned, one entry per response."""
    columns = _arguments(name, function, batch)
    try:
        returned: Any = function(**columns)
        returned = returned.tolist() if hasattr(returned, "tolist") else returned
        result = list(returned) if isinstance(returned, Iterable) else returned
    except TelescopeError:
        raise
    except Exception as error:
        where = inspect.getinnerframes(error.__traceback__)[-1] if error.__traceback__ else None
        at = f" ({Path(where.filename).name}, line {where.lineno})" if where else ""
        raise TelescopeError(
            f"reward function {name!r} raised {type(error).__name__}: {' '.join(str(error).split())}{at}"
        ) from error
    if not isinstance(result, list) or len(result) != len(batch):
        count = f"{len(result)} scores" if isinstance(result, list) else f"{result!r}"
        raise TelescopeError(
            f"reward function {name!r} returned {count} for {len(batch)} responses: return one score for each"
        )
    return result


def _arguments(name: str, function: RewardFunction, batch: TokenBatch) -> dict[str, Sequence[Any]]:
    info, data = batch.info, batch.info.get("data", [{}] * len(batch))
    columns: dict[str, Sequence[Any]] = {
        key: [row.get(key) for row in data] for key in dict.fromkeys(k for row in data for k in row)
    }
    columns |= {
        "prompts": info["prompt"],
        "completions": info["response"],
        "prompt_ids": batch.prompt_ids(),
        "response_ids": info["response_ids"],
        "last_turns": info.get("last_turn", info["response"]),
    }
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise TelescopeError(
            f"reward function {name!r} has no signature to read: wrap it in a Python function"
        ) from None
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    missing = [key for key in needed if key not in columns]
    if missing:
        raise TelescopeError(
            f"reward function {name!r} asks for `{missing[0]}`; the data has {', '.join(sorted(columns))}"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return columns
    return {key: columns[key] for key in columns if key in {p.name for p in parameters}}


def _place(name: str, scores: Sequence[Any], batch: TokenBatch) -> _Part:
    """A score per sample goes on its last mask-1 token; a list of scores goes on the response tokens one by one."""
    mask = batch.mask.cpu()
    tokens = torch.zeros(mask.shape)
    lengths = batch["attention_mask"][:, batch["prompts"].shape[1] :].sum(1).tolist()
    rows = []
    for i, score in enumerate(scores):
        numbers = _numbers(name, score, f"response {i} ({str(batch.info['response'][i])[:60]!r})")
        if isinstance(numbers, list):
            if len(numbers) != lengths[i]:
                raise TelescopeError(
                    f"reward function {name!r} returned {len(numbers)} token scores for response {i}, which has {lengths[i]} tokens"
                )
            tokens[i, : lengths[i]] = torch.tensor(numbers)
            rows.append(sum(numbers))
        else:
            if bool(mask[i].any()):  # an empty response has no action that could be credited
                tokens[i, int(mask[i].nonzero()[-1])] = numbers
            rows.append(numbers)
    return _Part(tokens, rows)


def _numbers(name: str, score: Any, where: str) -> float | list[float]:
    """A score as a finite float, or a list of them."""
    score = score.tolist() if hasattr(score, "tolist") else score
    try:
        if isinstance(score, (str, bytes)):
            raise TypeError
        numbers = [float(s) for s in score] if hasattr(score, "__iter__") else [float(score)]
    except (TypeError, ValueError, OverflowError):
        raise TelescopeError(
            f"reward function {name!r} returned {score!r} for {where}: return a finite number, or one per token"
        ) from None
    if not all(abs(n) <= torch.finfo(torch.float32).max for n in numbers):  # NaN is not
        raise TelescopeError(
            f"reward function {name!r} returned {score!r} for {where}: return a finite number"
        )
    return numbers if hasattr(score, "__iter__") else numbers[0]


def load_function(spec: str, what: str = "reward function") -> tuple[str, RewardFunction]:
    """'module:function' or 'path/to/file.py:function' -> (function name, function); `what` is what errors call it."""
    source, _, name = spec.rpartition(":")
    if not source:
        raise TelescopeError(
            f"{what} {spec!r}: write it as module:function or path/to/file.py:function"
        )
    try:
        if source.endswith(".py"):
            path = Path(source).expanduser()
            if not path.is_file():
                raise TelescopeError(f"{what} {spec!r}: there is no file {path}")
            module_spec = importlib.util.spec_from_file_location(
                f"telescope_reward_{path.stem}", path
            )
            assert module_spec is not None
            assert module_spec.loader is not None
            module = importlib.util.module_from_spec(module_spec)
            sys.modules[module_spec.name] = (
                module  # dataclasses and pickle look themselves up there
            )
            module_spec.loader.exec_module(module)
        else:
            sys.path.insert(0, "")
            try:
                module = importlib.import_module(source)
            finally:
                sys.path.remove("")
        function = getattr(module, name, None)
    except TelescopeError:
        raise
    except Exception as error:
        raise TelescopeError(
            f"{what} {spec!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise TelescopeError(f"{what} {spec!r}: {source} has no {what.split()[-1]} {name!r}")
    return name, function
