"""Rollouts that the `verifiers` library plays: it runs the episodes, our sampler writes the turns.

Its harness asks a model over HTTP. We answer at an address of this machine: token ids in, token
ids and log-probs out, as vLLM's /inference/v1/generate does. So sampled ids stay as they are.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from telescope.config import Config
from telescope.data.episodes import TASK, make_environment
from telescope.errors import TelescopeError
from telescope.rollout.sampler import Sampler
from telescope.rollout.tools import Row, ToolRollout, Tools

if TYPE_CHECKING:
    from telescope.data.loader import Prompts

_PAUSE = 0.02  # seconds without a new request after which those that wait are sampled


@dataclass
class Request:
    """A turn that an episode asks for."""

    episode: str
    ids: list[int]
    limit: int | None
    answer: dict[str, Any] = field(default_factory=dict)
    answered: threading.Event = field(default_factory=threading.Event)


@dataclass
class Playing:
    """What is known of an episode while it is played."""

    row: int
    turn: int = 0
    start: int | None = None
    """Tokens of its first prompt."""


class Episodes(Tools):
    """Plays a batch of prompts as episodes of a `verifiers` environment."""

    def __init__(self, config: Config, tokenizer: Any, model: str) -> None:
        nothing: Any = SimpleNamespace(call_ends=())  # a turn ends with EOS alone
        super().__init__(nothing, tokenizer, config.rollout)
        self.model = model
        self.env = make_environment(config)
        self.tasks = list(islice(self.env.taskset, config.data.size))
        self.requests: queue.Queue[Request] = queue.Queue()
        self.url = _serve(self.requests)

    def roll(
        self, sampler: Sampler, prompts: Prompts, device: torch.device, *, greedy: bool
    ) -> ToolRollout:
        """Plays one episode per prompt; the policy's turns are sampled in batches."""
        tasks = [self.tasks[data[TASK]] for data in prompts.info["data"]]
        playing: dict[str, Playing] = {}
        with ThreadPoolExecutor(1) as pool:
            played = pool.submit(asyncio.run, self._play(tasks, playing))
            while not played.done() or not self.requests.empty():
                waiting = self._waiting(played)
                for turn in sorted({playing[one.episode].turn for one in waiting}):
                    same = [one for one in waiting if playing[one.episode].turn == turn]
                    self._sample(sampler, prompts, same, playing, device, greedy)
        return self._rollout(played.result(), prompts, device)

    async def _play(self, tasks: list[Any], playing: dict[str, Playing]) -> list[Any]:
        from verifiers.v1.clients import ModelContext, TrainClientConfig

        client = TrainClientConfig(
            base_url=self.url, api_key_var="TELESCOPE_NO_KEY", renderer_model_name=self.model
        )
        context = ModelContext(model=self.model, client=client)

        async def play(row: int, task: Any) -> Any:
            def begin(trace: Any) -> None:
                playing[trace.id] = Playing(row)

            (slot,) = self.env.slots(task)
            return await self.env.run_slot(slot, context, on_trace=begin)

        async with self.env.serving():
            return await asyncio.gather(*[play(row, task) for row, task in enumerate(tasks)])

    def _waiting(self, played: Future[Any]) -> list[Request]:
        """The requests that have come, once no more are coming for a moment."""
        found: list[Request] = []
        while not (played.done() and self.requests.empty()):
            try:
                found.append(self.requests.get(timeout=_PAUSE))
            except queue.Empty:
                if found:
                    break
        return found

    def _sample(
        self,
        sampler: Sampler,
        prompts: Prompts,
        requests: list[Request],
        playing: dict[str, Playing],
        device: torch.device,
        greedy: bool,
    ) -> None:
        """Samples the same turn of several episodes, and answers their requests."""
        states = [playing[one.episode] for one in requests]
        limits = []
        for one, state in zip(requests, states, strict=True):
            state.start = len(one.ids) if state.start is None else state.start
            room = self.config.max_response_tokens - (len(one.ids) - state.start)
            limits.append(max(min(room, one.limit or room), 1))
        turns = self.sample_turn(
            sampler,
            prompts,
            [state.row for state in states],
            states[0].turn,
            [one.ids for one in requests],
            limits,
            device,
            greedy,
        )
        for one, state, sampled in zip(requests, states, turns, strict=True):
            state.turn += 1
            content = [
                {"token": f"token_id:{token}", "logprob": log_prob}
                for token, log_prob in zip(sampled.ids, sampled.log_probs, strict=True)
            ]
            choice = {
                "token_ids": sampled.ids,
                "logprobs": {"content": content},
                "finish_reason": "length" if sampled.truncated else "stop",
            }
            one.answer = {"request_id": one.episode, "choices": [choice]}
            one.answered.set()

    def _rollout(self, episodes: list[Any], prompts: Prompts, device: torch.device) -> ToolRollout:
        errors = [_error_of(episode) for episode in episodes]
        if all(errors):
            raise TelescopeError(f"every episode of the environment failed, at first: {errors[0]}")
        rows = []
        starts = []
        for number, (episode, error) in enumerate(zip(episodes, errors, strict=True)):
            start, row = self._row(episode)
            row.failures = int(error is not None)
            row.error = error
            starts.append(start or prompts.ids[number])
            rows.append(row)
        return self.collected(rows, device, starts)

    def _row(self, episode: Any) -> tuple[list[int], Row]:
        """An episode's first prompt, and what followed; of several branches, the last one."""
        traces = [trace for trace in episode.traces if trace.branches]
        if not traces:
            return [], Row(None, truncated=True)
        trace = traces[0]
        branch = trace.branches[-1]
        ids = branch.token_ids
        chosen = branch.sampled_mask
        start = chosen.index(True) if True in chosen else len(ids)
        end = min(len(ids), start + self.config.max_response_tokens)
        while end > start and not chosen[end - 1]:  # nothing of the policy's follows
            end -= 1
        row = Row(
            {"rewards": _numbers(trace.rewards), "metrics": _numbers(trace.metrics)},
            ids=ids[start:end],
            chosen=chosen[start:end],
            log_probs=branch.logprobs[start:end],
            truncated=bool(trace.is_truncated) or (end < len(ids) and any(chosen[end:])),
            calls=max(trace.num_turns - 1, 0),
        )
        after_last_reply = len(row.chosen)
        while after_last_reply and row.chosen[after_last_reply - 1]:
            after_last_reply -= 1
        row.turn = row.ids[after_last_reply:]
        if row.ids:
            row.paid = [(len(row.ids) - 1, float(trace.reward))]
        return ids[:start], row


def _error_of(episode: Any) -> str | None:
    """What an episode failed with."""
    errors = [*episode.errors]
    for trace in episode.traces:
        errors += trace.errors
    if episode.ok or not errors:
        return None
    return f"{errors[0].type}: {' '.join(errors[0].message.split())[:200]}"


def _numbers(scores: Any) -> dict[str, float]:
    """Rewards or metrics as plain numbers; those that were not computed are left out."""
    found = {}
    for name, value in scores.items():
        number = getattr(value, "value", value)
        if number is not None:
            found[name] = float(number)
    return found


def _serve(requests: queue.Queue[Request]) -> str:
    """Starts the address at which the harness asks for turns, and returns it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send({"data": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            limit = body["sampling_params"].get("max_tokens")
            request = Request(self.headers["X-Session-ID"], body["token_ids"], limit)
            requests.put(request)
            request.answered.wait()
            self._send(request.answer)

        def _send(self, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"
