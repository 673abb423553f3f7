"""The audit of a run: is its critic right?

Takes states from the ledger of a step, lets the policy that wrote them write on from each, scores
what it writes with the run's own reward, and compares V with the mean outcome.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from telescope.algorithms import Moments, monte_carlo_returns
from telescope.audit.findings import Audit, judged, posts_of
from telescope.audit.states import Chosen, State, choose
from telescope.audit.statistics import estimate
from telescope.build import GivenReward, LocalRoles, build_local_roles
from telescope.config import Config, CreditConfig, load_saved_config
from telescope.credit import with_rewards
from telescope.data.build import build_data
from telescope.data.loader import PromptSet
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError
from telescope.explain.chat import user_turn
from telescope.explain.sample import Sample
from telescope.ledger import reader
from telescope.models.load import fingerprint
from telescope.roles.critic import Critic
from telescope.roles.informed import InformedCritic
from telescope.roles.protocols import CriticRole
from telescope.rollout.prefix import ContinuingSampler
from telescope.rollout.sampler import sample_batch
from telescope.run import checkpoint
from telescope.run.manifest import check_origin, list_checkpoints, step_of
from telescope.run.metrics import read_metrics
from telescope.run.saved import SavedRun, at_home, recipe_of

LOGITS = 2**27
"""Logits of one sampling call: its rows times the vocabulary."""
MOST_ROWS = 8192
PROMPT_CHARACTERS = 200
_SEED = 6  # other parts of a run use 0 to 5


def audit_run(
    run: Path,
    *,
    step: int | None = None,
    states: int = 256,
    continuations: int = 64,
    nearest: bool = False,
    reward: GivenReward = None,
    overrides: Sequence[tuple[str, str]] = (),
    trusted: bool = False,
) -> Audit:
    """Audits the critic, or the group baselines, of one step.

    Without `step` it is the last recorded one whose policy is on disk. `nearest` takes the nearest
    checkpoint where that policy is not. If the run's reward was given to Trainer in Python, pass it
    here too. `trusted`: the run may name code that this user has not trained with. The same call
    gives the same numbers.
    """
    if states < 2 or continuations < 2:
        raise TelescopeError("--states and --continuations are at least 2")
    config = load_saved_config(recipe_of(run), overrides, trusted=trusted)
    if config.rollout.environment is not None:
        raise TelescopeError(
            f"{run} uses tools: a response cannot be continued from the middle of a tool's reply, "
            "so such runs have no audit yet"
        )
    if config.credit.whiten_rewards:
        raise TelescopeError(
            f"{run} has credit.whiten_rewards: its rewards are in units of each training batch, "
            "which continuations do not have, so such runs have no audit yet"
        )
    config = at_home(config, run)
    policies = Policies(run, config)
    step = policies.last_step() if step is None else step
    policy = policies.of_step(step, nearest=nearest)
    started = time.perf_counter()
    table = reader.read(run, step)
    samples = {row: reader.sample_of(table, row) for row in range(table.num_rows)}
    if not any(len(sample) for sample in samples.values()):
        raise TelescopeError(f"step {step} of {run} has no response with a token: choose another")
    roles = _load_roles(run, config, policies.paths[policy.used], reward, step)
    prompts, _ = build_data(config, roles.actor.tokenizer)
    _check_prompts(prompts, table.select(["prompt_index", "prompt_ids"]).to_pylist(), run, step)

    chosen = choose(list(samples.values()), states)
    credit = next(iter(samples.values())).settings.credit
    gamma = _discount(credit)
    sampled = Continuations(roles, prompts, config, credit)
    returns = sampled.returns(
        list(chosen.states), continuations, mix_seed(config.seed, step, _SEED)
    )
    low = float(returns.min())
    high = float(returns.max())
    found = [estimate(outcomes, low, high) for outcomes in returns.tolist()]
    column = _audited_column(credit, samples)
    return Audit(
        run=run.resolve().name,
        step=step,
        checkpoint=policy.used,
        needed=policy.needed,
        continuations=continuations,
        states=len(chosen.states),
        estimate=column,
        settings={
            "gamma": gamma,
            "kl_coef": credit.kl_coef,
            "kl_kind": credit.kl_kind,
            "bootstrap_truncated": credit.bootstrap_truncated,
            "estimator": credit.estimator,
            "temperature": config.rollout.temperature,
        },
        posts=posts_of(samples, chosen, found, column),
        tokens=judged(samples, chosen, found, gamma),
        prompts=_prompt_texts(samples, chosen),
        seconds=time.perf_counter() - started,
        device=_device_name(roles.actor.device),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


class Policy(NamedTuple):
    """The checkpoint that a step needs, and the one that is used."""

    needed: int
    used: int


class Policies:
    """The policies of a run that are on disk: the model before training, and its checkpoints."""

    def __init__(self, run: Path, config: Config) -> None:
        self.run = run
        self.config = config
        self.paths: dict[int, Path | None] = {0: None}
        """The folders of the checkpoints by step; None for the model before training."""
        for path in list_checkpoints(run / "checkpoints"):
            self.paths[step_of(path)] = path

    def last_step(self) -> int:
        """The last recorded step whose policy is on disk."""
        recorded = reader.steps(self.run)
        for step in reversed(recorded):
            if self._on_disk(self._version(step)):
                return step
        if not recorded:
            raise TelescopeError(f"{self.run} has no ledger: there are no states to audit")
        raise self._missing(recorded[-1])

    def of_step(self, step: int, *, nearest: bool) -> Policy:
        """The policy that wrote the responses of a step.

        Step s was written with the weights before its update, which are those of checkpoint s − 1.
        During `critic_warmup` the policy stands still, so older ones do as well.
        """
        version = self._version(step)
        needed = self._needed(step, version)
        same = self._on_disk(version)
        if same:
            used = min(same, key=lambda number: (abs(number - needed), number))
            return Policy(used, used)
        if not nearest:
            raise self._missing(step)
        return Policy(needed, min(self.paths, key=lambda number: (abs(number - needed), number)))

    def _version(self, step: int) -> int:
        """Updates of the policy before the responses of a step were sampled."""
        column = reader.read(self.run, step, ["policy_version"])["policy_version"]
        versions = set(column.to_pylist())
        if len(versions) != 1:
            raise TelescopeError(
                f"the responses of step {step} come from {len(versions)} policies: "
                "choose a step with one"
            )
        return int(versions.pop())

    def _needed(self, step: int, version: int) -> int:
        before = step - 1
        return before if self._updates(before) == version else version + self.config.critic_warmup

    def _updates(self, number: int) -> int:
        return max(number - self.config.critic_warmup, 0)

    def _on_disk(self, version: int) -> list[int]:
        return [number for number in self.paths if self._updates(number) == version]

    def _missing(self, step: int) -> TelescopeError:
        needed = self._needed(step, self._version(step))
        there = ", ".join(str(number) for number in sorted(self.paths))
        return TelescopeError(
            f"the responses of step {step} were written by the policy of checkpoint {needed}, and "
            f"{self.run} has {there} (0: before training): choose the step after one of these, "
            "keep more (checkpoint.every, checkpoint.keep), or take the nearest with --nearest"
        )


class Continuations:
    """Samples continuations of states, and says what they earn."""

    def __init__(
        self, roles: LocalRoles, prompts: PromptSet, config: Config, credit: CreditConfig
    ) -> None:
        self.roles = roles
        self.prompts = prompts
        self.config = config
        self.credit = credit

    def returns(self, states: Sequence[State], count: int, seed: int) -> Tensor:
        """The return from each state on, of `count` continuations, [S, count].

            G = r[i] + γ·r[i⁺] + …      r = score − β·kl

        It is the sum that V estimates, by the settings that the step was recorded with.
        """
        vocabulary = len(self.roles.actor.tokenizer)
        rows = min(MOST_ROWS, LOGITS // vocabulary)
        at_once = max(rows // count, 1)
        parts = []
        for first in range(0, len(states), at_once):
            some = states[first : first + at_once]
            numbers = range(first * count, (first + len(some)) * count)
            parts.append(self._some_returns(some, count, seed, list(numbers)))
        return torch.cat(parts).view(len(states), count)

    def _some_returns(
        self, states: Sequence[State], count: int, seed: int, numbers: list[int]
    ) -> Tensor:
        """Returns of the rows with these numbers, `count` for each state, [S·count]."""
        actor = self.roles.actor
        index = [state.prompt_index for state in states]
        prefixes = [state.prefix for state in states for _ in range(count)]
        sampler = ContinuingSampler(
            actor.sampler,
            prefixes,
            limit=self.config.rollout.max_response_tokens,
            pad=actor.tokenizer.pad_token_id,
        )
        prompts = replace(self.prompts.take(index, repeat=count, seed=seed), rows=numbers)
        batch = sample_batch(sampler, prompts, actor.tokenizer, actor.device, greedy=False)
        batch = self.roles.reward.compute_reward(batch)
        kl_coef = self.credit.kl_coef
        if kl_coef:
            batch = batch.with_columns(old_log_probs=batch["rollout_log_probs"])
            batch = self.roles.reference.compute_log_prob(batch)
        batch = with_rewards(batch, self.credit, kl_coef=kl_coef)
        bootstrap = None
        if self.credit.by_critic and self.credit.bootstrap_truncated:
            bootstrap = self.roles.critic.compute_values(batch)["bootstrap"]
        rewards = batch["token_level_rewards"].double()
        gamma = _discount(self.credit)
        returns = monte_carlo_returns(rewards, batch.mask, gamma=gamma, bootstrap=bootstrap)
        begin = torch.tensor([len(prefix) for prefix in prefixes], device=returns.device)
        return returns.gather(1, begin[:, None]).squeeze(1).cpu()


def _load_roles(
    run: Path, config: Config, path: Path | None, reward: GivenReward, step: int
) -> LocalRoles:
    """The roles as they were when the step was sampled, in this process."""
    newest = list_checkpoints(run / "checkpoints")[-1:]
    manifests = [checkpoint.check(path or place) for place in newest]
    for manifest in manifests:
        if manifest.reward_in_python and reward is None:
            raise TelescopeError(
                f"{run} was trained with the reward {', '.join(manifest.reward)}, given in "
                "Python, not in its config.toml: "
                "call telescope.run.audit.audit_run(run, reward=...) with it"
            )
    roles = build_local_roles(config, reward)
    critic: CriticRole = roles.critic
    if path is not None:
        saved = SavedRun(config, path, manifests[0])
        saved.load_weights("actor", roles.actor.model)
        if isinstance(critic, InformedCritic):
            critic = critic.critic
        if isinstance(critic, Critic) and config.credit.bootstrap_truncated:
            saved.load_weights("critic", critic.model)
    elif manifests:
        check_origin(newest[0], manifests[0], {"actor": fingerprint(roles.actor.model)})
    actor = roles.actor
    actor.sampler.version = -1  # the sampler does not have these weights yet
    actor.sampler.load_weights(actor.weights(), actor.learner.updates)
    _fix_shaping(run, config, roles, step)
    return roles


def _fix_shaping(run: Path, config: Config, roles: LocalRoles, step: int) -> None:
    """Gives reward shaping the μ and σ of the step, and keeps them."""
    shape = roles.reward.shape
    if shape is None or not config.reward.normalise:
        return
    logged: Mapping[str, Any] = {}
    for row in read_metrics(run / "metrics.jsonl"):
        if row["step"] == step and "reward/norm_mean" in row:
            logged = row
    if not logged:
        raise TelescopeError(
            f"reward.normalise: metrics.jsonl has no μ and σ of step {step}; choose another step"
        )
    shape.moments = Moments(1, logged["reward/norm_mean"], logged["reward/norm_std"] ** 2)
    shape.fixed = True


def _check_prompts(
    prompts: PromptSet, recorded: Sequence[Mapping[str, Any]], run: Path, step: int
) -> None:
    """Refuses data that is not what the step was sampled from."""
    for row in recorded:
        place = row["prompt_index"]
        if place >= len(prompts) or prompts.ids[place] != row["prompt_ids"]:
            raise TelescopeError(
                f"prompt {place} of the data is not the one that step {step} of {run} recorded: "
                "the data or the tokenizer has changed since; use those of the run"
            )


def _discount(credit: CreditConfig) -> float:
    """γ of the return; 1 for estimators that compare outcomes of whole responses."""
    return 1.0 if credit.definition.needs.groups else credit.gamma


def _audited_column(
    credit: CreditConfig, samples: Mapping[int, Sample]
) -> Literal["values", "baselines"] | None:
    """The column that predicts returns: V, or the baseline of an estimator without a critic."""
    if credit.by_critic:
        return "values"
    has_baselines = all("baselines" in sample.columns for sample in samples.values())
    return "baselines" if has_baselines else None


def _prompt_texts(samples: Mapping[int, Sample], chosen: Chosen) -> dict[int, str]:
    """What each prompt asks, without the chat template, which is the same in all of them."""
    rows = sorted({row for row, _ in chosen.tokens})
    asked = {samples[row].prompt_index: user_turn(samples[row].prompt) for row in rows}
    return {place: text[-PROMPT_CHARACTERS:] for place, text in asked.items()}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
