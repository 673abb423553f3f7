"""Metrics of other trainers under our names. docs/coming-from.md explains the differences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NAMES = {
    # verl
    "critic/score/mean": "reward/score_mean",
    "critic/vf_explained_var": "critic/explained_variance",
    "critic/returns/mean": "critic/return_mean",
    "critic/values/mean": "critic/value_mean",
    "actor/entropy_loss": "actor/entropy",
    "actor/ppo_kl": "actor/ppo_kl",
    "actor/reward_kl_penalty": "reward/kl",
    "critic/kl": "reward/kl",
    "actor/reward_kl_penalty_coeff": "reward/kl_coef",
    "critic/kl_coeff": "reward/kl_coef",
    "response_length/mean": "response/length_mean",
    "response_length/clip_ratio": "response/truncated",
    "rollout_corr/kl": "rollout/logprob_diff",
    "training/rollout_probs_diff_mean": "rollout/prob_diff",
    "perf/time_per_step": "timing/step",
    # TRL, PPO
    "objective/scores": "reward/score_mean",
    "policy/approxkl_avg": "actor/approx_kl",
    "policy/clipfrac_avg": "actor/pg_clipfrac",
    "val/clipfrac_avg": "critic/vf_clipfrac",
    "loss/policy_avg": "actor/pg_loss",
    "loss/value_avg": "critic/vf_loss",
    "policy/entropy_avg": "actor/entropy",
    "lr": "actor/lr",
    # TRL, PPO before 0.12
    "ppo/mean_scores": "reward/score_mean",
    "ppo/policy/approxkl": "actor/approx_kl",
    "ppo/policy/clipfrac": "actor/pg_clipfrac",
    "ppo/policy/entropy": "actor/entropy",
    "ppo/loss/policy": "actor/pg_loss",
    "ppo/loss/value": "critic/vf_loss",
    "ppo/val/clipfrac": "critic/vf_clipfrac",
    "ppo/val/var_explained": "critic/explained_variance",
    "ppo/val/mean": "critic/value_mean",
    "ppo/returns/mean": "critic/return_mean",
    "ppo/learning_rate": "actor/lr",
    "objective/kl_coef": "reward/kl_coef",
    "tokens/responses_len_mean": "response/length_mean",
    # TRL, GRPO and RLOO
    "reward": "reward/score_mean",
    "kl": "reward/kl",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "loss": "actor/pg_loss",
    "learning_rate": "actor/lr",
    "frac_reward_zero_std": "reward/flat_groups",
    "clip_ratio/region_mean": "actor/pg_clipfrac",
    "clip_ratio": "actor/pg_clipfrac",
    "completions/mean_length": "response/length_mean",
    "completion_length": "response/length_mean",
    "completions/clipped_ratio": "response/truncated",
    "sampling/sampling_logp_difference/mean": "rollout/logprob_diff",
    "tools/call_frequency": "response/tool_calls",
    # OpenRLHF
    "policy_loss": "actor/pg_loss",
    "critic_loss": "critic/vf_loss",
    "actor_lr": "actor/lr",
    "critic_lr": "critic/lr",
    "response_length": "response/length_mean",
    "return": "critic/return_mean",
    "values": "critic/value_mean",
}
"""Another trainer's name -> ours."""
SUMS = {"objective/kl": "reward/kl"}
"""Sums per response; ours is a mean per token."""
_VALIDATION = re.compile(r"val-core/.*/(acc|reward)/(mean|best|maj)@\d+(/mean)?|val/test_score/.*")
_PART = re.compile(r"rewards/(?!chosen|rejected|margins|accuracies)([^/]+)(/mean)?")
"""A part of the reward; those four are DPO's."""
_EVALUATED = {"eval_reward": "eval/sampled_score", "eval/reward": "eval/sampled_score"}


def canonical(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with our names. A name that is not known stays."""
    found: dict[str, Any] = {}
    length = None
    for name, value in row.items():
        if _VALIDATION.fullmatch(name):
            ours = "eval/sampled_accuracy"
        elif name.startswith(("eval/", "eval_")):
            ours = _EVALUATED.get(name, name)
        else:
            ours = _ours(name.removeprefix("train/").removeprefix("global/"))
        found[ours] = value
        if ours == "response/length_mean":
            length = value
    for name, ours in SUMS.items():
        value = found.pop(name, None)
        if value is not None and length:
            found[ours] = value / length
    if "actor/kl_loss" in found:  # verl's GRPO measures the KL there alone
        found.setdefault("reward/kl", found["actor/kl_loss"])
    return found


def _ours(name: str) -> str:
    part = _PART.fullmatch(name)
    return f"reward/{part[1]}" if part else NAMES.get(name, name)
