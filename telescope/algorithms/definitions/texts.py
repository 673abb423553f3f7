"""What the terms of estimators and losses mean (texts.toml), in Chinese and English.

A key is the name of a term, or `term:state`, or `term:variant`. The more particular key wins.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from telescope.algorithms.definitions.base import Words

Texts = Mapping[str, Words]


_TOML = Path(__file__).with_name("texts.toml").read_text("utf-8")
FAMILIES: dict[str, Texts] = {
    family: {key: Words(**fields) for key, fields in entries.items()}
    for family, entries in tomllib.loads(_TOML).items()
}

CREDIT = FAMILIES["credit"]
"""A sum of later δ."""
OBSERVED = {**CREDIT, **FAMILIES["observed"]}
"""Rewards that really came, less V."""
ONE_STEP = {**CREDIT, **FAMILIES["one_step"]}
"""One δ."""
N_STEP = {**CREDIT, **FAMILIES["n_step"]}
"""n rewards, then V."""
COMPARED = {**CREDIT, **FAMILIES["compared"]}
"""The outcome compared with a baseline."""
REWARDS_ONLY = FAMILIES["rewards_only"]
"""Rewards that really came, and no V."""
SHARED = {**CREDIT, **FAMILIES["shared"]}
"""The outcome divided over the tokens."""
SIDE_BY_SIDE = FAMILIES["side_by_side"]
"""Other estimates of the same advantage."""
CLIP = FAMILIES["clip"]
"""PPO's clip beside the plain surrogate."""
UNUSED_CLIP = {
    **CLIP,
    **{
        f"clip:{state}": CLIP["clip:unused"]
        for state in ("inside", "kept", "clipped", "dual", "zero")
    },
}
"""PPO's clip in a run that does not use it."""
OBJECTIVE = FAMILIES["objective"]
"""Any other policy loss."""
VALUE = FAMILIES["value"]
"""The critic's error."""
KL = FAMILIES["kl"]
"""Estimates of the KL divergence."""
