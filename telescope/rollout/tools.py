"""Rollouts of several turns: the policy calls a tool, the tool's text is appended, and so on.

    <calc>37*48</calc>  <result>1776</result>  <answer>1776</answer>EOS
    the policy, mask 1  the tool, mask 0       the policy, mask 1

A round samples the next turn of every row that is not finished, as one batch, then runs their
tools in parallel. Sampled ids stay as they are; only a tool's text is tokenised.
"""

from __future__ import annotations

import bisect
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from telescope.batch import Response, ToolUse
from telescope.config import RolloutConfig
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError
from telescope.models.parallel import Ranks
from telescope.rollout.environments import Paid
from telescope.rollout.sampler import Rollout, Sampler, left_pad

if TYPE_CHECKING:
    from telescope.data.loader import Prompts
    from telescope.rollout.environments import Environment

AT_ONCE = 32  # tools that run in parallel
MOST_LATE = 128  # tools that may hang: their threads cannot be ended
MOST_CHARACTERS = 64  # of a tool's text that are tokenised for each token of room

_late: list[threading.Thread] = []


class Turn(NamedTuple):
    """What the policy sampled in one turn, without padding."""

    ids: list[int]
    log_probs: list[float]
    truncated: bool
    """The limit came before its end."""


class Reply(NamedTuple):
    """What came of a call: the text to append, or None if the environment ends the response."""

    text: str | None
    error: str | None = None
    """What went wrong, if something did."""
    reward: float | None = None
    """What the environment pays for the turn."""


class ToolRollout(NamedTuple):
    """Responses of several turns."""

    rollout: Rollout
    responses: list[Response]
    """What is known of each row besides its text and ids."""
    tool_uses: list[ToolUse]
    prompt_ids: list[list[int]] | None = None
    """The prompts, where the environment has written them itself."""


@dataclass
class Row:
    """A response as it grows."""

    state: Any
    """The environment's own, from `reset`."""
    ids: list[int] = field(default_factory=list)
    chosen: list[bool] = field(default_factory=list)
    """True where the policy sampled the token, False where a tool wrote it."""
    log_probs: list[float] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    """The ids of the policy's last turn."""
    truncated: bool = False
    calls: int = 0
    failures: int = 0
    error: str | None = None
    paid: list[tuple[int, float]] = field(default_factory=list)

    def add(self, ids: Sequence[int], log_probs: Sequence[float], *, chosen: bool) -> None:
        """Appends tokens."""
        self.ids += ids
        self.log_probs += log_probs
        self.chosen += [chosen] * len(ids)


