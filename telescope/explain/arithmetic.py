"""PPO's arithmetic on plain floats: what `fill` computes for numbers typed by hand, and `trace` checks against the record.

The same functions on tensors are in telescope.algorithms; here nothing imports torch.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from telescope.errors import TelescopeError
from telescope.explain.sample import ActorUpdate, CriticUpdate, Sample, Settings


def kl_estimate(d: float, kind: str) -> float:
    """Per-token KL from d = log π − log π_ref; telescope.algorithms.kl_penalty has the same on tensors."""
    kind = kind.removesuffix("+")
    if kind in ("k1", "kl"):
        return d
    if kind == "abs":
        return abs(d)
    if kind in ("k2", "mse"):
        return 0.5 * d * d
    if kind in ("k3", "low_var_kl"):
        d = clamp(d, -20.0, 20.0)
        return clamp(math.expm1(-d) + d, 0.0, 10.0)
    raise TelescopeError(
        f"unknown KL kind {kind!r}; use one of k1, abs, k2, k3 (kl, mse, low_var_kl are their other names)"
    )


def ratio_of(log_prob: float, old_log_prob: float) -> float:
    return math.exp(clamp(log_prob - old_log_prob, -20.0, 20.0))


def policy_term(ratio: float, a: float, s: Settings) -> tuple[float, str]:
    """PPO's clipped objective of one token (the loss is its negative), and which branch gave it."""
    unclipped, clipped = ratio * a, clamp(ratio, 1 - s.clip_low, 1 + s.clip_high) * a
    if clipped < unclipped:
        term, state = clipped, "clipped"
    else:
        term, state = unclipped, "inside" if 1 - s.clip_low <= ratio <= 1 + s.clip_high else "kept"
    if s.dual_clip is not None and a < 0 and term < s.dual_clip * a:
        return s.dual_clip * a, "dual"
    return term, state


def value_term(
    value: float, old: float, target: float, clip: float | None, huber: float | None = None
) -> tuple[float, str]:
    """The critic's loss of one token, the larger of the plain and the clipped error, and which one gave it."""

    def error(x: float) -> float:
        e = abs(x - target)
        return 0.5 * e * e if huber is None or e <= huber else huber * (e - 0.5 * huber)

    plain = error(value)
    if clip is None:
        return plain, "off"
    inside = clamp(value, old - clip, old + clip)
    if error(inside) > plain:
        return error(inside), "clipped"
    return plain, "inside" if inside == value else "kept"


def histogram_target(target: float, first: int, count: int, s: Settings) -> list[float]:
    """What `count` bins from `first` on should have: the mass in each of the Gaussian around R, over its mass in the whole range."""
    target, width = clamp(target, s.value_low, s.value_high), (s.value_high - s.value_low) / s.bins

    def below(edge: int) -> float:
        return 0.5 * math.erfc(
            (target - s.value_low - edge * width) / (s.value_sigma * math.sqrt(2))
        )

    whole = below(s.bins) - below(0)
    return [(below(k + 1) - below(k)) / whole for k in range(first, first + count)]


def lam_of(s: Settings, tokens: int) -> float:
    """The λ of a response of so many tokens."""
    return s.lam if s.lam_alpha is None else max(1 - 1 / (s.lam_alpha * max(tokens, 1)), 0.0)


def kept_of(sample: Sample) -> list[bool]:
    """Which tokens an update takes: those the policy wrote, less those whose π_old/π_sampler is out of bounds."""
    s, at = sample.settings, [t for t, m in enumerate(sample.mask) if m]
    old, sampler = (sample.columns.get(name) for name in ("old_log_probs", "rollout_log_probs"))
    if s.reject == "off" or old is None or sampler is None:
        return [bool(m) for m in sample.mask]
    gaps = {t: old[t] - sampler[t] for t in at}
    total = math.fsum(gaps.values())
    row = total / max(len(at), 1) if s.reject == "geometric" else total
    low, high = math.log(s.reject_low), math.log(s.reject_high)
    return [
        t in gaps and low <= (gaps[t] if s.reject == "token" else row) <= high
        for t in range(len(sample))
    ]


class Steps:
    """The tokens the policy wrote, as time steps."""

    def __init__(self, sample: Sample) -> None:
        self.at = [t for t, m in enumerate(sample.mask) if m]
        self.bootstrap = sample.bootstrap
        self._next = dict(zip(self.at, [*self.at[1:], None], strict=True))

    def next(self, t: int) -> int | None:
        return self._next[t]

    def onwards(self, t: int) -> list[int]:
        return self.at[bisect.bisect_left(self.at, t) :]

    def value_after(self, t: int, values: Sequence[float]) -> float:
        n = self.next(t)
        return self.bootstrap if n is None else values[n]


