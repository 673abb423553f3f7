"""What actor and critic share: an optimizer whose steps do not depend on how rows are split.

- `Learner`: minibatches, gradients summed over micro-batches and ranks, optimizer, checkpoints.
- `map_rows`, `map_policy`: a forward without a gradient, micro-batch by micro-batch.
- `micro_batches`, `balance`: how rows are grouped by their numbers of tokens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from telescope.batch import TokenBatch
from telescope.config import OptimizerConfig
from telescope.data.seeds import mix_seed
from telescope.errors import DivergedError
from telescope.models import shards
from telescope.models.forward import Entropy, policy_forward
from telescope.models.load import checkpointing, is_packable
from telescope.models.offload import HostMemory
from telescope.models.parallel import Ranks, full_tensor, local_part
from telescope.roles.optimizer import make_optimizer, set_step, state_of

_PART = 2**26
"""Offloaded weights that are on the device at once during an optimizer step."""


@dataclass(frozen=True)
class Denominators:
    """Counts over the whole minibatch, taken before it is split.

    Every micro-batch on every rank divides by them, so the split cannot change the gradient.
    """

    num_tokens: Tensor
    num_rows: Tensor

    @classmethod
    def of(cls, minibatch: TokenBatch) -> Denominators:
        mask = minibatch.mask
        return cls(mask.sum().clamp(min=1), mask.any(1).sum().clamp(min=1))


class Learner:
    """Optimizer, learning-rate schedule and gradient clipping of one model.

    bfloat16 weights are too coarse to add small steps to. So the optimizer works on a float32
    master copy of each, gradients are summed in float32, and the weights are the masters rounded.
    A float32 weight is its own master.

    With `offload_optimizer`, masters and moments are in host memory. A step brings them to the
    device part by part; every weight takes the same step as without.
    """

    def __init__(
        self,
        model: nn.Module,
        config: OptimizerConfig,
        *,
        total_updates: int,
        seed: int,
        padded: bool = True,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.total_updates = total_updates
        self.seed = seed
        self.padded = padded
        self.ranks = ranks or Ranks()
        self.updates = 0
        """Training steps that updated the model: calls of `minibatches`."""
        self.kept: dict[str, Tensor] = {}
        """Other state of the role that its checkpoints hold."""
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.names = list(trained)
        self.weights = list(trained.values())
        self.host = HostMemory()
        self.masters = [self._make_master(weight) for weight in self.weights]
        self.optimizer = make_optimizer(self.masters, config)
        self._norms: list[Tensor] = []
        """Norms of the gradients since the last `check_gradients`."""

    def _make_master(self, weight: Tensor) -> Tensor:
        if weight.dtype is torch.float32:
            return weight
        master = weight.detach().float()
        if self.config.offload_optimizer:
            self.host.move_out([master])
        return master

    def learning_rate(self) -> float:
        """The learning rate of the next update: a function of the update count alone.

            lr_min + (lr − lr_min)·decay      decay from 1 to 0: 1 − p, or (1 + cos πp)/2

        p is the share of the updates after warm-up that are done. There is no scheduler state to
        lose, or to advance twice.
        """
        config = self.config
        if self.updates < config.warmup_steps:
            return config.lr * (self.updates + 1) / config.warmup_steps
        decay_steps = max(self.total_updates - config.warmup_steps, 1)
        progress = (self.updates - config.warmup_steps) / decay_steps
        if config.schedule == "linear":
            decay = 1 - progress
        elif config.schedule == "cosine":
            decay = 0.5 * (1 + math.cos(math.pi * progress))
        else:
            decay = 1.0
        return config.lr_min + (config.lr - config.lr_min) * max(decay, 0.0)

    def minibatches(self, batch: TokenBatch) -> Iterator[tuple[int, int, TokenBatch]]:
        """Yields (epoch, index, rows) for each optimizer step of this update.

        Rows are shuffled anew in every epoch. They come without `info`. With fewer rows than
        minibatches, each row is a minibatch.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        generator = torch.Generator().manual_seed(mix_seed(self.seed, self.updates, 3))
        self.updates += 1
        batch = batch.without_info()
        for epoch in range(self.config.epochs):
            if self.config.minibatches == 1:
                yield epoch, 0, batch
                continue
            order = torch.randperm(len(batch), generator=generator)
            parts = min(self.config.minibatches, len(batch))
            for index, rows in enumerate(order.tensor_split(parts)):
                yield epoch, index, batch.rows(rows)

    def backward(
        self, minibatch: TokenBatch, loss: Callable[[TokenBatch, Denominators], Tensor]
    ) -> None:
        """Accumulates the exact gradient of `loss` over the minibatch.

        Each rank takes its share of the rows, in micro-batches. A rank that runs out of rows goes
        on with blank ones, because the others need its shard of the weights.
        """
        denominators = Denominators.of(minibatch)
        share = self._own_share(minibatch)
        groups = micro_batches(share, self.config.micro_batch_tokens, padded=self.padded)
        for number in range(self.ranks.max(len(groups))):
            if number >= len(groups):
                micro = minibatch.blank()
            elif len(groups[number]) == len(share):
                micro = share
            else:
                micro = share.rows(groups[number])
            with checkpointing(self.model):
                loss(micro, denominators).backward()
            self.accumulate_gradients()

    def _own_share(self, minibatch: TokenBatch) -> TokenBatch:
        """The rows of this rank, balanced by tokens."""
        if self.ranks.row_groups == 1:
            return minibatch
        rows = balance(minibatch.row_lengths(), self.ranks.row_groups)[self.ranks.row_group]
        return minibatch.rows(torch.tensor(rows)) if rows else minibatch.blank()

    def accumulate_gradients(self) -> None:
        """Adds the weights' gradients to those of their masters, in float32, and clears them."""
        first_totals, first_grads = [], []
        totals, grads = [], []
        for weight, master in self._rounded_weights(range(len(self.weights))):
            if weight.grad is None:
                continue
            if master.grad is None:
                master.grad = torch.empty_like(master)
                first_totals.append(master.grad)
                first_grads.append(weight.grad)
            else:
                totals.append(master.grad)
                grads.append(weight.grad)
            weight.grad = None
        if first_totals:
            torch._foreach_copy_(first_totals, first_grads)
        if totals:
            torch._foreach_add_(totals, grads)

    def step(self) -> Tensor:
        """Clips the gradient, takes a step, clears it; returns the norm before clipping.

        A gradient that is not finite changes no weight; `check_gradients` raises the error. The
        device decides that by itself, so nothing waits for it here.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self.config.max_grad_norm)
        norm = full_tensor(norm)
        self._norms.append(norm)
        if isinstance(self.optimizer, torch.optim.AdamW):
            # Where torch's GradScaler puts it too; 1 makes AdamW skip the step.
            self.optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
        else:
            self.check_gradients()  # bitsandbytes would take the step
        gradients = [master.grad for master in self.masters]
        self.discard()
        for part in self._parts():
            for number in part:
                self.masters[number].grad = gradients[number]
                gradients[number] = None
            self.host.move_in(self._offloaded(part))
            self.optimizer.step()  # weights without a gradient stay as they are
            self.discard()
            self._round_weights(part)
            self.host.move_out(self._offloaded(part))
        return norm

    def check_gradients(self) -> None:
        """Raises an error if a gradient since the last call was not finite. Ends every update."""
        norms = self._norms
        self._norms = []
        if norms and not bool(torch.stack(norms).isfinite().all()):
            raise DivergedError(
                "a gradient is not finite, so the step was not taken: look at the last rows of "
                "metrics.jsonl, lower the learning rate or check the reward's scale"
            )

    def _parts(self) -> list[list[int]]:
        """Numbers of the weights, in groups of about `_PART` weights; in one without offload."""
        if not self.config.offload_optimizer:
            return [list(range(len(self.masters)))]
        parts: list[list[int]] = [[]]
        size = 0
        for number, master in enumerate(self.masters):
            if size and size + master.numel() > _PART:
                parts.append([])
                size = 0
            parts[-1].append(number)
            size += master.numel()
        return parts

    def _offloaded(self, part: Sequence[int]) -> list[Tensor]:
        """Masters and moments of some weights that are in host memory between steps."""
        tensors: list[Tensor] = []
        if not self.config.offload_optimizer:
            return tensors
        for number in part:
            if self.masters[number] is not self.weights[number]:
                tensors.append(self.masters[number])
            state = self.optimizer.state.get(self.masters[number], {})
            moments = {name: value for name, value in state.items() if not name.startswith("qmap")}
            for value in moments.values():
                is_paged = getattr(value, "is_paged", False)  # bitsandbytes moves it by itself
                if isinstance(value, Tensor) and value.dim() and not is_paged:
                    tensors.append(value)
        return tensors

    def discard(self) -> None:
        """Clears the gradient without taking a step."""
        self.optimizer.zero_grad(set_to_none=True)

    def _rounded_weights(self, part: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """(weight, master) of those weights of the part that are not their own masters."""
        pairs = [(self.weights[number], self.masters[number]) for number in part]
        return [(weight, master) for weight, master in pairs if weight is not master]

    @torch.no_grad()
    def _round_weights(self, part: Sequence[int]) -> None:
        """Sets the weights of a part to their masters, rounded."""
        pairs = self._rounded_weights(part)
        if pairs:
            weights, masters = zip(*pairs, strict=True)
            torch._foreach_copy_(weights, masters)

    def save(self, folder: Path) -> None:
        """Writes everything that training changes. Every rank must call it.

        Weights that are not finite are refused: nothing could go on from them.
        """
        state = self._state()
        if self.ranks.max(sum(not _is_usable(name, value) for name, value in state.items())):
            raise DivergedError(
                "weights or moments are no longer finite numbers, so they were not saved: "
                "lower the learning rate or check the reward's scale"
            )
        shards.save(folder, state)

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote, by any number of ranks and in any precision."""
        state = self._state()
        shards.load(folder, state)
        self.updates = int(state["updates"])
        for number, name in enumerate(self.names):
            set_step(self.optimizer, number, state[f"step/{name}"])
        for part in self._parts():
            with self.host.on_device(self._offloaded(part), changed=False):
                self._round_weights(part)

    def _state(self) -> dict[str, Tensor]:
        """Everything that training changes, by name: weights in float32, moments as they are."""
        state = {"updates": torch.tensor(self.updates), **self.kept}
        for number, name in enumerate(self.names):
            moments = state_of(self.optimizer, number)
            self.host.move_out(self._offloaded([number]))
            state[f"weight/{name}"] = self.host.host_copy(self.masters[number].detach())
            for kind, value in moments.items():
                state[f"{kind}/{name}"] = self.host.host_copy(value)
        return state


