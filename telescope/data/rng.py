"""The state of the global random generators. Telescope uses none of them; a reward function may."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch


def rng_state() -> dict[str, Any]:
    """Returns the state of Python's, numpy's and torch's global generators."""
    legacy: Any = numpy.random.get_state()
    name, keys, *rest = legacy
    return {
        "python": random.getstate(),
        "numpy": [name, keys.tolist(), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restores what `rng_state` returned. GPU generators only if there are as many GPUs as then."""
    random.setstate(state["python"])
    numpy.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def kept_rng() -> Iterator[None]:
    """Whatever is drawn inside, this process's generators go on as if it had not been."""
    python, legacy, cpu = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(legacy)
        torch.set_rng_state(cpu)