def fill(sample: Sample) -> Sample:
    """The sample with every column that follows from those it has; what was given stays as it was given.

    Without a batch's μ and σ, whitening takes those of this response alone.
    """
    columns, s, steps = dict(sample.columns), sample.settings, Steps(sample)

    def put(name: str, needs: Iterable[str], step: Callable[..., float]) -> None:
        if name not in columns and all(need in columns for need in needs):
            made = [0.0] * len(sample)
            columns[name] = made
            for t in reversed(steps.at):
                made[t] = step(t, steps.next(t), made, *(columns[need] for need in needs))

    put(
        "kl",
        ("old_log_probs", "ref_log_prob"),
        lambda t, n, _, old, ref: kl_estimate(old[t] - ref[t], s.kl_kind),
    )
    put(
        "token_level_rewards",
        ("token_level_scores", "kl"),
        lambda t, n, _, score, kl: score[t] - s.kl_coef * kl[t],
    )
    if s.kl_coef == 0:
        put("token_level_rewards", ("token_level_scores",), lambda t, n, _, score: score[t])
    put(
        "deltas",
        ("token_level_rewards", "values"),
        lambda t, n, _, r, v: r[t] + s.gamma * steps.value_after(t, v) - v[t],
    )
    if s.estimator == "monte_carlo":
        put(
            "returns",
            ("token_level_rewards",),
            lambda t, n, own, r: r[t] + s.gamma * (steps.bootstrap if n is None else own[n]),
        )
        put("advantages", ("returns", "values"), lambda t, n, _, returns, v: returns[t] - v[t])
    decay = 0.0 if s.estimator == "td0" else s.gamma * lam_of(s, len(steps.at))
    if s.estimator in ("gae", "td0"):
        put(
            "advantages",
            ("deltas",),
            lambda t, n, own, delta: delta[t] + (0.0 if n is None else decay * own[n]),
        )
    if s.lam_critic is not None and s.estimator == "gae":
        more = s.gamma * s.lam_critic
        put(
            "returns",
            ("deltas", "values"),
            lambda t, n, own, d, v: v[t] + d[t] + (0.0 if n is None else more * (own[n] - v[n])),
        )
    put("returns", ("advantages", "values"), lambda t, n, _, a, v: a[t] + v[t])
    mean, std = sample.whiten_mean, sample.whiten_std
    if s.whiten and "advantages" in columns and (mean is None or std is None):
        mean, std = moments([columns["advantages"][t] for t in steps.at])
    if not s.whiten:
        put("whitened", ("advantages",), lambda t, n, _, a: a[t])
    elif mean is not None and std is not None:
        put("whitened", ("advantages",), lambda t, n, _, a: (a[t] - mean) / std)
    full = replace(
        sample,
        columns=columns,
        whiten_mean=mean if s.whiten else None,
        whiten_std=std if s.whiten else None,
    )
    return replace(
        full,
        actor_updates=[_fill_actor(full, u) for u in sample.actor_updates],
        critic_updates=[_fill_critic(full, u) for u in sample.critic_updates],
    )


def moments(numbers: Sequence[float]) -> tuple[float, float]:
    """(μ, σ) as masked_whiten takes them: Bessel's n − 1, and 1e-8 inside the root."""
    n = len(numbers)
    mean = math.fsum(numbers) / max(n, 1)
    return mean, math.sqrt(
        math.fsum((x - mean) * (x - mean) for x in numbers) / max(n - 1, 1) + 1e-8
    )


def alone(full: Sample) -> bool:
    """Whether μ and σ of a filled sample are those of its own tokens: there was no batch, or only this response in it."""
    a, mean, std = full.columns.get("advantages"), full.whiten_mean, full.whiten_std
    if a is None or mean is None or std is None:
        return False
    own = moments([x for x, m in zip(a, full.mask, strict=True) if m])
    return all(abs(x - y) <= 1e-5 * max(1.0, abs(y)) for x, y in zip((mean, std), own, strict=True))


def _fill_actor(full: Sample, u: ActorUpdate) -> ActorUpdate:
    a, s = full.columns.get("whitened"), full.settings
    ratio = u.ratio or [
        ratio_of(new, old) if m else 0.0
        for new, old, m in zip(u.log_probs, u.old_log_probs, full.mask, strict=True)
    ]
    if u.loss or a is None:
        return replace(u, ratio=ratio)
    terms = [
        policy_term(p, x, s) if m else (0.0, "inside")
        for p, x, m in zip(ratio, a, full.mask, strict=True)
    ]
    if s.loss == "cpi":
        terms = [(p * x, "off") for p, x in zip(ratio, a, strict=True)]
    clipped, dual = ([state == name for _, state in terms] for name in ("clipped", "dual"))
    return replace(
        u, ratio=ratio, clipped=clipped, dual_clipped=dual, loss=[-term for term, _ in terms]
    )


def _fill_critic(full: Sample, u: CriticUpdate) -> CriticUpdate:
    old, target = full.columns.get("values"), full.columns.get("returns")
    if u.loss or old is None or target is None or full.settings.bins:
        return u
    rows = zip(u.values, old, target, full.mask, strict=True)
    s = full.settings
    terms = [
        value_term(v, o, r, s.clip_value, s.huber_delta) if m else (0.0, "inside")
        for v, o, r, m in rows
    ]
    return replace(
        u, clipped=[state == "clipped" for _, state in terms], loss=[loss for loss, _ in terms]
    )


def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)