def _is_usable(name: str, value: Tensor) -> bool:
    """Whether training can go on from this rank's part of a tensor.

    The square of a weight must be finite too: norms take it.
    """
    local = local_part(value)
    is_weight = name.startswith("weight/")
    return bool((local.square() if is_weight else local).isfinite().all())


def micro_batches(batch: TokenBatch, budget: int, *, padded: bool = True) -> list[Tensor]:
    """Groups rows into micro-batches of at most `budget` tokens; returns their indices.

    Without padding: as few groups as possible, with about as many tokens each. With padding, the
    padding counts too, and rows of similar length go together. A row longer than the budget gets a
    group of its own.
    """
    groups = _padded_groups(batch, budget) if padded else _packed_groups(batch, budget)
    return [torch.tensor(group) for group in groups]


def _packed_groups(batch: TokenBatch, budget: int) -> list[list[int]]:
    lengths = batch.row_lengths()
    fewest = min(-(-sum(lengths) // budget), len(batch))
    groups: list[list[int]] = []
    for count in range(fewest, len(batch) + 1):
        groups = balance(lengths, count)
        largest = max(sum(lengths[row] for row in group) for group in groups)
        if largest <= budget:
            break
    return groups


def _padded_groups(batch: TokenBatch, budget: int) -> list[list[int]]:
    prompts = batch.host("prompt")
    responses = batch.host("response")
    longest_first = sorted(range(len(batch)), key=lambda row: -prompts[row] - responses[row])
    groups: list[list[int]] = []
    widest_prompt = widest_response = 0
    for row in longest_first:
        prompt = max(widest_prompt, prompts[row])
        response = max(widest_response, responses[row])
        if not groups or (len(groups[-1]) + 1) * (prompt + response) > budget:
            groups.append([])
            prompt = prompts[row]
            response = responses[row]
        groups[-1].append(row)
        widest_prompt = prompt
        widest_response = response
    return groups


def balance(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Splits rows into `parts` groups with about as many tokens each.

    The longest row goes first, each to the lightest group so far. A group may stay empty.
    """
    heap: list[tuple[int, int]] = [(0, part) for part in range(parts)]
    groups: list[list[int]] = [[] for _ in range(parts)]
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        tokens, lightest = heapq.heappop(heap)
        groups[lightest].append(row)
        heapq.heappush(heap, (tokens + lengths[row], lightest))
    return [sorted(group) for group in groups]


@torch.no_grad()
def map_rows(
    batch: TokenBatch,
    budget: int,
    forward: Callable[[TokenBatch], tuple[Tensor, ...]],
    *,
    padded: bool = True,
    ranks: Ranks | None = None,
) -> tuple[Tensor, ...]:
    """Runs `forward` over micro-batches and puts every result into its own row, [B, T] or [B].

    Without a gradient a token takes a fraction of the memory, so the budget is four times larger.
    """
    batch = batch.without_info()
    groups = micro_batches(batch, 4 * budget, padded=padded)
    most_groups = ranks.max(len(groups)) if ranks else len(groups)
    for _ in range(most_groups - len(groups)):
        forward(batch.blank())  # other ranks have more groups and need this rank's shard
    results: tuple[Tensor, ...] = ()
    for rows in groups:
        if len(rows) == len(batch):
            return forward(batch)
        part = forward(batch.rows(rows))
        if not results:
            shapes = [batch.mask.shape[: value.dim()] for value in part]
            results = tuple(
                value.new_zeros(shape) for value, shape in zip(part, shapes, strict=True)
            )
        rows = rows.to(part[0].device, non_blocking=True)
        for result, value in zip(results, part, strict=True):
            if value.dim() > 1:
                result[rows, : value.shape[1]] = value
            else:
                result[rows] = value
    return results


def map_policy(
    model: Any,
    batch: TokenBatch,
    budget: int,
    *,
    temperature: float,
    entropy: bool = False,
    ranks: Ranks | None = None,
) -> Tensor:
    """log π(a_t|s_t), or the entropy of π(·|s_t), of all rows, [B, T], without a gradient."""

    def forward(rows: TokenBatch) -> tuple[Tensor]:
        wanted: Entropy = "value" if entropy else "none"
        out = policy_forward(model, rows, temperature=temperature, entropy=wanted)
        return (out.entropy if entropy else out.log_probs,)

    (result,) = map_rows(batch, budget, forward, padded=not is_packable(model), ranks=ranks)
    return result
