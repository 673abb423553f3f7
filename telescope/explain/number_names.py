"""The names that a file of numbers may use for columns and settings."""

from __future__ import annotations

import difflib

from telescope.config import CHOICES, ActorConfig, CreditConfig, CriticConfig, OptimizerConfig
from telescope.errors import TelescopeError
from telescope.explain.sample import SAMPLE_COLUMNS

_OF_COLUMNS = {
    "token_level_scores": ("scores", "score"),
    "token_level_rewards": ("rewards", "reward", "r"),
    "values": ("V", "value"),
    "old_log_probs": ("old", "old_log_prob"),
    "log_probs": ("new", "new_log_probs", "new_log_prob", "log_prob"),
    "ref_log_prob": ("ref", "ref_log_probs"),
    "kl": ("kld",),
    "deltas": ("delta",),
    "advantages": ("A", "advantage", "advantages_raw"),
    "returns": ("R",),
    "whitened": ("advantages_whitened",),
    "vpreds": ("v", "vpred", "new_values"),
    "mask": ("response_mask", "loss_mask", "info_mask"),
}
_OF_SETTINGS = {
    "gamma": ("γ",),
    "lam": ("lambda", "λ"),
    "kl_coef": ("beta", "β"),
    "kl_kind": ("kl_type",),
    "clip": ("eps", "ε", "epsilon", "cliprange", "clip_ratio"),
    "clip_value": ("cliprange_value",),
    "dual_clip": ("clip_ratio_c",),
    "whiten_mean": ("μ", "mu", "mean"),
    "whiten_std": ("σ", "sigma", "std"),
}
"""Column or setting -> other names that a file may use for it."""


def _by_name(others: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {other: name for name, each in others.items() for other in each}


def _own(*names: str) -> dict[str, str]:
    return {name: name for name in names}


COLUMN_NAMES = {
    **_own(*SAMPLE_COLUMNS, "tokens", "mask", "log_probs", "vpreds", "sum_pi_squared"),
    **_by_name(_OF_COLUMNS),
}
"""Name in a file -> column."""


def setting_names() -> list[str]:
    """Settings of credit, actor and critic, those of all definitions included."""
    names = [*CreditConfig.model_fields, *ActorConfig.model_fields, *CriticConfig.model_fields]
    names += [name for choice in CHOICES for name in choice.owners()]
    other = {*OptimizerConfig.model_fields, *SAMPLE_COLUMNS}
    return [name for name in dict.fromkeys(names) if name not in other]


SETTING_NAMES = {
    **_own(*setting_names(), "whiten_mean", "whiten_std", "bootstrap", "truncated", "prompt"),
    **_own("group", "greedy_score", "parts", "part_weights"),
    **_by_name({"group": ("uid", "prompt_index")}),
    **_own("temperature", "value_loss", "clip"),
    **_by_name(_OF_SETTINGS),
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
