"""The warm start: supervised training on given completions, before PPO.

    runs/<name>/  warm_start/ (the model that PPO starts from)  warm_start.jsonl (a line per step)

Its checkpoints are in .warm_start/ until it is done. Every role then loads the model in
warm_start/, so the reference is the warm-started policy too.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from telescope.algorithms.masked import keep
from telescope.batch import TokenBatch
from telescope.config import Config, OptimizerConfig
from telescope.data.completions import Completions, read_completions
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError
from telescope.ledger.lines import damaged_lines, write_line
from telescope.models.forward import policy_forward
from telescope.models.load import fingerprint, is_packable, load_policy, load_tokenizer_of
from telescope.models.shards import load_weights
from telescope.roles.critic import ZeroCritic
from telescope.roles.factory import choose_device, start_model, warm_start_folder
from telescope.roles.learner import Denominators, Learner
from telescope.rollout.sampler import left_pad
from telescope.run import checkpoint
from telescope.run.export import write_model
from telescope.run.manifest import list_checkpoints, step_of, sync, write_manifest, write_whole
from telescope.run.metrics import read_metrics
from telescope.run.progress import Progress, graceful_stop


def warm_start(config: Config, *, resume: bool) -> str | None:
    """Trains the policy on `warm_start.files`, unless that is done.

    Without `resume` an earlier warm start of the run is discarded. Returns the name of the signal
    that stopped it, if one did; it is saved then.
    """
    if not config.warm_start.files:
        return None
    folder = warm_start_folder(config)
    work = config.run_dir / ".warm_start"
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)
        _log_of(config).unlink(missing_ok=True)
    if folder.is_dir():
        checkpoint.check(folder, origin={"trained": _settings(config)})
        shutil.rmtree(work, ignore_errors=True)  # a kill may have left it
        return None
    stage = _Stage(config, work)
    try:
        stopped = stage.train()
        if stopped is None:
            stage.write(folder)
            shutil.rmtree(work)
    except (OSError, SafetensorError) as error:
        raise TelescopeError(
            f"cannot save the warm start of {config.run_dir}: {error}; "
            "free some space, then continue with --resume"
        ) from error
    return stopped


def warm_start_metrics(config: Config) -> dict[str, float]:
    """The last metrics of the run's warm start; empty without one."""
    rows = read_metrics(_log_of(config)) if config.warm_start.files else []
    return {name: value for name, value in rows[-1].items() if name != "step"} if rows else {}


def warm_start_damage(config: Config) -> list[str]:
    """Says how many rows of the run's warm start cannot be used."""
    return damaged_lines(_log_of(config))


def _log_of(config: Config) -> Path:
    return config.run_dir / "warm_start.jsonl"


def _keep_rows(log: Path, until: int) -> None:
    """Leaves only the rows of steps up to `until`. At each moment the file holds all of them."""
    rows = [row for row in read_metrics(log) if row["step"] <= until]
    write_whole(log, "".join(map(write_line, rows)).encode())


def _settings(config: Config) -> dict[str, Any]:
    """What decides the result of a warm start."""
    given = {f"warm_start.{name}": value for name, value in config.warm_start.model_dump().items()}
    model = config.model
    return {
        **given,
        "model.path": model.path,
        "model.lora_rank": model.lora_rank,
        "model.quantize": model.quantize,
        "actor.optimizer": config.actor.optimizer,
    }


