"""How far one update moves the policy."""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, attempt, curve_check, ledger_sign
from telescope.doctor.curves import Curve, Curves, find_onset, onset
from telescope.doctor.recorded import Recorded


@curve_check(
    "learning_rate",
    "serious",
    charts=("actor/approx_kl", "actor/pg_clipfrac", "actor/lr", "actor/grad_norm"),
    settings=("actor.lr", "actor.epochs", "actor.minibatches", "actor.target_kl"),
)
def lr_too_high(run: Curves) -> Sign | None:
    """One update moves the policy too far: by approximate KL, clipping or the reference."""
    signs = [
        _above(run.get("actor/approx_kl"), limits.APPROX_KL_HIGH),
        None if _is_tight(run) else _above(run.get("actor/pg_clipfrac"), limits.CLIP_HIGH),
        _jump(run),
    ]
    since = [step for step in signs if step is not None]
    if not since:
        return None
    begin = min(since)
    lr = run.setting("actor.lr")
    moved = _largest(run.get("actor/approx_kl"), begin)
    kl = run.get("reward/kl")
    return Sign(
        since=begin,
        numbers={
            "approx_kl": moved,
            "clipped": _largest(run.get("actor/pg_clipfrac"), begin),
            "lr": lr if lr is not None else _largest(run.get("actor/lr"), begin),
            "kl": math.nan if kl is None else kl.value_at(begin + limits.LR_PERSIST),
        },
        variant="jump" if signs[2] == begin else "",
        confidence=0.7 + 0.1 * (len(since) - 1),
        change={"actor.lr": _lower(run, lr, begin, moved)} if lr else {},
    )


def _is_tight(run: Curves) -> bool:
    """Whether tokens are clipped though the updates are small: then it is not the learning rate."""
    moved = run.get("actor/approx_kl", least=limits.LR_PERSIST)
    clipped = run.get("actor/pg_clipfrac", least=limits.LR_PERSIST)
    if moved is None or clipped is None:
        return False
    many = clipped.running_median(limits.LR_PERSIST) > limits.CLIP_HIGH
    return bool(many.any()) and float(moved.at(clipped.steps)[many].max()) < limits.CLIP_CALM


@curve_check(
    "learning_rate",
    "warning",
    charts=("actor/pg_clipfrac", "actor/approx_kl"),
    settings=("actor.loss", "actor.epochs"),
)
def clip_too_tight(run: Curves) -> Sign | None:
    """Many tokens are clipped though the policy hardly moves."""
    clipped = run.need("actor/pg_clipfrac")
    if not _is_tight(run):
        return None
    place = onset(clipped.running_median() > limits.CLIP_HIGH)
    moved = _largest(run.get("actor/approx_kl"), int(clipped.steps[place]))
    known = [key for key in ("actor.clip_low", "actor.clip_high") if run.setting(key)]
    return Sign(
        since=int(clipped.steps[place]),
        numbers={"clipped": float(clipped.running_median()[-1]), "approx_kl": moved},
        change=dict.fromkeys(known, 0.2),
    )


def _lower(run: Curves, lr: float, since: int, moved: float) -> float:
    """A learning rate for a good update: the KL of an update grows with its square."""
    rates = run.get("actor/lr")
    there = rates.value_at(since) if rates is not None else lr
    there = lr if math.isnan(there) or there <= 0 else there
    factor = math.sqrt(limits.APPROX_KL_GOOD / moved) if moved > 0 else 0.1
    return _two_digits(min(there * factor, lr / 3))


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")


def _above(curve: Curve | None, limit: float) -> int | None:
    """Since when the running median over LR_PERSIST steps is above a limit."""
    if curve is None or len(curve) < limits.LR_PERSIST:
        return None
    high = curve.running_median(limits.LR_PERSIST)[limits.LR_PERSIST - 1 :] > limit
    place = find_onset(high, 1)
    return None if place is None else int(curve.steps[place])


def _jump(run: Curves) -> int | None:
    """Since when the distance to the reference grows by KL_JUMP within LR_PERSIST steps.

    Only where approximate KL says nothing: with one update per step the ratio is always 1.
    """
    kl = run.get("reward/kl", least=2 * limits.LR_PERSIST)
    moved = run.get("actor/approx_kl")
    if kl is None or (moved is not None and float(np.median(moved.values)) > limits.NO_RATIO):
        return None
    smooth = kl.running_median(limits.LR_PERSIST)
    grown = smooth[limits.LR_PERSIST :] - smooth[: -limits.LR_PERSIST] > limits.KL_JUMP
    return int(kl.steps[int(grown.argmax()) + 1]) if grown.any() else None


def _largest(curve: Curve | None, since: int) -> float:
    """The largest value of the SMOOTH steps from `since` on."""
    if curve is None:
        return math.nan
    near = curve.values[(curve.steps >= since) & (curve.steps < since + 2 * limits.SMOOTH)]
    return float(near.max()) if len(near) else math.nan


