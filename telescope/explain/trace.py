"""The arithmetic of one token: formula, numbers substituted, result, and whether the record agrees.

Every quantity is recomputed in float64 from the recorded numbers one level below it (δ from
rewards and values, A from δ, …), or from those as they should be. So a wrong number shows ✗ where
it went wrong, and only there.
Time is counted in valid tokens (those that the policy chose).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from telescope.algorithms.definitions import mismatch, texts
from telescope.algorithms.definitions.base import (
    Estimator,
    Term,
    Token,
    UpdatedToken,
    Words,
    clamp,
)
from telescope.algorithms.definitions.critic import compare_terms, delta_term
from telescope.algorithms.definitions.kl import kl_estimate
from telescope.algorithms.definitions.notation import exact, less, num, par, subscript
from telescope.algorithms.definitions.policy import on_sampler
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import (
    UpdatedResponse,
    actions_of,
    alone,
    columns_from,
    fill,
    gaps_of,
    kept_of,
    predicted_token,
    ratio_of,
)
from telescope.explain.checked import Trace, agree, compared, recheck
from telescope.explain.sample import SAMPLE_COLUMNS, ActorUpdate, CriticUpdate, Sample
from telescope.explain.typed import bound_of

__all__ = ["Trace", "Tracer", "compare", "traces"]

COLUMN_OF_TERM = {
    "delta": "deltas",
    "advantage_sum": "advantages",
    "advantage": "advantages",
    "return": "returns",
}
"""Term of an estimator -> the column that records it. Other estimates record `advantages`."""

FLOAT32 = 2**-23
"""How far float32 rounds a number, relative to it. Whitening divides that by σ: it may be tiny."""
RESULTS = ("kl", "token_level_rewards", "deltas", "advantages", "returns", "whitened")
"""Columns that follow from others: where they are rounded, so is what is computed from them."""


def traces(sample: Sample, t: int, update: int = -1) -> list[Trace]:
    """Every quantity of token t that can be recomputed, in the order in which PPO makes them.

    None for a tool's token. `update` picks the minibatch of actor_updates and critic_updates:
    −1 the last, 0 the first (where the ratio is 1).
    """
    return Tracer(sample).traces(t, update)


def compare(
    sample: Sample, t: int, *, ns: Iterable[int] = (2,), lams: Iterable[float] | None = None
) -> list[Trace]:
    """Other estimates of token t's advantage from the same rewards and values.

    `recorded` is the advantage that was used, where the run's estimator is that one.
    """
    tracer = Tracer(sample)
    own = (sample.settings.lam(len(sample.written)),)
    return tracer.compare(t, ns, own if lams is None else lams)


class Tracer:
    """The traces of many tokens of one sample: missing columns are computed once."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.full = fill(sample)
        self.actions = actions_of(self.full)
        self.alone = alone(self.full)
        self.kept = kept_of(self.full)
        rounding = self.sample.rounding
        self.rounding = max((rounding.get(name, 0.0) for name in RESULTS), default=0.0)
        self._made: dict[tuple[int, int], list[Trace]] = {}
        self._updated: dict[int, UpdatedResponse] = {}

    def traces(self, t: int, update: int = -1) -> list[Trace]:
        """See `traces`."""
        if not self._written(t):
            return []
        if (t, update) not in self._made:
            self._made[t, update] = self._make(t, update)
        return self._made[t, update]

    def _make(self, t: int, update: int) -> list[Trace]:
        made = _TokenTracer(self, t).all(update)
        if all(trace.ok is not False for trace in made):
            return made
        return _settled([self._with_right_inputs(trace, t, update) for trace in made])

    def updated(self, update: ActorUpdate) -> UpdatedResponse:
        """The response in an update of the full sample."""
        key = id(update)
        if key not in self._updated:
            self._updated[key] = UpdatedResponse(self.full, update, self.kept)
        return self._updated[key]

    def compare(self, t: int, ns: Iterable[int], lams: Iterable[float]) -> list[Trace]:
        """See `compare`."""
        return _TokenTracer(self, t).other_estimates(ns, lams) if self._written(t) else []

    def verdicts(self, t: int) -> dict[str, bool]:
        """Whether each recorded number of token t is right, each once.

        A has two traces and counts as `advantage`.
        """
        out: dict[str, bool] = {}
        for trace in self.traces(t):
            if trace.recorded is None:
                continue
            name = trace.name.removesuffix("_sum")
            out[name] = out.get(name, False) or bool(trace.ok)
        return out

    def _with_right_inputs(self, trace: Trace, t: int, update: int) -> Trace:
        """The trace; if the record is wrong, one with the inputs as they should be, if right then.

        So one wrong number is one ✗, and what was computed from the right one stays ✓.
        """
        if trace.ok is not False or trace.recorded is None:
            return trace
        for other in _TokenTracer(self._should, t).all(update):
            if other.name == trace.name:
                again = other if other.ok is not None else recheck(other, trace.recorded)
                return again if again.ok else trace
        return trace

    @functools.cached_property
    def _should(self) -> Tracer:
        """The sample with only those columns that do not follow from others."""
        kept: dict[str, list[float]] = {}
        for name in SAMPLE_COLUMNS:
            if name in self.sample.columns and name not in columns_from(self.sample, kept):
                kept[name] = self.sample.columns[name]
        return Tracer(replace(self.sample, columns=kept))

    @functools.cached_property
    def inputs(self) -> set[str]:
        """Recorded columns that A was computed from: they would be compared with themselves."""
        found = set()
        earlier = dict(self.sample.columns)
        for name in ("whitened", "returns") if "advantages" not in earlier else ():
            was_there = earlier.pop(name, None) is not None
            if was_there and "advantages" not in columns_from(self.sample, earlier):
                found.add(name)
        return found

    def _written(self, t: int) -> bool:
        length = len(self.sample)
        if not 0 <= t < length:
            raise TelescopeError(
                f"no token {t}: this response has {length} tokens, 0 to {length - 1}"
            )
        return bool(self.sample.mask[t])


