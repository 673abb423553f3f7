"""The names that a file of numbers may use for columns and settings."""

from __future__ import annotations

import difflib

from telescope.config import CHOICES, ActorConfig, CreditConfig, CriticConfig, OptimizerConfig
from telescope.errors import TelescopeError
from telescope.explain.sample import SAMPLE_COLUMNS

COLUMN_NAMES = {
    **{name: name for name in SAMPLE_COLUMNS},
    **{name: name for name in ("tokens", "mask", "log_probs", "vpreds", "sum_pi_squared")},
    "scores": "token_level_scores",
    "score": "token_level_scores",
    "rewards": "token_level_rewards",
    "reward": "token_level_rewards",
    "r": "token_level_rewards",
    "V": "values",
    "value": "values",
    "old": "old_log_probs",
    "old_log_prob": "old_log_probs",
    "new": "log_probs",
    "new_log_probs": "log_probs",
    "new_log_prob": "log_probs",
    "log_prob": "log_probs",
    "ref": "ref_log_prob",
    "ref_log_probs": "ref_log_prob",
    "kld": "kl",
    "delta": "deltas",
    "A": "advantages",
    "advantage": "advantages",
    "advantages_raw": "advantages",
    "R": "returns",
    "advantages_whitened": "whitened",
    "v": "vpreds",
    "vpred": "vpreds",
    "new_values": "vpreds",
    "response_mask": "mask",
    "loss_mask": "mask",
    "info_mask": "mask",
}
"""Name in a file -> column."""


def setting_names() -> list[str]:
    """Settings of credit, actor and critic, those of all definitions included."""
    names = [*CreditConfig.model_fields, *ActorConfig.model_fields, *CriticConfig.model_fields]
    names += [name for choice in CHOICES for name in choice.owners()]
    other = {*OptimizerConfig.model_fields, *SAMPLE_COLUMNS}
    return [name for name in dict.fromkeys(names) if name not in other]


SETTING_NAMES = {
    **{name: name for name in setting_names()},
    **{name: name for name in ("whiten_mean", "whiten_std", "bootstrap", "truncated", "prompt")},
    **{name: name for name in ("group", "greedy_score", "parts", "part_weights")},
    "uid": "group",
    "prompt_index": "group",
    "temperature": "temperature",
    "value_loss": "value_loss",
    "clip": "clip",
    "γ": "gamma",
    "lambda": "lam",
    "λ": "lam",
    "beta": "kl_coef",
    "β": "kl_coef",
    "kl_type": "kl_kind",
    "eps": "clip",
    "ε": "clip",
    "epsilon": "clip",
    "cliprange": "clip",
    "clip_ratio": "clip",
    "cliprange_value": "clip_value",
    "clip_ratio_c": "dual_clip",
    "μ": "whiten_mean",
    "mu": "whiten_mean",
    "mean": "whiten_mean",
    "σ": "whiten_std",
    "sigma": "whiten_std",
    "std": "whiten_std",
}
"""Name in a file -> setting."""

IGNORED = ("id", "kind", "description", "expected")
"""Names that a file may hold for its own use."""


def column_of(key: str) -> str | None:
    """The column that the file calls `key`. Capitals count where they tell two columns apart."""
    return COLUMN_NAMES.get(key) or COLUMN_NAMES.get(key.lower())


def name_of(key: str) -> str:
    """The column or setting that the file calls `key`."""
    known = {**COLUMN_NAMES, **SETTING_NAMES}
    name = known.get(key) or known.get(key.lower())
    if name is None:
        raise TelescopeError(f"unknown name {key!r}{_suggestion(key, known)}")
    return name


def _suggestion(key: str, known: dict[str, str]) -> str:
    near = difflib.get_close_matches(key, list(known.values()), 1)
    if not near:
        near = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
