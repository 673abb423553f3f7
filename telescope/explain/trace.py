"""The arithmetic of one token: formula, numbers substituted, result, and whether the recorded number agrees.

Every quantity is recomputed in float64 from the recorded numbers one level below it (δ from rewards and values, A from
δ, …), so that a wrong number shows ✗ at the step where it went wrong. Time is counted in tokens that the policy wrote: n
is the next position with mask 1, and V after the last one is 0, or `bootstrap` where the response was cut off.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from telescope.config import BY_CRITIC
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import (
    Steps,
    alone,
    clamp,
    fill,
    histogram_target,
    kept_of,
    kl_estimate,
    lam_of,
    policy_term,
    ratio_of,
    value_term,
)
from telescope.explain.notation import (
    added,
    enough,
    exact,
    less,
    num,
    one_step,
    par,
    plus,
    series,
    subscript,
    weight_of,
)
from telescope.explain.objectives import OBJECTIVES, Token
from telescope.explain.sample import PER_TOKEN, ActorUpdate, CriticUpdate, Sample

TOLERANCE = 1e-5
SHOWN_BINS = 5


@dataclass(frozen=True)
class Trace:
    name: str
    """kl, reward, delta, advantage_sum, advantage, return, whitened, weight, ratio, clip, surrogate, objective, kl_loss, value_loss;
    `compare`: td0, n_step, gae, monte_carlo; of a batch (`whitening`): batch_mean, batch_variance, batch_std, row."""
    formula: str
    substituted: str
    result: float
    recorded: float | None = None
    ok: bool | None = None
    """|result − recorded| < 1e-5, relative to the largest number that went in if that exceeds 1; None: nothing was recorded."""
    state: str | None = None
    """clip, value_loss: inside, kept (outside, but the unclipped branch counts), clipped or dual (gradient 0). off: not done. histogram.
    advantage: baseline, share or parts, where no critic was asked; last: no token follows. weight: rejected. ratio: first.
    whitened: alone, with μ and σ of this response only."""
    variant: str | None = None
    """Of the formula, which has words of its own. kl: abs, k2, k3. clip: floor, with a dual clip. value_loss: huber.
    advantage_sum, monte_carlo: cut, with V_end where the response was cut off."""

    def to_json(self) -> dict[str, Any]:
        """JSON has no NaN or infinity: they become their names."""
        return {
            k: str(v) if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in asdict(self).items()
        }


def traces(sample: Sample, t: int, update: int = -1) -> list[Trace]:
    """Every quantity of token t that can be recomputed, in the order in which PPO makes them; none for a tool's token.

    `update` picks the minibatch of actor_updates and critic_updates: −1 the last, 0 the first (where the ratio is 1).
    """
    return Tracer(sample).traces(t, update)


def compare(
    sample: Sample, t: int, *, ns: Iterable[int] = (2,), lams: Iterable[float] | None = None
) -> list[Trace]:
    """Other estimators of token t's advantage from the same rewards and values: td0, n_step, gae (each λ), monte_carlo.

    `recorded` is the advantage that was used, where the run's estimator is that one.
    """
    tracer = Tracer(sample)
    return tracer.compare(
        t, ns, (lam_of(sample.settings, len(tracer.steps.at)),) if lams is None else lams
    )


class Tracer:
    """The traces of many tokens of one sample: columns that are missing are computed once."""

    def __init__(self, sample: Sample) -> None:
        self.sample, self.full, self.steps = sample, fill(sample), Steps(sample)
        self.alone, self.kept = alone(self.full), kept_of(self.full)

    def traces(self, t: int, update: int = -1) -> list[Trace]:
        return self._token(t).all(update) if self._written(t) else []

    def compare(self, t: int, ns: Iterable[int], lams: Iterable[float]) -> list[Trace]:
        return self._token(t).estimators(ns, lams) if self._written(t) else []

    def verdicts(self, t: int, update: int = -1) -> dict[str, bool]:
        """Whether each recorded number of token t is right, each once (A, which has two traces, as `advantage`).

        It is if it follows from the recorded numbers below it, or from those as they should be: one wrong number is one ✗.
        """
        out: dict[str, bool] = {}
        for trace in self.traces(t, update):
            if trace.recorded is not None:
                name = trace.name.removesuffix("_sum")
                out[name] = (
                    out.get(name, False)
                    or bool(trace.ok)
                    or self._follows(trace, trace.recorded, t, update)
                )
        return out

    def _follows(self, trace: Trace, recorded: float, t: int, update: int) -> bool:
        should = next(
            (other for other in self._should.traces(t, update) if other.name == trace.name), None
        )
        return should is not None and (
            _close(should.result, recorded, ()) if should.ok is None else should.ok
        )

    @functools.cached_property
    def _should(self) -> Tracer:
        """From only those columns that do not follow from others."""
        kept: dict[str, list[float]] = {}
        bare = replace(self.sample, actor_updates=[], critic_updates=[])
        for name in PER_TOKEN:
            if (
                name in self.sample.columns
                and name not in fill(replace(bare, columns=kept)).columns
            ):
                kept[name] = self.sample.columns[name]
        return Tracer(replace(self.sample, columns=kept))

    def _token(self, t: int) -> _Token:
        return _Token(self, t)

    def _written(self, t: int) -> bool:
        if not 0 <= t < len(self.sample):
            raise TelescopeError(
                f"no token {t}: this response has {len(self.sample)} tokens, 0 to {len(self.sample) - 1}"
            )
        return bool(self.sample.mask[t])


class _Token:
    """Formulas of one token. Inputs come from the filled sample, what is compared against from the sample as recorded."""

    def __init__(self, of: Tracer, t: int) -> None:
        self.sample, self.full, self.steps, self.t, self.s = (
            of.sample,
            of.full,
            of.steps,
            t,
            of.sample.settings,
        )
        self.alone, self.kept = of.alone, of.kept
        self.n = self.steps.next(t)
        self.after = self.steps.value_after(
            t, self.full.columns.get("values", [0.0] * len(self.sample))
        )

    def all(self, update: int) -> list[Trace]:
        made = [
            self.kl(),
            self.reward(),
            self.delta(),
            *self.advantage(),
            self.returns(),
            self.whitened(),
        ]
        u = _pick(self.full.actor_updates, update)
        if u is not None:
            policy = self.policy(u, _pick(self.sample.actor_updates, update))
            made += (
                policy
                if any(trace.state == "rejected" for trace in policy)
                else [*policy, self.kl_loss(u)]
            )
        c = _pick(self.full.critic_updates, update)
        if c is not None:
            made.append(self.value(c, _pick(self.sample.critic_updates, update)))
        return [trace for trace in made if trace is not None]

    def col(self, *names: str) -> list[float] | None:
        """The token's numbers in these columns, or None if one is missing."""
        c = self.full.columns
        return [c[name][self.t] for name in names] if all(name in c for name in names) else None

    def make(
        self,
        name: str,
        formula: str,
        substituted: str,
        result: float,
        column: str,
        inputs: Iterable[float],
    ) -> Trace:
        recorded = self.sample.columns.get(column)
        return _checked(
            name,
            formula,
            substituted,
            result,
            recorded[self.t] if recorded is not None else None,
            inputs,
        )

    def kl(self) -> Trace | None:
        x, i = self.col("old_log_probs", "ref_log_prob"), subscript(self.t)
        if x is None:
            return None
        formula, sub = _kl_texts(self.s.kl_kind, f"log π_old{i} − log π_ref{i}", *x)
        made = self.make(
            "kl", f"kl{i} = {formula}", sub, kl_estimate(x[0] - x[1], self.s.kl_kind), "kl", x
        )
        kind = {"mse": "k2", "low_var_kl": "k3"}.get(
            self.s.kl_kind.removesuffix("+"), self.s.kl_kind.removesuffix("+")
        )
        return replace(made, variant=kind if kind in ("abs", "k2", "k3") else None)

    def kl_loss(self, u: ActorUpdate) -> Trace | None:
        """Of the policy in this update; the loss adds it. Not recorded by itself: shown, not checked."""
        ref, i, s = self.col("ref_log_prob"), subscript(self.t), self.s
        if ref is None or not s.kl_loss_coef:
            return None
        new = u.log_probs[self.t]
        formula, sub = _kl_texts(s.kl_loss_kind, f"log π{i} − log π_ref{i}", new, ref[0])
        result = s.kl_loss_coef * kl_estimate(new - ref[0], s.kl_loss_kind)
        return Trace(
            "kl_loss",
            f"L_KL{i} = {num(s.kl_loss_coef)}·[{formula}]",
            f"{num(s.kl_loss_coef)}·[{sub}]",
            result,
        )

    def reward(self) -> Trace | None:
        i, x, beta = subscript(self.t), self.col("token_level_scores", "kl"), self.s.kl_coef
        if x is not None:
            n = exact(lambda score, b, kl: score - b * kl, x[0], beta, x[1])
            sub = f"{num(x[0], n)} − {num(beta, n)}·{par(x[1], n)}"
            return self.make(
                "reward",
                f"r{i} = score{i} − β·kl{i}",
                sub,
                x[0] - beta * x[1],
                "token_level_rewards",
                x,
            )
        score = self.col("token_level_scores")
        if score is None or beta:
            return None
        return self.make(
            "reward", f"r{i} = score{i}", num(score[0]), score[0], "token_level_rewards", score
        )

    def delta(self) -> Trace | None:
        x, i = self.col("token_level_rewards", "values"), subscript(self.t)
        if x is None:
            return None
        formula = f"δ{i} = r{i} + γ·{self.next_name('V')} − V{i}"
        sub = one_step(x[0], self.s.gamma, self.after, x[1])
        return self.make(
            "delta",
            formula,
            sub,
            x[0] + self.s.gamma * self.after - x[1],
            "deltas",
            [*x, self.after],
        )

    def next_name(self, symbol: str) -> str:
        return f"{symbol}{'_end' if self.n is None else subscript(self.n)}"

    def advantage(self) -> list[Trace | None]:
        """As the sum from t to the end, and from the next token's recorded number."""
        i, s, c = subscript(self.t), self.s, self.full.columns
        if s.estimator in ("uniform", "last_token", "attention"):
            return [self.share()]
        if "baselines" in c:
            return [self.against_baseline()]
        if s.estimator == "gdpo":
            return [self.parts()]
        if s.estimator in ("monte_carlo", "reinforce++"):
            return [
                self.rewards_then_value("advantage_sum", f"A{i}", len(self.sample), True),
                self.next_return(),
            ]
        delta = self.col("deltas")
        if delta is None:
            return []
        if s.estimator == "td0":
            return [
                self.make("advantage", f"A{i} = δ{i}", num(delta[0]), delta[0], "advantages", delta)
            ]
        recursion: Trace | None = None
        lam = lam_of(s, len(self.steps.at))
        decay = s.gamma * lam
        if "advantages" in c:
            later = 0.0 if self.n is None else c["advantages"][self.n]
            formula = (
                f"A{i} = δ{i}" if self.n is None else f"A{i} = δ{i} + γλ·{self.next_name('A')}"
            )
            n = exact(lambda d, decay, later: d + decay * later, delta[0], decay, later)
            sub = (
                num(delta[0])
                if self.n is None
                else f"{num(delta[0], n)} + {num(decay, n)}·{par(later, n)}"
            )
            recursion = self.make(
                "advantage", formula, sub, delta[0] + decay * later, "advantages", [delta[0], later]
            )
            recursion = replace(recursion, state="last") if self.n is None else recursion
        return [self.deltas_sum("advantage_sum", f"A{i}", lam, True), recursion]

    def against_baseline(self) -> Trace | None:
        """The outcome (of the response, or from here on) less what it was compared with."""
        c, i, s = self.full.columns, subscript(self.t), self.s
        if "token_level_rewards" not in c:
            return None
        from_here, gamma = (
            s.estimator in ("remax", "optimal_token_baseline"),
            s.gamma if s.estimator == "remax" else 1.0,
        )
        at = self.steps.onwards(self.t) if from_here else self.steps.at
        formula, _, total, inputs = series("r", at, c["token_level_rewards"], gamma)
        b, scale = c["baselines"][self.t], 1.0 if self.full.scale is None else self.full.scale
        n = enough(inputs, -b)
        formula, sub = f"{formula} − b{i}", f"{added(inputs, n)} − {par(b, n)}"
        if scale != 1:
            formula, sub = f"({formula})/σ", f"({sub})/{num(scale)}"
        size = [*inputs, total / scale, b / scale]
        return replace(
            self.make(
                "advantage", f"A{i} = {formula}", sub, (total - b) / scale, "advantages", size
            ),
            state="baseline",
        )

    def share(self) -> Trace | None:
        """The token's share of the outcome."""
        c, i, at = self.full.columns, subscript(self.t), self.steps.at
        given = {
            "uniform": dict.fromkeys(at, 1.0),
            "last_token": dict.fromkeys(at[-self.s.last_k :], 1.0),
        }.get(self.s.estimator)
        if given is None and "attention" in c:
            given = {t: c["attention"][t] for t in at}
        if given is None or "token_level_rewards" not in c:
            return None
        total = math.fsum(given.values())
        w = (
            given.get(self.t, 0.0) / total if total else 1 / len(at)
        )  # no weight anywhere: all alike
        formula, sub, outcome, inputs = series("r", at, c["token_level_rewards"], 1.0)
        made = self.make(
            "advantage",
            f"A{i} = w{i}·({formula})",
            f"{num(w)}·({sub})",
            w * outcome,
            "advantages",
            inputs,
        )
        return replace(made, state="share")

    def parts(self) -> Trace | None:
        """Shown, not recomputed: the group's statistics of every part are not recorded."""
        x = self.col("advantages")
        return (
            None
            if x is None
            else Trace(
                "advantage",
                f"A{subscript(self.t)} = Σ w·(part − μ)/σ",
                num(x[0]),
                x[0],
                state="parts",
            )
        )

    def next_return(self) -> Trace | None:
        x, i, returns = (
            self.col("token_level_rewards", "values"),
            subscript(self.t),
            self.full.columns.get("returns"),
        )
        if x is None or returns is None:
            return None
        later, name = (
            (self.after, "V_end") if self.n is None else (returns[self.n], self.next_name("R"))
        )
        result = x[0] + self.s.gamma * later - x[1]
        sub = one_step(x[0], self.s.gamma, later, x[1])
        return self.make(
            "advantage", f"A{i} = r{i} + γ·{name} − V{i}", sub, result, "advantages", [*x, later]
        )

    def deltas_sum(self, name: str, left: str, lam: float, recorded: bool) -> Trace | None:
        deltas = self.full.columns.get("deltas")
        if deltas is None:
            return None
        formula, sub, total, inputs = series(
            "δ", self.steps.onwards(self.t), deltas, self.s.gamma * lam
        )
        return self.make(
            name, f"{left} = {formula}", sub, total, "advantages" if recorded else "", inputs
        )

    def rewards_then_value(self, name: str, left: str, n: int, recorded: bool) -> Trace | None:
        """n rewards, then the value of the state they lead to (the end's, past it), less V_t: Monte Carlo, TD(0), n-step."""
        c, g, t = self.full.columns, self.s.gamma, self.t
        if "token_level_rewards" not in c or "values" not in c:
            return None
        ahead = self.steps.onwards(t)
        formula, _, total, inputs = series("r", ahead[:n], c["token_level_rewards"], g)
        k, v = min(n, len(ahead)), c["values"][t]
        state, value = (
            (f"V{subscript(ahead[k])}", c["values"][ahead[k]])
            if k < len(ahead)
            else ("V_end", self.steps.bootstrap)
        )
        later = g**k * value
        digits = enough(inputs, later, -v)
        sub = added(inputs, digits)
        if state != "V_end" or value:
            formula += f" + {weight_of(g, k)}{state}"
            sub += f" {'+' if value >= 0 else '−'} {num(abs(later), digits)}"
        result = total + later - v
        formula, sub = f"{left} = {formula} − V{subscript(t)}", f"{sub} − {par(v, digits)}"
        made = self.make(
            name, formula, sub, result, "advantages" if recorded else "", [*inputs, value, v]
        )
        return replace(made, variant="cut") if state == "V_end" and value else made

    def estimators(self, ns: Iterable[int], lams: Iterable[float]) -> list[Trace]:
        i, used, every, own = (
            subscript(self.t),
            self.s.estimator,
            len(self.sample),
            lam_of(self.s, len(self.steps.at)),
        )
        made = [self.rewards_then_value("td0", f"A{i}[TD(0)]", 1, used == "td0")]
        made += [self.rewards_then_value("n_step", f"A{i}[n={n}]", n, False) for n in ns]
        made += [
            self.deltas_sum("gae", f"A{i}[λ={num(lam)}]", lam, used == "gae" and lam == own)
            for lam in lams
        ]
        made.append(
            self.rewards_then_value("monte_carlo", f"A{i}[MC]", every, used == "monte_carlo")
        )
        return [trace for trace in made if trace is not None]

    def returns(self) -> Trace | None:
        x, i = self.col("advantages", "values"), subscript(self.t)
        if x is None:
            return None
        c, s = self.full.columns, self.s
        if s.estimator in ("remax", "optimal_token_baseline") and "baselines" in c:
            a, b = x[0], c["baselines"][self.t]
            return self.make("return", f"R{i} = A{i} + b{i}", plus(a, b), a + b, "returns", [a, b])
        if s.lam_critic is not None and "deltas" in c:
            formula, _, total, inputs = series(
                "δ", self.steps.onwards(self.t), c["deltas"], s.gamma * s.lam_critic
            )
            n = enough(inputs, x[1])
            sub = f"{num(x[1], n)} + {added(inputs, n)}"
            return self.make(
                "return", f"R{i} = V{i} + {formula}", sub, x[1] + total, "returns", [*inputs, x[1]]
            )
        made = self.make("return", f"R{i} = A{i} + V{i}", plus(*x), x[0] + x[1], "returns", x)
        return made if s.estimator in BY_CRITIC else replace(made, state="off")

    def whitened(self) -> Trace | None:
        x, i, mean, std = (
            self.col("advantages"),
            subscript(self.t),
            self.full.whiten_mean,
            self.full.whiten_std,
        )
        if x is None:
            return None
        if not self.s.whiten:
            return replace(
                self.make("whitened", f"Â{i} = A{i}", num(x[0]), x[0], "whitened", x), state="off"
            )
        if mean is None or std is None:
            return None
        sub = f"({less(x[0], mean)})/{num(std)}"
        made = self.make(
            "whitened", f"Â{i} = (A{i} − μ)/σ", sub, (x[0] - mean) / std, "whitened", x
        )
        return replace(made, state="alone") if self.alone else made

    def policy(self, u: ActorUpdate, was: ActorUpdate | None) -> list[Trace]:
        t, i, s = self.t, subscript(self.t), self.s
        new, old = u.log_probs[t], u.old_log_probs[t]
        recorded = was.ratio[t] if was is not None and was.ratio else None
        formula, sub = f"ρ{i} = exp(log π{i} − log π_old{i})", f"exp({less(new, old)})"
        weight = self.weight(u, was)
        if weight and weight.state == "rejected":
            return [weight]
        first = "first" if new == old and u.epoch == u.minibatch == 0 else None
        made = ([weight] if weight else []) + [
            _checked("ratio", formula, sub, ratio_of(new, old), recorded, (), first)
        ]
        x = self.col("whitened")
        if x is None:
            return made
        p, a, lo, hi = u.ratio[t], x[0], 1 - s.clip_low, 1 + s.clip_high
        objective = -was.loss[t] if was is not None and was.loss else None
        if s.loss in OBJECTIVES:
            return [*made, self.objective(u, objective)]
        (term, state), edge = policy_term(p, a, s), clamp(p, lo, hi)
        formula = f"min(ρ{i}·Â{i}, clip(ρ{i}, {num(lo)}, {num(hi)})·Â{i})"
        factors, products = (
            f"min({num(p)}×{par(a)}, {num(edge)}×{par(a)})",
            f"min({num(p * a)}, {num(edge * a)})",
        )
        if s.dual_clip is not None and a < 0:
            formula = f"max({formula}, {num(s.dual_clip)}·Â{i})"
            factors, products = (
                f"max({factors}, {num(s.dual_clip)}×{par(a)})",
                f"max({products}, {num(s.dual_clip * a)})",
            )
        sub = f"{factors} = {products}"
        clip = _checked(
            "clip",
            f"PPO{i} = {formula}",
            sub,
            term,
            None if s.loss == "cpi" else objective,
            (p * a,),
            state,
        )
        clip = replace(clip, variant="floor") if s.dual_clip is not None and a < 0 else clip
        if clip.recorded is not None and was is not None and was.clipped:
            flag = (
                "clipped"
                if was.clipped[t]
                else "dual"
                if was.dual_clipped and was.dual_clipped[t]
                else None
            )
            clip = _agree(
                clip,
                flag,
                ("clipped", "dual"),
                _close(p * a, edge * a, ()) or _close(term, (s.dual_clip or 0) * a, ()),
            )
        surrogate = _checked(
            "surrogate",
            f"TRPO{i} = ρ{i}·Â{i}",
            f"{num(p)}×{par(a)}",
            p * a,
            objective if s.loss == "cpi" else None,
            (a,),
            "off",
        )
        return [*made, clip, surrogate]

    def weight(self, u: ActorUpdate, was: ActorUpdate | None) -> Trace | None:
        """What the loss is multiplied by, where the sampler's probabilities differ from the trainer's."""
        s, t, i, sampler = (
            self.s,
            self.t,
            subscript(self.t),
            self.full.columns.get("rollout_log_probs"),
        )
        if sampler is None or s.importance == s.reject == "off":
            return None
        recorded = was.weight[t] if was is not None and was.weight else None
        if not self.kept[t]:
            bounds = f"[{num(s.reject_low)}, {num(s.reject_high)}]"
            return _checked(
                "weight",
                f"w{i} = 0: π_old/π_sampler is not in {bounds}",
                "0",
                0.0,
                recorded,
                (),
                "rejected",
            )
        if s.importance == "off":
            return _checked("weight", f"w{i} = 1: kept", "1", 1.0, recorded, ())
        gap = math.fsum(
            u.old_log_probs[k] - sampler[k]
            for k in (self.steps.at if s.importance == "sequence" else [t])
            if self.kept[k]
        )
        ratio = math.exp(clamp(gap, -20.0, 20.0))
        name = f"π_old{i}/π_sampler{i}" if s.importance == "token" else "Π π_old/π_sampler"
        sub = f"min({num(ratio)}, {num(s.importance_cap)})"
        return _checked(
            "weight",
            f"w{i} = min({name}, {num(s.importance_cap)})",
            sub,
            min(ratio, s.importance_cap),
            recorded,
            (),
        )

    def objective(self, u: ActorUpdate, recorded: float | None) -> Trace:
        """The term of a loss that is neither PPO's clip nor the plain surrogate."""
        t, i, s, c = self.t, subscript(self.t), self.s, self.full.columns
        kept = [k for k in self.steps.at if self.kept[k]]
        gaps = [u.log_probs[k] - u.old_log_probs[k] for k in kept]
        mine = clamp(u.log_probs[t] - u.old_log_probs[t], -20.0, 20.0)
        selected = bool(u.selected and u.selected[t])
        whitened = c["whitened"]
        token = Token(
            u.ratio[t],
            whitened[t],
            u.log_probs[t],
            mine,
            selected,
            gaps,
            [whitened[k] for k in kept],
            s,
        )
        formula, numbers, result = OBJECTIVES[s.loss](token)
        numbers = {"ρ": u.ratio[t], "Â": whitened[t], **numbers}
        sub = "[" + ", ".join(f"{name} {num(x)}" for name, x in numbers.items()) + "]"
        return _checked(
            "objective",
            f"J{i}[{s.loss}] = {formula}",
            sub,
            result,
            recorded,
            [result, *numbers.values()],
        )

    def value(self, u: CriticUpdate, was: CriticUpdate | None) -> Trace | None:
        x, i, eps = self.col("values", "returns"), subscript(self.t), self.s.clip_value
        if x is None:
            return None
        v, (old, target) = u.values[self.t], x
        if self.s.bins:
            return self.histogram(u, was, target)
        loss, state = value_term(v, old, target, eps, self.s.huber_delta)
        recorded = was.loss[self.t] if was is not None and was.loss else None
        huber = self.s.huber_delta
        squared, worse = (
            ("½·({})²", "½·max(({})², ({})²)") if huber is None else ("H({})", "max(H({}), H({}))")
        )
        what_h = (
            ""
            if huber is None
            else f" [H(e) = ½·e² for |e| ≤ {num(huber)}, else {num(huber)}·(|e| − {num(huber / 2)})]"
        )
        errors = f"v{i} − R{i}", less(v, target)
        if eps is None:
            formula, sub = (squared.format(error) for error in errors)
            trace = _checked(
                "value_loss", f"L_V{i} = {formula}{what_h}", sub, loss, recorded, (v, target), state
            )
            return trace if huber is None else replace(trace, variant="huber")
        inside = clamp(v, old - eps, old + eps)
        formula = (
            f"L_V{i} = " + worse.format(errors[0], f"clip(v{i}, V{i} ± {num(eps)}) − R{i}") + what_h
        )
        sub = worse.format(errors[1], less(inside, target))
        trace = _checked("value_loss", formula, sub, loss, recorded, (v, old, target), state)
        trace = trace if huber is None else replace(trace, variant="huber")
        if recorded is not None and was is not None and was.clipped:
            near = _close(abs(v - target), abs(inside - target), (v, old, target))
            trace = _agree(trace, "clipped" if was.clipped[self.t] else None, ("clipped",), near)
        return trace

    def histogram(self, u: CriticUpdate, was: CriticUpdate | None, target: float) -> Trace | None:
        """Cross-entropy over the recorded bins, which hold all of the target; those with most of it are shown, the rest as a sum."""
        if not u.log_p:
            return None
        s, t, i, first = self.s, self.t, subscript(self.t), u.first_bin[self.t]
        shares = histogram_target(target, first, len(u.log_p[t]), s)
        terms = [q * log_p for q, log_p in zip(shares, u.log_p[t], strict=True)]
        shown = sorted(sorted(range(len(terms)), key=lambda k: -shares[k])[:SHOWN_BINS])
        rest = math.fsum(term for k, term in enumerate(terms) if k not in shown)
        sub = " + ".join(f"{num(shares[k])}·log {num(math.exp(u.log_p[t][k]))}" for k in shown)
        sub = f"[v {num(u.values[t])}, R {num(target)}] −({sub} + …({num(rest)}))"
        width = (s.value_high - s.value_low) / s.bins
        edges = (num(s.value_low + width * (first + k)) for k in (shown[0], shown[-1] + 1))
        inside = s.value_low <= target <= s.value_high
        mean = f"R{i}" if inside else f"clip(R{i}, {num(s.value_low)}, {num(s.value_high)})"
        formula = (
            f"L_V{i} = −Σ q·log p, q = N({mean}, {num(s.value_sigma)}), bins {' … '.join(edges)}, …"
        )
        recorded = was.loss[t] if was is not None and was.loss else None
        return _checked(
            "value_loss", formula, sub, -math.fsum(terms), recorded, u.log_p[t], "histogram"
        )


