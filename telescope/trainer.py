"""The loop."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from telescope.algorithms import adapt_kl_coef
from telescope.build import build_data, build_roles
from telescope.config import Config, changes, load_config, to_toml
from telescope.credit import compute_advantages, credit_metrics
from telescope.data import gym
from telescope.data.loader import DataLoader
from telescope.errors import TelescopeError, WorkerError
from telescope.ledger.writer import Ledger
from telescope.roles.reward import RewardFunction
from telescope.rollout.refill import refill
from telescope.run import checkpoint
from telescope.run.evaluate import evaluate
from telescope.run.metrics import MetricsLog, read_metrics
from telescope.run.progress import Progress, Stop, graceful_stop
from telescope.run.timing import Timer, expected_hours


class Interrupted(Exception):  # noqa: N818 -- not an error
    """The run was asked to stop; everything up to the message's step is saved."""


class Trainer:
    """PPO on one config. `Trainer(config, reward=fn).fit()` trains to the end and returns the last metrics.

    `reward` is a function f(prompts, completions, **columns), or several by name; without it the config's are used.
    With `resume` the run goes on from its last checkpoint if it has one.
    """

    def __init__(
        self,
        config: Config,
        *,
        reward: RewardFunction | Mapping[str, RewardFunction] | None = None,
        resume: bool = False,
    ) -> None:
        self.config = config
        self.checkpoints = config.run_dir / "checkpoints"
        saved = checkpoint.list_checkpoints(self.checkpoints)
        if saved and not resume:
            raise TelescopeError(
                f"{config.run_dir} already holds a run ({saved[-1].name}): pass --resume to go on, or another --name "
                "(in Python: Trainer(..., resume=True), or another name in the config)"
            )
        if config.data.task is not None:
            gym.make(
                config.data.task, config.data.options
            )  # a mistake there should not wait for the models
        self._open_run_folder()
        self.kl_coef = config.credit.kl_coef
        self.step = 0
        self.reward, self.restarts = reward, 0
        self._build_roles()
        try:
            self._prepare(saved)
        except TelescopeError:
            self.roles.close()
            raise

    def _build_roles(self) -> None:
        self.roles = build_roles(self.config, self.reward)
        weakref.finalize(
            self, self.roles.close
        ).atexit = False  # places in a cluster would outlive a trainer that is gone

    def _prepare(self, saved: list[Path]) -> None:
        """Data, ledger, and the state of the last checkpoint."""
        config = self.config
        rank = config.model.lora_rank
        lora = f" + LoRA adapters of rank {rank}" if rank else ""
        head = f"value head of {bins}" if (bins := config.critic.histogram) else "value head"
        head = f"random {head}" if config.critic.head_init == "normal" else head
        critic = (
            f"{config.model.critic_path or config.model.path}{lora} + {head}"
            if config.credit.by_critic
            else "none: values are 0"
        )
        self.notes = [
            f"actor      {config.model.path}{lora}",
            f"critic     {critic}",
            f"reference  {'the actor with its adapters off' if rank else f'{config.model.path}, frozen'}",
            f"reward     {', '.join(f'{self.roles.reward.weights.get(n, 1.0):g} × {n}' for n in self.roles.reward.functions)}",
        ]
        tokenizer = self.roles.actor.tokenizer
        train, self.held_out = build_data(config, tokenizer)
        self.dropped = {
            "data/dropped_prompts": train.dropped,
            "data/dropped_eval_prompts": self.held_out.dropped if self.held_out else 0,
        }
        self.ledger = Ledger(config, tokenizer)
        self.dataloader = DataLoader(
            train,
            batch_size=config.rollout.batch_size,
            repeat=config.rollout.n,
            steps=config.steps,
            seed=config.seed,
            shuffle=config.data.shuffle,
        )
        if saved:
            self._restore(saved[-1])
        if config.backend == "local" and self.roles.actor.device.type == "cpu":
            hours = expected_hours(
                config, self.roles.actor, train.ids, steps=config.steps - self.step
            )
            if hours > 1:
                self.notes.append(
                    f"no GPU here: this may take up to {hours:.0f} hours; --smoke shows in minutes whether the recipe works"
                )
        if 0 < config.steps <= config.critic_warmup:
            self.notes.append(
                f"critic_warmup = {config.critic_warmup} lasts for all {config.steps} steps: the critic learns, the policy does not"
            )
        self._write_config()  # last: a start that is refused leaves the folder as it was

    def fit(self) -> dict[str, float]:
        """Trains from the current step to the last. Where a worker is lost, the run goes on from its last checkpoint."""
        while True:
            try:
                return self.loop()
            except WorkerError as lost:
                self._restart(lost)

    def loop(self) -> dict[str, float]:
        """The algorithm."""
        config, roles = self.config, self.roles
        actor, critic, reference, reward = roles.actor, roles.critic, roles.reference, roles.reward
        ledger = self.ledger
        with self._run() as (log, progress, stop):
            for step, prompts in self.dataloader.from_step(self.step):
                timer = Timer(actor.device, roles.graph_memory)
                # Stage 1: rollout
                with timer("rollout"):
                    upcoming = (
                        self.dataloader.at(step + 1)
                        if config.rollout.one_step_off_policy and step + 1 < config.steps
                        else None
                    )
                    batch = actor.generate_sequences(prompts, upcoming=upcoming)
                    batch, refilled = refill(
                        batch,
                        step,
                        actor,
                        reward,
                        self.dataloader,
                        rounds=config.rollout.dynamic_sampling,
                    )
                # Stage 2: what the update needs
                with timer("values"):
                    batch = critic.compute_values(batch)
                with timer("reference"):
                    batch = reference.compute_log_prob(batch)
                with timer("reward"):
                    batch = reward.compute_reward(batch)
                with timer("advantages"):
                    batch = compute_advantages(batch, config.credit, kl_coef=self.kl_coef)
                    metrics = credit_metrics(batch) | refilled | {"reward/kl_coef": self.kl_coef}
                # Stage 3: update
                with timer("update_critic"):
                    metrics |= critic.update_critic(batch, ledger)
                if (
                    step >= config.critic_warmup
                ):  # till then the policy stands still, and a β that adapts with it
                    self._adapt_kl(metrics["reward/kl"], len(batch))
                    with timer("update_actor"):
                        metrics |= actor.update_actor(batch, ledger)
                with timer("ledger"):
                    ledger.write(
                        step + 1,
                        batch,
                        kl_coef=metrics["reward/kl_coef"],
                        beta=metrics.get("actor/beta"),
                    )

                self.step = step + 1
                flops = critic.training_flops(batch) + (
                    actor.training_flops(batch) if "actor/pg_loss" in metrics else 0.0
                )
                self._after_step(metrics | timer.metrics(batch, flops), log, progress, stop)
        return self.last_metrics()

    def save(self) -> None:
        """Writes a checkpoint of the current step."""
        self.ledger.wait()
        roles = self.roles
        checkpoint.save(
            self.checkpoints,
            self.step,
            actor=roles.actor,
            critic=roles.critic,
            state={
                "kl_coef": self.kl_coef,
                "kl_coef_given": self.config.credit.kl_coef,
                "step": self.step,
                "reward": roles.reward.state(),
            },
            manifest={**roles.origin, "model_path": self.config.model.path},
            keep=self.config.checkpoint.keep,
        )

    def last_metrics(self) -> dict[str, float]:
        """The last step's metrics, the evaluation after it included."""
        rows = self.history()
        return {
            key: value
            for row in rows
            if row["step"] == rows[-1]["step"]
            for key, value in row.items()
            if key != "step"
        }

    def history(self) -> list[dict[str, Any]]:
        """Every row of metrics.jsonl so far."""
        return read_metrics(self.config.run_dir / "metrics.jsonl")

    def summary(self, report: Path | None = None) -> str:
        """Held-out accuracy before and after, and what to look at next."""
        run, rows = self.config.run_dir, self.history()
        evaluated = [row for row in rows if "eval/sampled_accuracy" in row]
        lines = [f"trained {self.step} steps: {run}"]
        if evaluated:
            lines.append("held-out accuracy    before   after")
            for kind in ("sampled", "greedy"):
                before, after = (evaluated[i][f"eval/{kind}_accuracy"] for i in (0, -1))
                lines.append(f"  {kind:17}  {before:7.3f} {after:7.3f}")
        command = (
            "telescope"
            if shutil.which("telescope")
            else os.path.relpath(Path(sys.executable).parent / "telescope")
        )
        lines += [
            "look at next:",
            *([f"  {report}   open it in a browser: every token's numbers"] if report else []),
            f"  {command} explain {run} --lang zh   the same in the terminal, term by term (or --lang en)",
            f"  {command} view {run}   the page live, while a run goes on",
            f"  {run / 'metrics.jsonl'}   every metric of every step (docs/metrics.md)",
            *(
                [f"  {command} export {run} DIR   Hugging Face folders of actor and critic"]
                if self.checkpoints.is_dir()
                else []
            ),
        ]
        return "\n".join(lines)

    def _after_step(
        self, metrics: dict[str, float], log: MetricsLog, progress: Progress, stop: Stop
    ) -> None:
        """Evaluation, log, checkpoint and a requested stop, at the end of a step."""
        config, last = self.config, self.step >= self.config.steps
        if config.eval.every and self.step % config.eval.every == 0 and not last:
            metrics = metrics | evaluate(self.roles.actor, self.roles.reward, self.held_out, config)
        log.write(self.step, metrics)
        progress.update(self.step, metrics)
        if stop.requested and not last:
            self.save()
            raise Interrupted(
                f"stopped by {stop.requested} after step {self.step}, which is saved: go on with --resume"
            )
        if config.checkpoint.every and self.step % config.checkpoint.every == 0 and not last:
            self.save()

    @contextmanager
    def _run(self) -> Iterator[tuple[MetricsLog, Progress, Stop]]:
        """Around the loop: lock, log, progress, signals; an evaluation before the first step and after the last."""
        config, roles = self.config, self.roles
        done = self.step >= config.steps and self.step > 0
        lock = self._lock()
        checkpoint.remove_leftovers(self.checkpoints)
        log = MetricsLog(
            config, after_step=self.step or -1
        )  # without a checkpoint nothing that was logged counts
        progress = Progress(start=self.step, steps=config.steps, every=config.log.every)
        try:
            for note in self.notes:
                progress.say(note)
            with graceful_stop() as stop:
                if self.step == 0:
                    before = evaluate(roles.actor, roles.reward, self.held_out, config)
                    log.write(0, before | self.dropped)
                yield log, progress, stop
                if not done:
                    after = evaluate(roles.actor, roles.reward, self.held_out, config)
                    if after:
                        log.write(config.steps, after)
                    self.save()
        finally:
            progress.close()
            log.close()
            lock.close()

    def _restart(self, lost: WorkerError) -> None:
        """New workers, and the state of the last checkpoint; or the error, where that was done often enough."""
        limit, saved = self.config.ray.max_restarts, checkpoint.list_checkpoints(self.checkpoints)
        if self.restarts >= limit:
            self.roles.close()
            raise TelescopeError(
                f"{lost}; {limit} restarts (ray.max_restarts) did not help: see to the cluster, then go on with --resume"
            )
        self.restarts += 1
        self.ledger.wait()
        self.ledger.take()  # what the step that broke off had noted
        self.roles.close()
        self.step, self.kl_coef = 0, self.config.credit.kl_coef
        self.notes = [
            f"{lost}",
            f"restart {self.restarts} of {limit}, from "
            + (saved[-1].name if saved else "the beginning"),
        ]
        try:
            self._build_roles()
            if saved:
                self._restore(saved[-1])
        except WorkerError as again:
            time.sleep(5 * self.restarts)  # a cluster takes a while to notice that a node is gone
            self._restart(again)

    def _adapt_kl(self, kl: float, samples: int) -> None:
        credit = self.config.credit
        if credit.kl_target is not None:
            self.kl_coef = adapt_kl_coef(
                self.kl_coef,
                kl,
                target=credit.kl_target,
                horizon=credit.kl_horizon,
                n_steps=samples,
            )

    def _open_run_folder(self) -> None:
        folder = self.config.run_dir
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TelescopeError(
                f"cannot write into {folder}: {error.strerror}; set `dir` to a folder you may write to"
            ) from error

    def _lock(self) -> IO[str]:
        """One process writes into a run; the lock goes with the process."""
        file = (self.config.run_dir / ".lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise TelescopeError(
                f"another process is training {self.config.run_dir}: wait for it, or use another --name"
            ) from None
        return file

    def _write_config(self) -> None:
        recipe = self.config.run_dir / "config.toml"
        temporary = recipe.with_name(".config.toml.tmp")
        try:
            temporary.write_text(to_toml(self.config), "utf-8")
            temporary.replace(recipe)
        except OSError as error:
            raise TelescopeError(
                f"cannot write {recipe}: {error.strerror}; set `dir` to a folder you may write to"
            ) from error

    def _restore(self, path: Any) -> None:
        roles = self.roles
        checkpoint.check(path, origin=roles.origin)
        state = checkpoint.load(path, actor=roles.actor, critic=roles.critic)
        self.step = state["step"]
        roles.reward.load(state.get("reward", {}))
        self.notes.append(f"resuming {self.config.run_dir} after step {self.step}")
        recipe = self.config.run_dir / "config.toml"
        before = load_config(recipe) if recipe.is_file() else self.config
        self.notes += [f"  config changed: {change}" for change in changes(before, self.config)]
        if state["kl_coef_given"] == self.config.credit.kl_coef:  # else the new one counts
            self.kl_coef = state["kl_coef"]