def _settled(made: list[Trace]) -> list[Trace]:
    """The traces; a sum of many rounded δ may be far off, so the next token's A decides then."""
    if all(trace.name != "advantage" or trace.ok is not False for trace in made):
        return made
    return [
        replace(trace, ok=False, rounded=False)
        if trace.name == "advantage_sum" and trace.rounded
        else trace
        for trace in made
    ]


class _TokenTracer:
    """The traces of one token.

    Inputs come from the filled sample, recorded numbers from the sample as it was recorded.
    """

    def __init__(self, tracer: Tracer, t: int) -> None:
        self.tracer = tracer
        self.sample = tracer.sample
        self.full = tracer.full
        self.settings = tracer.sample.settings
        self.t = t
        self.i = subscript(t)
        self.token = Token(tracer.actions, tracer.actions.at.index(t))

    def all(self, update: int) -> list[Trace]:
        definition = self.settings.estimator_definition
        has_critic = definition.needs.critic
        terms = definition.terms or functools.partial(default_terms, definition)
        made = [*self.kl(), *self.reward()]
        if has_critic:
            made += self.credit(delta_term(self.token, self.settings.gamma))
        made += self.credit(terms(self.token, self.settings.credit))
        made += self.whitened()
        of_actor = _pick(update, self.full.actor_updates, self.sample.actor_updates)
        if of_actor:
            made += self.policy(*of_actor)
        of_critic = _pick(update, self.full.critic_updates, self.sample.critic_updates)
        if of_critic and has_critic:
            made += self.value(*of_critic)
        return made

    def recorded(self, column: str) -> float | None:
        """The token's number in a column of the record that it can be compared with."""
        found = self.sample.columns.get(column)
        return None if found is None or column in self.tracer.inputs else found[self.t]

    def compared(
        self, term: Term, column: str, words: Mapping[str, Words], slack: float = 0.0
    ) -> Trace:
        """A term beside the record of its column."""
        recorded = self.recorded(column) if term.checked else None
        numbers = sum(abs(float(x)) for x in (recorded or 0.0, *term.inputs))
        of_rounding = self.tracer.rounding * (numbers + self._size())
        return compared(term, recorded, words, slack + of_rounding)

    def _size(self) -> float:
        """What δ is the difference of: both V are rounded, where one is."""
        return 2 * abs(float(self.token.number("values"))) if self.token.has("values") else 0.0

    # ---- before the estimator ----

    def kl(self) -> list[Trace]:
        """The KL estimate that the reward is reduced by."""
        if not self.token.has("old_log_probs", "ref_log_prob"):
            return []
        old = self.token.number("old_log_probs")
        ref = self.token.number("ref_log_prob")
        estimate = kl_estimate(self.settings.credit.kl_kind)
        formula, substituted = estimate.texts(f"log π_old{self.i} − log π_ref{self.i}", old, ref)
        result = estimate.scalar(old - ref)
        term = Term("kl", f"kl{self.i} = {formula}", substituted, result, [old, ref])
        term = replace(term, variant=estimate.variant)
        return [self.compared(term, "kl", texts.KL)]

    def reward(self) -> list[Trace]:
        """The token's score less its KL penalty."""
        beta = self.settings.credit.kl_coef
        has_kl = self.token.has("kl")
        mean = self.full.reward_mean
        std = self.full.reward_std
        if not self.token.has("token_level_scores") or (beta and not has_kl):
            return []
        score = self.token.number("token_level_scores")
        if self.settings.credit.whiten_rewards:
            if mean is None or std is None:
                return []
            cost = beta * self.token.number("kl") if beta else 0.0
            term = self._whitened_reward(score, cost, mean, std)
        elif has_kl:
            term = self._penalised_reward(score, beta, self.token.number("kl"))
        else:
            term = Term("reward", f"r{self.i} = score{self.i}", num(score), score, [score])
        return [self.compared(term, "token_level_rewards", {})]

    def _whitened_reward(self, score: float, cost: float, mean: float, std: float) -> Term:
        """r over its spread in the batch, its mean kept."""
        result = mean + (score - cost - mean) / std
        return Term(
            "reward",
            f"r{self.i} = μ_r + (score{self.i} − β·kl{self.i} − μ_r)/σ_r",
            f"{num(mean)} + ({num(score)} − {par(cost)} − {par(mean)})/{num(std)}",
            result,
            [score / std, cost / std, mean],
            variant="whitened",
        )

    def _penalised_reward(self, score: float, beta: float, kl: float) -> Term:
        digits = exact(lambda score, beta, kl: score - beta * kl, score, beta, kl)
        formula = f"r{self.i} = score{self.i} − β·kl{self.i}"
        substituted = f"{num(score, digits)} − {num(beta, digits)}·{par(kl, digits)}"
        return Term("reward", formula, substituted, score - beta * kl, [score, kl])

    # ---- the estimator ----

    def credit(self, terms: Sequence[Term]) -> list[Trace]:
        """Terms of the estimator, compared with the columns that record them."""
        definition = self.settings.estimator_definition
        words = {"advantage": definition.words, **definition.texts}
        made = []
        for term in terms:
            column = COLUMN_OF_TERM.get(term.name, "advantages")
            made.append(self.compared(term, column, words))
        return made

    def other_estimates(self, ns: Iterable[int], lams: Iterable[float]) -> list[Trace]:
        """Other estimates of the same advantage; the one that the run uses is compared."""
        s = self.settings
        own_lam = s.lam(len(self.tracer.actions))
        terms = compare_terms(self.token, s.gamma, used=s.estimator, ns=ns, lams=lams, lam=own_lam)
        return [self.compared(term, "advantages", texts.SIDE_BY_SIDE) for term in terms]

    def whitened(self) -> list[Trace]:
        """The advantage that the policy loss uses."""
        if not self.token.has("advantages"):
            return self._given_whitened()
        a = self.token.number("advantages")
        mean = self.full.whiten_mean
        std = self.full.whiten_std
        recorded = self.recorded("whitened")
        words = self.settings.estimator_definition.texts
        if not self.settings.whiten:
            term = Term("whitened", f"Â{self.i} = A{self.i}", num(a), a, [a], state="off")
            return [self.compared(term, "whitened", words)]
        if mean is None or std is None:
            return self._given_whitened()
        state = "alone" if self.tracer.alone else None
        formula = f"Â{self.i} = (A{self.i} − μ)/σ"
        substituted = f"({less(a, mean)})/{num(std)}"
        result = (a - mean) / std
        term = Term("whitened", formula, substituted, result, [a], state=state)
        of_advantage = bound_of(a, recorded or 0.0)
        of_mean = bound_of(mean, recorded or 0.0) or of_advantage
        of_std = bound_of(std, recorded or 0.0) or of_advantage
        of_rounded = max(self.tracer.rounding, FLOAT32) * (abs(a) + abs(mean) + self._size())
        slack = (of_mean + of_rounded + abs(result) * of_std) / std
        return [self.compared(term, "whitened", {}, slack)]

    def _given_whitened(self) -> list[Trace]:
        """Â as it was given, where A, or μ and σ of the batch, are not known."""
        if not self.token.has("whitened"):
            return []
        given = self.token.number("whitened")
        term = Term("whitened", f"Â{self.i}", num(given), given, checked=False, state="given")
        return [compared(term, None, {})]

    # ---- the actor's update ----

    def policy(self, update: ActorUpdate, was: ActorUpdate) -> list[Trace]:
        """The token's part in the policy loss of one update; `was` is the update as recorded."""
        made = self.weight(update, was)
        if any(trace.state == "rejected" for trace in made):
            return made
        made += [self.ratio(update, was)]
        if self.token.has("whitened"):
            made += self.objective(update, was)
        return made + self.kl_loss(update)

    def ratio(self, update: ActorUpdate, was: ActorUpdate) -> Trace:
        """ρ: how much more probable the token is than at the time of the rollout."""
        new = update.log_probs[self.t]
        old = update.old_log_probs[self.t]
        is_first = new == old and update.epoch == update.minibatch == 0
        anchor = "sampler" if on_sampler(self.settings.actor) else "old"
        term = Term(
            "ratio",
            f"ρ{self.i} = exp(log π{self.i} − log π_{anchor}{self.i})",
            f"exp({less(new, old)})",
            ratio_of(new, old),
            state="first" if is_first else None,
        )
        recorded = was.ratio[self.t] if was.ratio else None
        return compared(term, recorded, {})

    def weight(self, update: ActorUpdate, was: ActorUpdate) -> list[Trace]:
        """What the token's loss is multiplied by, if that may be another number than 1."""
        actor = self.settings.actor
        sampler = self.full.columns.get("rollout_log_probs")
        if sampler is None or not actor.weighs:
            return []
        if not self.tracer.kept[self.t]:
            why = mismatch.why_rejected(gaps_of(self.full) or [], actor)
            term = Term("weight", f"w{self.i} = 0: {why}", "0", 0.0, state="rejected")
        elif update.top_entropy and not update.top_entropy[self.t]:
            formula = f"w{self.i} = 0: not in the top {actor.top_entropy:g} by entropy"
            term = Term("weight", formula, "0", 0.0, state="low_entropy")
        elif actor.off_policy_mask is not None and self._is_off_policy(update, sampler):
            limit = num(actor.off_policy_mask)
            formula = f"w{self.i} = 0: Â{self.i} < 0, mean(log π_sampler − log π) > {limit}"
            term = Term("weight", formula, "0", 0.0, state="off_policy")
        elif actor.importance == "off":
            term = Term("weight", f"w{self.i} = 1: kept", "1", 1.0)
        else:
            term = self._importance_weight(update.old_log_probs, sampler)
        recorded = was.weight[self.t] if was.weight else None
        return [compared(term, recorded, {})]

    def _is_off_policy(self, update: ActorUpdate, sampler: Sequence[float]) -> bool:
        if not self.token.has("whitened"):
            return False
        kept = [k for k, is_kept in enumerate(self.tracer.kept) if is_kept]
        gaps = [sampler[k] - update.log_probs[k] for k in kept]
        threshold = self.settings.actor.off_policy_mask or 0.0
        return mismatch.is_off_policy(gaps, self.token.number("whitened"), threshold)

    def _importance_weight(self, old: Sequence[float], sampler: Sequence[float]) -> Term:
        """π_old/π_sampler within its bounds, of the token or of the whole response."""
        actor = self.settings.actor
        if actor.importance == "token":
            at = [self.t]
            name = f"π_old{self.i}/π_sampler{self.i}"
        else:
            at = self.sample.written
            name = "Π π_old/π_sampler"
        gap = math.fsum(old[k] - sampler[k] for k in at if self.tracer.kept[k])
        ratio = math.exp(clamp(gap, -20.0, 20.0))
        result = mismatch.weight(ratio, actor)
        low = num(actor.importance_low)
        cap = num(actor.importance_cap)
        if actor.importance_mode == "mask":
            formula = f"w{self.i} = {name} in [{low}, {cap}], else 0"
            return Term("weight", formula, num(result), result)
        if actor.importance_low:
            formula = f"w{self.i} = clip({name}, {low}, {cap})"
            return Term("weight", formula, f"clip({num(ratio)}, {low}, {cap})", result)
        formula = f"w{self.i} = min({name}, {cap})"
        return Term("weight", formula, f"min({num(ratio)}, {cap})", result)

    def objective(self, update: ActorUpdate, was: ActorUpdate) -> list[Trace]:
        """The terms of the run's policy loss."""
        definition = self.settings.policy_loss_definition
        if definition is None:
            return []
        token = self.tracer.updated(update).token(self.t)
        if definition.terms is not None:
            terms = definition.terms(token, self.settings.actor)
        else:
            terms = [self._objective_term(token)]
        recorded = -was.loss[self.t] if was.loss else None
        words = {"objective": definition.words, **definition.texts}
        made = []
        for term in terms:
            trace = compared(term, recorded if term.checked else None, words)
            made.append(self._with_recorded_flag(trace, term, was))
        return made

    def _objective_term(self, token: UpdatedToken) -> Term:
        """The term of a policy loss that has none of its own: its formula and its numbers."""
        definition = self.settings.policy_loss_definition
        assert definition is not None
        found = definition.objective(token, self.settings.actor)
        numbers = {"ρ": token.ratio, "Â": token.advantage, **found.numbers}
        listed = ", ".join(f"{name} {num(x)}" for name, x in numbers.items())
        formula = f"J{self.i}[{definition.name}] = {found.formula or definition.formula}"
        inputs = [found.value, *numbers.values()]
        return Term("objective", formula, f"[{listed}]", found.value, inputs)

    def _with_recorded_flag(self, trace: Trace, term: Term, was: ActorUpdate) -> Trace:
        """Compares the clip flags too; they may differ if two branches agree up to rounding."""
        has_states = term.state in ("inside", "kept", "clipped", "dual")
        if trace.recorded is None or not was.clipped or not has_states:
            return trace
        flag = None
        if was.clipped[self.t]:
            flag = "clipped"
        elif was.dual_clipped and was.dual_clipped[self.t]:
            flag = "dual"
        return agree(trace, flag, ("clipped", "dual"), term.ties)

    def kl_loss(self, update: ActorUpdate) -> list[Trace]:
        """The KL term of the loss, with this update's π. Not recorded by token: not checked."""
        actor = self.settings.actor
        if not self.token.has("ref_log_prob") or not actor.kl_loss_coef:
            return []
        ref = self.token.number("ref_log_prob")
        new = update.log_probs[self.t]
        estimate = kl_estimate(actor.kl_loss_kind)
        name = f"log π{self.i} − log π_ref{self.i}"
        formula, substituted = estimate.texts(name, new, ref)
        coef = num(actor.kl_loss_coef)
        formula = f"L_KL{self.i} = {coef}·[{formula}]"
        substituted = f"{coef}·[{substituted}]"
        result = actor.kl_loss_coef * estimate.scalar(new - ref)
        return [Trace("kl_loss", formula, substituted, result)]

    # ---- the critic's update ----

    def value(self, update: CriticUpdate, was: CriticUpdate) -> list[Trace]:
        """The token's part in the value loss of one update; `was` is the update as recorded."""
        if not self.token.has("values", "returns"):
            return []
        definition = self.settings.value_loss_definition
        token = predicted_token(self.full, update, self.t)
        recorded = was.loss[self.t] if was.loss else None
        made = []
        for term in definition.terms(token, self.settings.critic):
            trace = compared(term, recorded, definition.texts)
            if recorded is not None and was.clipped and term.state != "off":
                flag = "clipped" if was.clipped[self.t] else None
                trace = agree(trace, flag, ("clipped",), term.ties)
            made.append(trace)
        return made


