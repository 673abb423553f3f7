"""Rollouts of several turns: the policy writes until it calls a tool, the tool's text is appended, and the policy goes on.

    <calc>37*48</calc>  <result>1776</result>  <answer>1776</answer>EOS
    the policy, mask 1  the tool, mask 0       the policy, mask 1

A round samples the next turn of every row that is still going, as one batch, then runs their tools side by side. Sampled ids stay
as they are; a tool's text alone is tokenised.
"""

from __future__ import annotations

import bisect
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from telescope.config import RolloutConfig
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError
from telescope.models.parallel import Ranks
from telescope.rollout.sampler import Rollout, Sampler, left_pad

if TYPE_CHECKING:
    from telescope.data.loader import Prompts
    from telescope.rollout.environments import Environment

AT_ONCE = 32  # tools that run side by side


Turn = tuple[list[int], list[float], bool]
"""Ids and log-probs of what was sampled, and whether the limit came before its end."""


class Reply(NamedTuple):
    """What came of a call: the text to append, or none where the environment says that the row is done."""

    text: str | None
    failed: bool = False


@dataclass
class Row:
    """A response as it grows."""

    state: Any
    """The environment's own, from `reset`."""
    ids: list[int] = field(default_factory=list)
    chosen: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    """The ids of the policy's last turn."""
    truncated: bool = False
    calls: int = 0
    failures: int = 0

    def add(self, ids: Sequence[int], log_probs: Sequence[float], *, chosen: bool) -> None:
        self.ids += ids
        self.log_probs += log_probs
        self.chosen += [chosen] * len(ids)


