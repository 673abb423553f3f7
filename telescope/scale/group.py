"""A group of workers that act as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from telescope.batch import TokenBatch, merge
from telescope.config import Config
from telescope.errors import TelescopeError, WorkerError
from telescope.ledger.writer import Notes
from telescope.roles.learner import balance
from telescope.scale.worker import Worker

_CONNECTION_ERRORS = ("gloo", "NCCL", "Connection reset", "Connection closed", "Broken pipe")
"""Words in the error of a collective when another worker has died."""


class WorkerGroup:
    """N workers with a process group of their own, each at a reserved place in the cluster."""

    def __init__(self, config: Config, size: int, roles: Sequence[str], *, gpus: bool) -> None:
        import ray

        self.config = config
        self.sharing = config.ray.sequence_parallel_size
        """Workers in a row that share the same rows when they compute or train."""
        self.workers: list[Any] = []
        self.team_size = config.rollout.tensor_parallel_size if "sampler" in roles else size
        """Workers in a row that compute together: all, or those of one sampler."""
        # With GPUs, machines are filled one after the other: connections within one are fast.
        # Without, the workers share the CPUs of all machines.
        resources: dict[str, float] = {"CPU": 1}
        if gpus:
            resources["GPU"] = 1 / config.ray.workers_per_gpu
        self.placement = ray.util.placement_group(
            [resources] * size, strategy="PACK" if gpus else "SPREAD"
        )
        try:
            self._wait_for_placement(resources, size, roles)
            self.workers = self._start_workers(size, resources.get("GPU", 0))
            leaders = self.workers[:: self.team_size]
            addresses = self.wait_for([leader.address.remote() for leader in leaders], "start")
            own = [(rank, size, addresses[rank // self.team_size]) for rank in range(size)]
            self.origin: dict[str, str] = self.call_all("build", config, roles, each=own)[0]
        except TelescopeError:
            self.close()
            raise

    def _start_workers(self, size: int, gpus: float) -> list[Any]:
        """Starts the processes, each with so many GPUs or so much of one.

        Neighbouring ranks share a machine where possible.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor_class: Any = ray.remote(Worker)
        for index in range(size):
            place = PlacementGroupSchedulingStrategy(
                self.placement, placement_group_bundle_index=index
            )
            options = actor_class.options(num_cpus=1, num_gpus=gpus, scheduling_strategy=place)
            self.workers.append(options.remote())
        nodes = self.call_all("node")
        order = sorted(range(size), key=lambda index: (nodes.index(nodes[index]), index))
        return [self.workers[index] for index in order]

    def _wait_for_placement(
        self, resources: dict[str, float], size: int, roles: Sequence[str]
    ) -> None:
        import ray

        try:
            if self.placement.wait(self.config.ray.timeout):
                return
        except Exception as error:  # Ray has a plain one for a group that went with its node
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise WorkerError(f"the cluster has lost the workers' places: {reason}") from error

        def listed(amounts: dict[str, float]) -> str:
            return ", ".join(f"{amounts.get(kind, 0):g} {kind}s" for kind in resources)

        needed = listed({kind: size * amount for kind, amount in resources.items()})
        free = listed(ray.available_resources())
        total = listed(ray.cluster_resources())
        limit = f"{self.config.ray.timeout:g} s (ray.timeout)"
        raise WorkerError(
            f"no room for the {size} workers of {', '.join(roles)} within {limit}: "
            f"they need {needed}, {free} are free, the cluster has {total}; "
            "ask for fewer workers, or wait until others are done"
        )

    def call_all(
        self,
        method: str,
        *arguments: Any,
        each: Sequence[tuple[Any, ...]] | None = None,
        **named: Any,
    ) -> list[Any]:
        """Calls a method of every worker; returns the answers in rank order.

        `each` holds further arguments of each worker's own.
        """
        refs = self.start_all(method, *arguments, each=each, **named)
        words = [argument for argument in arguments if isinstance(argument, str)]
        return self.wait_for(refs, " ".join([method, *words]))

    def start_all(
        self,
        method: str,
        *arguments: Any,
        each: Sequence[tuple[Any, ...]] | None = None,
        **named: Any,
    ) -> list[Any]:
        """The same without waiting: returns Ray references of the answers."""
        own = each or [()] * len(self.workers)
        return [
            getattr(worker, method).remote(*arguments, *more, **named)
            for worker, more in zip(self.workers, own, strict=True)
        ]

    def map_rows(self, role: str, method: str, batch: TokenBatch) -> TokenBatch:
        """Calls a role's method on every worker with its share of the rows.

        Returns the batch with the columns that the method added.
        """
        shares = split_rows(batch.row_lengths(), len(self.workers) // self.sharing)
        bare = batch.without_info()
        parts = [(bare.rows(torch.tensor(share)),) for share in shares]
        each = [part for part in parts for _ in range(self.sharing)]
        answers = self.call_all("call", role, method, each=each)
        made = merge(answers[:: self.sharing], shares)  # workers with the same rows agree
        return batch.with_columns(**{name: made[name] for name in made if name not in batch})

    def update(self, role: str, batch: TokenBatch, ledger: Notes | None) -> dict[str, float]:
        """Updates a role on every worker with the whole batch; returns metrics."""
        import ray

        limit = ledger.limit if ledger else 0
        shared = ray.put(batch.without_info())
        # Of workers with the same rows, the first notes their terms.
        limits = [0 if rank % self.sharing else limit for rank in range(len(self.workers))]
        answers = self.call_all("update", role, each=[(shared, own) for own in limits])
        if ledger:
            for _, notes in answers:
                ledger.add(notes)
        metrics: dict[str, float] = answers[0][0]
        return metrics

    def wait_for(self, refs: list[Any], what: str) -> list[Any]:
        """Returns the answers behind `refs`.

        Waits at most `ray.timeout` for the next answer. Errors name `what` was called and which
        worker did not answer.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            # One by one as they arrive: a worker that died would keep another one waiting.
            pending = list(refs)
            while pending:
                ready, pending = ray.wait(pending, timeout=self.config.ray.timeout)
                if not ready:
                    raise self._no_answer([refs.index(ref) for ref in pending], len(refs), what)
                ray.get(ready)
            answers: list[Any] = ray.get(refs)
            return answers
        except RayTaskError as error:
            raise _task_error(error, what) from error
        except RayError as error:  # the actor, its node or its memory
            message = " ".join(str(error).split())[:300]
            raise WorkerError(f"a worker died during `{what}`: {message}") from None

    def _no_answer(self, ranks: list[int], count: int, what: str) -> WorkerError:
        names = ", ".join(str(rank) for rank in ranks)
        limit = f"{self.config.ray.timeout:g} s (ray.timeout)"
        return WorkerError(f"worker {names} of {count} did not answer `{what}` within {limit}")

    def close(self) -> None:
        """Ends the workers and frees their places. A cluster that is gone is not an error."""
        import ray

        if not ray.is_initialized():
            return
        try:
            for worker in self.workers:
                ray.kill(worker)
        except ray.exceptions.ActorHandleNotFoundError:  # they belong to an earlier cluster
            return
        ray.util.remove_placement_group(self.placement)


def split_rows(lengths: Sequence[int], workers: int) -> list[list[int]]:
    """Rows of each worker, balanced by tokens. A worker without rows repeats row 0.

    It must still join the others' collectives.
    """
    return [share or [0] for share in balance(lengths, workers)]


def _task_error(error: Any, what: str) -> Exception:
    """The error that a worker raised, as one of ours."""
    cause = error.cause
    if isinstance(cause, TelescopeError):
        return cause
    if any(sign in str(cause) for sign in _CONNECTION_ERRORS):
        # one worker died, and another noticed it before Ray did
        message = " ".join(str(cause).split())[:200]
        return WorkerError(f"a worker lost its connection to another during `{what}`: {message}")
    return TelescopeError(f"a worker failed in `{what}`: {cause!r}")
