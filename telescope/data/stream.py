"""Prompts that are read from a stream, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from telescope.config import Config, DataConfig
from telescope.data.loader import DataLoader, Prompts, PromptSet, checksum
from telescope.data.sources import Stream
from telescope.errors import TelescopeError


class PromptStream(PromptSet):
    """The next prompts of a stream. Earlier ones are forgotten."""

    longest_name = "a prompt of a stream (data.max_prompt_tokens)"

    def __init__(self, stream: Stream, tokenizer: Any, config: DataConfig, batch_size: int) -> None:
        super().__init__([], tokenizer, config, may_be_empty=True)
        self.stream = stream
        self.batch_size = batch_size
        self._chunks = stream.chunks(batch_size)
        self._kept_before_pass = 0
        self._fill()

    @property
    def longest(self) -> int:
        """Its rows are not known yet, so this is the limit."""
        return self.config.max_prompt_tokens

    def next_batch(self, *, repeat: int, seed: int) -> Prompts:
        """The next `batch_size` prompts. After its last row a stream begins again."""
        self._fill()
        batch = self.take(range(self.batch_size), repeat=repeat, seed=seed)
        self.forget(self.batch_size)
        return batch

    def rewind(self) -> None:
        """Goes back to the first row."""
        if not self.stream.repeats:
            raise TelescopeError(
                "train_dataset is a generator that has been read already, and it cannot be read "
                "again: pass a function that returns a new generator, or a data set"
            )
        self.forget(len(self.ids))
        self.first = 0
        self.rows_read = 0
        self.dropped = 0
        self._kept_before_pass = 0
        self._chunks = self.stream.chunks(self.batch_size)

    def _fill(self) -> None:
        """Reads until there is a whole batch."""
        while len(self.ids) < self.batch_size:
            chunk = next(self._chunks, None)
            if chunk is not None:
                self.add(chunk)
                continue
            kept = self.first + len(self.ids)
            if not self.stream.repeats:
                raise TelescopeError(
                    f"train_dataset is a generator that ended after {kept} prompts, and it cannot "
                    "be read again: set fewer `steps`, or pass a function that returns a new one"
                )
            if not self.rows_read:
                raise TelescopeError("train_dataset holds no rows: it needs at least one prompt")
            if kept == self._kept_before_pass:  # a whole pass has added nothing
                raise self.nothing_left()
            self._kept_before_pass = kept
            self._chunks = self.stream.chunks(self.batch_size)


class StreamLoader(DataLoader):
    """The prompts of every step from a stream, in its order, without shuffling.

    A resumed run reads the stream from its start again, up to the step to go on with. A checksum
    of all prompts so far tells whether it has yielded the same ones.
    """

    data: PromptStream

    def __init__(self, data: PromptStream, **settings: Any) -> None:
        super().__init__(data, **settings)
        self._next = 0
        self._recent: dict[int, Prompts] = {}
        """The last two steps that were read: one may be asked for ahead of time, or again."""
        self._checksums: dict[int, int] = {0: 0}
        """Of the prompts before a step, for the recent ones."""

    def at(self, step: int) -> Prompts:
        """The prompts of one step."""
        if step < self._next and step not in self._recent:
            self._begin_again()
        while self._next <= step:
            self._read_step()
        return self._recent[step]

    def checksum(self, step: int) -> int:
        """Of all prompts before this step."""
        if step > 0:
            self.at(step - 1)
        return self._checksums[step]

    def check_same(self, step: int, saved: int) -> list[str]:
        """Refuses a stream that does not yield again what the checkpoint was trained on."""
        if saved != self.checksum(step):
            raise TelescopeError(
                f"train_dataset does not repeat: its first {step * self.batch_size} prompts are "
                "not those that the checkpoint was trained on; a resumed run needs a stream that "
                "yields the same rows in the same order from its start"
            )
        return []

    def metrics(self) -> dict[str, float]:
        """Prompts that were too long, so far."""
        return {"data/dropped_prompts": self.data.dropped}

    def further_prompts(self, step: int) -> Iterator[int]:
        """A stream has no others: what comes next belongs to the next step."""
        raise TelescopeError(
            "rollout.dynamic_sampling asks for other prompts, and train_dataset is a stream: "
            "turn it off, or pass rows or a data set"
        )

    def _begin_again(self) -> None:
        self.data.rewind()
        self._next = 0
        self._recent = {}
        self._checksums = {0: 0}

    def _read_step(self) -> None:
        step = self._next
        batch = self.data.next_batch(repeat=self.repeat, seed=self.seed_of(step))
        for memory in (self._recent, self._checksums):
            memory.pop(step - 2, None)
        self._recent[step] = batch
        self._checksums[step + 1] = checksum(batch.ids, self._checksums[step])
        self._next += 1


def make_loader(data: PromptSet, config: Config) -> DataLoader:
    """The loader of a run's training prompts."""
    kind: Any = StreamLoader if isinstance(data, PromptStream) else DataLoader
    loader: DataLoader = kind(
        data,
        batch_size=config.rollout.batch_size,
        repeat=config.rollout.n,
        steps=config.steps,
        seed=config.seed,
        shuffle=config.data.shuffle,
    )
    return loader
