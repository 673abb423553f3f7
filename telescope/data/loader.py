"""Where prompts come from, and in which order."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from telescope.config import DataConfig
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError


@dataclass(frozen=True)
class Prompts:
    """What one step starts from: token ids, what is known of each row, and the seed of what is sampled from them."""

    ids: list[list[int]]
    info: dict[str, list[Any]]
    """prompt: its text; data: the row's own columns; prompt_index: its place in the data."""
    seed: int
    rows: list[int] | None = None
    """Numbers of these rows within the step, where they are a part of it; none: all, in order."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, rows: Sequence[int]) -> Prompts:
        """Some rows of the step; what is sampled for them stays the same."""
        info = {name: [values[i] for i in rows] for name, values in self.info.items()}
        return Prompts([self.ids[i] for i in rows], info, self.seed, list(rows))


class PromptSet:
    """Tokenised prompts. Text goes in as it is, chat messages through the model's chat template."""

    def __init__(self, rows: Sequence[dict[str, Any]], tokenizer: Any, config: DataConfig) -> None:
        self.dropped = 0
        self.ids: list[list[int]] = []
        self.texts: list[str] = []
        self.data: list[dict[str, Any]] = []
        texts = [
            _text(row[config.prompt_key], number, tokenizer) for number, row in enumerate(rows, 1)
        ]
        plain = [isinstance(row[config.prompt_key], str) for row in rows]
        for number, (row, text, ids) in enumerate(
            zip(rows, texts, _tokenise(texts, plain, tokenizer), strict=True), 1
        ):
            if not ids:
                raise TelescopeError(
                    f"prompt {number} is empty: every row needs a prompt of at least one token"
                )
            if len(ids) > config.max_prompt_tokens:
                if config.overlong == "error":
                    raise TelescopeError(
                        f"prompt {number} has {len(ids)} tokens, more than data.max_prompt_tokens = {config.max_prompt_tokens}: "
                        "raise the limit, or set data.overlong = 'drop'"
                    )
                self.dropped += 1
                continue
            self.ids.append(ids)
            self.texts.append(text)
            self.data.append({key: value for key, value in row.items() if key != config.prompt_key})
            if not isinstance(row[config.prompt_key], str):
                self.data[-1]["messages"] = row[config.prompt_key]
        if not self.ids:
            raise TelescopeError(
                f"no prompt is left: all {self.dropped} are longer than data.max_prompt_tokens = {config.max_prompt_tokens}; raise it"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Sequence[int], *, repeat: int = 1, seed: int = 0) -> Prompts:
        """The prompts at `index`, each `repeat` times in a row."""
        chosen = [i for i in index for _ in range(repeat)]
        info: dict[str, list[Any]] = {
            "prompt": [self.texts[i] for i in chosen],
            "data": [self.data[i] for i in chosen],
            "prompt_index": chosen,
        }
        return Prompts([self.ids[i] for i in chosen], info, seed)


class DataLoader:
    """Steps from `start` on, each with its own prompts and seed, as functions of (seed, step) alone: nothing to save.

    Epochs follow one another without a gap: a batch may hold the end of one and the beginning of the next.
    """

    def __init__(
        self, data: PromptSet, *, batch_size: int, repeat: int, steps: int, seed: int, shuffle: bool
    ) -> None:
        self.data, self.batch_size, self.repeat, self.steps = data, batch_size, repeat, steps
        self.seed, self.shuffle = seed, shuffle

    def from_step(self, start: int) -> Iterator[tuple[int, Prompts]]:
        for step in range(start, self.steps):
            yield step, self.at(step)

    def at(self, step: int) -> Prompts:
        first = step * self.batch_size
        index = [self._at(position) for position in range(first, first + self.batch_size)]
        return self.data.take(index, repeat=self.repeat, seed=mix_seed(self.seed, step, 0))

    def further(self, step: int) -> Iterator[int]:
        """Prompts that the step does not have, each once: drawn at random by (seed, step), or without shuffling those that come next."""
        first, size = step * self.batch_size, len(self.data)
        seen = {self._at(position) for position in range(first, first + self.batch_size)}
        chance, position = random.Random(mix_seed(self.seed, step, 4)), first + self.batch_size
        while len(seen) < size:
            index, position = (
                chance.randrange(size) if self.shuffle else position % size,
                position + 1,
            )
            if index not in seen:
                seen.add(index)
                yield index

    def _at(self, position: int) -> int:
        epoch, offset = divmod(position, len(self.data))
        return self._order(epoch)[offset]

    def _order(self, epoch: int) -> list[int]:
        if getattr(self, "_epoch", None) != epoch:
            self._epoch, self._permutation = epoch, list(range(len(self.data)))
            if self.shuffle:
                random.Random(mix_seed(self.seed, epoch, 1)).shuffle(self._permutation)
        return self._permutation


def last_match(pattern: str, text: str) -> str | None:
    """The pattern's last match in the text, its group 1 if it has one; none where it does not match, or the group had no part in it."""
    found = list(re.finditer(pattern, text))
    return found[-1][1 if found[-1].re.groups else 0] if found else None


def _text(prompt: Any, number: int, tokenizer: Any) -> str:
    """What the model is given: text as it is, chat messages as its template writes them."""
    if isinstance(prompt, str):
        return prompt
    if not getattr(tokenizer, "chat_template", None):
        raise TelescopeError(
            "the prompts are chat messages, but the model's tokenizer has no chat template: give prompts as text, or a model with one"
        )
    try:
        text: str = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # templates are programs of the model's makers
        raise TelescopeError(
            f"prompt {number}: the chat template cannot take it: {error}"
        ) from error
    return text


def _tokenise(texts: list[str], plain: list[bool], tokenizer: Any) -> list[list[int]]:
    """Token ids of each text, all of a kind at once. Templates write special tokens themselves, `plain` text has none."""
    ids: list[list[int]] = [[]] * len(texts)
    for kind in (True, False):
        rows = [row for row, is_plain in enumerate(plain) if is_plain is kind]
        try:
            found = (
                tokenizer([texts[row] for row in rows], add_special_tokens=kind).input_ids
                if rows
                else []
            )
        except Exception:  # which of them it was, it does not say
            found = [_tokenise_one(texts[row], row + 1, kind, tokenizer) for row in rows]
        for row, tokens in zip(rows, found, strict=True):
            ids[row] = tokens
    return ids


def _tokenise_one(text: str, number: int, plain: bool, tokenizer: Any) -> list[int]:
    try:
        return list(tokenizer(text, add_special_tokens=plain).input_ids)
    except Exception as error:
        raise TelescopeError(f"prompt {number}: the tokenizer cannot take it: {error}") from error
