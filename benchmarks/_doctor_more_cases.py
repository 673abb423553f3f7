"""More cases for benchmarks/doctor.py: faults of the kind that users report, and healthy settings.

The right findings of REPORTED were written down before the doctor saw any of their runs, and those
runs were judged once before any rule was changed for them (docs/doctor.md).
"""

from __future__ import annotations

import _doctor_bugs as bugs
from _doctor_cases import (
    BLIND,
    EARLIER,
    FAULTS,
    GROUPS,
    GRPO,
    HEALTHY,
    LOOKED_AT,
    OTHER,
    REWARDS,
    Case,
)

SEEDS = (0, 1, 2)

REPORTED = (
    Case(
        "answers-rolled",
        "answers of the row before",
        ("answers_shifted", "sampler_mismatch"),
        patch=bugs.answers_rolled,
    ),
    Case("eos-stripped", "EOS is cut off", ("eos_missing",), patch=bugs.eos_stripped),
    Case(
        "eos-forced",
        "EOS is written over the last token at a limit of 6",
        ("eos_missing", "sampler_mismatch", "eos_forced"),
        settings={"rollout.max_response_tokens": 6},
        patch=bugs.eos_forced,
    ),
    Case("comma-stops", "the comma stops an answer", ("eos_missing",), patch=bugs.comma_stops),
    Case(
        "never-synced",
        "the sampler keeps its first weights",
        ("stale_samples",),
        patch=bugs.never_synced,
    ),
    Case(
        "padding-seen",
        "the sampler sees the padding",
        ("sampler_mismatch",),
        patch=bugs.padding_seen,
    ),
    Case(
        "pair-copied",
        "GRPO, two of four answers are one",
        ("copied_answers",),
        settings=GRPO,
        patch=bugs.pair_copied,
    ),
    Case("top-k-1", "top_k = 1", ("no_exploration",), settings={"rollout.top_k": 1}),
    Case("hot", "temperature 2", ("hot_sampling",), settings={"rollout.temperature": 2.0}),
    Case("prompts-cut", "prompts of 3 tokens", ("prompt_ids",), patch=bugs.prompts_cut),
    Case(
        "vocabulary",
        "prompts in another tokenizer's ids",
        ("prompt_ids", "prompt_format"),
        patch=bugs.other_vocabulary,
    ),
    Case("doubled", "each prompt twice", ("prompt_format",), patch=bugs.prompts_doubled),
    Case("bare", "prompts without their question", ("prompt_format",), patch=bugs.bare_prompts),
    Case("same-batch", "one batch, again and again", ("repeated_data",), patch=bugs.same_batch),
    Case(
        "always-true",
        "a label that is lost",
        ("partial_credit", "over_optimisation", "overfitting", "label_mismatch"),
        patch=bugs.always_true,
    ),
    Case("leak", "held-out prompts are trained", ("eval_leak",), patch=bugs.held_out_trained),
    Case(
        "groups-mixed",
        "GRPO, groups of several prompts",
        ("law_broken", "groups_mixed"),
        settings=GRPO,
        patch=bugs.groups_mixed,
    ),
    Case("kl-paid", "KL with the wrong sign", ("law_broken",), patch=bugs.kl_paid),
    Case(
        "padding-whitened",
        "whitening counts padding",
        ("law_broken",),
        patch=bugs.whitened_with_padding,
    ),
    Case("score-first", "score on the first token", ("score_early",), patch=bugs.score_on_first),
    Case(
        "late-scores",
        "scores of the step before",
        ("noisy_reward",),
        patch=bugs.scores_of_last_step,
    ),
    Case(
        "both-scored",
        "a part of the reward looks at the prompt",
        ("part_constant",),
        settings={"reward.functions": [f"{REWARDS}:right", f"{REWARDS}:format_of_both"]},
    ),
    Case(
        "dead-part",
        "a part of the reward is always 0",
        ("part_constant",),
        settings={"reward.functions": [f"{REWARDS}:right", f"{REWARDS}:think_format"]},
    ),
    Case("random", "random scores", ("noisy_reward",), reward="random_score"),
    Case("coin", "half of the scores are coins", ("noisy_reward",), reward="coin"),
    Case(
        "clip-score", "scores clipped at 0.01", ("score_clipped",), settings={"reward.clip": 0.01}
    ),
    Case("rate-ends", "lr 0 after 8 of 40 steps", ("lr_too_low",), patch=bugs.rate_ends),
    Case(
        "reference-follows",
        "the reference is the policy itself",
        ("reference_moves",),
        patch=bugs.reference_follows,
    ),
    Case("head-frozen", "value head not trained", ("critic_useless",), patch=bugs.head_frozen),
    Case("actor-frozen", "policy not trained", ("lr_too_low",), patch=bugs.actor_frozen),
    Case(
        "update-dropout",
        "dropout of 0.2 in the update",
        ("sampler_mismatch", "first_ratio"),
        patch=bugs.dropout_in_update,
    ),
    Case("kl-5", "β × 100", ("kl_too_strong",), settings={"credit.kl_coef": 5.0}),
    Case(
        "tight-clip",
        "clip range of 1e-4",
        ("clip_too_tight",),
        settings={"actor.clip_low": 1e-4, "actor.clip_high": 1e-4},
    ),
)
"""Faults of the kind that users report. Right findings were written down before the first look."""

