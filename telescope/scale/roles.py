"""The roles on Ray: the same methods as in process, each a call of a group of workers.

They split the rows, balanced by tokens, call every worker, and put the answers together in order.
The trainer cannot tell the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from telescope.batch import TokenBatch, merge
from telescope.data.loader import Prompts
from telescope.ledger.writer import Notes
from telescope.models.flops import Cost
from telescope.roles.learner import balance
from telescope.rollout.sampler import with_greedy_responses
from telescope.scale.group import WorkerGroup, split_rows


@dataclass(frozen=True)
class PendingSample:
    """Responses that workers have been asked for."""

    seed: int
    """Of the prompts, which tells steps apart."""
    refs: list[Any]
    """Ray references of the workers' parts."""
    rows: list[list[int]]
    """The rows of each part."""
    workers_per_part: int
    """The first of them answers."""
    what: str
    """What errors call it."""


class _RayTrained:
    """What actor and critic on Ray have in common."""

    role: str

    def __init__(self, group: WorkerGroup) -> None:
        self.group = group

    def training_flops(self, batch: TokenBatch) -> float:
        """NaN: the controller does not know what the workers' devices can do."""
        return math.nan

    def save(self, folder: Path) -> None:
        """Each worker writes its shards."""
        self.group.call_all("call", self.role, "save", folder.absolute())

    def load(self, folder: Path) -> None:
        """Each worker reads its shards."""
        self.group.call_all("call", self.role, "load", folder.absolute())


class RayActor(_RayTrained):
    """The policy in workers.

    They write the responses themselves, or `samplers` do, which get the weights after each update.
    """

    role = "actor"
    cost: Cost | None = None

    def __init__(
        self, group: WorkerGroup, tokenizer: Any, samplers: WorkerGroup | None = None
    ) -> None:
        super().__init__(group)
        self.tokenizer = tokenizer
        self.samplers = samplers
        self.device = torch.device("cpu")  # where the controller holds the batch
        self.sent_version = 0
        """The version of the weights that the samplers have."""
        self.pending: PendingSample | None = None
        """The next step's responses, if they have been asked for already."""
        if samplers is not None:
            self.weight_shapes = self._open_channel(samplers)

    def _open_channel(self, samplers: WorkerGroup) -> list[tuple[str, tuple[int, ...]]]:
        """Connects the first trainer with the samplers; returns names and shapes of weights."""
        address = self.group.call_all("address")[0]
        members = [self.group.workers[0], *samplers.workers]
        refs = [
            worker.join.remote(rank, len(members), address) for rank, worker in enumerate(members)
        ]
        shapes: list[tuple[str, tuple[int, ...]]] = self.group.wait_for(refs, "join")[0]
        return shapes

    @property
    def beta(self) -> float:
        return float(self.group.call_all("beta")[0])

    def generate_sequences(
        self, prompts: Prompts, *, upcoming: Prompts | None = None
    ) -> TokenBatch:
        """Responses to `prompts`. With samplers, those to `upcoming` are started meanwhile."""
        if self.samplers is None and self.group.sharing == 1:
            # Each worker also computes the log-probs of what it has sampled.
            return self._collect(self._start("generate_sequences", prompts))
        pending = self.pending
        if pending is None or pending.seed != prompts.seed:
            pending = self._start("sample", prompts)
        batch = self._collect(pending)
        if self.group.config.credit.definition.needs.greedy_baseline:
            batch = with_greedy_responses(batch, self.sample(prompts, greedy=True))
        self.pending = None if upcoming is None else self._start("sample", upcoming)
        return self.group.map_rows("actor", "with_old_log_probs", batch)

    def sample(self, prompts: Prompts, *, greedy: bool = False) -> TokenBatch:
        return self._collect(self._start("sample", prompts, greedy=greedy))

    def update_actor(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        return self.group.update("actor", batch, ledger)

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.sent_version = -1  # the samplers' weights are not the ones just loaded

    def _start(self, method: str, prompts: Prompts, **options: bool) -> PendingSample:
        """Asks the samplers, or without them the actor's workers, for responses."""
        group = self.group
        role = "actor"
        team_size = 1
        if self.samplers is not None:
            self._send_weights(self.samplers)
            group = self.samplers
            role = "sampler"
            team_size = group.team_size
        rows = split_rows([len(ids) for ids in prompts.ids], len(group.workers) // team_size)
        parts = [(prompts.part(share),) for share in rows for _ in range(team_size)]
        refs = group.start_all("call", role, method, each=parts, **options)
        return PendingSample(prompts.seed, refs, rows, team_size, f"call {role} {method}")

    def _collect(self, pending: PendingSample) -> TokenBatch:
        """Waits for the responses and puts them together."""
        answers = self.group.wait_for(pending.refs, pending.what)
        return merge(answers[:: pending.workers_per_part], pending.rows)

    def _send_weights(self, samplers: WorkerGroup) -> None:
        """Sends the policy to the samplers, if it has changed since the last time."""
        version = self.group.call_all("version")[0]
        if version == self.sent_version:
            return
        sending = self.group.start_all("send_weights")
        receiving = samplers.start_all("receive_weights", self.weight_shapes, version)
        self.group.wait_for(sending + receiving, "send_weights")
        self.sent_version = version


class RayCritic(_RayTrained):
    """The critic in workers."""

    role = "critic"

    def compute_values(self, batch: TokenBatch) -> TokenBatch:
        return self.group.map_rows("critic", "compute_values", batch)

    def update_critic(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        return self.group.update("critic", batch, ledger)


class RayReference:
    """The reference in the actor's workers."""

    def __init__(self, group: WorkerGroup) -> None:
        self.group = group

    def compute_log_prob(self, batch: TokenBatch) -> TokenBatch:
        return self.group.map_rows("reference", "compute_log_prob", batch)


class RayRewardModel:
    """The reward model in workers of its own: a reward function like any other.

    Each worker scores a share of the tokens. `group` is set once the workers run.
    """

    group: WorkerGroup

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        prompt_ids: Sequence[list[int]],
        response_ids: Sequence[list[int]],
        messages: Sequence[Any] | None = None,
        **_: Any,
    ) -> list[float]:
        chats = messages or [None] * len(prompts)
        columns = (prompts, completions, prompt_ids, response_ids, chats)
        lengths = [
            len(prompt) + len(response)
            for prompt, response in zip(prompt_ids, response_ids, strict=True)
        ]
        shares = balance(lengths, len(self.group.workers))
        parts = [tuple([column[row] for row in share] for column in columns) for share in shares]
        answers = self.group.call_all("call", "reward", "__call__", each=parts)
        scores = [0.0] * len(prompts)
        for share, answer in zip(shares, answers, strict=True):
            for row, score in zip(share, answer, strict=True):
                scores[row] = score
        return scores
