"""The learner's questions (questions.toml), answered with the numbers of the sample at hand.

Index everywhere: values[i] and returns[i] belong to the state before token i; scores, rewards, δ and advantages to token
i itself; n is the next token that the policy wrote. A Monte Carlo run is GAE at λ=1, a TD(0) run GAE at λ=0.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from telescope.algorithms.definitions import DEFAULT_ESTIMATOR
from telescope.algorithms.definitions.notation import less, listed, num, one_step, plus
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import lam_of, policy_term, value_term
from telescope.explain.numbers import from_numbers
from telescope.explain.sample import Sample
from telescope.explain.text import pieces, plain, shorten
from telescope.explain.trace import Tracer, fill
from telescope.explain.words import Lang, Level, ui

EXAMPLE = from_numbers(
    {
        "prompt": "请问1+1=2？",
        "tokens": ["是", "的", "，", "等于", "2", "！"],
        "score": 1.0,
        "old": [-0.36, -0.20, -0.15, -0.51, -0.40, -0.05],
        "ref": [-0.46, -0.25, -0.10, -0.61, -0.60, -0.10],
        "values": [0.2, 0.25, 0.3, 0.35, 0.45, 0.6],
        "beta": 0.1,
    }
)
"""Stands in where a sample lacks the columns that an answer needs; the answer says so."""

NOTE = {
    "zh": "（这条样本没有 {}；下面用内置例子「是的，等于2！」的数。）\n",
    "en": "(This sample has no {}; the numbers are of the built-in example «是的，等于2！».)\n",
}

HISTOGRAM = {
    "zh": "\n（这次训练的 critic 预测直方图（critic.loss = hl_gauss）：代替平方误差的是与 R 摊成的分布的交叉熵，也不裁剪。）",
    "en": "\n(This run's critic predicts a histogram (critic.loss = hl_gauss): cross-entropy with R spread out replaces the squared error, "
    "without a clip.)",
}

HUBER = {
    "zh": "\n（这次训练的 critic 用 Huber 损失 H：误差不超过 {huber} 时是 ½·误差²，超过后按直线增加，代替上面的平方。）",
    "en": "\n(This run's critic has a Huber loss H: ½·error² up to an error of {huber}, a straight line beyond, in place of the square.)",
}

OWN_LAM = {
    "expert_zh": "\n（这次训练里 critic 的目标用自己的 λ={lam_R}，不是 A 的 λ={lam}：目标是 V 加上按它算的优势。）",
    "expert_en": "\n(In this run the critic's target has a λ of its own, {lam_R}, not A's {lam}: it is V plus the advantage of that λ.)",
    "kid_zh": "\n（算目标时远处再打的折是 {lam_R}，算功劳时是 {lam}：目标里的功劳是按前一个另算的。）",
    "kid_en": "\n(For the target the extra discount for far words is {lam_R}, for the credit {lam}: its credit is another one.)",
}


@functools.cache
def _questions() -> dict[int, dict[str, Any]]:
    texts = tomllib.loads(Path(__file__).with_name("questions.toml").read_text("utf-8"))
    return {int(number): entry for number, entry in texts.items()}


def titles(lang: Lang = "zh", level: Level = "expert") -> list[tuple[int, str]]:
    return [
        (number, entry[f"kid_title_{lang}" if level == "kid" else lang])
        for number, entry in _questions().items()
    ]


def answer(
    number: int,
    sample: Sample,
    lang: Lang = "zh",
    level: Level = "expert",
    token: int | None = None,
    simulate: Callable[[], dict[str, str]] | None = None,
) -> str:
    """The answer to question `number` with this sample's numbers.

    Where it takes one token as its example, that is `token`, or the first that the policy wrote. `simulate` makes the numbers for
    what is tried out besides, on many episodes (telescope.run.simulation.facts, which needs torch); without it that is left out.
    """
    entry = _questions().get(number)
    if entry is None:
        raise TelescopeError(f"no question {number}: there are 1 to {len(_questions())}")
    columns = fill(sample).columns if any(sample.mask) else {}
    missing = [name for name in entry["needs"] if name not in columns]
    definition = sample.settings.estimator_definition
    if not definition.needs.critic:  # the questions are about values, TD errors and GAE
        missing.append(f"critic (estimator {definition.name})")
    used = EXAMPLE if missing else sample
    key = f"{level}_{lang}"
    if not used.settings.whiten:
        key = f"{key}_raw" if f"{key}_raw" in entry else key
    if token is not None and not missing and not (0 <= token < len(sample) and sample.mask[token]):
        raise TelescopeError(
            f"token {token} was not written by the policy, so that no answer is about it: choose another"
        )
    known, said = facts(used, lang, None if missing else token), entry[key]
    if simulate is not None and (tried := entry.get(f"tried_{level}_{lang}")):
        known, said = known | simulate(), f"{said}\n{tried}"
    if level == "kid":
        known |= {
            name: re.sub(r"\[|\]|λ=", "", text) for name, text in known.items() if "«" not in text
        }  # a token stays as it is
    known["four"] = _questions()[2][f"expert_{lang}"].format_map(known) if "{four}" in said else ""
    squared = "½" in said or "{plain}" in said
    after = HISTOGRAM[lang] if used.settings.histogram and squared else ""
    after += (
        HUBER[lang].format_map(known) if used.settings.huber_delta is not None and squared else ""
    )
    if known.get("lam_R", known["lam"]) != known["lam"] and re.search("{(R|Rs|target|four)}", said):
        after += OWN_LAM[f"{level}_{lang}"].format_map(known)
    text = (
        (NOTE[lang].format(", ".join(missing)) if missing else "") + said.format_map(known) + after
    )
    return plain(text, ui("almost", lang, level)) if level == "kid" else text


def facts(sample: Sample, lang: Lang, token: int | None = None) -> dict[str, str]:
    """Every number that a text may name, for `token` (or the first that the policy wrote), the last one, and all of them."""
    tracer = Tracer(sample)
    c, s, at, full = tracer.full.columns, sample.settings, tracer.steps.at, tracer.full
    i, last, lam = (
        at[0] if token is None else token,
        at[-1],
        lam_of(s, len(at)),
    )
    n, count, left, decay = (
        tracer.steps.next(i),
        len(at),
        len(tracer.steps.onwards(i)),
        s.gamma * lam,
    )
    texts = [shorten(text, 24) for text in pieces(sample.token_bytes)]

    def row(numbers: Sequence[float]) -> str:
        return listed([numbers[t] for t in at])

    def say(zh: str, en: str) -> str:
        return en if lang == "en" else zh

    out = {
        "i": str(i),
        "last": str(last),
        "tok": f"{i} «{texts[i]}»",
        "last_tok": f"{last} «{texts[last]}»",
        "T": str(len(sample)),
    }
    out |= {
        "gamma": num(s.gamma),
        "lam": num(lam),
        "gl": num(decay),
        "beta": num(s.credit.kl_coef),
        "left": str(left),
    }
    out |= {
        "next": "V_end" if n is None else f"V[{n}]",
        "end": num(sample.bootstrap),
        "ids": row([*map(float, sample.token_ids)]),
    }
    shares = [decay ** max(len(tracer.steps.onwards(t)) - 1, 0) for t in range(len(sample))]
    out |= {
        "share": num(shares[i]),
        "percent": num(100 * shares[i]),
        "shares": row([100 * x for x in shares]),
    }
    out["share_mc"] = num(s.gamma ** (left - 1))
    for name, column in {
        "V": "values",
        "r": "token_level_rewards",
        "d": "deltas",
        "A": "advantages",
        "R": "returns",
        "W": "whitened",
    }.items():
        if column in c:
            out |= {
                name: num(c[column][i]),
                f"{name}_last": num(c[column][last]),
                f"{name}s": row(c[column]),
            }
            out[f"{name}_sum"] = num(
                math.fsum(c[column][t] for t in (tracer.steps.onwards(i) if name == "A" else at))
            )
    for name, column in {
        "scores": "token_level_scores",
        "olds": "old_log_probs",
        "refs": "ref_log_prob",
        "kls": "kl",
    }.items():
        out[name] = row(c[column]) if column in c else "?"
    if "old_log_probs" in c:
        out["pi_olds"] = row([math.exp(min(x, 0.0)) for x in c["old_log_probs"]])
    if "values" in c and "token_level_rewards" in c:
        out |= _credit(tracer, i, row, say, lam)
    if "whitened" in c and "advantages" in c:
        flips = [t for t in at if c["advantages"][t] * c["whitened"][t] < 0]
        out |= {
            "mean": num(math.fsum(c["whitened"][t] for t in at) / count),
            "signs": say("没有 token 变号", "no sign changed"),
        }
        if flips:
            out["signs"] = say(
                f"{len(flips)} 个 token 变号（{flips}）",
                f"the sign of {len(flips)} tokens changed ({flips})",
            )
        out |= {"mu": num(full.whiten_mean or 0.0), "sigma": num(full.whiten_std or 1.0)}
        out["whose"] = say(
            "取自整批所有有效 token，只算一次，不是每条回答各算",
            "taken once over all valid tokens of the whole batch, not per response",
        )
        if tracer.alone:
            out["whose"] = say(
                "只来自这一条回答：这里没有整批（训练时取自整批所有有效 token，不是每条回答各算）",
                "of this response alone, there is no batch here (in training: over all valid tokens of the whole batch, not per response)",
            )
        out["update"] = ""
        if full.actor_updates:
            u, a = full.actor_updates[-1], c["whitened"]
            kept = [
                t for t in at if tracer.kept[t]
            ]  # less those whose π_old/π_sampler is out of bounds
            terms, clips = (
                [u.ratio[t] * a[t] for t in kept],
                [policy_term(u.ratio[t], a[t], s)[0] for t in kept],
            )
            mean, clipped = (num(math.fsum(x) / max(len(kept), 1)) for x in (terms, clips))
            left_out = [t for t in at if not tracer.kept[t]]
            out_of = (
                say(
                    f"不参加更新的 token：{left_out}。",
                    f" Tokens left out of the update: {left_out}.",
                )
                if left_out
                else ""
            )
            which = (
                say("给出的更新", "With the new log-probs given")
                if u.epoch < 0
                else say("最后一次更新", "In the last update")
            )
            ratio, plainly, limited = (
                listed(x) for x in ([u.ratio[t] for t in kept], terms, clips)
            )
            out["update"] = say(
                f"{which}：ρ = {ratio}，各项 ρ·Â = {plainly}，均值 {mean}；PPO 裁剪后各项 {limited}，均值 {clipped}。{out_of}",
                f" {which}: ρ = {ratio}, terms ρ·Â = {plainly}, mean {mean}; PPO's clipped terms {limited}, mean {clipped}.{out_of}",
            )
    return out


def _credit(tracer: Tracer, i: int, row: Any, say: Any, lam: float) -> dict[str, str]:
    """Facts that need rewards and values: other λ, observed returns, the critic's loss."""
    sample, full, steps = tracer.sample, tracer.full, tracer.steps
    c, g, at, count = full.columns, sample.settings.gamma, steps.at, len(steps.at)
    last, left, r, v, d = (
        at[-1],
        len(steps.onwards(i)),
        c["token_level_rewards"],
        c["values"],
        c["deltas"],
    )

    def estimate(lam: float) -> list[float]:
        settings = sample.settings.change(
            estimator=DEFAULT_ESTIMATOR, lam=lam, lam_alpha=None, lam_critic=None
        )
        given = {"token_level_rewards": r, "values": v}
        return fill(
            replace(sample, columns=given, settings=settings, actor_updates=[], critic_updates=[])
        ).columns["advantages"]

    def delta(t: int) -> str:
        return f"{one_step(r[t], g, steps.value_after(t, v), v[t]).replace('·', '×')} = {num(d[t])}"

    mc = estimate(1.0)
    goals = [
        a + x for a, x in zip(mc, v, strict=True)
    ]  # what really came from each token on, with V_end where it was cut off
    guess = g**left * sample.bootstrap
    cut = say(
        f"（截断处另接一个猜测 {num(guess)}）",
        f" (plus a guess where it was cut off, {num(guess)})",
    )
    held = say("（含截断处的猜测）", " (the guess at the cut included)")
    out = {
        "got": num(goals[i] - guess) + (cut if guess else ""),
        "gots": row(goals) + (held if sample.bootstrap else ""),
    }
    lam_r = lam if sample.settings.lam_critic is None else sample.settings.lam_critic
    over = c["returns"][i] - v[i]
    out |= {
        "lam_R": num(lam_r),
        "RV": num(over),
        "target": f"{plus(over, v[i])} = {num(c['returns'][i])}",
    }
    out |= {
        "R_rule": "A + V",
        "R_words": "advantages + values",
        "A_is": f"returns − values = {num(over)}",
    }
    if lam_r != lam:
        own = say(
            f"按 λ={num(lam_r)} 算的 advantages + values", f"advantages of λ={num(lam_r)} + values"
        )
        was = say(
            f"（λ={num(lam)}；returns 的 λ 是 {num(lam_r)}，returns − values = ",
            f" (λ={num(lam)}; the returns have λ={num(lam_r)}, returns − values = ",
        )
        out |= {
            "R_rule": f"A[λ={num(lam_r)}] + V",
            "R_words": own,
            "A_is": f"{num(c['advantages'][i])}{was}{num(over)}{say('）', ')')}",
        }
    out |= {
        "MC_sum": f"{less(goals[i], v[i])} = {num(mc[i])}",
        "huber": num(sample.settings.huber_delta or 0.0),
    }
    out |= {"MC": num(mc[i]), "MCs": row(mc), "td": num(r[i] + g * steps.value_after(i, v))}
    out |= {
        "V_next": num(steps.value_after(i, v)),
        "delta_sum": delta(i),
        "delta_last": delta(last),
        "later": num(mc[i] - d[i]),
    }
    rises = sum(goals[b] > goals[a] + 1e-12 for a, b in itertools.pairwise(at))
    out |= {
        "rises": str(rises),
        "pairs": str(count - 1),
        "even": num(math.fsum(r[t] for t in at) / count),
    }
    out["positive"] = (
        say("全为正", "are all") if all(r[t] > 0 for t in at) else say("不全为正", "are not all")
    )
    out["rows"] = "; ".join(f"λ={num(x)}: {row(estimate(x))}" for x in (0.0, 0.5, 0.95, 1.0))
    ns = range(1, left + 1) if left <= 6 else (1, 2, 3, left)
    n_step = [trace.result for trace in tracer.compare(i, ns, ()) if trace.name == "n_step"]
    weights = [lam ** (n - 1) * (1 if n == left else 1 - lam) for n in ns]
    out["mixed"] = ", ".join(
        f"n={n}: {num(a)} ×{num(w)}" for n, a, w in zip(ns, n_step, weights, strict=True)
    )
    out["left_out"] = say("（中间略）", " (some left out)") if left > 6 else ""
    critic = full.critic_updates[-1] if full.critic_updates else None
    new, loss = (
        (v[i], None)
        if critic is None
        else (critic.values[i], critic.loss[i] if critic.loss else None)
    )
    error = c["returns"][i] - new
    plain, _ = value_term(new, v[i], c["returns"][i], None, sample.settings.huber_delta)
    shown = f"H({num(error)})" if sample.settings.huber_delta is not None else f"½·({num(error)})²"
    out |= {
        "v": num(new),
        "error": num(error),
        "plain": f"{shown} = {num(plain)}",
        "loss": num(plain if loss is None else loss),
    }
    if sample.bootstrap:
        note = say(
            "（回答被截断，用 critic 的估计接上）",
            " (the response was cut off; the critic's estimate continues it)",
        )
    elif sample.truncated:
        note = say("（被截断，但按结束处理）", " (cut off, but treated as the end)")
    else:
        note = say("，因为没有后续了", ": nothing is left to come")
    called = sample.settings.estimator_definition.return_name
    out["kind"] = say(called.zh, called.en)
    if hasattr(sample.settings.credit, "lam"):
        out["kind"] += say(f"（λ={num(lam_r)}）", f" (λ={num(lam_r)})")
    out["end_note"] = note + say("。", ".")
    end = num(sample.bootstrap)
    stays = (
        say(f"（截断处的 V_end = {end} 仍在）", f" (but V_end = {end} at the cut stays)")
        if sample.bootstrap
        else ""
    )
    return out | {"stays": stays + say("。", ".")}
