"""The roles in workers of a Ray cluster, under one controller.

N workers each hold a slice of actor, critic and reference, or the critic has workers of its own. The roles here have the methods
of those in process: they split the rows, balanced by tokens, call every worker, and put the answers together in order. The trainer
cannot tell.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from telescope.batch import TokenBatch, merge
from telescope.build import (
    Roles,
    build_reward,
    choose_device,
    make_actor,
    make_reward_model,
    resolve_model,
    reward_origin,
)
from telescope.config import Config
from telescope.data.loader import Prompts
from telescope.errors import TelescopeError, WorkerError
from telescope.ledger.writer import Notes
from telescope.models.load import (
    fingerprint,
    load_sharded,
    load_tokenizer,
    new_policy,
    new_value_model,
)
from telescope.models.parallel import ProcessGroup
from telescope.roles.critic import Critic, ZeroCritic
from telescope.roles.learner import balance
from telescope.roles.reference import Reference
from telescope.roles.reward import RewardFunction
from telescope.rollout.sampler import with_baseline
from telescope.scale.samplers import Link, SamplingRole

_BROKEN_MEETINGS = ("gloo", "NCCL", "Connection reset", "Connection closed", "Broken pipe")


Started = tuple[list[Any], list[list[int]], str]
"""Calls that have not been answered yet, the rows of each, and what they are about."""


class Worker:
    """One process: its slice of every model."""

    def pid(self) -> int:
        return os.getpid()

    def node(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def address(self) -> str:
        """Where the first worker will wait for the others."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def build(
        self, config: Config, roles: Sequence[str], rank: int, size: int, address: str
    ) -> dict[str, str]:
        """Meets the others and loads the models of `roles`; says what they started from."""
        self.config = config
        torch.set_num_threads(max((os.cpu_count() or 1) // size, 1))
        self.device, self.link = choose_device(config.device), cast(Link | None, None)
        if "sampler" in roles:  # each on its own; vLLM makes a process group itself
            self.roles: dict[str, Any] = {"sampler": SamplingRole(config, self.device)}
            return {}
        if "reward" in roles:
            source = resolve_model(config)
            tokenizer = load_tokenizer(source.path, trust_remote_code=source.trust_remote_code)
            self.roles = {"reward": make_reward_model(config, tokenizer, self.device)}
            return {}
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl"
            if self.device.type == "cuda"
            else "gloo",  # metrics and counts meet on the CPU
            init_method=f"tcp://{address}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=config.ray.timeout),
        )
        ranks, source, origin = (
            ProcessGroup(self.device, config.ray.fsdp_size),
            resolve_model(config),
            {},
        )
        self.roles = {}
        if "actor" in roles:
            models, origin["actor"] = load_sharded(
                new_policy, source, ranks, count=1 if source.lora_rank else 2
            )
            policy, reference = models[0], models[-1]
            if reference is not policy:
                reference.requires_grad_(False)
            self.roles |= {
                "actor": make_actor(config, policy, ranks),
                "reference": Reference(reference, config, ranks),
            }
        if "critic" in roles:
            make = partial(
                new_value_model, bins=config.critic.histogram, head_seed=config.head_seed
            )
            (critic,), origin["critic"] = load_sharded(make, source, ranks)
            self.roles["critic"] = Critic(critic, config, ranks)
        return origin

    def call(self, role: str, method: str, *arguments: Any, **named: Any) -> Any:
        placed = [a.to(self.device) if isinstance(a, TokenBatch) else a for a in arguments]
        return getattr(self.roles[role], method)(*placed, **named)

    def update(self, role: str, batch: TokenBatch, limit: int) -> tuple[dict[str, float], Any]:
        """Metrics, and what the losses noted about the first `limit` samples."""
        notes = Notes(limit)
        metrics = self.call(role, f"update_{role}", batch, notes)
        cpu = {
            name: [
                (epoch, number, rows, {key: value.cpu() for key, value in terms.items()})
                for epoch, number, rows, terms in noted
            ]
            for name, noted in notes.take().items()
        }
        return metrics, cpu

    def join(self, rank: int, size: int, address: str) -> list[tuple[str, tuple[int, ...]]]:
        """Meets the others on the way that weights take; the first, which will send them, says what they are."""
        self.link = Link(
            address, rank, size, self.device, timedelta(seconds=self.config.ray.timeout)
        )
        return (
            [(name, tuple(value.shape)) for name, value, _ in self.roles["actor"].stored_weights()]
            if rank == 0
            else []
        )

    def version(self) -> int:
        return int(self.roles["actor"].learner.updates)

    def send_weights(self) -> None:
        """All that train gather each weight; the first sends it on."""
        dtype = getattr(torch, self.config.model.dtype)
        for _, value in self.roles["actor"].weights():
            if self.link is not None:
                self.link.share(value.to(dtype).contiguous())

    def receive_weights(self, described: Sequence[tuple[str, Sequence[int]]], version: int) -> None:
        assert self.link is not None
        named = self.link.received(described, getattr(torch, self.config.model.dtype))
        self.roles["sampler"].load_weights(named, version)


class Group:
    """N workers that act as one: a process group of their own, and a place for each."""

    def __init__(
        self, config: Config, size: int, roles: Sequence[str], *, gpus: bool, kind: type = Worker
    ) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.config, self.workers = config, []
        # machines with GPUs are filled one after the other, for what stays within one is quick; else all share the work
        asked = {"CPU": 1, **({"GPU": 1} if gpus else {})}
        self.place = ray.util.placement_group([asked] * size, strategy="PACK" if gpus else "SPREAD")
        try:
            self._wait_for_place(asked, size, roles)
            at = [
                PlacementGroupSchedulingStrategy(self.place, placement_group_bundle_index=index)
                for index in range(size)
            ]
            make: Any = ray.remote(kind)
            self.workers = [
                make.options(num_cpus=1, num_gpus=int(gpus), scheduling_strategy=where).remote()
                for where in at
            ]
            nodes = self.all("node")
            order = sorted(
                range(size), key=lambda i: (nodes.index(nodes[i]), i)
            )  # slices that follow one another share a machine
            self.workers = [self.workers[i] for i in order]
            address = self.answers([self.workers[0].address.remote()], "start")[0]
            self.origin = self.all(
                "build", config, roles, each=[(rank, size, address) for rank in range(size)]
            )[0]
        except TelescopeError:
            self.close()
            raise

    def all(
        self,
        method: str,
        *arguments: Any,
        each: Sequence[tuple[Any, ...]] | None = None,
        **named: Any,
    ) -> list[Any]:
        """Calls every worker, with arguments of its own where `each` gives them; the answers in the workers' order."""
        what = " ".join(str(a) for a in (method, *arguments) if isinstance(a, str))
        return self.answers(self.start(method, *arguments, each=each, **named), what)

    def start(
        self,
        method: str,
        *arguments: Any,
        each: Sequence[tuple[Any, ...]] | None = None,
        **named: Any,
    ) -> list[Any]:
        """The same without waiting for the answers."""
        own = each or [()] * len(self.workers)
        return [
            getattr(worker, method).remote(*arguments, *mine, **named)
            for worker, mine in zip(self.workers, own, strict=True)
        ]

    def rows(self, role: str, method: str, batch: TokenBatch) -> TokenBatch:
        """Calls a role's method on every worker with its rows, and returns the batch with the columns it has made."""
        parts = [part or [0] for part in balance(batch.row_lengths(), len(self.workers))]
        bare = batch.without_info()
        made = merge(
            self.all(
                "call", role, method, each=[(bare.rows(torch.tensor(part)),) for part in parts]
            ),
            parts,
        )
        return batch.with_columns(**{name: made[name] for name in made if name not in batch})

    def update(self, role: str, batch: TokenBatch, ledger: Notes | None) -> dict[str, float]:
        import ray

        answers = self.all(
            "update",
            role,
            each=[(ray.put(batch.without_info()), ledger.limit if ledger else 0)]
            * len(self.workers),
        )
        for _, notes in answers:
            if ledger:
                ledger.add(notes)
        metrics: dict[str, float] = answers[0][0]
        return metrics

    def close(self) -> None:
        import ray

        if not ray.is_initialized():  # nothing is left of the cluster
            return
        try:
            for worker in self.workers:
                ray.kill(worker)
        except ray.exceptions.ActorHandleNotFoundError:  # nor now, that there is another
            return
        ray.util.remove_placement_group(self.place)

    def _wait_for_place(self, asked: dict[str, int], size: int, roles: Sequence[str]) -> None:
        import ray

        if not self.place.wait(self.config.ray.timeout):
            want, free, has = (
                ", ".join(f"{of.get(kind, 0):g} {kind}s" for kind in asked)
                for of in (
                    {kind: size for kind in asked},
                    ray.available_resources(),
                    ray.cluster_resources(),
                )
            )
            limit = f"{self.config.ray.timeout:g} s (ray.timeout)"
            raise WorkerError(
                f"no room for the {size} workers of {', '.join(roles)} within {limit}: they need {want}, "
                f"{free} are free, the cluster has {has}; ask for fewer workers, or wait until others are done"
            )

    def answers(self, refs: list[Any], what: str) -> list[Any]:
        """What the workers answer; nobody is waited for longer than `ray.timeout`, and who is silent is named."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            pending = list(refs)
            while (
                pending
            ):  # as they come: one that died must not be waited for behind one that waits for it
                ready, pending = ray.wait(pending, timeout=self.config.ray.timeout)
                if not ready:
                    raise GetTimeoutError
                ray.get(ready)
            return ray.get(refs)
        except GetTimeoutError:
            silent = ", ".join(str(refs.index(ref)) for ref in pending)
            limit = f"{self.config.ray.timeout:g} s (ray.timeout)"
            raise WorkerError(
                f"worker {silent} of {len(refs)} did not answer `{what}` within {limit}"
            ) from None
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, TelescopeError):
                raise cause from None
            if any(
                sign in str(cause) for sign in _BROKEN_MEETINGS
            ):  # one worker died, and another noticed first
                raise WorkerError(
                    f"a worker lost touch with another during `{what}`: {' '.join(str(cause).split())[:200]}"
                ) from None
            raise TelescopeError(f"a worker failed in `{what}`: {cause!r}") from error
        except RayError as error:  # of the actor, its node or its memory
            raise WorkerError(
                f"a worker died during `{what}`: {' '.join(str(error).split())[:300]}"
            ) from None


class _Trained:
    """What actor and critic have in common."""

    role: str

    def __init__(self, group: Group) -> None:
        self.group = group

    def training_flops(self, batch: TokenBatch) -> float:
        return (
            math.nan
        )  # the controller does not know what the workers' devices could do: no perf/mfu

    def save(self, folder: Path) -> None:
        self.group.all("call", self.role, "save", folder.absolute())

    def load(self, folder: Path) -> None:
        self.group.all("call", self.role, "load", folder.absolute())


class RayActor(_Trained):
    """Its workers write the responses themselves, or `samplers` do, which get the weights after every update."""

    role = "actor"

    def __init__(self, group: Group, tokenizer: Any, samplers: Group | None = None) -> None:
        super().__init__(group)
        self.tokenizer, self.samplers, self.sent = tokenizer, samplers, 0
        self.device = torch.device("cpu")  # where the controller holds the batch
        self.upcoming: tuple[int, Started] | None = None
        if samplers is not None:
            address, members = group.all("address")[0], [group.workers[0], *samplers.workers]
            joined = [
                worker.join.remote(rank, len(members), address)
                for rank, worker in enumerate(members)
            ]
            self.weights = group.answers(joined, "join")[0]

    def generate_sequences(
        self, prompts: Prompts, *, upcoming: Prompts | None = None, greedy: bool = False
    ) -> TokenBatch:
        """With `upcoming`, those prompts are answered while the caller goes on: by the policy as it is now."""
        if self.samplers is None:
            return self._collect(self._start(self.group, "generate_sequences", prompts, greedy))
        ready = self.upcoming is not None and self.upcoming[0] == prompts.seed
        started = (
            self.upcoming[1]
            if self.upcoming and ready
            else self._start(self._renewed(), "sample", prompts, greedy)
        )
        batch = self._collect(started)
        if self.group.config.credit.estimator == "remax":
            batch = with_baseline(batch, self.sample(prompts, greedy=True))
        self.upcoming = (
            (upcoming.seed, self._start(self._renewed(), "sample", upcoming, greedy))
            if upcoming is not None
            else None
        )
        return self.group.rows("actor", "with_old_log_probs", batch)

    def sample(self, prompts: Prompts, *, greedy: bool = False) -> TokenBatch:
        return self._collect(
            self._start(self._renewed() if self.samplers else self.group, "sample", prompts, greedy)
        )

    def _start(self, group: Group, method: str, prompts: Prompts, greedy: bool) -> Started:
        parts = [
            part or [0] for part in balance([len(ids) for ids in prompts.ids], len(group.workers))
        ]
        role = "actor" if group is self.group else "sampler"
        refs = group.start(
            "call", role, method, each=[(prompts.part(part),) for part in parts], greedy=greedy
        )
        return refs, parts, f"call {role} {method}"

    def _collect(self, started: Started) -> TokenBatch:
        refs, parts, what = started
        return merge(self.group.answers(refs, what), parts)

    def _renewed(self) -> Group:
        """The samplers, with the weights of the policy as it is now."""
        assert self.samplers is not None
        version = self.group.all("version")[0]
        if version != self.sent:
            refs = self.group.start("send_weights") + self.samplers.start(
                "receive_weights", self.weights, version
            )
            self.group.answers(refs, "send_weights")
            self.sent = version
        return self.samplers

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.sent = -1  # whatever the samplers have, it is not these weights

    def update_actor(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        return self.group.update("actor", batch, ledger)


class RayCritic(_Trained):
    role = "critic"

    def compute_values(self, batch: TokenBatch) -> TokenBatch:
        return self.group.rows("critic", "compute_values", batch)

    def update_critic(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        return self.group.update("critic", batch, ledger)


class RayReference:
    def __init__(self, group: Group) -> None:
        self.group = group

    def compute_log_prob(self, batch: TokenBatch) -> TokenBatch:
        return self.group.rows("reference", "compute_log_prob", batch)


class RayRewardModel:
    """The reward model in workers of its own, for the reward a function like any other. Each worker scores a share of the tokens."""

    group: Group

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        prompt_ids: Any,
        response_ids: Any,
        messages: Any = None,
        **_: Any,
    ) -> list[float]:
        columns = (
            prompts,
            completions,
            prompt_ids,
            response_ids,
            messages or [None] * len(prompts),
        )
        lengths = [
            len(prompt) + len(response)
            for prompt, response in zip(prompt_ids, response_ids, strict=True)
        ]
        parts = balance(lengths, len(self.group.workers))
        answers = self.group.all(
            "call",
            "reward",
            "__call__",
            each=[tuple([c[i] for i in part] for c in columns) for part in parts],
        )
        scores = {
            i: score
            for part, mine in zip(parts, answers, strict=True)
            for i, score in zip(part, mine, strict=True)
        }
        return [scores[i] for i in range(len(prompts))]


def build_roles(
    config: Config, reward: RewardFunction | Mapping[str, RewardFunction] | None = None
) -> Roles:
    source = resolve_model(config)
    tokenizer = load_tokenizer(source.path, trust_remote_code=source.trust_remote_code)
    scorer = RayRewardModel() if config.ray.reward_workers else None
    rewards = build_reward(config, tokenizer, torch.device("cpu"), reward, scorer)
    config, gpus, own = _absolute(config), _connect(config), config.ray.critic_workers
    groups: list[Group] = []

    def close() -> None:
        for group in groups:
            group.close()

    try:
        valued = config.credit.by_critic
        shared = ("actor", "reference", "critic") if valued and not own else ("actor", "reference")
        groups.append(Group(config, config.ray.workers, shared, gpus=gpus))
        if own:
            groups.append(Group(config, own, ("critic",), gpus=gpus))
        critics = groups[-1]
        if config.ray.samplers:
            groups.append(Group(config, config.ray.samplers, ("sampler",), gpus=gpus))
        actors, samplers = groups[0], groups[-1] if config.ray.samplers else None
        actor = RayActor(actors, tokenizer, samplers)
        if scorer is not None:
            groups.append(Group(config, config.ray.reward_workers, ("reward",), gpus=gpus))
            scorer.group = groups[-1]
    except TelescopeError:
        close()
        raise
    origin = {
        "critic": fingerprint(None),
        **actors.origin,
        **critics.origin,
        **reward_origin(config, rewards, reward),
    }
    return Roles(
        actor,
        RayCritic(critics) if valued else ZeroCritic(),
        RayReference(actors),
        rewards,
        origin,
        close,
    )


def _absolute(config: Config) -> Config:
    """Workers have a working folder of their own: paths of this one's are made whole."""
    places = {
        key: path
        for key in ("path", "critic_path")
        if (path := getattr(config.model, key)) and Path(path).expanduser().is_dir()
    }
    whole = {key: str(Path(path).expanduser().absolute()) for key, path in places.items()}
    model = config.reward.model
    reward = (
        {"model": str(Path(model).expanduser().absolute())}
        if model and Path(model).expanduser().is_dir()
        else {}
    )
    tools = {
        key: value for key in ("corpus", "environment") if (value := getattr(config.rollout, key))
    }
    found = {
        key: str(place)
        for key, value in tools.items()
        if (place := Path(value).expanduser().absolute()).parent.is_dir()
    }
    found = {key: place for key, place in found.items() if key == "corpus" or ".py:" in place}
    changed = {"model": whole, "reward": reward, "rollout": found}
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=of) for name, of in changed.items()}
    )


