"""Tokenised prompts, and the batch of each step."""

from __future__ import annotations

import random
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from telescope.config import DataConfig
from telescope.data.chat import chat_text, checked_messages
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError


@dataclass(frozen=True)
class Prompts:
    """What one step starts from: token ids, what is known of each row, and the sampling seed."""

    ids: list[list[int]]
    info: dict[str, list[Any]]
    """prompt: its text; data: the row's own columns; prompt_index: its place in the data."""
    seed: int
    rows: list[int] | None = None
    """Numbers of these rows within the step, if they are a part of it; None: all rows, in order."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, rows: Sequence[int]) -> Prompts:
        """Some rows of the step; what is sampled for them stays the same."""
        info = {name: [values[i] for i in rows] for name, values in self.info.items()}
        return Prompts([self.ids[i] for i in rows], info, self.seed, list(rows))


class PromptSet:
    """Tokenised prompts. Text goes in as it is, chat messages through the model's chat template.

    `may_be_empty`: rows are added later.
    """

    longest_name = "the longest prompt"

    def __init__(
        self,
        rows: Sequence[dict[str, Any]],
        tokenizer: Any,
        config: DataConfig,
        *,
        may_be_empty: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self.rows_read = 0
        self.dropped = 0
        self.first = 0
        """Place in the data of the first prompt that is kept; a stream forgets earlier ones."""
        self.ids: list[list[int]] = []
        self.texts: list[str] = []
        self.data: list[dict[str, Any]] = []
        self.add(rows)
        if not self.ids and not may_be_empty:
            raise self.nothing_left()

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Tokenises rows, and keeps those whose prompt is not too long."""
        key = self.config.prompt_key
        limit = self.config.max_prompt_tokens
        numbered = list(enumerate(rows, self.rows_read + 1))
        self.rows_read += len(rows)
        chats = {
            number: checked_messages(row[key], number)
            for number, row in numbered
            if not isinstance(row[key], str)
        }
        texts = [
            chat_text(chats[number], number, self.tokenizer) if number in chats else row[key]
            for number, row in numbered
        ]
        is_plain = [number not in chats for number, _ in numbered]
        all_ids = _tokenise(texts, is_plain, self.tokenizer)
        for (number, row), text, ids in zip(numbered, texts, all_ids, strict=True):
            if not ids:
                raise TelescopeError(
                    f"prompt {number} is empty: every row needs a prompt of at least one token"
                )
            if len(ids) > limit:
                if self.config.overlong == "error":
                    raise TelescopeError(
                        f"prompt {number} has {len(ids)} tokens, more than "
                        f"data.max_prompt_tokens = {limit}: raise the limit, "
                        "or set data.overlong = 'drop'"
                    )
                self.dropped += 1
                continue
            columns = {name: value for name, value in row.items() if name != key}
            if number in chats:
                columns["messages"] = chats[number]
            self.ids.append(ids)
            self.texts.append(text)
            self.data.append(columns)

    def forget(self, count: int) -> None:
        """Drops the first `count` prompts."""
        for values in (self.ids, self.texts, self.data):
            del values[:count]
        self.first += count

    def nothing_left(self) -> TelescopeError:
        """The error for data whose prompts are all too long."""
        return TelescopeError(
            f"no prompt is left: all {self.dropped} are longer than "
            f"data.max_prompt_tokens = {self.config.max_prompt_tokens}; raise it"
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(ids) for ids in self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def check_context(self, positions: int | None, response_tokens: int) -> None:
        """Refuses prompts that leave too few of the model's positions for a response."""
        longest = self.longest
        if positions is None or longest + response_tokens <= positions:
            return
        remedy = "lower rollout.max_response_tokens"
        if response_tokens < positions:
            remedy += f", or set data.max_prompt_tokens = {positions - response_tokens}"
        raise TelescopeError(
            f"{self.longest_name} has {longest} tokens and rollout.max_response_tokens = "
            f"{response_tokens}: together more than the model's {positions} positions; {remedy}"
        )

    def take(self, index: Sequence[int], *, repeat: int = 1, seed: int = 0) -> Prompts:
        """The prompts at `index`, each `repeat` times in a row."""
        chosen = [i for i in index for _ in range(repeat)]
        info: dict[str, list[Any]] = {
            "prompt": [self.texts[i] for i in chosen],
            "data": [self.data[i] for i in chosen],
            "prompt_index": [self.first + i for i in chosen],
        }
        return Prompts([self.ids[i] for i in chosen], info, seed)


class DataLoader:
    """The prompts and the seed of every step. Both depend on (seed, step) alone: nothing to save.

    Epochs follow one another without a gap: a batch may hold prompts of two.
    """

    def __init__(
        self, data: PromptSet, *, batch_size: int, repeat: int, steps: int, seed: int, shuffle: bool
    ) -> None:
        self.data = data
        self.batch_size = batch_size
        self.repeat = repeat
        self.steps = steps
        self.seed = seed
        self.shuffle = shuffle
        self._epoch: int | None = None
        self._order: list[int] = []
        self._checksum: int | None = None

    def from_step(self, start: int, until: int | None = None) -> Iterator[tuple[int, Prompts]]:
        """(step, prompts) from step `start` to the last, or to the one before `until`."""
        for step in range(start, self.steps if until is None else until):
            yield step, self.at(step)

    def at(self, step: int) -> Prompts:
        """The prompts of one step."""
        return self.data.take(self.indices(step), repeat=self.repeat, seed=self.seed_of(step))

    def seed_of(self, step: int) -> int:
        """The sampling seed of one step."""
        return mix_seed(self.seed, step, 0)

    def checksum(self, step: int) -> int:
        """Of all prompts, whatever the step: a resumed run should have the same."""
        if self._checksum is None:
            self._checksum = checksum(self.data.ids)
        return self._checksum

    def check_same(self, step: int, saved: int) -> list[str]:
        """Says so if the checkpoint after `step` was trained on other prompts."""
        if saved == self.checksum(step):
            return []
        return ["  data changed: the training prompts are not those of the checkpoint"]

    def metrics(self) -> dict[str, float]:
        """What changes from step to step: nothing here."""
        return {}

    def further_prompts(self, step: int) -> Iterator[int]:
        """Prompts that the step does not have, each once.

        They are drawn at random by (seed, step); without shuffling they are those that come next.
        """
        size = len(self.data)
        seen = set(self.indices(step))
        chance = random.Random(mix_seed(self.seed, step, 4))
        position = (step + 1) * self.batch_size
        while len(seen) < size:
            index = chance.randrange(size) if self.shuffle else position % size
            position += 1
            if index not in seen:
                seen.add(index)
                yield index

    def indices(self, step: int) -> list[int]:
        """Which prompts the step has."""
        first = step * self.batch_size
        indices = []
        for position in range(first, first + self.batch_size):
            epoch, offset = divmod(position, len(self.data))
            indices.append(self._order_of(epoch)[offset])
        return indices

    def _order_of(self, epoch: int) -> list[int]:
        """The order of the prompts in an epoch; the last one is remembered."""
        if self._epoch != epoch:
            self._epoch = epoch
            self._order = list(range(len(self.data)))
            if self.shuffle:
                random.Random(mix_seed(self.seed, epoch, 1)).shuffle(self._order)
        return self._order


def checksum(prompts: Sequence[Sequence[int]], start: int = 0) -> int:
    """CRC-32 of token ids; `start` is that of the prompts before these."""
    for ids in prompts:
        start = zlib.crc32(array("q", [len(ids), *ids]).tobytes(), start)
    return start


def last_match(pattern: str, text: str) -> str | None:
    """The pattern's last match in the text, or its group 1 if it has one.

    None if it does not match, or if the group has no part in the match.
    """
    found = list(re.finditer(pattern, text))
    if not found:
        return None
    last = found[-1]
    return last[1] if last.re.groups else last[0]


def _tokenise(texts: list[str], is_plain: list[bool], tokenizer: Any) -> list[list[int]]:
    """Token ids of each text, all texts of a kind at once.

    Plain text gets the tokenizer's special tokens; a chat template has written them itself.
    """
    ids: list[list[int]] = [[]] * len(texts)
    for plain in (True, False):
        rows = [row for row, kind in enumerate(is_plain) if kind is plain]
        if not rows:
            continue
        try:
            found = tokenizer([texts[row] for row in rows], add_special_tokens=plain).input_ids
        except Exception:
            # The error does not say which text it was: one by one does.
            found = [_tokenise_one(texts[row], row + 1, plain, tokenizer) for row in rows]
        for row, tokens in zip(rows, found, strict=True):
            ids[row] = tokens
    return ids


def _tokenise_one(text: str, number: int, plain: bool, tokenizer: Any) -> list[int]:
    try:
        return list(tokenizer(text, add_special_tokens=plain).input_ids)
    except Exception as error:
        raise TelescopeError(f"prompt {number}: the tokenizer cannot take it: {error}") from error
