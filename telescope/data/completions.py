"""Prompts with given completions, for supervised training.

A row has TRL's columns `prompt` and `completion`, each text or chat messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from telescope.config import Config
from telescope.data.chat import checked_messages
from telescope.data.files import read_rows
from telescope.data.loader import PromptSet
from telescope.errors import TelescopeError


@dataclass(frozen=True)
class Completions:
    """Token ids of prompts and of their completions, which end with EOS."""

    prompts: list[list[int]]
    completions: list[list[int]]
    dropped: int
    """Rows whose prompt or completion is longer than the run allows."""

    def __len__(self) -> int:
        return len(self.prompts)


def read_completions(files: Sequence[str], tokenizer: Any, config: Config) -> Completions:
    """The rows of the files. A prompt gets the same tokens as in a rollout."""
    rows = read_rows(files)
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("completion"), str | list):
            raise TelescopeError(
                f"warm_start.files, row {number}: no usable `completion` (text or a list of "
                f"messages); its columns are {', '.join(row)}"
            )
    data = config.data.model_copy(update={"prompt_key": "prompt"})
    prompts = PromptSet(rows, tokenizer, data)
    limit = config.rollout.max_response_tokens
    found = Completions([], [], prompts.dropped)
    for ids, text, columns in zip(prompts.ids, prompts.texts, prompts.data, strict=True):
        own = _completion_ids(text, columns, tokenizer)
        if len(own) <= limit:
            found.prompts.append(ids)
            found.completions.append(own)
    if not found.prompts:
        raise TelescopeError(
            f"warm_start.files: no row is left, all completions are longer than "
            f"rollout.max_response_tokens = {limit}; raise it"
        )
    return Completions(found.prompts, found.completions, len(rows) - len(found))


def _completion_ids(prompt: str, columns: dict[str, Any], tokenizer: Any) -> list[int]:
    """Tokens of a completion. It ends with its first EOS, as a sampled response does."""
    completion = columns["completion"]
    messages = columns.get("messages")
    if messages is not None:
        if isinstance(completion, str):
            completion = [{"role": "assistant", "content": completion}]
        text = _after(prompt, [*messages, *checked_messages(completion, 1)], tokenizer)
    elif isinstance(completion, str):
        text = completion
    else:
        raise TelescopeError(
            f"warm_start.files: the prompt {prompt[:60]!r} is text and its completion is a list of "
            "messages: give both as text, or both as messages"
        )
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    end = tokenizer.eos_token_id
    return ids[: ids.index(end) + 1] if end in ids else [*ids, end]


def _after(prompt: str, messages: Sequence[Any], tokenizer: Any) -> str:
    """What the chat template writes after the prompt."""
    text: str = tokenizer.apply_chat_template(list(messages), tokenize=False)
    if not text.startswith(prompt):
        raise TelescopeError(
            f"warm_start.files: with its completion, the chat template writes the prompt "
            f"{prompt[-60:]!r} differently: give prompt and completion as text"
        )
    return text[len(prompt) :]