def _connect(config: Config) -> bool:
    """Joins the cluster, or starts one here; says whether the workers get GPUs."""
    try:
        import ray
    except ImportError:
        raise TelescopeError("backend = 'ray' needs Ray: pip install -e '.[ray]'") from None
    address = config.ray.address or os.environ.get("RAY_ADDRESS")
    kinds = ("workers", "critic_workers", "samplers", "reward_workers")
    workers = sum(getattr(config.ray, kind) for kind in kinds)
    if not ray.is_initialized():
        settings: dict[str, Any] = (
            {"address": address}
            if address
            else {"address": "local", "num_cpus": max(os.cpu_count() or 1, workers)}
        )
        try:
            ray.init(
                **settings,
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            hint = (
                "; a cluster that was started with an authentication token needs RAY_AUTH_MODE=token here too"
                if address
                else ""
            )
            raise TelescopeError(
                f"cannot join the Ray cluster at {address}: {str(error).splitlines()[0]}{hint}"
            ) from error
    living = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = (sum(int(node.get(kind, 0)) for node in living) for kind in ("CPU", "GPU"))
    gpus = 0 if config.device == "cpu" else gpus
    asked = " + ".join(f"ray.{name} = {n}" for name in kinds if (n := getattr(config.ray, name)))
    for kind, there in (("CPU", cpus), ("GPU", gpus or workers)):
        if there < workers:
            has = f"the cluster has {there} on {len(living)} node{'s' * (len(living) > 1)}"
            raise WorkerError(
                f"{asked} needs {workers} {kind}s, and {has}: ask for fewer workers, or add nodes"
            )
    return gpus > 0
