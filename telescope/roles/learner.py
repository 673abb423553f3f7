"""What actor and critic share: minibatches, micro-batches, and an optimizer step with one global denominator."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from telescope.batch import TokenBatch
from telescope.config import OptimizerConfig
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError
from telescope.models import shards
from telescope.models.load import checkpointing
from telescope.models.parallel import Ranks


@dataclass(frozen=True)
class Denominators:
    """Counted over the whole minibatch before it is split, so that micro-batch size cannot change the gradient."""

    num_tokens: Tensor
    num_rows: Tensor

    @classmethod
    def of(cls, minibatch: TokenBatch) -> Denominators:
        mask = minibatch.mask
        return cls(mask.sum().clamp(min=1), mask.any(1).sum().clamp(min=1))


class Learner:
    """Optimizer, learning-rate schedule and gradient clipping of one model. `updates` counts calls of `minibatches`.

    Weights in bfloat16 are too coarse to add small steps to: the optimizer works on a float32 master copy of each, gradients are
    summed in float32, and the weights are the masters rounded.
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
        self.model, self.config, self.total_updates, self.seed, self.padded = (
            model,
            config,
            total_updates,
            seed,
            padded,
        )
        self.ranks = ranks or Ranks()
        self.updates = 0
        self.kept: dict[str, Tensor] = {}
        """What else of the role's a checkpoint holds."""
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.names, self.weights = list(trained), list(trained.values())
        self.masters = [p if p.dtype is torch.float32 else p.detach().float() for p in self.weights]
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=config.lr, weight_decay=config.weight_decay, fused=True
        )

    def learning_rate(self) -> float:
        """A function of the update count alone: there is no scheduler state to lose or to advance twice."""
        config, done = self.config, self.updates
        if done < config.warmup_steps:
            return config.lr * (done + 1) / config.warmup_steps
        rest = (done - config.warmup_steps) / max(self.total_updates - config.warmup_steps, 1)
        decay = {
            "constant": 1.0,
            "linear": 1 - rest,
            "cosine": 0.5 * (1 + math.cos(math.pi * rest)),
        }[config.schedule]
        return config.lr * max(decay, 0.0)

    def minibatches(self, batch: TokenBatch) -> Iterator[tuple[int, int, TokenBatch]]:
        """(epoch, index, rows) for each optimizer step of this update, rows shuffled anew every epoch. Tensors only, no info."""
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
            for index, rows in enumerate(order.tensor_split(self.config.minibatches)):
                yield epoch, index, batch.rows(rows)

    def backward(
        self, minibatch: TokenBatch, loss: Callable[[TokenBatch, Denominators], Tensor]
    ) -> None:
        """Accumulates the exact gradient of `loss` over the minibatch, micro-batch by micro-batch, each process its share of the rows."""
        denominators = Denominators.of(minibatch)
        if self.ranks.size > 1:
            mine = balance(minibatch.row_lengths(), self.ranks.size)[self.ranks.rank]
            share = (
                minibatch.rows(torch.tensor(mine, dtype=torch.long)) if mine else minibatch.blank()
            )
        else:
            share = minibatch
        groups = micro_batches(share, self.config.micro_batch_tokens, padded=self.padded)
        for number in range(self.ranks.max(len(groups))):
            if number >= len(groups):
                micro = (
                    minibatch.blank()
                )  # the others still have rows, and need this process for their weights
            else:
                micro = share if len(groups[number]) == len(share) else share.rows(groups[number])
            with checkpointing(self.model):
                loss(micro, denominators).backward()
            self._collect()

    def step(self) -> Tensor:
        """Clips, steps and clears; returns the gradient norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self.config.max_grad_norm)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if not bool(norm.isfinite()):
            raise TelescopeError(
                "a gradient is not finite, so the step was not taken: look at the last rows of metrics.jsonl, lower the learning rate "
                "or check the reward's scale; --resume goes on from the last checkpoint, if there is one"
            )
        self.optimizer.step()
        self.discard()
        self._round()
        return norm

    def _rounded(self) -> list[tuple[Tensor, Tensor]]:
        """Weights that are not their own masters, with their masters."""
        return [(w, m) for w, m in zip(self.weights, self.masters, strict=True) if w is not m]

    def _collect(self) -> None:
        """Adds the gradients of the weights to those of their masters."""
        copied, added = [], []
        for weight, master in self._rounded():
            if weight.grad is not None:
                if master.grad is None:
                    master.grad = torch.empty_like(master)
                    copied.append((master.grad, weight.grad))
                else:
                    added.append((master.grad, weight.grad))
                weight.grad = None
        for pairs, combine in ((copied, torch._foreach_copy_), (added, torch._foreach_add_)):
            if pairs:
                combine([total for total, _ in pairs], [grad for _, grad in pairs])

    @torch.no_grad()
    def _round(self) -> None:
        pairs = self._rounded()
        if pairs:
            torch._foreach_copy_([w for w, _ in pairs], [m for _, m in pairs])

    def discard(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def save(self, folder: Path) -> None:
        shards.save(folder, self._state())

    def load(self, folder: Path) -> None:
        """The same whatever number of processes wrote it, and in whatever precision they computed."""
        state = self._state()
        shards.load(folder, state)
        self.updates = int(state["updates"])
        self._round()

    def _state(self) -> dict[str, Tensor]:
        """Everything that training changes, by name, and in the float32 in which it changes."""
        state = {"updates": torch.tensor(self.updates), **self.kept}
        for name, master in zip(self.names, self.masters, strict=True):
            state[f"weight/{name}"] = master.detach()
            moments = self.optimizer.state[master]
            if not moments:  # no step yet: what AdamW would begin with
                moments["step"] = torch.zeros((), device=master.device)
                moments["exp_avg"], moments["exp_avg_sq"] = (
                    torch.zeros_like(master, requires_grad=False) for _ in range(2)
                )
            state |= {f"{kind}/{name}": value for kind, value in moments.items()}
        return state


def micro_batches(batch: TokenBatch, budget: int, *, padded: bool = True) -> list[Tensor]:
    """Row indices in groups of at most `budget` tokens: as few as it takes, with as many tokens each.

    Where rows will be padded, the padding counts, and rows of like length go together.
    """
    prompts, responses = batch.host("prompt"), batch.host("response")
    longest_first = sorted(range(len(batch)), key=lambda i: -prompts[i] - responses[i])
    groups: list[list[int]] = []
    if not padded:
        lengths = batch.row_lengths()
        for count in range(min(-(-sum(lengths) // budget), len(batch)), len(batch) + 1):
            groups = balance(lengths, count)
            if max(sum(lengths[row] for row in group) for group in groups) <= budget:
                break
        return [torch.tensor(group) for group in groups]
    widest_prompt = widest_response = 0
    for row in longest_first:
        prompt, response = max(widest_prompt, prompts[row]), max(widest_response, responses[row])
        if not groups or (len(groups[-1]) + 1) * (prompt + response) > budget:
            groups.append([])
            prompt, response = prompts[row], responses[row]
        groups[-1].append(row)
        widest_prompt, widest_response = prompt, response
    return [torch.tensor(group) for group in groups]


def balance(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Rows in `parts` groups with about as many tokens each: the longest first, each to the lightest group so far."""
    heap: list[tuple[int, int]] = [(0, part) for part in range(parts)]
    groups: list[list[int]] = [[] for _ in range(parts)]
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
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
    """Runs `forward` over micro-batches and puts every result back into its own row, [B, T] or [B].

    Without a gradient a token takes a fraction of the memory, so four times the tokens go at once.
    """
    results: list[Tensor] = []
    batch = batch.without_info()
    groups = micro_batches(batch, 4 * budget, padded=padded)
    missing = (ranks.max(len(groups)) if ranks else len(groups)) - len(groups)
    for _ in range(missing):
        forward(batch.blank())  # other processes have more, and need this one for their weights
    for rows in groups:
        if len(rows) == len(batch):
            return forward(batch)
        part = forward(batch.rows(rows))
        rows = rows.to(part[0].device, non_blocking=True)
        if not results:
            shapes = [
                (len(batch), batch.mask.shape[1]) if p.dim() > 1 else (len(batch),) for p in part
            ]
            results = [p.new_zeros(shape) for p, shape in zip(part, shapes, strict=True)]
        for result, p in zip(results, part, strict=True):
            if p.dim() > 1:
                result[rows, : p.shape[1]] = p
            else:
                result[rows] = p
    return tuple(results)
