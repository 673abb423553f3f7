"""The facts that texts name, claims compare and conditions read: numbers, flags, lists, texts.

Index everywhere: i counts tokens from 0. V and R belong to the state before token i; r, δ, A and Â
belong to token i itself. Time is counted in valid tokens, those that the policy wrote.
A fact that the sample does not have is absent, not zero. tests/explain/vocabulary.py describes all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from telescope.algorithms.definitions import DEFAULT_ESTIMATOR, DEFAULT_POLICY_LOSS
from telescope.algorithms.definitions.base import clamp
from telescope.algorithms.definitions.kl import kl_estimate
from telescope.algorithms.definitions.notation import less, num, one_step, plus, subscript
from telescope.algorithms.definitions.outcome import COMPARED
from telescope.algorithms.definitions.policy import ClipSettings, clip_state
from telescope.algorithms.definitions.value import huber, squared
from telescope.explain.arithmetic import columns_from
from telescope.explain.claims import CLOSE
from telescope.explain.sample import Sample
from telescope.explain.settings import UNKNOWN
from telescope.explain.text import pieces, shorten
from telescope.explain.trace import Tracer
from telescope.explain.words import Lang

Facts = dict[str, Any]
COLUMNS = {
    "V": "values",
    "r": "token_level_rewards",
    "d": "deltas",
    "A": "advantages",
    "R": "returns",
    "W": "whitened",
    "score": "token_level_scores",
    "old": "old_log_probs",
    "ref": "ref_log_prob",
    "kl": "kl",
    "baseline": "baselines",
    "rollout": "rollout_log_probs",
}
"""Fact -> column. `V` is the token's, `V_last` the last token's, `Vs` the list of all."""
_NO_QUOTES = str.maketrans("»」", "›｣")
"""A token stands in quotes, and must not end them."""


def facts(sample: Sample, lang: Lang = "en", token: int | None = None) -> Facts:
    """Every fact of the sample about `token`, or about the first token that the policy wrote."""
    return _FactFinder(sample, lang, token).all()


class _FactFinder:
    def __init__(self, sample: Sample, lang: Lang, token: int | None) -> None:
        self.sample = sample
        self.lang = lang
        self.tracer = Tracer(sample)
        self.full = self.tracer.full
        self.columns = self.full.columns
        self.at = sample.written
        self.settings = sample.settings
        self.gamma = self.settings.gamma
        self.lam = self.settings.lam(len(self.at))
        self.i = self.at[0] if token is None else token
        self.last = self.at[-1]
        self.later = self.at[self.at.index(self.i) :]
        """Token i and all later ones that the policy wrote."""
        self.left = len(self.later)
        self.following = self.later[1] if self.left > 1 else None
        texts = [shorten(text, 24) for text in pieces(sample.token_bytes)]
        self.texts = [text.translate(_NO_QUOTES) for text in texts]

    def all(self) -> Facts:
        out = self.token() | self.scalars() | self.ending() | self.shares() | self.numbers()
        out |= self.drift() | self.neighbours()
        if "token_level_rewards" in self.columns:
            out |= self.rewards()
        if "values" in self.columns and "token_level_rewards" in self.columns:
            out |= self.credit()
        if "values" in self.columns and "returns" in self.columns:
            out |= self.targets() | self.critic_loss()
        if "whitened" in self.columns:
            out |= self.whitening() | self.update()
        return out | self.extremes()

    def row(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of the valid tokens."""
        return [numbers[t] for t in self.at]

    # ---- token and settings ----

    def named(self, t: int) -> str:
        """The index and the text of token t."""
        return f"{t} «{self.texts[t]}»"

    def token(self) -> Facts:
        return {
            "i": self.i,
            "tok": self.named(self.i),
            "first": self.at[0],
            "last": self.last,
            "last_tok": self.named(self.last),
            "T": len(self.sample),
            "tokens": len(self.at),
            "N": self.left,
            "next": "V_end" if self.following is None else f"V[{self.following}]",
            "single": len(self.at) == 1,
            "is_last": self.i == self.last,
            "tools": len(self.at) < len(self.sample),
            "masked": len(self.sample) - len(self.at),
        }

    def scalars(self) -> Facts:
        s = self.settings
        found: Facts = {
            "alone": self.tracer.alone,
            "already": self.sample.already_whitened,
            "histogram": s.histogram is not None,
            "huber": s.huber_delta or 0.0,
            "eps_low": getattr(s.actor, "clip_low", 0.0),
            "eps_high": getattr(s.actor, "clip_high", 0.0) or getattr(s.actor, "clip_low", 0.0),
            "dual_clip": getattr(s.actor, "dual_clip", None) or 0.0,
            "ppo": s.loss == DEFAULT_POLICY_LOSS,
            "policy_loss": s.loss,
            "aggregation": s.actor.aggregates,
            "entropy_coef": s.actor.entropy_coef,
            "entropy_target": s.actor.entropy_target or 0.0,
            "scaled": self.sample.scale is not None,
            "eps_value": getattr(s.critic, "clip_value", None) or 0.0,
            "given_A": "advantages" in self.sample.columns,
            "given_W": "whitened" in self.sample.columns,
        }
        if self.sample.parts:
            shown = [f"{name} {num(part)}" for name, part in self.sample.parts.items()]
            found["parts"] = ", ".join(shown)
        return found if s.estimator == UNKNOWN else found | self.estimator()

    def estimator(self) -> Facts:
        s = self.settings
        definition = s.estimator_definition
        names = definition.return_name
        target_lam = self.lam if s.lam_critic is None else s.lam_critic
        return {
            "gamma": self.gamma,
            "lam": self.lam,
            "gl": self.gamma * self.lam,
            "beta": s.credit.kl_coef,
            "lam_R": target_lam,
            "own_R": target_lam != self.lam,
            "has_lam": s.own_lam is not None,
            "by_lam": definition.lam is not None,
            "critic": definition.needs.critic,
            "groups": definition.needs.groups,
            "estimator": s.estimator,
            "maker": _name_of(definition.tensor),
            "kind": names.zh if self.lang == "zh" else names.en,
            "whiten": s.whiten,
            "compared": definition.rules == COMPARED,
        }

    def ending(self) -> Facts:
        end = self.sample.bootstrap
        return {
            "truncated": self.sample.truncated or end != 0,
            "cut": end != 0,
            "end": end,
            "V_cut": self.gamma**self.left * end,
        }

    def shares(self) -> Facts:
        """How much of the last δ each token gets."""
        decay = self.gamma * self.lam
        later = range(len(self.at) - 1, -1, -1)
        share = decay ** (self.left - 1)
        return {
            "share": share,
            "percent": 100 * share,
            "share_mc": self.gamma ** (self.left - 1),
            "shares": [100 * decay**k for k in later],
            "w_one": 1 - self.lam,
            "w_full": self.lam ** (self.left - 1),
            "boot": self.gamma * (1 - self.lam),
        }

    def neighbours(self) -> Facts:
        """Which given columns follow from the others, and what a wrong mask would let in."""
        given = {
            name: numbers for name, numbers in self.sample.columns.items() if name not in _MADE
        }
        made = columns_from(self.sample, given)
        decay = self.gamma * self.lam
        return {
            "A_follows": self.agrees("advantages", made),
            "R_follows": self.agrees("returns", made),
            "sutton": f"R{subscript(self.i + 1)}",
            "leak": self.gamma * (1 - self.lam) * decay ** (self.left - 1),
        }

    def agrees(self, name: str, made: dict[str, list[float]]) -> bool:
        """Whether a column is what it should be, up to the rounding of typed numbers."""
        if name not in self.columns or name not in made:
            return False
        pairs = zip(self.row(self.columns[name]), self.row(made[name]), strict=True)
        return all(abs(x - y) <= _ROUNDED * max(1.0, abs(y)) for x, y in pairs)

    # ---- columns ----

    def numbers(self) -> Facts:
        out: Facts = {}
        for name, column in COLUMNS.items():
            if column not in self.columns:
                continue
            numbers = self.columns[column]
            out[name] = numbers[self.i]
            out[f"{name}_last"] = numbers[self.last]
            out[f"{name}s"] = self.row(numbers)
        if "advantages" in self.columns:
            own = [self.columns["advantages"][t] for t in self.later]
            out["A_disc"] = self.discounted(own)[0]
        if "token_level_scores" in self.columns:
            out["sparse"] = not any(self.full.numbers("token_level_scores")[:-1])
        out |= self.counts(out)
        if "old_log_probs" in self.columns:
            chances = [math.exp(min(x, 0.0)) for x in self.columns["old_log_probs"]]
            out["pi_old"] = chances[self.i]
            out["pi_olds"] = self.row(chances)
        if self.sample.scale is not None:
            out["scale"] = self.sample.scale
        return out

    def counts(self, known: Facts) -> Facts:
        """How many tokens have which sign, and means of columns."""
        out: Facts = {}
        for name in ("A", "W"):
            if name in known:
                out[f"{name}_pos"] = sum(x > CLOSE for x in known[f"{name}s"])
                out[f"{name}_neg"] = sum(x < -CLOSE for x in known[f"{name}s"])
        if "kl" in known:
            out["kl_mean"] = math.fsum(known["kls"]) / len(self.at)
            out["kl_neg"] = sum(x < 0 for x in known["kls"])
        return out

    def rewards(self) -> Facts:
        rewards = self.full.numbers("token_level_rewards")
        sums = self.discounted(rewards)
        come = [g + self.cut_at(k) for k, g in enumerate(sums)]
        here = self.at.index(self.i)
        total = math.fsum(rewards)
        pairs = list(itertools.pairwise(come))
        return {
            "G_next": sums[here + 1] if here + 1 < len(sums) else 0.0,
            "G_rises": sum(later > now + 1e-12 for now, later in itertools.pairwise(sums)),
            "fines": sum(reward < -1e-12 for reward in rewards[:-1]),
            "G": sums[here],
            "came": come[here],
            "Gs": sums,
            "came_first": come[0],
            "came_mean": math.fsum(come) / len(come),
            "r_sum": total,
            "outcome": total,
            "even": total / len(rewards),
            "pairs": len(pairs),
            "all_positive": all(reward > 0 for reward in rewards),
        }

    def discounted(self, numbers: Sequence[float]) -> list[float]:
        """The discounted sum of the numbers from each valid token on."""
        sums: list[float] = []
        total = 0.0
        for number in reversed(numbers):
            total = number + self.gamma * total
            sums.append(total)
        return sums[::-1]

    def cut_at(self, k: int) -> float:
        """What the value at a cut adds to the sum from the k-th valid token on."""
        return self.gamma ** (len(self.at) - k) * self.sample.bootstrap

    def drift(self) -> Facts:
        """How far the policy is from the reference, and the trainer from the sampler."""
        out: Facts = {
            "kl_kind": kl_estimate(self.settings.credit.kl_kind).name,
            "beta_loss": self.settings.actor.kl_loss_coef,
            "slots_left": len(self.sample) - self.i,
        }
        old = self.columns.get("old_log_probs")
        reference = self.columns.get("ref_log_prob")
        sampler = self.columns.get("rollout_log_probs")
        if old is not None and reference is not None:
            d = old[self.i] - reference[self.i]
            out |= {name: kl_estimate(name).scalar(d) for name in ("k1", "k2", "k3")}
        if old is not None and sampler is not None:
            gap = old[self.i] - sampler[self.i]
            out |= {"gap": gap, "mismatch": math.exp(gap)}
        for name, column in (("kl_sum", "kl"), ("score_sum", "token_level_scores")):
            if column in self.columns:
                out[name] = math.fsum(self.row(self.columns[column]))
        return out | {"r_follows": self.rewards_follow()}

    def rewards_follow(self) -> bool:
        """Whether every reward is score − β·kl, up to the rounding of typed numbers."""
        beta = self.settings.credit.kl_coef
        scores = self.columns.get("token_level_scores")
        kl = self.columns.get("kl") if beta else [0.0] * len(self.sample)
        if scores is None or kl is None:
            return False
        made = [score - beta * k for score, k in zip(scores, kl, strict=True)]
        return self.agrees("token_level_rewards", {"token_level_rewards": made})

    # ---- rewards and values ----

    def credit(self) -> Facts:
        values = self.columns["values"]
        after = self.value_after(self.i)
        full = self.estimate(1.0)
        estimates = {name: self.estimate(lam) for name, lam in _LAMS.items()}
        come = full[self.i] + values[self.i]
        written = self.row(values)
        pairs = list(itertools.pairwise(written))
        one = self.columns["token_level_rewards"][self.i] + self.gamma * after
        advantages = self.columns.get("advantages", [0.0] * len(self.sample))
        return {
            "V_next": after,
            "td": one,
            "MC": full[self.i],
            "MCs": self.row(full),
            "later": full[self.i] - (one - values[self.i]),
            "A_next": 0.0 if self.following is None else advantages[self.following],
            **{name: numbers[self.i] for name, numbers in estimates.items()},
            **{f"{name}s": self.row(numbers) for name, numbers in estimates.items()},
            "V_rises": sum(later > now for now, later in pairs),
            "V_falls": sum(later < now for now, later in pairs),
            "delta_sum": self.delta(self.i),
            "delta_last": self.delta(self.last),
            "MC_sum": f"{less(come, values[self.i])} = {num(full[self.i])}",
            "V_first": written[0],
            "V_mean": math.fsum(written) / len(written),
        }

    def estimate(self, lam: float) -> list[float]:
        """Advantages with another λ, from the same rewards and values."""
        gae = {"estimator": DEFAULT_ESTIMATOR, "lam": lam, "lam_alpha": None, "lam_critic": None}
        changed = replace(self.sample, settings=self.settings.change(**gae))
        given = {name: self.columns[name] for name in ("token_level_rewards", "values")}
        return columns_from(changed, given)["advantages"]

    def value_after(self, t: int) -> float:
        """V after token t: of the next token, or the bootstrap value after the last."""
        n = next((k for k in self.at if k > t), None)
        return self.sample.bootstrap if n is None else self.columns["values"][n]

    def delta(self, t: int) -> str:
        """δ of token t with its numbers."""
        value = self.columns["values"][t]
        after = self.value_after(t)
        reward = self.columns["token_level_rewards"][t]
        result = reward + self.gamma * after - value
        terms = one_step(reward, self.gamma, after, value).replace("·", "×")
        return f"{terms} = {num(result)}"

    # ---- the critic ----

    def targets(self) -> Facts:
        value = self.columns["values"][self.i]
        target = self.columns["returns"][self.i]
        over = target - value
        after = self.sample.bootstrap
        if self.following is not None:
            after = self.columns["returns"][self.following]
        out: Facts = {
            "R_next": after,
            "RV": over,
            "target": f"{plus(over, value)} = {num(target)}",
            "first_loss": 0.5 * over * over,
        }
        returns = self.full.numbers("returns")
        values = self.full.numbers("values")
        spread = _variance(returns)
        if spread > 1e-12:
            left = _variance([r - v for r, v in zip(returns, values, strict=True)])
            out["explained"] = 1 - left / spread
        return out

    def critic_loss(self) -> Facts:
        """The critic's error on the token, in its last update."""
        i = self.i
        old = self.columns["values"][i]
        target = self.columns["returns"][i]
        delta = self.settings.huber_delta
        critic = self.full.critic_updates[-1] if self.full.critic_updates else None
        new = old if critic is None else critic.values[i]
        error = target - new
        plain = squared(error) if delta is None else huber(error, delta)
        shown = f"½·({num(error)})²" if delta is None else f"H({num(error)})"
        limit = getattr(self.settings.critic, "clip_value", None)
        bounded = {} if limit is None else {"v_clip": clamp(new, old - limit, old + limit)}
        return {
            **bounded,
            "moved": new - old,
            "critic_updated": critic is not None,
            "v": new,
            "error": error,
            "plain": f"{shown} = {num(plain)}",
            "plain_loss": plain,
            "loss": plain if critic is None or not critic.loss else critic.loss[i],
        }

    # ---- which tokens stand out ----

    def extremes(self) -> Facts:
        """The tokens with the smallest and the largest Â, and the one with the smallest δ."""
        out: Facts = {}
        values = self.columns.get("values")
        deltas = self.columns.get("deltas")
        whitened = self.columns.get("whitened")
        if whitened is not None:
            blamed = min(self.at, key=lambda t: whitened[t])
            praised = max(self.at, key=lambda t: whitened[t])
            out |= {
                "alike": whitened[praised] - whitened[blamed] <= CLOSE,
                "blamed_tok": self.named(blamed),
                "blamed": whitened[blamed],
                "praised_tok": self.named(praised),
                "praised": whitened[praised],
            }
            if values is not None and deltas is not None:
                out |= {"blamed_V": values[blamed], "blamed_d": deltas[blamed]}
        if values is not None and deltas is not None:
            drop = min(self.at, key=lambda t: deltas[t])
            out |= {
                "drop_tok": self.named(drop),
                "drop": deltas[drop],
                "drop_V": values[drop],
                "drop_next": self.value_after(drop),
            }
        return out

    # ---- whitening and the update ----

    def whitening(self) -> Facts:
        whitened = self.columns["whitened"]
        out: Facts = {"mean_W": math.fsum(self.row(whitened)) / len(self.at)}
        if self.full.whiten_mean is not None and self.full.whiten_std is not None:
            out["mu"] = self.full.whiten_mean
            out["sigma"] = self.full.whiten_std
        if "advantages" in self.columns:
            raw = self.columns["advantages"]
            flips = [t for t in self.at if raw[t] * whitened[t] < 0 and abs(whitened[t]) > CLOSE]
            out["flips"] = len(flips)
            out["flipped"] = self.i in flips
        return out

    def update(self) -> Facts:
        """The terms of the policy's last update."""
        updates = [update for update in self.full.actor_updates if update.ratio]
        if not updates:
            return {"updated": False}
        update = updates[-1]
        kept = [t for t in self.at if self.tracer.kept[t]]
        whitened = self.columns["whitened"]
        plain = {t: update.ratio[t] * whitened[t] for t in self.at}
        actor = self.settings.actor
        clips = actor if hasattr(actor, "clip_low") else ClipSettings()  # whichever loss it has
        clipped = {t: clip_state(update.ratio[t], whitened[t], clips) for t in self.at}
        count = max(len(kept), 1)
        low = 1 - getattr(self.settings.actor, "clip_low", 0.0)
        high = 1 + getattr(self.settings.actor, "clip_high", 0.0)
        ratios = [update.ratio[t] for t in kept]
        extremes = {"ratio_min": min(ratios), "ratio_max": max(ratios)} if kept else {}
        return {
            "updated": True,
            "kept": self.i in kept,
            "kept_at": [self.at.index(t) for t in kept],
            "outside": sum(not low <= ratio <= high for ratio in ratios),
            "clipped": sum(clipped[t][1] == "clipped" for t in kept),
            **extremes,
            "new": update.log_probs[self.i],
            "old_used": update.old_log_probs[self.i],
            "pi_new": math.exp(min(update.log_probs[self.i], 50.0)),
            "pi_used": math.exp(min(update.old_log_probs[self.i], 50.0)),
            "ratio": update.ratio[self.i],
            "ratios": ratios,
            "term": plain[self.i],
            "terms": [plain[t] for t in kept],
            "mean_term": math.fsum(plain[t] for t in kept) / count,
            "clip_term": clipped[self.i][0],
            "clip_terms": [clipped[t][0] for t in kept],
            "mean_clip": math.fsum(clipped[t][0] for t in kept) / count,
            "branch": clipped[self.i][1],
            "clip_sum": math.fsum(clipped[t][0] for t in kept),
            "n_terms": len(kept),
            "rejected": len(self.at) - len(kept),
        }


def _variance(numbers: Sequence[float]) -> float:
    """The variance (n − 1); 0 of a single number."""
    mean = math.fsum(numbers) / len(numbers)
    squares = math.fsum((x - mean) ** 2 for x in numbers)
    return squares / max(len(numbers) - 1, 1)


_LAMS = {"A0": 0.0, "A50": 0.5, "A95": 0.95}
_MADE = ("deltas", "advantages", "returns", "whitened")
"""Columns that follow from the others."""
_ROUNDED = 6e-4
"""Typed numbers with three decimals differ by less."""


def _name_of(function: Any) -> str:
    """The name of a function, or of one that is given as 'package.module:function'."""
    return function.rpartition(":")[2] if isinstance(function, str) else function.__name__