def _kl_texts(kind: str, name: str, log_prob: float, ref: float) -> tuple[str, str]:
    """The estimate of d, as a formula and with the numbers in it."""
    kind, d, numbers = kind.removesuffix("+"), log_prob - ref, less(log_prob, ref)
    if kind in ("k3", "low_var_kl"):
        formula, x = "min(10, e^(−d) + d − 1)", num(abs(d))
        filled = f"e^({x}) − {x} − 1" if d < 0 else f"e^(−{x}) + {x} − 1"
        return f"{formula} [d = {name}]", f"min(10, {filled}) [d = {numbers} = {num(d)}]"
    shape = {"abs": "|{}|", "k2": "½·({})²", "mse": "½·({})²"}.get(kind, "{}")
    return shape.format(name), shape.format(numbers)


def _agree(trace: Trace, flag: str | None, flags: Sequence[str], near: bool) -> Trace:
    """The recorded clip flag must be ours too; where both branches are equal but for rounding, the recorded one counts."""
    if trace.state == flag or (flag is None and trace.state not in flags):
        return trace
    return replace(trace, state=flag or "inside") if near else replace(trace, ok=False)


def _checked(
    name: str,
    formula: str,
    sub: str,
    result: float,
    recorded: float | None,
    inputs: Iterable[float],
    state: str | None = None,
) -> Trace:
    return Trace(
        name,
        formula,
        sub,
        result,
        recorded,
        None if recorded is None else _close(result, recorded, inputs),
        state,
    )


def _close(x: float, y: float, inputs: Iterable[float]) -> bool:
    """float32 leaves about 1e-7 of the largest number that went in."""
    return abs(x - y) < TOLERANCE * max(1.0, abs(x), *(abs(i) for i in inputs))


def _pick(updates: Sequence[Any], index: int) -> Any:
    return updates[index] if -len(updates) <= index < len(updates) else None
