"""Fills in what follows from the numbers of a response, on plain floats.

The arithmetic of estimators and losses is in their definitions (telescope.algorithms.definitions).
Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from telescope.algorithms.definitions import mismatch
from telescope.algorithms.definitions.base import (
    Actions,
    PredictedToken,
    Rule,
    UpdatedToken,
    clamp,
)
from telescope.algorithms.definitions.critic import DELTAS
from telescope.algorithms.definitions.kl import kl_estimate
from telescope.explain.sample import ActorUpdate, CriticUpdate, Sample


def actions_of(sample: Sample) -> Actions:
    """The sample's columns at the valid tokens."""
    return Actions(
        {name: sample.numbers(name) for name in sample.columns},
        at=sample.written,
        bootstrap=sample.bootstrap,
        scale=sample.scale,
        greedy_score=sample.greedy_score or 0.0,
        parts=sample.parts,
        weights=sample.part_weights,
    )


# ---- columns that every estimator has ----


_KL = Rule(
    "kl",
    ("old_log_probs", "ref_log_prob"),
    lambda x, s, k: kl_estimate(s.credit.kl_kind).scalar(
        x["old_log_probs"][k] - x["ref_log_prob"][k]
    ),
)
_REWARDS = Rule(
    "token_level_rewards",
    ("token_level_scores", "kl"),
    lambda x, s, k: x["token_level_scores"][k] - s.credit.kl_coef * x["kl"][k],
)
_REWARDS_WITHOUT_KL = Rule(
    "token_level_rewards",
    ("token_level_scores",),
    lambda x, s, k: x["token_level_scores"][k],
)
_FROM_RETURNS = Rule(
    "advantages",
    ("returns", "values"),
    lambda x, s, k: x["returns"][k] - x["values"][k],
)
"""Where an estimator has no rewards to compute advantages from."""


def fill(sample: Sample) -> Sample:
    """The sample with every column that follows from those it has. Given columns stay as given.

    Without the μ and σ of a batch, whitening takes those of this response alone, unless it is of a
    run.
    """
    s = sample.settings
    actions = actions_of(sample)
    _KL.apply(actions, s)
    _fill_rewards(sample, actions)
    DELTAS.apply(actions, s)
    s.estimator_definition.fill(actions, s.credit)
    if s.has_critic and s.lam_critic is None:
        _FROM_RETURNS.apply(actions, s)
    _undo_whitening(sample, actions)
    s.estimator_definition.fill(actions, s.credit)
    mean, std = _whiten(sample, actions)
    full = replace(
        sample,
        columns=_expanded(sample, actions),
        whiten_mean=mean if s.whiten else None,
        whiten_std=std if s.whiten else None,
    )
    return replace(
        full,
        actor_updates=[_fill_actor(full, update) for update in sample.actor_updates],
        critic_updates=[_fill_critic(full, update) for update in sample.critic_updates],
    )


def columns_from(sample: Sample, columns: dict[str, list[float]]) -> dict[str, list[float]]:
    """These columns of the sample, and those that follow from them alone."""
    return fill(replace(sample, columns=columns, actor_updates=[], critic_updates=[])).columns


def _fill_rewards(sample: Sample, actions: Actions) -> None:
    """Adds the column `token_level_rewards`, unless it takes a batch that is not known."""
    s = sample.settings
    mean = sample.reward_mean
    std = sample.reward_std
    whitens = s.credit.whiten_rewards
    if "token_level_rewards" in actions or (whitens and (mean is None or std is None)):
        return
    _REWARDS.apply(actions, s)
    if s.credit.kl_coef == 0:
        _REWARDS_WITHOUT_KL.apply(actions, s)
    if whitens and mean is not None and std is not None and "token_level_rewards" in actions:
        plain = actions["token_level_rewards"]
        actions.columns["token_level_rewards"] = [mean + (r - mean) / std for r in plain]


def _whiten(sample: Sample, actions: Actions) -> tuple[float | None, float | None]:
    """Adds the column `whitened`; returns the μ and σ that it used."""
    whiten = sample.settings.whiten
    mean = sample.whiten_mean
    std = sample.whiten_std
    is_alone = not sample.run  # of a run, μ and σ are recorded or not known
    if whiten and is_alone and "advantages" in actions and (mean is None or std is None):
        mean, std = moments(actions["advantages"])
    if "advantages" not in actions or "whitened" in actions:
        return mean, std
    if not whiten:
        actions.columns["whitened"] = list(actions["advantages"])
    elif mean is not None and std is not None:
        actions.columns["whitened"] = [(a - mean) / std for a in actions["advantages"]]
    return mean, std


def _undo_whitening(sample: Sample, actions: Actions) -> None:
    """Adds the column `advantages` where only whitened ones are known, with their μ and σ."""
    mean = sample.whiten_mean
    std = sample.whiten_std
    if not sample.settings.whiten:
        mean, std = 0.0, 1.0
    if "whitened" in actions and "advantages" not in actions and mean is not None and std:
        actions.columns["advantages"] = [mean + std * x for x in actions["whitened"]]