class _Stage:
    """The policy, its optimizer and the rows."""

    def __init__(self, config: Config, work: Path) -> None:
        self.config = config
        self.work = work
        self.source = start_model(config)
        self.policy = load_policy(self.source, choose_device(config.device))
        self.tokenizer = load_tokenizer_of(self.source)
        self.rows = read_completions(config.warm_start.files, self.tokenizer, config)
        self.batches = list(islice(_batches(len(self.rows), config), config.warm_start.steps))
        self.learner = Learner(
            self.policy,
            _optimizer(config),
            total_updates=len(self.batches),
            seed=config.seed,
            padded=not is_packable(self.policy),
        )
        self.origin = {
            "actor": fingerprint(self.policy),
            "critic": fingerprint(None),
            "model_path": config.model.path,
            "reward": [],
            "reward_in_python": False,
            "trained": _settings(config),
        }

    def train(self) -> str | None:
        """Trains to the last step. Returns the signal that stopped it, if one did."""
        config = self.config
        done = self._restore()
        _keep_rows(_log_of(config), done)
        total = len(self.batches)
        progress = Progress(start=done, steps=total, every=config.log.every)
        progress.say(f"warm start: {len(self.rows)} completions, {self.rows.dropped} too long")
        with graceful_stop() as stop, _log_of(config).open("a", encoding="utf-8") as log:
            for step in range(done + 1, total + 1):
                batch = token_batch(self.rows, self.batches[step - 1], self.policy.device)
                metrics = update(self.learner, batch)
                metrics["warm_start/dropped"] = self.rows.dropped
                log.write(write_line({"step": step, **metrics}))
                log.flush()
                progress.update(step, metrics)
                every = config.checkpoint.every
                if stop.requested or step == total or (every and step % every == 0):
                    self._save(step)
                if stop.requested:
                    break
            progress.close()
            return stop.requested

    def _save(self, step: int) -> None:
        sync(_log_of(self.config))
        checkpoint.save(
            self.work,
            step,
            actor=self.learner,
            critic=ZeroCritic(),
            state={},
            manifest=self.origin,
            keep=1,
        )

    def _restore(self) -> int:
        """Goes on from the last checkpoint; returns its step, 0 without one."""
        saved = list_checkpoints(self.work)
        if not saved:
            return 0
        checkpoint.check(saved[-1], origin=self.origin)
        checkpoint.load(saved[-1], actor=self.learner, critic=ZeroCritic())
        return step_of(saved[-1])

    def write(self, folder: Path) -> None:
        """Writes the model of the last checkpoint as a Hugging Face folder, whole or not at all."""
        newest = list_checkpoints(self.work)[-1]
        del self.policy, self.learner  # the model is loaded anew, without what the GPU needs
        model = load_policy(self.source, torch.device("cpu"))
        load_weights(checkpoint.shards_of(newest, "actor"), model)
        temporary = self.work / "model"
        shutil.rmtree(temporary, ignore_errors=True)
        write_model(model, temporary, adapter=False)
        self.tokenizer.save_pretrained(temporary)
        write_manifest(temporary, step_of(newest), self.origin)
        temporary.rename(folder)
        sync(folder.parent)  # before what it was made of is removed


def _optimizer(config: Config) -> OptimizerConfig:
    own = config.warm_start.model_dump(include={"lr", "warmup_steps", "schedule"})
    shared = config.actor.model_dump(
        include={
            "weight_decay",
            "max_grad_norm",
            "micro_batch_tokens",
            "optimizer",
            "offload_optimizer",
        }
    )
    return OptimizerConfig.model_validate({**own, **shared})


def _batches(count: int, config: Config) -> Iterator[list[int]]:
    """The rows of every optimizer step, in a new order each epoch."""
    size = config.warm_start.batch_size
    for epoch in range(config.warm_start.epochs):
        order = list(range(count))
        random.Random(mix_seed(config.seed, epoch, 5)).shuffle(order)
        for first in range(0, count, size):
            yield order[first : first + size]


def token_batch(rows: Completions, chosen: list[int], device: torch.device) -> TokenBatch:
    """Prompts and completions as a batch; only completion tokens have mask 1."""
    prompts, prompt_mask = left_pad([rows.prompts[i] for i in chosen], 0, device)
    given = [torch.tensor(rows.completions[i], device=device) for i in chosen]
    responses = pad_sequence(given, batch_first=True)  # [B, T]
    written = pad_sequence([torch.ones_like(ids) for ids in given], batch_first=True)
    attention = torch.cat([prompt_mask, written], 1)  # [B, P+T]
    columns = {
        "prompts": prompts,
        "input_ids": torch.cat([prompts, responses], 1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "responses": responses,
        "response_mask": written,
    }
    return TokenBatch(columns)


def update(learner: Learner, batch: TokenBatch) -> dict[str, float]:
    """One optimizer step on −log π of the completion tokens, the mean over the batch."""
    losses: list[Tensor] = []

    def loss(rows: TokenBatch, over: Denominators) -> Tensor:
        log_probs = policy_forward(learner.model, rows, temperature=1.0).log_probs
        share = -keep(log_probs, rows.mask).sum() / over.num_tokens
        losses.append(share.detach())
        return share

    norm = torch.zeros(())
    for _, _, minibatch in learner.minibatches(batch):
        learner.backward(minibatch, loss)
        norm = learner.step()
    learner.check_gradients()
    return {
        "warm_start/loss": float(torch.stack(losses).sum()),
        "warm_start/grad_norm": float(norm),
        "warm_start/lr": learner.optimizer.param_groups[0]["lr"],
    }
