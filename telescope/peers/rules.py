"""Rules of another trainer that its numbers follow where they do not follow ours.

Each is tried only where our own rule fails, and named only if every number of the batch fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from telescope.algorithms.definitions.kl import NAMES, kl_estimate
from telescope.explain.settings import Settings
from telescope.peers.rows import Array, WatchedStep
from telescope.peers.words import said

CLOSE = 2e-3
"""Numbers of bfloat16 that should be equal differ by less, relative to 1 or to themselves."""
EXACT = 1e-5
"""Numbers of float32 that should be equal differ by less."""
MOST_PARTS = 64
Rule = dict[str, str]
Moments = tuple[float, float] | None


def rules_of(
    whole: WatchedStep, shown: WatchedStep, settings: Settings, moments: Moments = None
) -> list[Rule]:
    """The rules of the trainer that its numbers show, as {"zh": …, "en": …}.

    Whitening is about the whole batch; the rest is seen on the answers that are recorded.
    """
    found = (
        _kl_kind(shown, settings),
        _kl_in_bfloat16(shown, settings),
        _gaps_take_time(shown, settings),
        _whitened_otherwise(whole, settings, moments),
    )
    return [rule for rule in found if rule is not None]


def same(a: Array, b: Array, *, tight: bool = False) -> bool:
    """Whether two columns agree on every token; an empty one agrees with nothing.

    `tight`: as float32 does, not only as bfloat16.
    """
    if not len(a) or a.shape != b.shape or not (np.isfinite(a) & np.isfinite(b)).all():
        return False
    allowed = EXACT if tight else CLOSE
    return bool((np.abs(a - b) <= allowed * np.maximum(1.0, np.abs(b))).all())


# ---- KL ----


def _kl_kind(watched: WatchedStep, settings: Settings) -> Rule | None:
    kl = _recorded_kl(watched, settings)
    if kl is None or not np.any(np.abs(kl) > CLOSE):
        return None
    fits = [kind for kind, estimated in estimated_kls(watched) if same(kl, estimated)]
    ours = settings.credit.kl_kind
    if not fits or kl_estimate(ours).name in fits:
        return None
    return said("kl_kind", found=fits[0], ours=ours)


def estimated_kls(
    watched: WatchedStep, kinds: Iterable[str] = NAMES
) -> Iterator[tuple[str, Array]]:
    """Each kind of KL, and what it is on every token; none where a policy is not known."""
    old, ref = watched.flat("old_log_probs"), watched.flat("ref_log_prob")
    if old is None or ref is None:
        return
    for kind in kinds:
        estimate = kl_estimate(kind)
        yield kind, np.array([estimate.scalar(float(d)) for d in old - ref])


def _recorded_kl(watched: WatchedStep, settings: Settings) -> Array | None:
    """The KL as it was recorded, or what was taken from the score."""
    recorded = watched.flat("kl")
    if recorded is not None:
        return recorded
    scores = watched.flat("token_level_scores")
    rewards = watched.flat("token_level_rewards")
    beta = settings.credit.kl_coef
    if scores is None or rewards is None or not beta:
        return None
    return np.asarray((scores - rewards) / beta)


def _kl_in_bfloat16(watched: WatchedStep, settings: Settings) -> Rule | None:
    """verl's V1 trainer has log-probs in bfloat16, and so the product of β and their difference."""
    names = ("old_log_probs", "ref_log_prob", "token_level_scores", "token_level_rewards")
    columns = [column for name in names if (column := watched.flat(name)) is not None]
    beta = settings.credit.kl_coef
    if len(columns) < len(names) or not beta or settings.credit.kl_kind != "k1":
        return None
    old, ref, scores, rewards = columns
    off = np.abs(scores - beta * (old - ref) - rewards)
    rounded = np.abs(scores - _bfloat16(beta * _bfloat16(old - ref)) - rewards)
    bound = np.maximum(1.0, np.abs(scores))
    if not (off > EXACT * bound).any() or not (rounded <= EXACT / 10 * bound).all():
        return None
    return said("kl_in_bfloat16")


def _bfloat16(numbers: Array) -> Array:
    """The numbers rounded to bfloat16, to even where two are as near."""
    bits = numbers.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


# ---- GAE across a tool's tokens ----


def _gaps_take_time(watched: WatchedStep, settings: Settings) -> Rule | None:
    returns = watched.flat("returns")
    if returns is None or not {"values", "token_level_rewards"} <= watched.columns.keys():
        return None
    if settings.own_lam is None or all(mask.all() for mask in watched.mask):
        return None
    if same(_gae(watched, settings, "skipped"), returns):
        return None
    for kind in ("zero", "own"):
        if same(_gae(watched, settings, kind), returns):
            return said(f"gaps_{kind}")
    return None


def _gae(watched: WatchedStep, settings: Settings, kind: str) -> Array:
    """R = A + V of every written token, a tool's tokens treated as `kind` says."""
    columns = watched.columns
    rows = zip(columns["values"], columns["token_level_rewards"], watched.mask, strict=True)
    made = []
    for values, rewards, mask in rows:
        v = np.asarray(values, np.float64)
        r = np.where(mask > 0, np.asarray(rewards, np.float64), 0.0)
        if kind == "zero":
            v = np.where(mask > 0, v, 0.0)
        steps = np.flatnonzero(mask) if kind == "skipped" else np.arange(len(mask))
        decay = settings.gamma * settings.lam(int((mask > 0).sum()))
        returns = np.zeros(len(mask))
        following = 0.0
        after = 0.0
        for t in steps[::-1]:
            following = r[t] + settings.gamma * after - v[t] + decay * following
            after = v[t]
            returns[t] = following + v[t]
        made.append(returns[mask > 0])
    return np.concatenate(made)


# ---- whitening ----


def _whitened_otherwise(watched: WatchedStep, settings: Settings, moments: Moments) -> Rule | None:
    raw = raw_rows(watched)
    used = watched.flat("whitened")
    if raw is None or used is None or not settings.whiten or moments is None:
        return None
    if len(used) < 4 or same((np.concatenate(raw) - moments[0]) / moments[1], used):
        return None
    if same(_white(raw, 0), used):
        return said("sigma_over_n")
    for parts in range(2, min(len(raw), MOST_PARTS) + 1):
        count, rest = divmod(len(raw), parts)
        if rest:
            continue
        made = [_white(raw[start : start + count], 1) for start in range(0, len(raw), count)]
        if same(np.concatenate(made), used):
            return said("whitened_in_parts", parts=parts, count=count)
    return None


def raw_rows(watched: WatchedStep) -> list[Array] | None:
    """A of the tokens that the policy wrote, row by row: given, or R − V."""
    if "advantages" in watched.columns:
        return watched.written("advantages")
    returns, values = watched.written("returns"), watched.written("values")
    if returns is None or values is None:
        return None
    return [a - b for a, b in zip(returns, values, strict=True)]


def _white(rows: Sequence[Array], ddof: int) -> Array:
    flat = np.concatenate(rows)
    if len(flat) < 2:
        return flat
    return np.asarray((flat - flat.mean()) / np.sqrt(flat.var(ddof=ddof) + 1e-8))