SETTINGS = (
    Case("remax", "ReMax", settings={"credit.estimator": "remax"}),
    Case(
        "rloo-2",
        "RLOO, 2 per prompt",
        settings={"credit.estimator": "rloo", "rollout.batch_size": 16, "rollout.n": 2},
    ),
    Case(
        "grpo-8",
        "GRPO, 8 per prompt",
        settings={"credit.estimator": "grpo", "rollout.batch_size": 4, "rollout.n": 8},
    ),
    Case("dr-grpo", "Dr. GRPO", settings={"credit.estimator": "dr_grpo", **GROUPS}),
    Case(
        "group-baseline",
        "REINFORCE++ with a group baseline",
        settings={"credit.estimator": "reinforce++_baseline", **GROUPS},
    ),
    Case(
        "lambda-1-raw", "λ = 1, not whitened", settings={"credit.lam": 1.0, "credit.whiten": False}
    ),
    Case("histogram", "histogram critic", settings={"critic.loss": "hl_gauss"}),
    Case("huber", "Huber loss of the critic", settings={"critic.loss": "huber"}),
    Case("head-normal", "value head from noise", settings={"critic.head_init": "normal"}),
    Case("warmed-critic", "critic warm-up of 8 steps", settings={"critic_warmup": 8}),
    Case(
        "cosine",
        "cosine schedule, lr × 1.5",
        settings={"actor.schedule": "cosine", "critic.schedule": "cosine"},
        factors={"actor.lr": 1.5},
    ),
    Case("constant-lr", "constant lr", settings={"actor.schedule": "constant"}),
    Case("batch-64", "64 prompts per step", settings={"rollout.batch_size": 64}),
    Case("gspo", "GSPO", settings={"actor.loss": "gspo", **GRPO}),
    Case("kl-target", "β adapts", settings={"credit.kl_target": 0.1, "credit.kl_horizon": 500}),
    Case("top-p", "top_p = 0.95", settings={"rollout.top_p": 0.95}),
    Case(
        "overlong",
        "limit of 8, a penalty for the last 2 tokens",
        settings={"rollout.max_response_tokens": 8, "reward.overlong_tokens": 2},
    ),
    Case(
        "uneven",
        "parts weigh 0.8 and 0.2",
        settings={"reward.weights": {"verdict": 0.8, "sum": 0.2}},
    ),
    Case("lora-64", "LoRA of rank 64", settings={"model.lora_rank": 64}, factors={"actor.lr": 2}),
    Case("search", "the search tool", toy="search"),
)
"""Healthy runs of other estimators, losses, critics, schedules and limits; never tuned on."""

FURTHER = {
    "earlier": EARLIER,
    "read": LOOKED_AT,
    "blind": BLIND,
    "reported": REPORTED,
    "other": OTHER,
    "settings": SETTINGS,
}
"""Cases besides the twelve and twelve, by their group in _doctor_table.GROUPS."""
UNSEEN = tuple(case for cases in FURTHER.values() for case in cases)
CASES = FAULTS + HEALTHY + UNSEEN


def group_of(case: Case, seed: int) -> str:
    """The group of _doctor_table.GROUPS that a run is counted in.

    Thresholds may look at half of the runs of the twelve and twelve: at seeds 0 and 2 of even
    cases, and at seed 1 of odd ones.
    """
    for name, cases in FURTHER.items():
        if case in cases:
            return name
    return "tuning" if (CASES.index(case) + seed) % 2 == 0 else "held out"
