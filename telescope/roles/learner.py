"""What actor and critic share: minibatches, micro-batches, and an optimizer step with one global denominator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from telescope.batch import TokenBatch
from telescope.config import OptimizerConfig
from telescope.errors import TelescopeError
from telescope.seeds import mix_seed


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
    """Optimizer, learning-rate schedule and gradient clipping of one model. `updates` counts calls of `minibatches`."""

    def __init__(self, model: nn.Module, config: OptimizerConfig, *, total_updates: int, seed: int) -> None:
        self.config, self.total_updates, self.seed = config, total_updates, seed
        self.updates = 0
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True)

    def learning_rate(self) -> float:
        """A function of the update count alone: there is no scheduler state to lose or to advance twice."""
        config, done = self.config, self.updates
        if done < config.warmup_steps:
            return config.lr * (done + 1) / config.warmup_steps
        rest = (done - config.warmup_steps) / max(self.total_updates - config.warmup_steps, 1)
        decay = {"constant": 1.0, "linear": 1 - rest, "cosine": 0.5 * (1 + math.cos(math.pi * rest))}[config.schedule]
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

    def backward(self, minibatch: TokenBatch, loss: Callable[[TokenBatch, Denominators], Tensor]) -> None:
        """Accumulates the exact gradient of `loss` over the minibatch, micro-batch by micro-batch."""
        denominators = Denominators.of(minibatch)
        for rows in micro_batches(minibatch, self.config.micro_batch_tokens):
            micro = minibatch if len(rows) == len(minibatch) else minibatch.rows(rows)
            loss(micro, denominators).backward()

    def step(self) -> Tensor:
        """Clips, steps and clears; returns the gradient norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        if not bool(norm.isfinite()):
            raise TelescopeError(
                "a gradient is not finite, so the step was not taken; the last checkpoint is from before: "
                "look at the last rows of metrics.jsonl, lower the learning rate or check the reward's scale, then go on with --resume"
            )
        self.optimizer.step()
        self.discard()
        return norm

    def discard(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:  # the config's word counts, not the checkpoint's
            group["weight_decay"] = self.config.weight_decay
        self.updates = state["updates"]


def micro_batches(batch: TokenBatch, budget: int) -> list[Tensor]:
    """Row indices in groups whose padded size stays within `budget` tokens, rows of like length together."""
    prompts = batch["attention_mask"][:, : batch["prompts"].shape[1]].sum(1).tolist()
    responses = batch["attention_mask"][:, batch["prompts"].shape[1] :].sum(1).tolist()
    groups: list[list[int]] = []
    widest_prompt = widest_response = 0
    for row in sorted(range(len(batch)), key=lambda i: -prompts[i] - responses[i]):
        prompt, response = max(widest_prompt, prompts[row]), max(widest_response, responses[row])
        if not groups or (len(groups[-1]) + 1) * (prompt + response) > budget:
            groups.append([])
            prompt, response = prompts[row], responses[row]
        groups[-1].append(row)
        widest_prompt, widest_response = prompt, response
    return [torch.tensor(group) for group in groups]


@torch.no_grad()
def map_rows(batch: TokenBatch, budget: int, forward: Callable[[TokenBatch], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Runs `forward` over micro-batches and puts every result back into its own row, [B, T] or [B]."""
    results: list[Tensor] = []
    batch = batch.without_info()
    for rows in micro_batches(batch, budget):
        part = forward(batch.rows(rows))
        if not results:
            shapes = [(len(batch), batch.mask.shape[1]) if p.dim() > 1 else (len(batch),) for p in part]
            results = [p.new_zeros(shape) for p, shape in zip(part, shapes, strict=True)]
        for result, p in zip(results, part, strict=True):
            if p.dim() > 1:
                result[rows, : p.shape[1]] = p
            else:
                result[rows] = p
    return tuple(results)