class Tools:
    """An environment, with the limits on turns, tokens and seconds that a rollout has."""

    def __init__(
        self,
        environment: Environment,
        tokenizer: Any,
        config: RolloutConfig,
        ranks: Ranks | None = None,
    ) -> None:
        self.environment = environment
        self.tokenizer = tokenizer
        self.config = config
        self.ranks = ranks or Ranks()
        marks = [
            tokenizer(mark, add_special_tokens=False).input_ids for mark in environment.call_ends
        ]
        self.stop = [ids[0] for ids in marks if len(ids) == 1]
        """Ends of a call that are one token: sampling stops there.

        What is sampled past a longer one is thrown away.
        """
        self.endings = set(tokenizer.all_special_ids) - set(self.stop)

    def roll(
        self, sampler: Sampler, prompts: Prompts, device: torch.device, *, greedy: bool
    ) -> ToolRollout:
        """Samples responses to the prompts, turn by turn."""
        data = prompts.info.get("data", [{}] * len(prompts))
        texts = prompts.info["prompt"]
        rows = [self._new_row(text, own) for text, own in zip(texts, data, strict=True)]
        unfinished = list(range(len(rows)))
        limit = self.config.max_response_tokens
        for turn in range(self.config.max_turns):
            if not self.ranks.max(len(unfinished)):
                break
            # A rank whose rows are done must still join the collective: others need its shard.
            present = unfinished or [0]
            turns = self.sample_turn(
                sampler,
                prompts,
                present,
                turn,
                [prompts.ids[row] + rows[row].ids for row in present],
                [max(limit - len(rows[row].ids), 1) for row in present],
                device,
                greedy,
            )
            waiting = [
                row
                for row, sampled in zip(unfinished, turns, strict=False)
                if self._add_turn(rows[row], sampled)
            ]
            replies = self._replies([rows[row] for row in waiting])
            is_last = turn + 1 == self.config.max_turns
            unfinished = [
                row
                for row, reply in zip(waiting, replies, strict=True)
                if self._add_reply(rows[row], reply, is_last)
            ]
        for row in rows:
            row.state = self._ask("report", row.state)
        return self.collected(rows, device)

    def sample_turn(
        self,
        sampler: Sampler,
        prompts: Prompts,
        rows: list[int],
        turn: int,
        ids: list[list[int]],
        limits: list[int],
        device: torch.device,
        greedy: bool,
    ) -> list[Turn]:
        """Samples the same turn of some rows, each after its own `ids`."""
        input_ids, mask = left_pad(ids, self.tokenizer.pad_token_id, device)
        # The draws depend on step, row and turn. Turn 0 draws what a run without tools would.
        seed = mix_seed(prompts.seed, turn) if turn else prompts.seed
        numbers = prompts.rows or range(len(prompts))
        out = sampler.generate(
            input_ids,
            mask,
            seed=seed,
            greedy=greedy,
            rows=[numbers[row] for row in rows],
            limits=limits,
        )
        sampled = zip(
            out.responses.tolist(),
            out.log_probs.tolist(),
            out.lengths.tolist(),
            out.truncated.tolist(),
            strict=True,
        )
        return [
            Turn(tokens[:length], log_probs[:length], truncated)
            for tokens, log_probs, length, truncated in sampled
        ]

    def collected(
        self, rows: list[Row], device: torch.device, prompt_ids: list[list[int]] | None = None
    ) -> ToolRollout:
        """The rows that are done, whose states are what the environment reports."""
        width = max(len(row.ids) for row in rows)

        def padded(lists: list[list[Any]], value: Any) -> Tensor:
            filled = [own + [value] * (width - len(own)) for own in lists]
            return torch.tensor(filled, device=device)  # [B, T]

        rollout = Rollout(
            padded([row.ids for row in rows], self.tokenizer.pad_token_id),
            torch.tensor([len(row.ids) for row in rows], device=device),
            padded([row.log_probs for row in rows], 0.0),
            torch.tensor([row.truncated for row in rows], device=device),
            padded([row.chosen for row in rows], False),
        )
        turns = [row.turn for row in rows]
        last_turns = self.tokenizer.batch_decode(turns, skip_special_tokens=True)
        return ToolRollout(
            rollout,
            [
                Response(last_turn=text, paid=row.paid, state=row.state)
                for text, row in zip(last_turns, rows, strict=True)
            ],
            [ToolUse(row.calls, row.failures, row.error) for row in rows],
            prompt_ids,
        )

    def _ask(self, method: str, *arguments: Any, hint: str = "") -> Any:
        """What a method of the environment returns; `hint` ends the error if it raises one."""
        try:
            return getattr(self.environment, method)(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # even sys.exit()
            name = type(self.environment).__name__
            raise TelescopeError(
                f"environment {name}: {method} raised {type(error).__name__}: {error}{hint}"
            ) from error

    def _new_row(self, prompt: str, data: Mapping[str, Any]) -> Row:
        columns = ", ".join(sorted(data)) or "no columns besides the prompt"
        return Row(self._ask("reset", prompt, data, hint=f"; its data has {columns}"))

    def _add_turn(self, row: Row, turn: Turn) -> bool:
        """Adds a turn up to the end of its first call; says whether it ended within the limit."""
        room = self.config.max_response_tokens - len(row.ids)
        end = self._end_of_call(turn.ids)
        row.turn = turn.ids[: min(end or len(turn.ids), room)]
        row.add(row.turn, turn.log_probs[: len(row.turn)], chosen=True)
        if end:
            row.truncated = end > room
        else:
            row.truncated = turn.truncated or len(turn.ids) > room
        return not row.truncated

    def _add_reply(self, row: Row, reply: Reply, is_last: bool) -> bool:
        """Adds what a tool wrote, and what it pays; says whether the policy goes on."""
        if reply.reward is not None and row.turn:
            row.paid.append((len(row.ids) - 1, reply.reward))
        if reply.text is None:
            return False
        row.calls += 1
        row.failures += reply.error is not None
        row.error = reply.error or row.error
        limit = self.config.max_response_tokens
        if not is_last:  # after the last turn the policy would not read it
            room = limit - len(row.ids)
            text = reply.text[: room * MOST_CHARACTERS]  # megabytes would take minutes
            ids = self.tokenizer(text, add_special_tokens=False).input_ids[:room]
            row.add(ids, [0.0] * len(ids), chosen=False)
        row.truncated = is_last or len(row.ids) >= limit
        return not row.truncated

    def _replies(self, rows: list[Row]) -> list[Reply]:
        """The environment's reply to each row's turn.

        A tool that raises or takes too long replies with a message.
        """
        seconds = self.config.tool_seconds
        calls = [functools.partial(self._step, row.state, self._turn_text(row)) for row in rows]
        late = f"no answer within {seconds:g} s"
        too_late = Reply(self.environment.show(f"error: {late}"), late)
        return [reply or too_late for reply in run_parallel(calls, seconds)]

    def _turn_text(self, row: Row) -> str:
        """The last turn as text, without the EOS that ended it."""
        ends = bool(row.turn) and row.turn[-1] in self.endings
        return str(self.tokenizer.decode(row.turn[:-1] if ends else row.turn))

    def _step(self, state: Any, text: str) -> Reply:
        try:
            answer: Any = self.environment.step(state, text)
            reward = None
            if isinstance(answer, Paid):
                answer, reward = answer
                reward = float(reward)
                if not math.isfinite(reward):
                    raise ValueError(f"a tool paid {reward}, which is not a finite number")
            if not isinstance(answer, str | None):
                raise TypeError(f"a tool returned {type(answer).__name__}, not text")
            return Reply(answer, reward=reward)
        except BaseException as error:  # a tool may even call sys.exit()
            details = " ".join(str(error).split())[:200]
            message = type(error).__name__ + (f": {details}" if details else "")
            return Reply(self.environment.show(f"error: {message}"), message)

    def _end_of_call(self, ids: list[int]) -> int:
        """Number of tokens up to the end of the first call; 0 without a call."""

        def has_call(count: int) -> bool:
            text = self.tokenizer.decode(ids[:count])
            return any(mark in text for mark in self.environment.call_ends)

        if not has_call(len(ids)):
            return 0
        return bisect.bisect_left(range(len(ids)), True, key=has_call)


def run_parallel(calls: Sequence[Callable[[], Reply]], seconds: float) -> Iterator[Reply | None]:
    """Runs the calls in threads; yields each reply, or None if it takes longer than `seconds`.

    A thread cannot be ended, so a late one runs on, and its reply is ignored.
    """
    for first in range(0, len(calls), AT_ONCE):
        some = calls[first : first + AT_ONCE]
        replies: list[Reply | None] = [None] * len(some)

        def run(place: int, call: Callable[[], Reply], into: list[Reply | None] = replies) -> None:
            into[place] = call()

        threads = [
            threading.Thread(target=run, args=(place, call), daemon=True)
            for place, call in enumerate(some)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        _late[:] = [thread for thread in [*_late, *threads] if thread.is_alive()]
        if len(_late) > MOST_LATE:
            raise TelescopeError(
                f"{len(_late)} calls of tools have not returned, the last ones after {seconds:g} s "
                "(rollout.tool_seconds): make the tool give up by itself"
            )
        yield from list(replies)
