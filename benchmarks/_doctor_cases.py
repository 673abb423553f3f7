"""The cases of benchmarks/doctor.py: planted faults and healthy runs.

A case changes settings, multiplies some, or breaks the trainer by a patch of _doctor_patches.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _doctor_patches as patches

HERE = Path(__file__).resolve().parent
REWARDS = HERE / "_doctor_rewards.py"

# ---- cases


@dataclass(frozen=True)
class Case:
    """A run to make: what differs from the base, and which findings are right."""

    name: str
    what: str
    expected: tuple[str, ...] = ()
    """Findings that name the cause; none: the run is healthy."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    """Settings of the base that are multiplied."""
    reward: str = ""
    """A function of _doctor_rewards.py instead of the task's own."""
    patch: patches.Patch | None = None
    toy: str = ""
    """A built-in task with a tool: it has a model of its own."""

    @property
    def is_faulty(self) -> bool:
        return bool(self.expected)


GROUPS = {"rollout.batch_size": 8, "rollout.n": 4}
GRPO = {"credit.estimator": "grpo", **GROUPS}

FAULTS = (
    Case("lr-high", "actor lr × 100", ("lr_too_high",), factors={"actor.lr": 100}),
    Case("lr-low", "actor lr × 0.001", ("lr_too_low",), factors={"actor.lr": 0.001}),
    Case(
        "bonus",
        "entropy bonus of 1.0",
        ("entropy_explosion",),
        settings={"actor.entropy_coef": 1.0},
    ),
    Case(
        "cut-off",
        "limit of 4 tokens, an answer needs 7",
        ("mostly_truncated",),
        settings={"rollout.max_response_tokens": 4},
    ),
    Case("dead-critic", "critic lr 1e-9", ("critic_useless",), settings={"critic.lr": 1e-9}),
    Case("constant", "reward is 0.5 for everything", ("constant_reward",), reward="constant"),
    Case(
        "partial",
        "partial credit for large numbers, the full mark is never reached",
        ("partial_credit", "over_optimisation"),
        reward="larger",
    ),
    Case(
        "flat-groups",
        "GRPO, the score depends on the prompt alone",
        ("flat_groups",),
        settings=GRPO,
        reward="prompt_only",
    ),
    Case(
        "mismatch",
        f"sampler at temperature {patches.SAMPLER_TEMPERATURE}, trainer at 1",
        ("other_temperature", "sampler_mismatch"),
        patch=patches.sampler_temperature,
    ),
    Case(
        "value-shift",
        "V has seen its token",
        ("values_after_token",),
        patch=patches.value_after_token,
    ),
    Case(
        "stale",
        f"samples {patches.STALE_UPDATES} updates old",
        ("stale_samples",),
        patch=patches.stale_samples,
    ),
    Case("one-prompt", "one prompt repeated", ("repeated_data",), patch=patches.one_prompt),
)

HEALTHY = (
    Case("base", "the built-in job"),
    Case("lambda-1", "λ = 1", settings={"credit.lam": 1.0}),
    Case("grpo", "GRPO, 4 per prompt", settings=GRPO),
    Case("rloo", "RLOO, 4 per prompt", settings={"credit.estimator": "rloo", **GROUPS}),
    Case("reinforce", "REINFORCE++", settings={"credit.estimator": "reinforce++"}),
    Case("lr-half", "actor lr × 0.5", factors={"actor.lr": 0.5}),
    Case("lr-quarter", "actor lr × 0.25", factors={"actor.lr": 0.25}),
    Case(
        "lora", "LoRA of rank 8, lr × 5", settings={"model.lora_rank": 8}, factors={"actor.lr": 5}
    ),
    Case("kl-off", "no KL penalty", settings={"credit.kl_coef": 0.0}),
    Case("no-bonus", "no entropy bonus", settings={"actor.entropy_coef": 0.0}),
    Case("long-limit", "limit of 16 tokens", settings={"rollout.max_response_tokens": 16}),
    Case("calculator", "the built-in job with a calculator", toy="calculator"),
)

EARLIER = (
    Case(
        "value-clip",
        "clip_value 0.0001",
        ("value_clip_binds",),
        settings={"critic.clip_value": 1e-4},
    ),
    Case("sign", "advantage with the wrong sign", ("law_broken",), patch=patches.sign_flipped),
    Case("reward-scale", "scores × 100", ("reward_scale",)),
    Case(
        "tool",
        "calculator always fails",
        ("failing_tools",),
        patch=patches.broken_tool,
        toy="calculator",
    ),
    Case(
        "form",
        "prompts in a foreign form",
        ("prompt_format", "prompt_ids"),
        patch=patches.foreign_form,
    ),
)
"""Faults besides the twelve that rules were not tuned on."""