@ledger_sign("lr_too_high")
def ratio_tails(run: Curves, recorded: Recorded) -> Sign | None:
    """The same from recorded ratios: too many tokens moved far, in at least two steps."""
    far = []
    for step in recorded.steps():
        terms = step.updates(-1, "old_log_probs", "log_probs")
        if terms is None or not step.mask.any():
            continue
        moved = np.abs(terms["log_probs"] - terms["old_log_probs"])[step.mask]
        share = float((moved > math.log(limits.RATIO_FAR)).mean())
        if share > limits.RATIO_TAIL:
            far.append((step.step, share))
    if len(far) < 2:
        return None
    lr = run.setting("actor.lr")
    return Sign(
        since=far[0][0],
        numbers={"tail": max(share for _, share in far), "lr": lr or math.nan},
        variant="tails",
        confidence=0.7,
        change={"actor.lr": _two_digits(lr / 10)} if lr else {},
    )


@curve_check(
    "learning_rate",
    "warning",
    charts=("actor/approx_kl", "actor/lr", "reward/kl", "reward/score_mean"),
    settings=("actor.lr", "actor.warmup_steps"),
)
def lr_too_low(run: Curves) -> Sign | None:
    """The policy stays where it began: next to no movement, and no gain."""
    ended = attempt(_rate_ended, run) or _never_trained(run)
    if ended is not None:
        return ended
    moved = run.get("actor/approx_kl", least=limits.LOW_STEPS)
    kl = run.get("reward/kl", least=limits.LOW_STEPS)
    if kl is not None:  # until then only the critic is trained
        kl = kl.after(run.setting("critic_warmup") or 0)
        kl = kl if len(kl) >= limits.LOW_STEPS else None
    basis = moved or kl
    if basis is None:
        return None
    steps = basis.steps
    still = np.ones(len(steps), bool)
    if moved is not None:
        still &= moved.running_median() < limits.APPROX_KL_LOW
    if kl is not None:
        still &= np.abs(kl.median_at(steps)) < limits.KL_PINNED
    is_rounding = False
    if moved is not None and kl is not None and find_onset(still, limits.LOW_STEPS) is None:
        is_rounding = _is_at_reference(kl, _typical(moved))
        still |= is_rounding
    place = onset(still & ~run.learned(steps) & ~run.solved(steps), limits.LOW_STEPS)
    lr = run.setting("actor.lr")
    limit = run.setting("actor.max_grad_norm")
    rate = _typical(run.get("actor/lr"))
    norm = _typical(run.get("actor/grad_norm"))
    variant = "rounding" if is_rounding else ""
    change = {"actor.lr": _higher(lr, None if is_rounding else moved)} if lr else {}
    if lr and rate < limits.RATE_LOW * lr:
        variant = "rate"
        change = {"actor.warmup_steps": 0}
    elif limit and norm > limits.NORM_CUT * limit:
        variant = "cut"
        change = {"actor.max_grad_norm": 1.0}
    return Sign(
        since=int(steps[place]),
        numbers={
            "approx_kl": _typical(moved),
            "kl": _typical(kl),
            "lr": lr if lr is not None else math.nan,
            "rate": rate,
            "norm": norm,
            "limit": limit or math.nan,
        },
        variant=variant,
        confidence=0.75,
        change=change,
    )


def _is_at_reference(kl: Curve, update: float) -> bool:
    """Whether the mean KL to the reference is 0 but for noise and rounding, and noise is small.

    Updates that move the policy add up. With bfloat16, rounding alone makes an approximate KL, and
    it does not add up: after half of the steps the KL is still no more than that of one `update`.
    """
    mean = abs(float(kl.values.mean()))
    error = limits.GAIN_ERRORS * float(kl.values.std()) / math.sqrt(len(kl))
    later = float(kl.values[len(kl) // 2 :].mean())
    return (mean <= error or later <= update) and mean + error < limits.KL_PINNED


def _rate_ended(run: Curves) -> Sign | None:
    """The learning rate is at 0 long before the last step: the schedule counts other steps."""
    rates = run.need("actor/lr", least=limits.RATE_ENDED)
    highest = float(rates.values.max())
    ended = rates.values < limits.RATE_NONE * highest
    least = max(limits.RATE_ENDED, math.ceil(len(rates) / 10))
    place = onset(ended & ~run.solved(rates.steps), least)
    if not (rates.values[:place] > limits.RATE_NONE * highest).any():
        return None  # it is warming up
    return Sign(
        since=int(rates.steps[place]),
        numbers={"highest": highest, "rate": float(rates.values[place])},
        variant="ended",
        confidence=0.85,
        change={"actor.schedule": "constant"},
    )


def _never_trained(run: Curves) -> Sign | None:
    """The critic's warm-up takes all steps of the run."""
    warmup = run.setting("critic_warmup") or 0
    steps = run.setting("steps")
    if not steps or warmup < steps or run.last_step < 1:
        return None
    numbers = {"warmup": warmup, "steps": steps}
    change = {"critic_warmup": steps // 20}
    return Sign(since=1, numbers=numbers, variant="warmup", confidence=0.95, change=change)


def _typical(curve: Curve | None) -> float:
    """The median of all steps."""
    return math.nan if curve is None else float(np.median(curve.values))


def _higher(lr: float, moved: Curve | None) -> float:
    """A learning rate for a good update, from the KL of these."""
    now = _typical(moved)
    factor = math.sqrt(limits.APPROX_KL_GOOD / 5 / now) if now > 0 else 10.0
    return _two_digits(lr * min(max(factor, 3.0), 1000.0))