def default_terms(definition: Estimator, token: Token, settings: Any) -> list[Term]:
    """Terms of an estimator that has none of its own: its formula, and the numbers that went in."""
    i = subscript(token.index)
    for rule in definition.rules:
        if rule.column != "advantages" or not token.has(*rule.inputs):
            continue
        result = rule.step(token.actions, settings, token.k)
        numbers = {name: token.number(name) for name in rule.inputs}
        own = definition.settings.model_fields
        numbers |= {name: getattr(settings, name) for name in own}
        listed = []
        inputs = []
        for name, x in numbers.items():
            is_number = isinstance(x, int | float)
            listed.append(f"{name} {num(x) if is_number else x}")
            if is_number:
                inputs.append(x)
        formula = definition.formula.replace("A[i]", f"A{i}").replace("A_t", f"A{i}")
        substituted = f"[{', '.join(listed)}]"
        return [Term("advantage", formula, substituted, result, [result, *inputs])]
    if not token.has("advantages"):
        return []
    a = token.number("advantages")
    return [Term("advantage", f"A{i} = {definition.name}", num(a), a, checked=False)]


_Update = TypeVar("_Update", ActorUpdate, CriticUpdate)


def _pick(
    index: int, full: Sequence[_Update], recorded: Sequence[_Update]
) -> tuple[_Update, _Update] | None:
    """Update `index`, filled and as recorded; None if there is none."""
    return (full[index], recorded[index]) if -len(full) <= index < len(full) else None