LOOKED_AT = (
    Case(
        "grad-clip",
        "gradients clipped at 1e-8",
        ("lr_too_low",),
        settings={"actor.max_grad_norm": 1e-8},
    ),
    Case(
        "warm-up",
        "learning-rate warm-up of 4000 steps",
        ("lr_too_low",),
        settings={"actor.warmup_steps": 4000},
    ),
    Case(
        "reference",
        "the reference is a random model",
        ("other_reference",),
        patch=patches.random_reference,
    ),
    Case(
        "copies",
        "GRPO, the answers of a group are copies",
        ("copied_answers",),
        settings=GRPO,
        patch=patches.copied_answers,
    ),
    Case(
        "old-after",
        "old log-probs recomputed after each update",
        ("ratio_stuck",),
        patch=patches.old_after_update,
    ),
    Case(
        "eos-ignored",
        "the sampler stops at another token than EOS",
        ("eos_ignored", "mostly_truncated"),
        patch=patches.eos_ignored,
    ),
    Case(
        "one-part",
        "one part of the reward weighs 99 times as much as the other",
        ("part_dominates",),
        settings={"reward.weights": {"verdict": 0.99, "sum": 0.01}},
    ),
    Case(
        "cold", "sampling at temperature 0.1", ("collapse",), settings={"rollout.temperature": 0.1}
    ),
)
"""Faults that were invented before tuning, and whose runs were read to find rules that are missing.
"""

BLIND = (
    Case(
        "reward-sign",
        "reward with the wrong sign",
        ("partial_credit", "over_optimisation"),
        reward="negated",
    ),
    Case("reward-rolled", "rewards of the next row", ("noisy_reward",), reward="next_row"),
    Case("eos-masked", "EOS is never trained", ("mask_shifted",), patch=patches.eos_masked),
    Case("critic-gamma", "returns with γ = 0.9", ("law_broken",), patch=patches.other_gamma),
    Case(
        "dropout",
        "dropout of 0.2 in the sampler",
        ("sampler_mismatch",),
        patch=patches.sampler_dropout,
    ),
    Case("kl-100", "β = 100", ("kl_too_strong",), settings={"credit.kl_coef": 100.0}),
    Case(
        "empty",
        "a length penalty of 0.2 per token",
        ("over_optimisation", "partial_credit", "length_drift"),
        reward="short",
    ),
    Case(
        "critic-lr",
        "critic lr × 1000",
        ("value_scale", "critic_useless"),
        factors={"critic.lr": 1000},
    ),
    Case("gamma", "γ = 0.5", ("credit_fades",), settings={"credit.gamma": 0.5}),
    Case("epochs", "30 epochs per batch", ("lr_too_high",), settings={"actor.epochs": 30}),
    Case(
        "huge",
        "scores × 100, advantages not whitened",
        ("reward_scale",),
        settings={
            "credit.whiten": False,
            "reward.weights": {"verdict": 50.0, "sum": 50.0},
            "eval.correct_score": 100.0,
        },
    ),
    Case(
        "labels",
        "answers of the next row of the data",
        ("noisy_reward", "partial_credit", "over_optimisation", "overfitting"),
        patch=patches.labels_of_next_row,
    ),
)
"""Faults that were invented before tuning, and judged only after the rules for LOOKED_AT."""

OTHER = (
    Case("batch-16", "16 prompts per step", settings={"rollout.batch_size": 16}),
    Case("lambda-0", "λ = 0", settings={"credit.lam": 0.0}),
    Case("n-step", "4-step returns", settings={"credit.estimator": "n_step"}),
    Case("raw", "advantages not whitened", settings={"credit.whiten": False}),
    Case("dynamic", "GRPO, dynamic sampling", settings={**GRPO, "rollout.dynamic_sampling": 4}),
    Case("limit-7", "limit of 7 tokens", settings={"rollout.max_response_tokens": 7}),
    Case("warm", "temperature 1.3", settings={"rollout.temperature": 1.3}),
    Case("on-policy", "one update per step", settings={"actor.minibatches": 1}),
    Case("epochs-4", "4 epochs, lr × 0.5", settings={"actor.epochs": 4}, factors={"actor.lr": 0.5}),
    Case("kl-loss", "KL in the loss", settings={"credit.kl_coef": 0.0, "actor.kl_loss_coef": 0.05}),
    Case("normalise", "normalised scores", settings={"reward.normalise": True}),
    Case("gamma-99", "γ = 0.99", settings={"credit.gamma": 0.99}),
)
"""Healthy runs with settings that the twelve do not have; never tuned on."""