def _expanded(sample: Sample, actions: Actions) -> dict[str, list[float]]:
    """The columns with one number for every token, 0 where the policy did not write it."""
    new = actions.columns.keys() - sample.columns.keys()
    made = {name: sample.spread(x) for name, x in actions.columns.items() if name in new}
    return sample.columns | made


def moments(numbers: Sequence[float]) -> tuple[float, float]:
    """(μ, σ) as whitening takes them: variance over n − 1, and 1e-8 inside the root."""
    n = len(numbers)
    numbers = [float(x) for x in numbers]
    mean = math.fsum(numbers) / max(n, 1)
    variance = math.fsum((x - mean) * (x - mean) for x in numbers) / max(n - 1, 1)
    return mean, math.sqrt(variance + 1e-8)


def alone(full: Sample) -> bool:
    """Whether a filled sample was whitened by itself: its μ and σ are those of its own tokens."""
    mean = full.whiten_mean
    std = full.whiten_std
    if "advantages" not in full.columns or mean is None or std is None:
        return False
    own_mean, own_std = moments(full.numbers("advantages"))
    same_mean = abs(mean - own_mean) <= 1e-5 * max(1.0, abs(own_mean))
    return same_mean and abs(std - own_std) <= 1e-5 * max(1.0, abs(own_std))


# ---- updates ----


def ratio_of(log_prob: float, old_log_prob: float) -> float:
    return math.exp(clamp(log_prob - old_log_prob, -20.0, 20.0))


def gaps_of(sample: Sample) -> list[float] | None:
    """log π_old − log π_sampler of every valid token; None if one of them is not known."""
    old = sample.columns.get("old_log_probs")
    sampler = sample.columns.get("rollout_log_probs")
    if old is None or sampler is None:
        return None
    return [old[t] - sampler[t] for t in sample.written]


def kept_of(sample: Sample) -> list[bool]:
    """Which tokens take part in updates: the policy wrote them, and the sampler agrees on them."""
    kept = [bool(m) for m in sample.mask]
    gaps = gaps_of(sample)
    if gaps is None or not sample.settings.actor.rejects:
        return kept
    for t, is_kept in zip(sample.written, mismatch.kept(gaps, sample.settings.actor), strict=True):
        kept[t] = is_kept
    return kept


class UpdatedResponse:
    """A response in one update of the policy: what its tokens share is listed once."""

    def __init__(self, full: Sample, update: ActorUpdate, kept: Sequence[bool]) -> None:
        self.update = update
        self.whitened = full.columns["whitened"]
        others = [k for k, is_kept in enumerate(kept) if is_kept]
        self.log_ratios = [update.log_probs[k] - update.old_log_probs[k] for k in others]
        self.advantages = [self.whitened[k] for k in others]

    def token(self, t: int) -> UpdatedToken:
        """Token t, with the response's tokens that take part in the update."""
        update = self.update
        return UpdatedToken(
            index=t,
            ratio=update.ratio[t],
            advantage=self.whitened[t],
            log_prob=update.log_probs[t],
            log_ratio=clamp(update.log_probs[t] - update.old_log_probs[t], -20.0, 20.0),
            selected=bool(update.selected and update.selected[t]),
            log_ratios=self.log_ratios,
            advantages=self.advantages,
        )


def predicted_token(full: Sample, update: CriticUpdate, t: int) -> PredictedToken:
    """Token t in one update of the critic."""
    return PredictedToken(
        index=t,
        value=update.values[t],
        old_value=full.columns["values"][t],
        target=full.columns["returns"][t],
        log_p=update.log_p[t] if update.log_p else (),
        first_bin=update.first_bin[t] if update.first_bin else 0,
    )


def _fill_actor(full: Sample, update: ActorUpdate) -> ActorUpdate:
    ratio = update.ratio
    if not ratio:
        pairs = zip(update.log_probs, update.old_log_probs, full.mask, strict=True)
        ratio = [ratio_of(new, old) if m else 0.0 for new, old, m in pairs]
    update = replace(update, ratio=ratio)
    loss = full.settings.policy_loss_definition
    if update.loss or loss is None or "whitened" not in full.columns:
        return update
    response = UpdatedResponse(full, update, [bool(m) for m in full.mask])
    clipped = [False] * len(full)
    dual_clipped = [False] * len(full)
    losses = [0.0] * len(full)
    for t in full.written:
        found = loss.objective(response.token(t), full.settings.actor)
        clipped[t] = found.clipped
        dual_clipped[t] = found.dual_clipped
        losses[t] = -found.value
    return replace(update, clipped=clipped, dual_clipped=dual_clipped, loss=losses)


def _fill_critic(full: Sample, update: CriticUpdate) -> CriticUpdate:
    known = "values" in full.columns and "returns" in full.columns
    if update.loss or not known or full.settings.histogram:
        return update
    loss = full.settings.value_loss_definition
    clipped = [False] * len(full)
    losses = [0.0] * len(full)
    for t in full.written:
        error = loss.error(predicted_token(full, update, t), full.settings.critic)
        clipped[t] = error.clipped
        losses[t] = error.loss
    return replace(update, clipped=clipped, loss=losses)
