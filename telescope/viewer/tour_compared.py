"""Facts of the tour about several answers: whitening, the update, and groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

from telescope.algorithms.definitions import DEFAULT_POLICY_LOSS
from telescope.explain.arithmetic import kept_of, moments
from telescope.explain.claims import equal
from telescope.explain.sample import ActorUpdate
from telescope.viewer.tour_answer import Answer
from telescope.viewer.tour_facts import Calculation, Facts, Sum, agree

SEEN = 5e-4
"""The smallest change of ρ that three decimals show."""

# ---- two answers ----


def compared_facts(answers: Sequence[Answer], count: int) -> Facts:
    """Whitening. `count`: answers of the step; the picture shows the first two of `answers`."""
    x = answers[0]
    full = x.full
    if not x.has("A", "W"):
        return {}
    who, k = _to_compare(answers)
    y = answers[who]
    a = y.columns["A"][k]
    w = y.columns["W"][k]
    out: Facts = {
        "w": y.texts[k],
        "w_i": y.at[k],
        "w_who": who,
        "w_of_zh": "第二条回答里" if who else "",
        "w_of_en": " of the second answer" if who else "",
        "w_A": a,
        "w_W": w,
        "same": agree(a, w),
        "flips": a * w < 0 and abs(w) > 5e-4,
        "answers": count,
        "pair": len(answers) > 1,
    }
    mean = full.whiten_mean
    std = full.whiten_std
    if x.sample.settings.whiten and mean is not None and std is not None:
        every = [a for answer in answers for a in answer.columns.get("A", [])]
        own = moments(every)
        out |= {
            "mu": mean,
            "sigma": std,
            "w_top": Sum([a, -mean], a - mean),
            "w_over": Calculation(a - mean, "/", std, w),
            "w_follows": agree((a - mean) / std, w),
            "own_moments": agree(own[0], mean) and agree(own[1], std),
            "tokens": len(every),
        }
    return out


def _to_compare(answers: Sequence[Answer]) -> tuple[int, int]:
    """The answer and its step whose whitening teaches most: one whose sign flips, if any does."""
    choices = [(who, k) for who, x in enumerate(answers[:2]) for k in x.shown()]
    choices = [(who, k) for who, k in choices if answers[who].has("A", "W")]

    def size(choice: tuple[int, int]) -> tuple[bool, float]:
        columns = answers[choice[0]].columns
        a = columns["A"][choice[1]]
        w = columns["W"][choice[1]]
        return a * w < 0, abs(a)

    return max(choices, key=size)


def update_facts(answers: Sequence[Answer]) -> Facts:
    """ρ of the token that the update changed most, one that moved as its Â says before others."""
    found = [(who, x, x.update) for who, x in enumerate(answers[:2])]
    choices = [
        (*_teaches(x, update, k), -who, -k)
        for who, x, update in found
        if update is not None and x.has("W")
        for k in x.shown()
        if kept_of(x.full)[x.at[k]]
    ]
    if not choices:
        return {}
    *_, who, k = max(choices)
    x = answers[-who]
    update = x.update
    assert update is not None
    t = x.at[-k]
    actor = x.sample.settings.actor
    rho = update.ratio[t]
    old = math.exp(min(update.old_log_probs[t], 0.0))
    new = math.exp(min(update.log_probs[t], 0.0))
    low = 1 - getattr(actor, "clip_low", 0.0)
    high = 1 + getattr(actor, "clip_high", 0.0)
    return {
        "u": x.texts[-k],
        "u_i": t,
        "u_who": -who,
        "u_rho": rho,
        "u_old": old,
        "u_new": new,
        "u_W": x.columns["W"][-k],
        "u_own": old > 0 and agree(rho, new / old),
        "u_over": Calculation(new, "/", old, rho),
        "u_size": abs(rho - 1),
        "u_against": (rho - 1) * x.columns["W"][-k] < 0 and abs(rho - 1) >= SEEN,
        "u_first": all(equal(ratio, 1.0) for ratio in (update.ratio[t] for t in x.at)),
        "u_clipped": bool(update.clipped and update.clipped[t]),
        "u_dual": bool(update.dual_clipped and update.dual_clipped[t]),
        "ppo": x.sample.settings.loss == DEFAULT_POLICY_LOSS,
        "low_limit": low,
        "high_limit": high,
    }


def _teaches(x: Answer, update: ActorUpdate, k: int) -> tuple[bool, bool, float]:
    """How good an example of the update a token is."""
    t = x.at[k]
    change = update.ratio[t] - 1
    as_wanted = change * x.columns["W"][k] > 0 and abs(change) >= SEEN
    return as_wanted, bool(update.clipped and update.clipped[t]), abs(change)


# ---- estimators without a critic ----


def group_facts(x: Answer, group: Sequence[Answer]) -> Facts:
    """What the answer's outcome is compared with. `group`: recorded answers to the same prompt."""
    if not x.has("r", "A"):
        return {}
    k = x.focus()
    advantages = x.columns["A"]
    words = x.sample.settings.estimator_definition.words
    out: Facts = {
        "g": x.texts[k],
        "g_i": x.at[k],
        "g_A": advantages[k],
        "equal_A": all(agree(a, advantages[0]) for a in advantages),
        "rule_zh": words.zh,
        "rule_en": words.en,
        "members": len(group),
    }
    outcomes = [member.outcome for member in group if member.has("r")]
    if outcomes:
        out |= {"best": max(outcomes), "worst": min(outcomes)}
    if "baselines" not in x.full.columns:
        return out
    b = x.full.columns["baselines"][x.at[k]]
    scale = x.sample.scale
    others = [member.outcome for member in group if member is not x and member.has("r")]
    is_scaled = scale is not None and scale != 1.0
    out |= {"b": b, "above": x.outcome - b, "scaled": is_scaled}
    out["b_is_mean"] = len(outcomes) > 1 and agree(b, math.fsum(outcomes) / len(outcomes))
    out["b_is_others"] = bool(others) and agree(b, math.fsum(others) / len(others))
    out["b_sum"] = Sum([x.outcome, -b], x.outcome - b)
    if is_scaled:
        assert scale is not None
        out["scale"] = scale
        out["g_over"] = Calculation(x.outcome - b, "/", scale, advantages[k])
    out["A_is_difference"] = agree((x.outcome - b) / (scale or 1.0), advantages[k])
    return out
