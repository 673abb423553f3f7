"""The reward: plain Python functions, a reward model, or a weighted sum of several, each reported by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from telescope.batch import TokenBatch
from telescope.errors import TelescopeError

RewardFunction = Callable[..., Sequence[float] | Sequence[Sequence[float]]]
"""f(prompts, completions, **columns) -> a float per sample, or a list of floats per sample: one for each response token.

`columns` are the data's own columns and `response_ids`, the sampled tokens. Arguments a function does not take are left out.
"""


class Reward:
    def __init__(self, functions: Mapping[str, RewardFunction], weights: Mapping[str, float] | None = None) -> None:
        self.functions, self.weights = dict(functions), dict(weights or {})
        unknown = [name for name in self.weights if name not in self.functions]
        if unknown:
            raise TelescopeError(f"reward.weights names {unknown[0]!r}; the parts are {', '.join(self.functions)}")

    def compute_reward(self, batch: TokenBatch) -> TokenBatch:
        """Adds token_level_scores, and `score` with every part by name to the batch's info."""
        scores = torch.zeros(batch.mask.shape)
        parts: dict[str, list[float]] = {}
        for name, function in self.functions.items():
            part = _place(name, _call(name, function, batch), batch)  # [B, T], and per row
            scores += self.weights.get(name, 1.0) * part.tokens
            parts[name] = part.rows
        score = [sum(self.weights.get(name, 1.0) * rows[i] for name, rows in parts.items()) for i in range(len(batch))]
        batch = batch.with_columns(token_level_scores=scores.to(batch["input_ids"].device))
        return batch.with_info(score=score, **{f"score/{name}": rows for name, rows in parts.items()})


class RewardModel:
    """A sequence-classification model as a reward function: one number for prompt and response.

    With the actor's own vocabulary it reads the sampled ids; otherwise it gets the text in its own tokens.
    """

    def __init__(self, model: Any, tokenizer: Any, actor_tokenizer: Any, *, rows: int = 64) -> None:
        self.model, self.tokenizer, self.rows = model, tokenizer, rows
        self.same_tokens = tokenizer.get_vocab() == actor_tokenizer.get_vocab()
        # rows are left-padded, so the last position is the last token; HF finds it by comparing with pad, which may be EOS
        model.config.pad_token_id = -1

    @torch.no_grad()
    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        prompt_ids: Sequence[list[int]],
        response_ids: Sequence[list[int]],
        **_: Any,
    ) -> list[float]:
        if self.same_tokens:
            ids = [list(p) + list(r) for p, r in zip(prompt_ids, response_ids, strict=True)]
        else:
            ids = [self.tokenizer(p + c).input_ids for p, c in zip(prompts, completions, strict=True)]
        scores: list[float] = []
        for first in range(0, len(ids), self.rows):
            chunk = ids[first : first + self.rows]
            width = max(len(row) for row in chunk)
            pad = self.tokenizer.pad_token_id
            input_ids = torch.tensor([[pad] * (width - len(row)) + row for row in chunk], device=self.model.device)
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in chunk], device=self.model.device)
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            scores += self.model(input_ids=input_ids, attention_mask=mask, position_ids=positions).logits.squeeze(-1).float().tolist()
        return scores


class _Part:
    def __init__(self, tokens: Tensor, rows: list[float]) -> None:
        self.tokens, self.rows = tokens, rows


def _call(name: str, function: RewardFunction, batch: TokenBatch) -> Sequence[Any]:
    info = dict(batch.info)
    prompts, completions = info.pop("prompt"), info.pop("response")
    columns = {"prompts": prompts, "completions": completions, "prompt_ids": _prompt_ids(batch), **info}
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        columns = {key: columns[key] for key in columns if key in {p.name for p in parameters}}
    missing = [
        p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in columns
    ]
    if missing:
        raise TelescopeError(f"reward function {name!r} asks for `{missing[0]}`; the data has {', '.join(sorted(columns))}")
    try:
        returned: Any = function(**columns)
        result = returned.tolist() if hasattr(returned, "tolist") else list(returned)
    except TelescopeError:
        raise
    except Exception as error:
        where = inspect.getinnerframes(error.__traceback__)[-1] if error.__traceback__ else None
        at = f" ({Path(where.filename).name}, line {where.lineno})" if where else ""
        raise TelescopeError(f"reward function {name!r} raised {type(error).__name__}: {error}{at}") from error
    if len(result) != len(batch):
        raise TelescopeError(f"reward function {name!r} returned {len(result)} scores for {len(batch)} responses: return one for each")
    return result


def _place(name: str, scores: Sequence[Any], batch: TokenBatch) -> _Part:
    """A score per sample goes on its last mask-1 token; a list of scores goes on the response tokens one by one."""
    mask = batch.mask.cpu()
    tokens = torch.zeros(mask.shape)
    lengths = batch["attention_mask"][:, -mask.shape[1] :].sum(1).tolist() if mask.shape[1] else [0] * len(batch)
    rows = []
    for i, score in enumerate(scores):
        per_token = isinstance(score, (list, tuple)) or hasattr(score, "__len__")
        try:
            numbers = [float(s) for s in score] if per_token else [float(score)]
        except (TypeError, ValueError):
            raise TelescopeError(
                f"reward function {name!r} returned {score!r} for response {i}: return a number, or one per token"
            ) from None
        if not all(math.isfinite(s) for s in numbers):
            text = str(batch.info["response"][i])[:60]
            raise TelescopeError(f"reward function {name!r} returned {score!r} for response {i} ({text!r}): return a finite number")
        if per_token:
            if len(numbers) != lengths[i]:
                raise TelescopeError(
                    f"reward function {name!r} returned {len(numbers)} token scores for response {i}, which has {lengths[i]} tokens"
                )
            tokens[i, : lengths[i]] = torch.tensor(numbers)
        elif bool(mask[i].any()):  # an empty response has no action that could be credited
            tokens[i, int(mask[i].nonzero()[-1])] = numbers[0]
        rows.append(sum(numbers))
    return _Part(tokens, rows)


def _prompt_ids(batch: TokenBatch) -> list[list[int]]:
    prompts = batch["prompts"]
    lengths = batch["attention_mask"][:, : prompts.shape[1]].sum(1).tolist()
    return [row[len(row) - n :] for row, n in zip(prompts.tolist(), lengths, strict=True)]


def load_function(spec: str) -> tuple[str, RewardFunction]:
    """'module:function' or 'path/to/file.py:function' -> (function name, function)."""
    source, _, name = spec.rpartition(":")
    if not source:
        raise TelescopeError(f"reward function {spec!r}: write it as module:function or path/to/file.py:function")
    try:
        if source.endswith(".py"):
            path = Path(source).expanduser()
            if not path.is_file():
                raise TelescopeError(f"reward function {spec!r}: there is no file {path}")
            module_spec = importlib.util.spec_from_file_location(path.stem, path)
            assert module_spec is not None
            assert module_spec.loader is not None
            module = importlib.util.module_from_spec(module_spec)
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
        raise TelescopeError(f"reward function {spec!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise TelescopeError(f"reward function {spec!r}: {source} has no function {name!r}")
    return name, function
