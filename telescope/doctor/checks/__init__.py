"""The checks, one module per family. Importing this package registers all of them."""

from telescope.doctor.checks import (
    critic,
    data,
    entropy,
    gradient,
    groups,
    kl,
    laws,
    learning_rate,
    length,
    meaning,
    outcome,
    policies,
    reward,
    sampler,
    whitening,
    witnesses,
)

__all__ = [
    "critic",
    "data",
    "entropy",
    "gradient",
    "groups",
    "kl",
    "laws",
    "learning_rate",
    "length",
    "meaning",
    "outcome",
    "policies",
    "reward",
    "sampler",
    "whitening",
    "witnesses",
]