class Tools:
    """An environment, and the limits on turns, tokens and seconds within which rollouts may use it."""

    def __init__(
        self,
        environment: Environment,
        tokenizer: Any,
        config: RolloutConfig,
        ranks: Ranks | None = None,
    ) -> None:
        self.environment, self.tokenizer, self.config, self.ranks = (
            environment,
            tokenizer,
            config,
            ranks or Ranks(),
        )
        marks = [
            tokenizer(mark, add_special_tokens=False).input_ids for mark in environment.call_ends
        ]
        self.stop = [ids[0] for ids in marks if len(ids) == 1]
        """Ends of a call that are one token: sampling stops there. What is sampled past any other is thrown away."""
        self.endings = set(tokenizer.all_special_ids) - set(self.stop)

    def roll(
        self, sampler: Sampler, prompts: Prompts, device: torch.device, *, greedy: bool
    ) -> tuple[Rollout, dict[str, list[Any]]]:
        """Responses to the prompts, and of each: its last turn as text, how many tools it called and how many of those failed."""
        data = prompts.info.get("data", [{}] * len(prompts))
        rows = [
            Row(self._reset(text, known))
            for text, known in zip(prompts.info["prompt"], data, strict=True)
        ]
        numbers, most = prompts.rows or range(len(rows)), self.config.max_response_tokens
        live = list(range(len(rows)))
        for turn in range(self.config.max_turns):
            if not self.ranks.max(len(live)):
                break
            present = (
                live or [0]
            )  # whose rows have all ended still meets the others, who may need its slice of the weights
            ids, mask = left_pad(
                [prompts.ids[i] + rows[i].ids for i in present], self.tokenizer.pad_token_id, device
            )
            # what is drawn depends on the step's seed, the row and the turn; and without a call it is what it is without tools
            seed = mix_seed(prompts.seed, turn) if turn else prompts.seed
            limits = [max(most - len(rows[i].ids), 1) for i in present]
            out = sampler.generate(
                ids,
                mask,
                seed=seed,
                greedy=greedy,
                rows=[numbers[i] for i in present],
                limits=limits,
            )
            turns = dict(zip(live, _turns(out), strict=False))
            live = [i for i, written in turns.items() if self._take(rows[i], written)]
            replies = self._replies([rows[i] for i in live])
            last = turn + 1 == self.config.max_turns
            live = [
                i
                for i, reply in zip(live, replies, strict=True)
                if self._append(rows[i], reply, last)
            ]
        return _rollout(rows, self.tokenizer.pad_token_id, device), {
            "last_turn": self.tokenizer.batch_decode(
                [row.turn for row in rows], skip_special_tokens=True
            ),
            "tool_calls": [row.calls for row in rows],
            "tool_failures": [row.failures for row in rows],
        }

    def _reset(self, prompt: str, data: Mapping[str, Any]) -> Any:
        try:
            return self.environment.reset(prompt, data)
        except Exception as error:
            name, has = (
                type(self.environment).__name__,
                ", ".join(sorted(data)) or "no columns besides the prompt",
            )
            raise TelescopeError(
                f"environment {name}: reset raised {type(error).__name__}: {error}; its data has {has}"
            ) from error

    def _take(self, row: Row, written: Turn) -> bool:
        """Adds a turn, up to the end of its first call; says whether it came to an end within the limit."""
        ids, log_probs, cut_off = written
        room = self.config.max_response_tokens - len(row.ids)
        end = self._end_of_call(ids)
        row.turn = ids[: min(end or len(ids), room)]
        row.add(row.turn, log_probs[: len(row.turn)], chosen=True)
        row.truncated = end > room if end else cut_off or len(ids) > room
        return not row.truncated

    def _append(self, row: Row, reply: Reply, last: bool) -> bool:
        """Adds what a tool wrote; says whether the policy goes on."""
        if reply.text is None:
            return False
        row.calls, row.failures = row.calls + 1, row.failures + reply.failed
        room = self.config.max_response_tokens - len(row.ids)
        if not last:  # else nobody would read it
            ids = self.tokenizer(reply.text, add_special_tokens=False).input_ids[:room]
            row.add(ids, [0.0] * len(ids), chosen=False)
        row.truncated = last or len(row.ids) >= self.config.max_response_tokens
        return not row.truncated

    def _replies(self, rows: list[Row]) -> list[Reply]:
        """What the environment says to each row's turn. A tool that raises or takes too long answers with a message."""
        show, seconds = self.environment.show, self.config.tool_seconds
        calls = [functools.partial(self._step, row.state, self._spoken(row)) for row in rows]
        late = Reply(show(f"error: no answer within {seconds:g} s"), failed=True)
        return [reply or late for reply in side_by_side(calls, seconds)]

    def _spoken(self, row: Row) -> str:
        """The last turn as text, without the EOS that ended it."""
        return str(
            self.tokenizer.decode(row.turn[:-1] if {*row.turn[-1:]} & self.endings else row.turn)
        )

    def _step(self, state: Any, spoken: str) -> Reply:
        try:
            text = self.environment.step(state, spoken)
            if not isinstance(text, str | None):
                raise TypeError(f"a tool returned {type(text).__name__}, not text")
            return Reply(text)
        except BaseException as error:  # sys.exit() too: a tool may fail as it likes
            said = " ".join(str(error).split())[:200]
            return Reply(
                self.environment.show(
                    f"error: {type(error).__name__}" + (f": {said}" if said else "")
                ),
                failed=True,
            )

    def _end_of_call(self, ids: list[int]) -> int:
        """How many tokens there are up to the end of the first call; 0 without a call."""

        def called(count: int) -> bool:
            text = self.tokenizer.decode(ids[:count])
            return any(mark in text for mark in self.environment.call_ends)

        return bisect.bisect_left(range(len(ids)), True, key=called) if called(len(ids)) else 0


def side_by_side(calls: Sequence[Callable[[], Reply]], seconds: float) -> Iterator[Reply | None]:
    """What each call returns, or none if it takes longer than `seconds`. A thread cannot be ended: a late one is left to itself."""
    for first in range(0, len(calls), AT_ONCE):
        some = calls[first : first + AT_ONCE]
        answers: list[Reply | None] = [None] * len(some)

        def answer(
            place: int, call: Callable[[], Reply], into: list[Reply | None] = answers
        ) -> None:
            into[place] = call()

        threads = [
            threading.Thread(target=answer, args=pair, daemon=True) for pair in enumerate(some)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        yield from list(answers)


def _turns(out: Rollout) -> Iterator[Turn]:
    """A rollout's rows without their padding."""
    columns = (out.responses, out.log_probs, out.lengths, out.truncated)
    for ids, log_probs, length, cut_off in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        yield ids[:length], log_probs[:length], cut_off


def _rollout(rows: list[Row], pad: int, device: torch.device) -> Rollout:
    width = max(len(row.ids) for row in rows)

    def padded(lists: list[list[Any]], value: Any) -> Tensor:
        return torch.tensor(
            [some + [value] * (width - len(some)) for some in lists], device=device
        )  # [B, T]

    return Rollout(
        padded([row.ids for row in rows], pad),
        torch.tensor([len(row.ids) for row in rows], device=device),
        padded([row.log_probs for row in rows], 0.0),
        torch.tensor([row.truncated for row in rows], device=device),
        padded([row.chosen for row in rows], False),
    )
