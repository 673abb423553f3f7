"""The numbers that the answers to the questions name, as texts.

Index everywhere: values[i] and returns[i] belong to the state before token i; scores, rewards, δ
and advantages belong to token i itself; n is the next valid token.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from telescope.algorithms.definitions import DEFAULT_ESTIMATOR
from telescope.algorithms.definitions.notation import less, listed, num, one_step, plus
from telescope.explain.arithmetic import fill, policy_term, value_term
from telescope.explain.sample import ActorUpdate, Sample
from telescope.explain.text import pieces, shorten
from telescope.explain.trace import Tracer
from telescope.explain.words import Lang

_OF_TOKEN = {
    "V": "values",
    "r": "token_level_rewards",
    "d": "deltas",
    "A": "advantages",
    "R": "returns",
    "W": "whitened",
}
"""Named for the token (V), for the last one (V_last), for all (Vs), and as a sum (V_sum)."""
_OF_ALL = {
    "scores": "token_level_scores",
    "olds": "old_log_probs",
    "refs": "ref_log_prob",
    "kls": "kl",
}
_LAMS = (0.0, 0.5, 0.95, 1.0)
"""What question 11 compares."""
_FEW = 6
"""Up to so many steps all n-step advantages are listed."""

Facts = dict[str, str]


def facts(sample: Sample, lang: Lang, token: int | None = None) -> Facts:
    """Every number that a text may name.

    They are those of `token` (or the first that the policy wrote), of the last one, and of all.
    """
    return _FactFinder(sample, lang, token).all()


class _FactFinder:
    def __init__(self, sample: Sample, lang: Lang, token: int | None) -> None:
        self.sample = sample
        self.lang = lang
        self.tracer = Tracer(sample)
        self.full = self.tracer.full
        self.columns = self.full.columns
        self.steps = self.tracer.steps
        self.at = self.steps.at
        self.settings = sample.settings
        self.gamma = self.settings.gamma
        self.lam = self.settings.lam(len(self.at))
        self.i = self.at[0] if token is None else token
        self.last = self.at[-1]
        self.left = len(self.steps.onwards(self.i))

    def all(self) -> Facts:
        out = self.token() | self.scalars() | self.shares() | self.numbers()
        if "values" in self.columns and "token_level_rewards" in self.columns:
            out |= self.credit()
        if "whitened" in self.columns and "advantages" in self.columns:
            out |= self.whitening() | {"update": self.update()}
        return out

    def say(self, zh: str, en: str) -> str:
        return en if self.lang == "en" else zh

    def row(self, numbers: Sequence[float]) -> str:
        """The numbers of the valid tokens."""
        return listed([numbers[t] for t in self.at])

    # ---- token and settings ----

    def token(self) -> Facts:
        texts = [shorten(text, 24) for text in pieces(self.sample.token_bytes)]
        n = self.steps.next(self.i)
        return {
            "i": str(self.i),
            "last": str(self.last),
            "tok": f"{self.i} «{texts[self.i]}»",
            "last_tok": f"{self.last} «{texts[self.last]}»",
            "T": str(len(self.sample)),
            "left": str(self.left),
            "next": "V_end" if n is None else f"V[{n}]",
        }

    def scalars(self) -> Facts:
        return {
            "gamma": num(self.gamma),
            "lam": num(self.lam),
            "gl": num(self.gamma * self.lam),
            "beta": num(self.settings.credit.kl_coef),
            "end": num(self.sample.bootstrap),
            "ids": self.row([float(i) for i in self.sample.token_ids]),
        }

    def shares(self) -> Facts:
        """How much of the last δ each token gets."""
        decay = self.gamma * self.lam
        shares = [decay ** max(len(self.steps.onwards(t)) - 1, 0) for t in range(len(self.sample))]
        return {
            "share": num(shares[self.i]),
            "percent": num(100 * shares[self.i]),
            "shares": self.row([100 * share for share in shares]),
            "share_mc": num(self.gamma ** (self.left - 1)),
        }

    # ---- columns ----

    def numbers(self) -> Facts:
        out: Facts = {}
        for name, column in _OF_TOKEN.items():
            if column in self.columns:
                out |= self.of_column(name, self.columns[column])
        for name, column in _OF_ALL.items():
            out[name] = self.row(self.columns[column]) if column in self.columns else "?"
        if "old_log_probs" in self.columns:
            chances = [math.exp(min(x, 0.0)) for x in self.columns["old_log_probs"]]
            out["pi_olds"] = self.row(chances)
        return out

    def of_column(self, name: str, column: Sequence[float]) -> Facts:
        added = self.steps.onwards(self.i) if name == "A" else self.at
        return {
            name: num(column[self.i]),
            f"{name}_last": num(column[self.last]),
            f"{name}s": self.row(column),
            f"{name}_sum": num(math.fsum(column[t] for t in added)),
        }

    # ---- whitening and the update ----

    def whitening(self) -> Facts:
        raw = self.columns["advantages"]
        whitened = self.columns["whitened"]
        flips = [t for t in self.at if raw[t] * whitened[t] < 0]
        signs = self.say("没有 token 变号", "no sign changed")
        if flips:
            signs = self.say(
                f"{len(flips)} 个 token 变号（{flips}）",
                f"the sign of {len(flips)} tokens changed ({flips})",
            )
        whose = self.say(
            "取自整批所有有效 token，只算一次，不是每条回答各算",
            "taken once over all valid tokens of the whole batch, not per response",
        )
        if self.tracer.alone:
            whose = self.say(
                "只来自这一条回答：这里没有整批（训练时取自整批所有有效 token，不是每条回答各算）",
                "of this response alone, there is no batch here "
                "(in training: over all valid tokens of the whole batch, not per response)",
            )
        return {
            "mean": num(math.fsum(whitened[t] for t in self.at) / len(self.at)),
            "signs": signs,
            "mu": num(self.full.whiten_mean or 0.0),
            "sigma": num(self.full.whiten_std or 1.0),
            "whose": whose,
        }

    def update(self) -> str:
        """The terms of the last update; empty without one."""
        if not self.full.actor_updates:
            return ""
        update = self.full.actor_updates[-1]
        kept = [t for t in self.at if self.tracer.kept[t]]
        whitened = self.columns["whitened"]
        ratios = [update.ratio[t] for t in kept]
        plain = [update.ratio[t] * whitened[t] for t in kept]
        clipped = [policy_term(update.ratio[t], whitened[t], self.settings)[0] for t in kept]
        plain_mean, clipped_mean = (
            num(math.fsum(terms) / max(len(kept), 1)) for terms in (plain, clipped)
        )
        which = self.which_update(update)
        left_out = self.left_out_of_update()
        return self.say(
            f"{which}：ρ = {listed(ratios)}，各项 ρ·Â = {listed(plain)}，均值 {plain_mean}；"
            f"PPO 裁剪后各项 {listed(clipped)}，均值 {clipped_mean}。{left_out}",
            f" {which}: ρ = {listed(ratios)}, terms ρ·Â = {listed(plain)}, mean {plain_mean}; "
            f"PPO's clipped terms {listed(clipped)}, mean {clipped_mean}.{left_out}",
        )

    def which_update(self, update: ActorUpdate) -> str:
        if update.epoch < 0:
            return self.say("给出的更新", "With the new log-probs given")
        return self.say("最后一次更新", "In the last update")

    def left_out_of_update(self) -> str:
        """Tokens whose π_old/π_sampler is out of bounds."""
        rejected = [t for t in self.at if not self.tracer.kept[t]]
        if not rejected:
            return ""
        return self.say(
            f"不参加更新的 token：{rejected}。", f" Tokens left out of the update: {rejected}."
        )

    # ---- rewards and values ----

    def credit(self) -> Facts:
        observed = self.estimate(1.0)
        values = self.columns["values"]
        came = [a + v for a, v in zip(observed, values, strict=True)]
        return (
            self.observed(observed, came)
            | self.one_step()
            | self.targets()
            | self.estimates(observed)
            | self.rewards(came)
            | self.critic_loss()
            | self.ending()
        )

    def estimate(self, lam: float) -> list[float]:
        """Advantages with another λ, from the same rewards and values."""
        settings = self.settings.change(
            estimator=DEFAULT_ESTIMATOR,
            lam=lam,
            lam_alpha=None,
            lam_critic=None,
        )
        given = {name: self.columns[name] for name in ("token_level_rewards", "values")}
        bare = replace(
            self.sample, columns=given, settings=settings, actor_updates=[], critic_updates=[]
        )
        return fill(bare).columns["advantages"]

    def observed(self, observed: Sequence[float], came: Sequence[float]) -> Facts:
        """What really came from each token on, with V_end where the response was cut off."""
        i = self.i
        guess = self.gamma**self.left * self.sample.bootstrap
        cut = self.say(
            f"（截断处另接一个猜测 {num(guess)}）",
            f" (plus a guess where it was cut off, {num(guess)})",
        )
        held = self.say("（含截断处的猜测）", " (the guess at the cut included)")
        return {
            "got": num(came[i] - guess) + (cut if guess else ""),
            "gots": self.row(came) + (held if self.sample.bootstrap else ""),
            "MC": num(observed[i]),
            "MCs": self.row(observed),
            "MC_sum": f"{less(came[i], self.columns['values'][i])} = {num(observed[i])}",
            "later": num(observed[i] - self.columns["deltas"][i]),
        }

    def one_step(self) -> Facts:
        """The TD error and its target."""
        values = self.columns["values"]
        after = self.steps.value_after(self.i, values)
        return {
            "td": num(self.columns["token_level_rewards"][self.i] + self.gamma * after),
            "V_next": num(after),
            "delta_sum": self.delta(self.i),
            "delta_last": self.delta(self.last),
        }

    def delta(self, t: int) -> str:
        values = self.columns["values"]
        after = self.steps.value_after(t, values)
        reward = self.columns["token_level_rewards"][t]
        terms = one_step(reward, self.gamma, after, values[t]).replace("·", "×")
        return f"{terms} = {num(self.columns['deltas'][t])}"

    def targets(self) -> Facts:
        """The critic's target, which may have a λ of its own."""
        i = self.i
        value = self.columns["values"][i]
        target = self.columns["returns"][i]
        over = target - value
        own = self.own_lam()
        out = {
            "lam_R": num(own),
            "RV": num(over),
            "target": f"{plus(over, value)} = {num(target)}",
            "R_rule": "A + V",
            "R_words": "advantages + values",
            "A_is": f"returns − values = {num(over)}",
            "kind": self.kind_of_target(),
        }
        if own == self.lam:
            return out
        was = self.say(
            f"（λ={num(self.lam)}；returns 的 λ 是 {num(own)}，returns − values = {num(over)}）",
            f" (λ={num(self.lam)}; the returns have λ={num(own)}, returns − values = {num(over)})",
        )
        return out | {
            "R_rule": f"A[λ={num(own)}] + V",
            "R_words": self.say(
                f"按 λ={num(own)} 算的 advantages + values", f"advantages of λ={num(own)} + values"
            ),
            "A_is": num(self.columns["advantages"][i]) + was,
        }

    def own_lam(self) -> float:
        """λ of the critic's targets."""
        own = self.settings.lam_critic
        return self.lam if own is None else own

    def kind_of_target(self) -> str:
        """What the returns are called, with their λ where there is one."""
        names = self.settings.estimator_definition.return_name
        lam = num(self.own_lam())
        if self.settings.own_lam is None:
            return self.say(names.zh, names.en)
        return self.say(f"{names.zh}（λ={lam}）", f"{names.en} (λ={lam})")

    def estimates(self, observed: Sequence[float]) -> Facts:
        """Advantages with other λ and with n steps."""
        rows = [f"λ={num(lam)}: {self.row(self.estimate(lam))}" for lam in _LAMS]
        ns = range(1, self.left + 1) if self.left <= _FEW else (1, 2, 3, self.left)
        traces = self.tracer.compare(self.i, ns, ())
        n_step = [trace.result for trace in traces if trace.name == "n_step"]
        mixed = [f"n={n}: {num(a)} ×{num(self.weight(n))}" for n, a in zip(ns, n_step, strict=True)]
        some = self.say("（中间略）", " (some left out)")
        return {
            "rows": "; ".join(rows),
            "mixed": ", ".join(mixed),
            "left_out": some if self.left > _FEW else "",
        }

    def weight(self, n: int) -> float:
        """The weight of the n-step advantage in the λ-weighted mean."""
        rest = 1.0 if n == self.left else 1 - self.lam
        return self.lam ** (n - 1) * rest

    def rewards(self, came: Sequence[float]) -> Facts:
        rewards = [self.columns["token_level_rewards"][t] for t in self.at]
        pairs = itertools.pairwise(self.at)
        rises = sum(came[later] > came[t] + 1e-12 for t, later in pairs)
        positive = self.say("不全为正", "are not all")
        if all(reward > 0 for reward in rewards):
            positive = self.say("全为正", "are all")
        return {
            "rises": str(rises),
            "pairs": str(len(self.at) - 1),
            "even": num(math.fsum(rewards) / len(self.at)),
            "positive": positive,
        }

    def critic_loss(self) -> Facts:
        """The critic's error on the token, in its last update."""
        i = self.i
        old = self.columns["values"][i]
        target = self.columns["returns"][i]
        huber = self.settings.huber_delta
        critic = self.full.critic_updates[-1] if self.full.critic_updates else None
        new = old if critic is None else critic.values[i]
        error = target - new
        plain, _ = value_term(new, old, target, None, huber)
        loss = plain if critic is None or not critic.loss else critic.loss[i]
        shown = f"½·({num(error)})²" if huber is None else f"H({num(error)})"
        return {
            "v": num(new),
            "error": num(error),
            "plain": f"{shown} = {num(plain)}",
            "loss": num(loss),
            "huber": num(huber or 0.0),
        }

    def ending(self) -> Facts:
        """What is said of the value after the last token."""
        end = num(self.sample.bootstrap)
        note = self.say("，因为没有后续了", ": nothing is left to come")
        if self.sample.bootstrap:
            note = self.say(
                "（回答被截断，用 critic 的估计接上）",
                " (the response was cut off; the critic's estimate continues it)",
            )
        elif self.sample.truncated:
            note = self.say("（被截断，但按结束处理）", " (cut off, but treated as the end)")
        stays = ""
        if self.sample.bootstrap:
            stays = self.say(
                f"（截断处的 V_end = {end} 仍在）", f" (but V_end = {end} at the cut stays)"
            )
        stop = self.say("。", ".")
        return {"end_note": note + stop, "stays": stays + stop}
