"""The training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from telescope.algorithms import adapt_kl_coef
from telescope.build import GivenReward
from telescope.config import Config
from telescope.credit import compute_advantages, credit_metrics
from telescope.data.build import prompts_of
from telescope.data.rng import rng_state
from telescope.data.sources import Source
from telescope.errors import DivergedError, TelescopeError, WorkerError
from telescope.roles.actor import Actor
from telescope.rollout.stage import RolloutStage
from telescope.run import checkpoint
from telescope.run.callbacks import Callback
from telescope.run.eval_sets import own_set
from telescope.run.evaluate import evaluate_sets
from telescope.run.generate import generate
from telescope.run.given import checked_arguments, take_arguments
from telescope.run.lifecycle import Lifecycle
from telescope.run.summary import summarise
from telescope.run.timing import Timer


class Trainer(Lifecycle):
    """PPO on one config. `Trainer(config, reward=fn).fit()` trains and returns the last metrics.

    Every argument is a name or an object; without it the config decides.

    - `config`: a `Config`, the path of a recipe, or the name of a shipped one.
    - `model`, `tokenizer`: a path, a hub name, or a Hugging Face object. A model is trained in
      place; its first weights are written to the run's folder, where a resumed run reads them.
    - `train_dataset`, `eval_dataset`: files, patterns or hub names; rows; a `datasets.Dataset`. To
      train, also a stream: an `IterableDataset`, a generator, or a function that returns one.
    - `reward`: f(prompts, completions, **columns), several by name, or "file.py:function".
    - `callbacks`: functions f(event), or "file.py:function"; see `Event`.
    - `resume`: go on from the run's last checkpoint if it has one, or from the one that is named,
      e.g. "step_000040"; newer ones are then set aside.
    """

    def __init__(
        self,
        config: Config | str | Path | None = None,
        *,
        model: Any = None,
        tokenizer: Any = None,
        train_dataset: Source | None = None,
        eval_dataset: Source | None = None,
        reward: GivenReward | str = None,
        callbacks: Sequence[Callback | str] = (),
        resume: bool | str = False,
        **unknown: Any,
    ) -> None:
        named = checked_arguments(config, unknown)
        config, given = take_arguments(
            named,
            model=model,
            tokenizer=tokenizer,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            reward=reward,
        )
        super().__init__(config, given, callbacks=callbacks, resume=resume)

    def fit(self, until: int | None = None) -> dict[str, float]:
        """Trains to the last step, or to step `until`; the learning-rate schedule is the same.

        If a worker is lost, goes on from the last checkpoint.
        """
        self.until = min(until or self.config.steps, self.config.steps)
        if self.best.ends_run:  # it ended early before
            self.until = self.step
        self._lock.take(busy=True)
        try:
            self._check_newest()
            self.rng_at_start = rng_state()
            while True:
                try:
                    return self.loop()
                except WorkerError as lost:
                    self._restart(lost)
        except DivergedError as error:
            remedy = checkpoint.way_back(self.checkpoints, self.step)
            raise TelescopeError(f"{error}; {remedy}") from error
        finally:
            self._lock.release()

    def loop(self) -> dict[str, float]:
        """Trains: one PPO step per batch of prompts.

        Rollout; values, reference log-probs, rewards and advantages; critic and actor update;
        ledger. Returns the last metrics.
        """
        config = self.config
        actor = self.roles.actor
        critic = self.roles.critic
        reference = self.roles.reference
        reward = self.roles.reward
        ledger = self.ledger
        rollout = RolloutStage(actor, reward, self.dataloader, config.rollout)
        with self._session() as (log, progress, stop):
            for step, prompts in self.dataloader.from_step(self.step, self.until):
                timer = Timer(actor.device, self.roles.graph_memory)
                kl_coef = self.kl_coef  # this and β may adapt after the update
                beta = actor.beta
                reward.step = step + 1
                # Stage 1: rollout
                with timer("rollout"):
                    batch, metrics = rollout.generate_sequences(step, prompts)
                # Stage 2: what the update needs
                with timer("values"):
                    batch = critic.compute_values(batch)
                with timer("reference"):
                    if config.credit.kl_steps == "all" or ledger.is_due(step + 1):
                        batch = reference.compute_log_prob(batch)
                with timer("reward"):
                    batch = reward.compute_reward(batch)
                with timer("advantages"):
                    batch = compute_advantages(batch, config.credit, kl_coef=kl_coef)
                    correct = config.eval.correct_score
                    metrics |= credit_metrics(batch, config.credit, correct_score=correct)
                    metrics["reward/kl_coef"] = kl_coef
                # Stage 3: update
                with timer("update_critic"):
                    metrics |= critic.update_critic(batch, ledger)
                flops = critic.training_flops(batch)
                if step >= config.critic_warmup:  # during warm-up policy and kl_coef stand still
                    self._adapt_kl(metrics, len(batch))
                    with timer("update_actor"):
                        metrics |= actor.update_actor(batch, ledger)
                    flops += actor.training_flops(batch)
                with timer("ledger"):
                    ledger.write(step + 1, batch, kl_coef=kl_coef, beta=beta)
                    log.write_samples(step + 1, batch)

                self.step = step + 1
                for line in self.trouble.lines(self.step, batch, reward.take_trouble()):
                    progress.say(line)
                self._after_step(metrics | timer.metrics(batch, flops), log, progress, stop)
                if self._is_over():
                    break
        return self.last_metrics()

    def _adapt_kl(self, metrics: Mapping[str, float], rows: int) -> None:
        credit = self.config.credit
        if credit.kl_target is not None:
            self.kl_coef = adapt_kl_coef(
                self.kl_coef,
                metrics["reward/kl"],
                target=credit.kl_target,
                horizon=credit.kl_horizon,
                n_steps=rows,
            )

    @property
    def policy(self) -> Any:
        """The Hugging Face model that is trained. On Ray its shards are in the workers."""
        if isinstance(self.roles.actor, Actor):
            return self.roles.actor.model
        raise TelescopeError(
            "with backend = 'ray' the policy is in the workers: `telescope export` writes it"
        )

    def generate(
        self, prompts: Sequence[str | list[dict[str, Any]]], *, greedy: bool = False, seed: int = 0
    ) -> list[str]:
        """The policy's response to each text or list of chat messages. Training is not affected."""
        actor = self.roles.actor
        positions = self.roles.positions
        return generate(actor, prompts, self.config, positions=positions, greedy=greedy, seed=seed)

    def evaluate(self, rows: Source | None = None) -> dict[str, float]:
        """eval/* of the policy as it is, on these rows or on the run's own evaluation sets."""
        roles = self.roles
        sets = self._eval_sets()
        if rows is not None:
            prompts = prompts_of(rows, roles.actor.tokenizer, self.config)
            prompts.check_context(roles.positions, self.config.rollout.max_response_tokens)
            sets = own_set(prompts, self.config)
        return evaluate_sets(roles.actor, roles.reward, sets, self.config).metrics

    def summary(self, report: Path | None = None) -> str:
        """Held-out accuracy before and after, and what to look at next."""
        return summarise(self.config, self.step, self.history(), report, self.best.summary())
