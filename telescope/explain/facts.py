"""The facts that texts name, claims compare and conditions read: numbers, flags, lists, texts.

Index everywhere: i counts tokens from 0. V and R belong to the state before token i; r, δ, A and Â
belong to token i itself. Time is counted in valid tokens, those that the policy wrote.
`VOCABULARY` describes every fact. A fact that the sample does not have is absent, not zero.
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
from telescope.explain.arithmetic import fill, policy_term, value_term
from telescope.explain.claims import CLOSE
from telescope.explain.sample import ActorUpdate, Sample
from telescope.explain.text import pieces, shorten
from telescope.explain.trace import Tracer
from telescope.explain.words import Lang

Facts = dict[str, Any]

_COLUMNS = {
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

_OF_COLUMN = {
    "V": "value before token i, by the critic of the rollout",
    "r": "reward of token i",
    "d": "TD error δ of token i",
    "A": "advantage of token i, before whitening",
    "R": "return of token i: the critic's target",
    "W": "Â, the advantage that the actor uses",
    "score": "task score on token i",
    "old": "log-prob of token i when it was sampled",
    "ref": "log-prob of token i under the reference",
    "kl": "KL estimate of token i",
    "baseline": "what an estimator without a critic subtracts",
    "rollout": "log-prob of token i by the engine that sampled it",
}

VOCABULARY: dict[str, str] = {
    # token
    "i": "index of the token asked about, from 0",
    "tok": "its index and text",
    "first": "index of the first valid token",
    "last": "index of the last valid token",
    "last_tok": "index and text of the last valid token",
    "T": "tokens of the response",
    "tokens": "valid tokens of the response",
    "N": "valid tokens from i to the end, i included",
    "next": "name of the value after token i: V[3] or V_end",
    "single": "the response has one valid token",
    "is_last": "token i is the last valid one",
    "tools": "a tool wrote some tokens",
    "masked": "tokens of the response that the policy did not write",
    # settings
    "gamma": "γ",
    "lam": "λ of the advantages; 1 for an estimator without λ",
    "gl": "γ·λ",
    "beta": "KL coefficient β",
    "lam_R": "λ of the critic's targets",
    "own_R": "the targets have another λ than the advantages",
    "has_lam": "the estimator has a λ to set",
    "critic": "the estimator needs a critic",
    "groups": "the estimator compares several responses to one prompt",
    "estimator": "name of the estimator",
    "maker": "name of the function that makes its advantages",
    "kind": "what the estimator's returns are called",
    "whiten": "advantages are whitened",
    "alone": "μ and σ are of this response alone",
    "already": "the advantages given were whitened before",
    "histogram": "the critic predicts a histogram",
    "huber": "width of the critic's Huber loss; 0 without one",
    "eps_low": "ε below 1 of the clip range",
    "eps_high": "ε above 1 of the clip range",
    "dual_clip": "c of the dual clip; 0 without one",
    "ppo": "the policy loss is PPO's clip",
    "policy_loss": "name of the policy loss",
    "aggregation": "how token losses become one number",
    "entropy_coef": "weight of the entropy bonus",
    "compared": "every token has the response's outcome less a baseline of its group",
    "scaled": "that difference is divided by a scale",
    "eps_value": "how far a prediction may move from the old value; 0 without a limit",
    # ending
    "truncated": "the response was cut off at the length limit",
    "cut": "it was cut off and the critic's estimate stands for the rest",
    "end": "V_end, the value after the last token",
    "V_cut": "γ^N·V_end, what the estimate at the cut adds at token i",
    # given
    "given_A": "the advantages were given, not computed",
    "given_R": "the returns were given",
    "given_W": "Â was given",
    # credit
    "V_next": "value after token i",
    "td": "one-step target r + γ·V_next",
    "G": "discounted sum of the rewards from token i on",
    "came": "G + V_cut",
    "MC": "came − V, the Monte Carlo advantage",
    "later": "MC − δ, what the later δ add",
    "A_next": "advantage of the next valid token; 0 after the last",
    "R_next": "return of the next valid token; V_end after the last",
    "A0": "advantage with λ = 0",
    "A50": "advantage with λ = 0.5",
    "A95": "advantage with λ = 0.95",
    "A0s": "advantages with λ = 0",
    "A50s": "advantages with λ = 0.5",
    "A95s": "advantages with λ = 0.95",
    "MCs": "Monte Carlo advantages",
    "Gs": "discounted sums of rewards",
    "cames": "discounted sums of rewards, with the estimate at the cut",
    "RV": "R − V",
    "A_sum": "sum of the advantages from token i on",
    "A_disc": "the same sum, discounted: Σγᵏ·A",
    "r_sum": "sum of all rewards",
    "even": "r_sum divided by the number of valid tokens",
    "rises": "steps at which the discounted sum of what is left rises",
    "pairs": "number of such steps in all",
    "V_rises": "steps at which V rises",
    "V_falls": "steps at which V falls",
    "all_positive": "every reward is above 0",
    "sparse": "no valid token but the last has a score",
    "delta_sum": "δ with its numbers",
    "delta_last": "δ of the last token with its numbers",
    "target": "R = (R − V) + V with its numbers",
    "MC_sum": "came − V with its numbers",
    "A_pos": "valid tokens with A above 0",
    "A_neg": "valid tokens with A below 0",
    "W_pos": "valid tokens with Â above 0",
    "W_neg": "valid tokens with Â below 0",
    "kl_mean": "mean KL estimate of the response",
    "kl_neg": "valid tokens whose KL estimate is below 0",
    # shares
    "share": "(γλ)^(N−1), the weight of the last δ at token i",
    "percent": "the same in percent",
    "share_mc": "γ^(N−1)",
    "shares": "the weight of the last δ at every token, in percent",
    "mixed": "n-step advantages with their weights",
    "w_one": "1 − λ, the weight of the one-step advantage if more steps follow",
    "w_full": "λ^(N−1), the weight of the advantage that goes to the end",
    "boot": "γ·(1 − λ), the weight of the next value in A",
    # whitening
    "mu": "mean of the advantages",
    "sigma": "their standard deviation",
    "mean_W": "mean of Â over this response",
    "flips": "tokens whose sign whitening changed",
    "flipped": "whitening changed the sign of token i",
    # actor
    "pi_old": "probability of token i when it was sampled",
    "pi_olds": "the same for every token",
    "updated": "an update of the policy is known",
    "ratio": "ρ of token i in the last update",
    "ratios": "the same for every token",
    "term": "ρ·Â of token i",
    "terms": "the same for every token",
    "mean_term": "their mean",
    "clip_term": "PPO's clipped term of token i",
    "clip_terms": "the same for every token",
    "mean_clip": "their mean",
    "branch": "inside, kept, clipped or dual: what the clip did to token i",
    "rejected": "tokens left out of the update",
    "kept": "token i takes part in the update",
    "outside": "of these, tokens whose ρ is outside the clip range",
    "clipped": "of these, tokens on the clipped branch",
    "ratio_min": "the smallest ρ of these",
    "ratio_max": "the largest ρ of these",
    "new": "log-prob of token i in the last update",
    "news": "the same for every token",
    "old_used": "log-prob of token i that the update divides by",
    "pi_new": "probability of token i in the last update",
    "pi_used": "probability of token i that the update divides by",
    # critic
    "critic_updated": "an update of the critic is known",
    "v": "new prediction for token i; V without an update",
    "error": "R − v",
    "plain": "the unclipped loss with its numbers",
    "loss": "the term that the critic's loss uses",
    "plain_loss": "the unclipped loss",
    "explained": "explained variance of V over this response",
    # without a critic
    "outcome": "sum of the rewards of the response",
    "scale": "what the difference to the baseline is divided by",
    # KL to the reference, sampler, value clip
    "kl_kind": "which KL estimate the rewards use: k1, abs, k2 or k3",
    "k1": "log π_old − log π_ref of token i",
    "k2": "half the square of k1",
    "k3": "e^(−k1) + k1 − 1",
    "kl_sum": "sum of the KL estimates of the response",
    "score_sum": "sum of the task scores of the response",
    "r_follows": "the rewards are score − β·kl",
    "beta_loss": "coefficient of a KL to the reference in the actor's loss; 0 without one",
    "gap": "old − rollout: how far trainer and sampler disagree on token i",
    "mismatch": "e^gap, π_old/π_sampler of token i",
    "slots_left": "tokens of the response from i to its end, a tool's included",
    "clip_sum": "sum of PPO's clipped terms of the response",
    "n_terms": "tokens that take part in the update",
    "first_loss": "½·(R − V)², the squared loss before the critic has moved",
    "moved": "v − V, how far the critic's prediction has moved",
    "v_clip": "v moved no further than ε from V; absent where values are not clipped",
    # given numbers, names and neighbours
    "A_follows": "the advantages are those that the estimator makes of the other columns",
    "R_follows": "the same for the returns",
    "sutton": "name of the reward of token i in Sutton & Barto: R with the index i + 1",
    "G_next": "G of the next valid token; 0 after the last",
    "G_rises": "steps at which G rises",
    "fines": "rewards below 0 before the last token",
    "leak": "γ(1−λ)(γλ)^(N−1): how much of a value left after the end gets into A of token i",
}
"""Every fact and what it is. Those of a column have variants: see `_COLUMNS`."""
for _name, _meaning in _OF_COLUMN.items():
    VOCABULARY[_name] = _meaning
    VOCABULARY[f"{_name}_last"] = f"{_meaning}, for the last token"
    VOCABULARY[f"{_name}s"] = f"{_meaning}, for every token"


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
        self.steps = self.tracer.steps
        self.at = self.steps.at
        self.settings = sample.settings
        self.gamma = self.settings.gamma
        self.lam = self.settings.lam(len(self.at))
        self.i = self.at[0] if token is None else token
        self.last = self.at[-1]
        self.left = len(self.steps.onwards(self.i))

    def all(self) -> Facts:
        out = self.token() | self.scalars() | self.ending() | self.shares() | self.numbers()
        out |= self.drift()
        out |= self.neighbours()
        if "token_level_rewards" in self.columns:
            out |= self.rewards()
        if "values" in self.columns and "token_level_rewards" in self.columns:
            out |= self.credit()
        if "values" in self.columns and "returns" in self.columns:
            out |= self.targets() | self.critic_loss()
        if "whitened" in self.columns:
            out |= self.whitening() | self.update()
        return out

    def row(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of the valid tokens."""
        return [numbers[t] for t in self.at]

    # ---- token and settings ----

    def token(self) -> Facts:
        texts = [shorten(text, 24) for text in pieces(self.sample.token_bytes)]
        following = self.steps.next(self.i)
        return {
            "i": self.i,
            "tok": f"{self.i} «{texts[self.i]}»",
            "first": self.at[0],
            "last": self.last,
            "last_tok": f"{self.last} «{texts[self.last]}»",
            "T": len(self.sample),
            "tokens": len(self.at),
            "N": self.left,
            "next": "V_end" if following is None else f"V[{following}]",
            "single": len(self.at) == 1,
            "is_last": self.i == self.last,
            "tools": len(self.at) < len(self.sample),
            "masked": len(self.sample) - len(self.at),
        }

    def scalars(self) -> Facts:
        s = self.settings
        own = s.lam_critic
        target_lam = self.lam if own is None else own
        names = s.estimator_definition.return_name
        return {
            "gamma": self.gamma,
            "lam": self.lam,
            "gl": self.gamma * self.lam,
            "beta": s.credit.kl_coef,
            "lam_R": target_lam,
            "own_R": target_lam != self.lam,
            "has_lam": s.own_lam is not None,
            "critic": s.estimator_definition.needs.critic,
            "groups": s.estimator_definition.needs.groups,
            "estimator": s.estimator,
            "maker": _name_of(s.estimator_definition.tensor),
            "kind": names.zh if self.lang == "zh" else names.en,
            "whiten": s.whiten,
            "alone": self.tracer.alone,
            "already": getattr(self.sample, "already_whitened", False),
            "histogram": s.histogram is not None,
            "huber": s.huber_delta or 0.0,
            "eps_low": getattr(s.actor, "clip_low", 0.0),
            "eps_high": getattr(s.actor, "clip_high", 0.0) or getattr(s.actor, "clip_low", 0.0),
            "dual_clip": getattr(s.actor, "dual_clip", None) or 0.0,
            "ppo": s.loss == DEFAULT_POLICY_LOSS,
            "policy_loss": s.loss,
            "aggregation": s.actor.aggregates,
            "entropy_coef": s.actor.entropy_coef,
            "compared": s.estimator_definition.rules == COMPARED,
            "scaled": self.sample.scale is not None,
            "eps_value": getattr(s.critic, "clip_value", None) or 0.0,
            "given_A": "advantages" in self.sample.columns,
            "given_R": "returns" in self.sample.columns,
            "given_W": "whitened" in self.sample.columns,
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
        made = self.recomputed()
        decay = self.gamma * self.lam
        return {
            "A_follows": self.agrees("advantages", made),
            "R_follows": self.agrees("returns", made),
            "sutton": f"R{subscript(self.i + 1)}",
            "leak": self.gamma * (1 - self.lam) * decay ** (self.left - 1),
        }

    def recomputed(self) -> dict[str, list[float]]:
        """The columns as they follow from rewards, values and baselines alone."""
        given = {
            name: numbers for name, numbers in self.sample.columns.items() if name not in _MADE
        }
        bare = replace(self.sample, columns=given, actor_updates=[], critic_updates=[])
        return fill(bare).columns

    def agrees(self, name: str, made: dict[str, list[float]]) -> bool:
        """Whether a column is what it should be, up to the rounding of typed numbers."""
        if name not in self.columns or name not in made:
            return False
        pairs = zip(self.row(self.columns[name]), self.row(made[name]), strict=True)
        return all(abs(x - y) <= _ROUNDED * max(1.0, abs(y)) for x, y in pairs)

    # ---- columns ----

    def numbers(self) -> Facts:
        out: Facts = {}
        for name, column in _COLUMNS.items():
            if column not in self.columns:
                continue
            numbers = self.columns[column]
            out[name] = numbers[self.i]
            out[f"{name}_last"] = numbers[self.last]
            out[f"{name}s"] = self.row(numbers)
        if "advantages" in self.columns:
            later = self.steps.onwards(self.i)
            own = [self.columns["advantages"][t] for t in later]
            out["A_sum"] = math.fsum(own)
            out["A_disc"] = self.discounted(own)[0]
        if "token_level_scores" in self.columns:
            out["sparse"] = not any(self.row(self.columns["token_level_scores"])[:-1])
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
        rewards = self.row(self.columns["token_level_rewards"])
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
            "cames": come,
            "r_sum": total,
            "outcome": total,
            "even": total / len(rewards),
            "rises": sum(later > now + 1e-12 for now, later in pairs),
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
        after = self.steps.value_after(self.i, values)
        following = self.steps.next(self.i)
        full = self.estimate(1.0)
        estimates = {name: self.estimate(lam) for name, lam in _LAMS.items()}
        come = full[self.i] + values[self.i]
        pairs = list(itertools.pairwise(self.row(values)))
        one = self.columns["token_level_rewards"][self.i] + self.gamma * after
        advantages = self.columns.get("advantages", [0.0] * len(self.sample))
        return {
            "V_next": after,
            "td": one,
            "MC": full[self.i],
            "MCs": self.row(full),
            "later": full[self.i] - (one - values[self.i]),
            "A_next": 0.0 if following is None else advantages[following],
            **{name: numbers[self.i] for name, numbers in estimates.items()},
            **{f"{name}s": self.row(numbers) for name, numbers in estimates.items()},
            "V_rises": sum(later > now for now, later in pairs),
            "V_falls": sum(later < now for now, later in pairs),
            "delta_sum": self.delta(self.i),
            "delta_last": self.delta(self.last),
            "MC_sum": f"{less(come, values[self.i])} = {num(full[self.i])}",
            "mixed": self.n_steps(),
        }

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

    def delta(self, t: int) -> str:
        """δ of token t with its numbers."""
        values = self.columns["values"]
        after = self.steps.value_after(t, values)
        reward = self.columns["token_level_rewards"][t]
        result = reward + self.gamma * after - values[t]
        terms = one_step(reward, self.gamma, after, values[t]).replace("·", "×")
        return f"{terms} = {num(result)}"

    def n_steps(self) -> str:
        """The n-step advantages that λ mixes, with their weights; a long list is shortened."""
        few = self.left <= _FEW
        ns = list(range(1, self.left + 1)) if few else [1, 2, 3, self.left]
        traces = self.tracer.compare(self.i, ns, ())
        results = [trace.result for trace in traces if trace.name == "n_step"]
        terms = []
        for n, result in zip(ns, results, strict=True):
            rest = 1.0 if n == self.left else 1 - self.lam
            terms.append(f"n={n}: {num(result)} × {num(self.lam ** (n - 1) * rest)}")
        if not few:
            terms.insert(-1, "…")
        return ", ".join(terms)

    # ---- the critic ----

    def targets(self) -> Facts:
        value = self.columns["values"][self.i]
        target = self.columns["returns"][self.i]
        over = target - value
        following = self.steps.next(self.i)
        end = self.sample.bootstrap
        out: Facts = {
            "R_next": end if following is None else self.columns["returns"][following],
            "RV": over,
            "target": f"{plus(over, value)} = {num(target)}",
            "first_loss": 0.5 * over * over,
        }
        returns = self.row(self.columns["returns"])
        values = self.row(self.columns["values"])
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
        huber = self.settings.huber_delta
        critic = self.full.critic_updates[-1] if self.full.critic_updates else None
        new = old if critic is None else critic.values[i]
        error = target - new
        plain, _ = value_term(new, old, target, None, huber)
        shown = f"½·({num(error)})²" if huber is None else f"H({num(error)})"
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
        plain = {t: self.term(update, t) for t in self.at}
        clipped = {t: self.clip(update, t) for t in self.at}
        count = max(len(kept), 1)
        low = 1 - getattr(self.settings.actor, "clip_low", 0.0)
        high = 1 + getattr(self.settings.actor, "clip_high", 0.0)
        ratios = [update.ratio[t] for t in kept]
        extremes = {"ratio_min": min(ratios), "ratio_max": max(ratios)} if kept else {}
        return {
            "updated": True,
            "kept": self.i in kept,
            "outside": sum(not low <= ratio <= high for ratio in ratios),
            "clipped": sum(clipped[t][1] == "clipped" for t in kept),
            **extremes,
            "new": update.log_probs[self.i],
            "news": self.row(update.log_probs),
            "old_used": update.old_log_probs[self.i],
            "pi_new": math.exp(min(update.log_probs[self.i], 50.0)),
            "pi_used": math.exp(min(update.old_log_probs[self.i], 50.0)),
            "ratio": update.ratio[self.i],
            "ratios": [update.ratio[t] for t in kept],
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

    def term(self, update: ActorUpdate, t: int) -> float:
        return update.ratio[t] * self.columns["whitened"][t]

    def clip(self, update: ActorUpdate, t: int) -> tuple[float, str]:
        return policy_term(update.ratio[t], self.columns["whitened"][t], self.settings)


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
_FEW = 6
"""Up to so many steps all n-step advantages are listed."""


def _name_of(function: Any) -> str:
    """The name of a function, or of one that is given as 'package.module:function'."""
    return function.rpartition(":")[2] if isinstance(function, str) else function.__name__
