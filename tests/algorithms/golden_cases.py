"""The cases of tests/golden/verl.npz: what verl 0.9.1's own functions answered, as `Case(name,
inputs, out)`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Case:
    name: str
    inputs: dict[str, Any]
    """Arrays as tensors in the dtype that verl was given, scalars as Python values.

    A missing key: not given.
    """
    out: dict[str, np.ndarray]

    def __getitem__(self, key: str) -> Any:
        return self.inputs[key]

    @property
    def mask(self) -> torch.Tensor:
        return self.inputs[
            next(k for k in ("response_mask", "loss_mask", "mask") if k in self.inputs)
        ]

    @property
    def denominators(self) -> dict[str, float]:
        """What `aggregate` takes in the `_global` cases."""
        names = {
            "num_tokens": "batch_num_tokens",
            "num_rows": "global_batch_size",
            "horizon": "loss_scale_factor",
        }
        return {ours: self[theirs] for ours, theirs in names.items() if theirs in self.inputs}

    @property
    def ranks(self) -> int:
        """verl multiplies a loss with global denominators by this, because its data-parallel engine
        averages over ranks.
        """
        return self.inputs.get("dp_size", 1)


def load() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    with np.load(GOLDEN / "verl.npz", allow_pickle=False) as file:
        for key in file.files:
            name, side, variable = key.split("/")
            case, array = cases.setdefault(name, Case(name, {}, {})), file[key]
            if side == "out":
                case.out[variable] = array
            elif array.ndim == 0:
                case.inputs[variable] = array.item()
            else:
                case.inputs[variable] = (
                    torch.from_numpy(array) if array.dtype.kind in "fib" else array.tolist()
                )
    return cases


CASES = load()
