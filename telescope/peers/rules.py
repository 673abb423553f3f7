"""Rules of another trainer that its numbers follow where they do not follow ours.

Each is tried only where our own rule fails, and named only if every number of the batch fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from telescope.algorithms.definitions.kl import NAMES, kl_estimate
from telescope.explain.settings import Settings
from telescope.peers.rows import Array, WatchedStep

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


def flat(watched: WatchedStep, name: str) -> Array | None:
    """A column's numbers on the tokens that the policy wrote, one after the other."""
    rows = watched.columns.get(name)
    if rows is None:
        return None
    return np.concatenate([_on(row, m) for row, m in zip(rows, watched.mask, strict=True)])


def _on(row: Array, mask: Array) -> Array:
    return np.asarray(row)[mask > 0].astype(np.float64)


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
    old = flat(watched, "old_log_probs")
    ref = flat(watched, "ref_log_prob")
    kl = _recorded_kl(watched, settings)
    if old is None or ref is None or kl is None or not np.any(np.abs(kl) > CLOSE):
        return None

    def estimated(kind: str) -> Array:
        estimate = kl_estimate(kind)
        return np.array([estimate.scalar(float(d)) for d in old - ref])

    ours = settings.credit.kl_kind
    if same(kl, estimated(ours)):
        return None
    fits = [kind for kind in NAMES if kind != ours and same(kl, estimated(kind))]
    if not fits:
        return None
    return {
        "en": f"the trainer's KL per token is {fits[0]}, not {ours}: set kl_kind to {fits[0]}.",
        "zh": f"训练器的逐 token KL 是 {fits[0]}，不是 {ours}：请把 kl_kind 设为 {fits[0]}。",
    }


def _recorded_kl(watched: WatchedStep, settings: Settings) -> Array | None:
    """The KL as it was recorded, or what was taken from the score."""
    recorded = flat(watched, "kl")
    if recorded is not None:
        return recorded
    scores = flat(watched, "token_level_scores")
    rewards = flat(watched, "token_level_rewards")
    beta = settings.credit.kl_coef
    if scores is None or rewards is None or not beta:
        return None
    return np.asarray((scores - rewards) / beta)


def _kl_in_bfloat16(watched: WatchedStep, settings: Settings) -> Rule | None:
    """verl's V1 trainer has log-probs in bfloat16, and so the product of β and their difference."""
    names = ("old_log_probs", "ref_log_prob", "token_level_scores", "token_level_rewards")
    columns = [flat(watched, name) for name in names]
    beta = settings.credit.kl_coef
    if not beta or settings.credit.kl_kind != "k1":
        return None
    if any(column is None for column in columns):
        return None
    old, ref, scores, rewards = (np.asarray(column) for column in columns)
    off = np.abs(scores - beta * (old - ref) - rewards)
    rounded = np.abs(scores - _bfloat16(beta * _bfloat16(old - ref)) - rewards)
    bound = np.maximum(1.0, np.abs(scores))
    if not (off > EXACT * bound).any() or not (rounded <= EXACT / 10 * bound).all():
        return None
    return {
        "en": "the trainer computes β·KL in bfloat16: a reward is off by up to 0.4 % of its KL "
        "penalty. Telescope computes it in float64.",
        "zh": "训练器用 bfloat16 计算 β·KL：一个奖励最多差其 KL 惩罚的 0.4 %。"
        "Telescope 用 float64。",
    }


def _bfloat16(numbers: Array) -> Array:
    """The numbers rounded to bfloat16, to even where two are as near."""
    bits = numbers.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


# ---- GAE across a tool's tokens ----


def _gaps_take_time(watched: WatchedStep, settings: Settings) -> Rule | None:
    columns = watched.columns
    if not {"values", "returns", "token_level_rewards"} <= columns.keys():
        return None
    if settings.own_lam is None or all(mask.all() for mask in watched.mask):
        return None
    if same(_gae(watched, settings, "skipped"), _all_returns(watched)):
        return None
    for kind, (en, zh) in GAPS.items():
        if same(_gae(watched, settings, kind), _all_returns(watched)):
            return {
                "en": f"the trainer counts a tool's tokens as time steps {en}: the tokens before "
                "them are γλ further from the end. Telescope skips them.",
                "zh": f"训练器把工具的 token 也算作时间步，{zh}：它们之前的 token 离结尾多了 γλ "
                "的折扣。Telescope 跳过它们。",
            }
    return None


GAPS = {
    "zero": ("with V = 0", "那里 V 记为 0"),
    "own": ("with a V of their own", "那里用它们自己的 V"),
}


def _all_returns(watched: WatchedStep) -> Array:
    found = flat(watched, "returns")
    assert found is not None
    return found


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
    whitened = watched.columns.get("whitened")
    if raw is None or whitened is None or not settings.whiten or moments is None:
        return None
    used = [_on(row, mask) for row, mask in zip(whitened, watched.mask, strict=True)]
    every = np.concatenate(used)
    if len(every) < 4 or same((np.concatenate(raw) - moments[0]) / moments[1], every):
        return None
    if same(_white(raw, 0), every):
        return {
            "en": "the trainer's σ is over n tokens, Telescope's over n − 1.",
            "zh": "训练器的 σ 除以 n，Telescope 除以 n − 1。",
        }
    for parts, count in _shards(len(raw)):
        made = [_white(raw[start : start + count], 1) for start in range(0, len(raw), count)]
        if same(np.concatenate(made), every):
            return {
                "en": f"the trainer whitens in {parts} parts of {count} answers each, as {parts} "
                "ranks do that do not share μ and σ. Telescope whitens over the whole batch.",
                "zh": f"训练器分 {parts} 份白化，每份 {count} 条：就像 {parts} 个 rank 各用各的 "
                "μ 和 σ。Telescope 在整批上白化。",
            }
    return None


def raw_rows(watched: WatchedStep) -> list[Array] | None:
    """A of the tokens that the policy wrote, row by row: given, or R − V."""
    columns = watched.columns
    if "advantages" in columns:
        rows: Sequence[Array] = columns["advantages"]
    elif {"returns", "values"} <= columns.keys():
        pairs = zip(columns["returns"], columns["values"], strict=True)
        rows = [np.asarray(a, np.float64) - np.asarray(b, np.float64) for a, b in pairs]
    else:
        return None
    return [_on(row, mask) for row, mask in zip(rows, watched.mask, strict=True)]


def _white(rows: Sequence[Array], ddof: int) -> Array:
    flat = np.concatenate(rows)
    if len(flat) < 2:
        return flat
    return np.asarray((flat - flat.mean()) / np.sqrt(flat.var(ddof=ddof) + 1e-8))


def _shards(rows: int) -> Iterator[tuple[int, int]]:
    """(parts, rows of each) for every number of equal parts."""
    for parts in range(2, min(rows, MOST_PARTS) + 1):
        if rows % parts == 0:
            yield parts, rows // parts
