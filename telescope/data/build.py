"""Puts the training prompts and the held-out ones of a config together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from telescope.config import Config
from telescope.data import arithmetic, episodes, gym, toys
from telescope.data.files import read_rows
from telescope.data.loader import PromptSet
from telescope.data.sources import GIVEN, Source, Stream, finite_rows, names_of, open_source
from telescope.data.stream import PromptStream
from telescope.errors import TelescopeError


@dataclass(frozen=True)
class GivenData:
    """Data that a script passed as objects; None: the config says where it is."""

    train: Source | None = None
    held_out: Source | None = None


def build_data(
    config: Config, tokenizer: Any, given: GivenData | None = None
) -> tuple[PromptSet, PromptSet | None]:
    """Training prompts, and held-out ones if there are any."""
    data = config.data
    given = given or GivenData()
    if data.files:
        train = _training_prompts(config, tokenizer, given.train)
        return train, _held_out_prompts(config, tokenizer, given.held_out)
    train_rows: list[dict[str, Any]]
    eval_rows: list[dict[str, Any]]
    count = config.eval.prompts
    if data.task:
        train_rows, eval_rows = gym.rows(data.task, data.options, data.size, data.instruction)
        if count and count > len(eval_rows):
            raise TelescopeError(
                f"eval.prompts = {count}, and data.task = {data.task!r} holds {len(eval_rows)} "
                "problems out: use at most those"
            )
    elif config.verifiers_id is not None:
        train_rows, eval_rows = episodes.rows(config)
    else:
        rows_of = partial(toys.rows, config.toy) if config.toy else arithmetic.rows
        train_rows = rows_of(evaluation=False)
        eval_rows = rows_of(evaluation=True)
    settings = data.model_copy(update={"prompt_key": "prompt"})
    train = PromptSet(train_rows, tokenizer, settings)
    if not eval_rows:  # of fewer than five tasks none is held out
        return train, None
    return train, PromptSet(eval_rows[:count], tokenizer, settings)


def build_held_out(config: Config, tokenizer: Any) -> PromptSet | None:
    """The held-out prompts alone. Training files are not read."""
    if config.data.files:
        return _held_out_prompts(config, tokenizer, None)
    return build_data(config, tokenizer)[1]


def prompts_of(source: Source, tokenizer: Any, config: Config) -> PromptSet:
    """Prompts to evaluate on, from files or from an object."""
    data = config.data
    files = names_of(source)
    if files is not None:
        return PromptSet(read_rows(files, data.prompt_key), tokenizer, data)
    rows = finite_rows(source, data.prompt_key, "rows", config.eval.prompts)
    return PromptSet(rows, tokenizer, data)


def _training_prompts(config: Config, tokenizer: Any, given: Source | None) -> PromptSet:
    data = config.data
    if given is None:
        _check_readable(data.files, "train_dataset")
        return PromptSet(read_rows(data.files, data.prompt_key), tokenizer, data)
    found = open_source(given, data.prompt_key, "train_dataset")
    if isinstance(found, Stream):
        return PromptStream(found, tokenizer, data, config.rollout.batch_size)
    return PromptSet(found, tokenizer, data)


def _held_out_prompts(config: Config, tokenizer: Any, given: Source | None) -> PromptSet | None:
    data = config.data
    count = config.eval.prompts
    if not data.eval_files:
        return None
    if given is not None:
        rows = finite_rows(given, data.prompt_key, "eval_dataset", count)
        return PromptSet(rows, tokenizer, data)
    _check_readable(data.eval_files, "eval_dataset")
    return PromptSet(read_rows(data.eval_files, data.prompt_key)[:count], tokenizer, data)


def _check_readable(files: Sequence[str], name: str) -> None:
    if GIVEN in files:
        raise TelescopeError(
            f"the run's {name} was given in Python, and no file holds it: "
            f"pass it again, Trainer(..., {name}=...) or evaluate_run(run, rows=...)"
        )
