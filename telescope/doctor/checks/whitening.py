"""Whitening: (A − μ)/σ over the batch. Subtracting μ may turn praise into blame."""

from __future__ import annotations

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, ledger_check
from telescope.doctor.curves import Curves
from telescope.doctor.recorded import SHOWN, Recorded, RecordedStep


@ledger_check(
    "whitening",
    "warning",
    charts=("credit/advantage_mean", "credit/advantage_std"),
    settings=("credit.whiten", "critic.lr", "critic_warmup"),
)
def whitening_flips(run: Curves, recorded: Recorded) -> Sign | None:
    """Most advantages have another sign after whitening than before."""
    shares = [(step, _flipped(step)) for step in recorded.steps()]
    over = [
        (step, flips)
        for step, flips in shares
        if flips is not None and flips.mean() > limits.FLIPPED
    ]
    if len(over) < limits.FLIP_STEPS:
        return None
    step, flips = over[0]
    raw = step.need("advantages")
    used = step.need("whitened")
    mean = float(raw[step.mask].mean())
    at = np.flatnonzero(step.mask)[flips]
    worst = at[np.argsort(-np.abs(raw[at]))][:SHOWN]
    return Sign(
        since=step.step,
        numbers={"share": float(np.mean([flips.mean() for _, flips in over])), "mean": mean},
        variant="" if mean > 0 else "up",
        places=tuple(step.place(int(i), A=raw[i], whitened=used[i]) for i in worst),
        change={"credit.whiten": False},
    )


def _flipped(step: RecordedStep) -> np.ndarray | None:
    """Of the tokens that the policy wrote, which changed sign."""
    raw = step.flat("advantages")
    used = step.flat("whitened")
    if raw is None or used is None or not step.mask.any():
        return None
    raw, used = raw[step.mask], used[step.mask]
    size = np.abs(raw) > 1e-3 * max(float(np.abs(raw).max()), 1e-12)
    flips: np.ndarray = size & (raw * used < 0)
    return flips
