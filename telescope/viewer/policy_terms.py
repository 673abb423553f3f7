"""What a policy loss makes of recorded log-probs: clipped tokens and the loss of each."""

from __future__ import annotations

import numpy as np

from telescope.algorithms.definitions.base import UpdatedToken, clamp
from telescope.explain.settings import Settings
from telescope.viewer.recorded import Floats, RecordedStep


def policy_columns(step: RecordedStep, settings: Settings, whitened: Floats) -> dict[str, Floats]:
    """The flat columns `clipped` and `loss` of each response's last update."""
    loss = settings.policy_loss_definition
    update = step.update
    if loss is None or update is None:
        return {}
    clipped = np.zeros(len(step.mask))
    losses = np.zeros(len(step.mask))
    for row, at in enumerate(step.at):
        for place, token in _tokens(step, row, whitened):
            found = loss.objective(token, settings.actor)
            clipped[at[place]] = found.clipped or found.dual_clipped
            losses[at[place]] = -found.value
    return {"clipped": clipped, "loss": losses}


def _tokens(step: RecordedStep, row: int, whitened: Floats) -> list[tuple[int, UpdatedToken]]:
    """Each valid token of a response that took part in its last update, and its place."""
    assert step.update is not None
    at = step.at[row]
    within = at - step.offsets[row]
    of_row = {name: column[row] for name, column in step.update.items()}
    weight = of_row["weight"]
    kept = [k for k, t in enumerate(within) if not len(weight) or weight[t] != 0]
    log_probs = of_row["log_probs"][within].tolist()
    old_log_probs = of_row["old_log_probs"][within].tolist()
    ratio = of_row["ratio"][within].tolist()
    selected = of_row["selected"][within].tolist() if len(of_row["selected"]) else [0] * len(at)
    advantages = whitened[at].tolist()
    gaps = [new - old for new, old in zip(log_probs, old_log_probs, strict=True)]
    kept_gaps = [gaps[k] for k in kept]
    kept_advantages = [advantages[k] for k in kept]
    return [
        (
            k,
            UpdatedToken(
                index=int(within[k]),
                ratio=ratio[k],
                advantage=advantages[k],
                log_prob=log_probs[k],
                log_ratio=clamp(gaps[k], -20.0, 20.0),
                selected=bool(selected[k]),
                log_ratios=kept_gaps,
                advantages=kept_advantages,
            ),
        )
        for k in kept
    ]
