"""What hangs off the training loop: start, evaluation, log, checkpoints, restarts, stops."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from telescope.build import build_roles, build_without_models
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data import gym
from telescope.data.build import build_data
from telescope.data.rng import set_rng_state
from telescope.data.stream import make_loader
from telescope.doctor import Watcher
from telescope.doctor.terminal import live_line
from telescope.errors import TelescopeError, WorkerError
from telescope.ledger.completions import save_completions
from telescope.ledger.damage import ledger_damage
from telescope.ledger.reader import path_of
from telescope.ledger.writer import Ledger
from telescope.run import checkpoint
from telescope.run.best import Best
from telescope.run.callbacks import Callback, Callbacks
from telescope.run.eval_sets import EvalSet, named_sets, own_set
from telescope.run.evaluate import check_column, evaluate_sets
from telescope.run.folder import (
    RunLock,
    checkpoints_folder,
    config_changes,
    create_folder,
    discard_ledger,
    remove_unused,
    sync_records,
    write_config,
)
from telescope.run.given import Given, remove_objects, write_objects
from telescope.run.manifest import list_checkpoints, step_of
from telescope.run.metrics import MetricsLog, read_metrics
from telescope.run.progress import Progress, Stop, graceful_stop
from telescope.run.summary import describe_roles, warnings
from telescope.run.trouble import Trouble
from telescope.run.warm_start import warm_start, warm_start_damage, warm_start_metrics


class Interrupted(Exception):  # noqa: N818 -- not an error
    """The run was asked to stop. The message names the last step, which is saved."""


class Diagnosed(Interrupted):
    """A finding of `doctor.stop_on` ended the run. The last step is saved."""


class Lifecycle:
    """A run from its start to its end, around the loop that `Trainer` adds."""

    def __init__(
        self,
        config: Config,
        given: Given,
        *,
        callbacks: Sequence[Callback | str],
        resume: bool | str,
    ) -> None:
        self.given = given
        self.config = config
        self.callbacks = Callbacks(callbacks, named=config.callbacks)
        self.checkpoints = checkpoints_folder(config)
        self._find_checkpoints(resume)  # a refusal leaves no folder behind
        if config.data.task is not None:  # find mistakes there before the models are loaded
            gym.make(config.data.task, config.data.options)
        self.watcher = Watcher(config.model_dump(), config.doctor.stop_on)
        new_folders = create_folder(config)
        self._begin()
        self.until = config.steps
        """The step that this process trains to."""
        self.restarts = 0
        self.rng_at_start: dict[str, Any] = {}
        """The global generators when `fit` began: a restart from the beginning needs them."""
        self.trouble = Trouble()
        self._lock = RunLock(config.run_dir)
        try:
            self._lock.take()  # from here to the end of `fit`
            saved = self._find_checkpoints(resume)  # again: another process may just have ended
            if not saved:
                write_objects(config, self.given)
            self._warm_start(resume=bool(resume))
            is_first = not saved and not config.warm_start.files
            self._build_roles(self.given.model if is_first else None)
            self._prepare(saved)
        except BaseException:
            if hasattr(self, "roles"):
                self.roles.close()
            if self._lock.is_held:  # else another process has just begun in these folders
                if new_folders:
                    remove_objects(config, self.given)
                remove_unused(new_folders)
            self._lock.release()
            raise

    def _begin(self) -> None:
        """The state before the first step."""
        self.step = 0
        self.evaluated: int | None = None
        """The step after which the policy was last evaluated."""
        self.best = Best(self.config.eval)
        self.kl_coef = self.config.credit.kl_coef

    def _find_checkpoints(self, resume: bool | str) -> list[Path]:
        """The checkpoints that the run may go on from, oldest first."""
        if isinstance(resume, str):
            return checkpoint.chosen(self.checkpoints, resume)
        saved = list_checkpoints(self.checkpoints)
        if saved and not resume:
            raise TelescopeError(
                f"{self.config.run_dir} already holds a run ({saved[-1].name}): "
                "pass --resume to continue, or another --name "
                "(in Python: Trainer(..., resume=True), or another name in the config)"
            )
        return saved

    def _warm_start(self, *, resume: bool) -> None:
        """Supervised training before PPO, if the config has it."""
        if self.config.warm_start.files:  # it may take hours: find mistakes before it
            build_without_models(self.config, self.given.reward)
        stopped = warm_start(self.config, resume=resume)
        if stopped is not None:
            raise Interrupted(
                f"stopped by {stopped} in the warm start, which is saved: continue with --resume"
            )

    def _build_roles(self, model: Any = None) -> None:
        """Loads the models; the policy is `model`, or what its folder holds."""
        self.roles = build_roles(self.config, self.given.reward, model)
        # Without this, places in a cluster would outlive a trainer that is garbage-collected.
        weakref.finalize(self, self.roles.close).atexit = False

    def _prepare(self, saved: list[Path]) -> None:
        """Makes data and ledger, and restores the last checkpoint."""
        config = self.config
        actor = self.roles.actor
        self.notes = describe_roles(config, self.roles.reward)
        train, self.held_out = build_data(config, actor.tokenizer, self.given.data)
        self.named_sets = named_sets(config, actor.tokenizer)
        if self._eval_sets():
            check_column(config.eval.by, self._eval_sets())
        else:
            self.best.check({})
        for prompts in (train, *(own.prompts for own in self._eval_sets())):
            prompts.check_context(self.roles.positions, config.rollout.max_response_tokens)
        self.start_metrics = {
            "data/dropped_prompts": train.dropped,
            "data/dropped_eval_prompts": sum(own.prompts.dropped for own in self._eval_sets()),
            **warm_start_metrics(config),
        }
        self.ledger = Ledger(config, actor.tokenizer)
        self.dataloader = make_loader(train, config)
        first_prompts = list(train.ids)  # a stream forgets them
        if saved:
            self._restore(saved[-1])
            self.notes += [f"  {line}" for line in ledger_damage(config.run_dir, until=self.step)]
            self.notes += [f"  {line}" for line in warm_start_damage(config)]
        cost = actor.cost if actor.device.type == "cpu" else None
        self.notes += warnings(config, self.step, cost, first_prompts)
        if config.eval.every and not self._eval_sets():
            self.notes.append(
                f"eval.every = {config.eval.every}: there are no held-out prompts, so nothing is "
                "evaluated; name some with data.eval_files or eval.sets"
            )
        # Last: a start that is refused leaves the folder as it was.
        for name in checkpoint.set_aside(self.checkpoints, after_step=self.step):
            self.notes.append(f"  kept, but no longer used: {self.checkpoints / name}")
        write_config(config)

    def _check_newest(self) -> None:
        """Refuses to go on if another trainer has gone on with this run since this one was made."""
        saved = list_checkpoints(self.checkpoints)
        if saved and step_of(saved[-1]) > self.step:
            raise TelescopeError(
                f"{self.config.run_dir} has been trained to {saved[-1].name} meanwhile: "
                "make a new Trainer with resume=True"
            )

    def _after_step(
        self, metrics: dict[str, float], log: MetricsLog, progress: Progress, stop: Stop
    ) -> None:
        """Ends a step: evaluation, log, a requested stop, checkpoint."""
        config = self.config
        metrics = self.callbacks.send("step", self, metrics | self.dataloader.metrics())
        is_due = self.callbacks.take("evaluate") or _is_due(self.step, config.eval.every)
        if is_due and not self._is_over():
            metrics = metrics | self._evaluate()
        log.write(self.step, metrics)
        progress.update(self.step, metrics)
        ends = self._look(self.step, metrics, progress)
        stopped_by = stop.after_step()
        if self._is_over():
            return
        if ends is not None:
            self.save()
            raise Diagnosed(
                f"stopped by doctor.stop_on = {ends} after step {self.step}, which is saved: "
                "change a setting and continue with --resume"
            )
        if stopped_by is not None:
            self.save()
            raise Interrupted(
                f"stopped by {stopped_by} after step {self.step}, which is saved: "
                "continue with --resume"
            )
        asked = self.callbacks.take("save") or self.best.step == self.step
        if asked or _is_due(self.step, config.checkpoint.every):
            self.save()

    def _is_over(self) -> bool:
        """Whether this was the last step, by the config or because something ends the run."""
        return self.step >= self.until or self._stop_reason() is not None

    def _stop_reason(self) -> str | None:
        """Why the run ends early: a callback asked to stop, or nothing has improved."""
        return self.best.reason() if self.best.ends_run else self.callbacks.requests.get("stop")

    @contextmanager
    def _session(self) -> Iterator[tuple[MetricsLog, Progress, Stop]]:
        """Around the loop: log, progress, signals; evaluates before it and after it."""
        config = self.config
        is_done = self.step >= self.until and self.step > 0
        with ExitStack() as session:
            checkpoint.remove_leftovers(self.checkpoints)
            discard_ledger(config.run_dir, after_step=self.step)
            # Without a checkpoint, nothing that was logged counts.
            log = MetricsLog(config, after_step=self.step or -1)
            session.callback(log.close)
            # It knows the steps before this one, so that nothing is said twice.
            self.watcher = Watcher(config.model_dump(), config.doctor.stop_on, self.history())
            progress = Progress(start=self.step, steps=config.steps, every=config.log.every)
            session.callback(progress.close)
            for note in [*self.notes, *_damage(log)]:
                progress.say(note)
            stop = session.enter_context(graceful_stop())
            self.callbacks.requests = {}  # those of an earlier session do not count
            self.callbacks.send("start", self)
            if self.step == 0:
                before = self._evaluate() | self.start_metrics
                log.write(0, before)
                self._look(0, before, progress)
            try:
                yield log, progress, stop
            except Interrupted:
                self.callbacks.send("end", self)
                raise
            reason = self._stop_reason()
            if reason is not None:
                progress.say(f"stopped after step {self.step}: {reason}")
            if not is_done:
                after = self._evaluate() if self.evaluated != self.step else {}
                if after:
                    log.write(self.step, after)
                    self._look(self.step, after, progress)
                self.save()
            self.callbacks.send("end", self)

    def _look(self, step: int, metrics: dict[str, float], progress: Progress) -> str | None:
        """Prints the problems that start at a step. Returns the one that ends the run, if any."""
        if not self.config.doctor.watch:
            return None
        new = self.watcher.step(step, metrics)
        for finding in new:
            progress.say(live_line(finding, step))
        ends = self.watcher.stops(new)
        return None if ends is None else ends.id

    def _eval_sets(self) -> list[EvalSet]:
        """The run's own held-out prompts, if there are any, and the named sets."""
        return [*own_set(self.held_out, self.config), *self.named_sets]

    def _evaluate(self) -> dict[str, float]:
        self.evaluated = self.step
        self._record_fixed_prompts()
        sets = self._eval_sets()
        found = evaluate_sets(self.roles.actor, self.roles.reward, sets, self.config)
        if self.config.eval.completions and sets:
            path = path_of(self.config.run_dir, self.step, "completions")
            save_completions(found.completions, path, self.step)
        metrics = self.callbacks.send("evaluate", self, found.metrics) if sets else {}
        self.best.check(metrics)
        # The evaluation after `fit(until=…)` does not count: a run that went on would not make it.
        is_regular = _is_due(self.step, self.config.eval.every) or self.step == self.config.steps
        if is_regular and self.step:
            self.best.note(self.step, metrics)
        return metrics

    def _record_fixed_prompts(self) -> None:
        """Writes greedy answers to the first held-out prompts, if `ledger.prompts` asks for any.

        They are scored, with V, KL and advantages. Nothing is updated and nothing random is drawn:
        training goes on as without them. An advantage that is not by a critic compares an answer
        with others, so there is none here.
        """
        if self.held_out is None or not self.config.ledger.prompts:
            return
        roles = self.roles
        credit = self.config.credit
        first = range(min(self.config.ledger.prompts, len(self.held_out)))
        batch = roles.actor.sample(self.held_out.take(first), greedy=True)
        batch = batch.with_columns(old_log_probs=batch["rollout_log_probs"])
        batch = roles.critic.compute_values(batch)
        batch = roles.reference.compute_log_prob(batch)
        batch = roles.reward.score(batch, evaluation=True)
        if credit.by_critic:
            batch = compute_advantages(batch, credit, kl_coef=self.kl_coef)
        self.ledger.write_evaluation(self.step, batch, kl_coef=self.kl_coef)

    def save(self) -> None:
        """Writes a checkpoint of the current step."""
        self.ledger.wait()
        saved = list_checkpoints(self.checkpoints)
        sync_records(self.config.run_dir, after_step=step_of(saved[-1]) if saved else -1)
        roles = self.roles
        state = {
            "kl_coef": self.kl_coef,
            "kl_coef_given": self.config.credit.kl_coef,
            "step": self.step,
            "data": self.dataloader.checksum(self.step),
            "reward": roles.reward.state(),
            "best": self.best.state(),
        }
        checkpoint.save(
            self.checkpoints,
            self.step,
            actor=roles.actor,
            critic=roles.critic,
            state=state,
            manifest={**roles.origin, "model_path": self.config.model.path},
            keep=self.config.checkpoint.keep,
            best=self.best.step,
        )
        self.callbacks.send("save", self)

    def _restore(self, path: Path) -> None:
        """Loads a checkpoint. A kl_coef that was changed in the config replaces the saved one."""
        roles = self.roles
        checkpoint.check(path, origin=roles.origin)
        state = checkpoint.load(path, actor=roles.actor, critic=roles.critic)
        self.step = state["step"]
        roles.reward.load(state.get("reward", {}))
        self.best.load(state.get("best", {}))
        if state["kl_coef_given"] == self.config.credit.kl_coef:
            self.kl_coef = state["kl_coef"]
        self.notes.append(f"resuming {self.config.run_dir} after step {self.step}")
        if "data" in state:
            self.notes += self.dataloader.check_same(self.step, state["data"])
        self.notes += [f"  config changed: {change}" for change in config_changes(self.config)]

    def _restart(self, lost: WorkerError) -> None:
        """Starts new workers from the last checkpoint; raises if that was done too often."""
        limit = self.config.ray.max_restarts
        if self.restarts >= limit:
            self.roles.close()
            raise TelescopeError(
                f"{lost}; {limit} restarts (ray.max_restarts) did not help: "
                "check the cluster, then continue with --resume"
            )
        self.restarts += 1
        self.ledger.wait()
        self.ledger.take()  # drops what the broken step has noted
        self.roles.close()
        self._begin()
        saved = list_checkpoints(self.checkpoints)
        start = saved[-1].name if saved else "the beginning"
        self.notes = [f"{lost}", f"restart {self.restarts} of {limit}, from {start}"]
        try:
            self._build_roles()
            if saved:
                self._restore(saved[-1])
            else:
                set_rng_state(self.rng_at_start)
        except WorkerError as again:
            time.sleep(5 * self.restarts)  # a cluster takes a while to notice a lost node
            self._restart(again)

    def history(self) -> list[dict[str, Any]]:
        """Every row of metrics.jsonl so far."""
        return read_metrics(self.config.run_dir / "metrics.jsonl")

    def last_metrics(self) -> dict[str, float]:
        """The last step's metrics, with the evaluation after it."""
        rows = self.history()
        last: dict[str, float] = {}
        for row in rows:
            if row["step"] == rows[-1]["step"]:
                last |= row
        last.pop("step", None)
        return last


def _damage(log: MetricsLog) -> list[str]:
    """Says which lines of the log could not be read."""
    if not log.damaged:
        return []
    numbers = ", ".join(str(number) for number in log.damaged[:5])
    more = ", …" if len(log.damaged) > 5 else ""
    return [
        f"  damaged lines of {log.path}, moved to metrics.discarded.jsonl: line {numbers}{more}"
    ]


def _is_due(step: int, every: int) -> bool:
    """Whether something that happens `every` steps, 0 for never, happens at this one."""
    return every > 0 and step % every == 0
