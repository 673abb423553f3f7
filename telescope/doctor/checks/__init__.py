"""The checks, one module per family. Importing this package registers all of them."""

from telescope.doctor.checks import (
    critic,
    data,
    entropy,
    groups,
    kl,
    laws,
    learning_rate,
    length,
    outcome,
    reward,
    sampler,
    whitening,
    witnesses,
)

__all__ = [
    "critic",
    "data",
    "entropy",
    "groups",
    "kl",
    "laws",
    "learning_rate",
    "length",
    "outcome",
    "reward",
    "sampler",
    "whitening",
    "witnesses",
]
