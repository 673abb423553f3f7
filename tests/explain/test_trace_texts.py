"""Every claim that a term's text makes is true of the token it is shown for, whatever the sample."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from telescope.algorithms.definitions import texts as definition_texts
from telescope.explain.arithmetic import fill
from telescope.explain.claims import evaluate
from telescope.explain.example import BATCH
from telescope.explain.numbers import from_numbers
from telescope.explain.sample import Sample
from telescope.explain.trace import Trace, Tracer
from telescope.explain.words import meaning, texts, words_of

pytestmark = pytest.mark.slow

OLD = [-0.4, -0.9, -0.2, -1.1, -0.3]
REF = [-0.6, -0.5, -0.2, -1.4, -0.25]
NEW = [[-0.1, -0.95, -0.2, -1.6, -0.9], [-0.9, -0.2, -0.3, -0.3, -0.3]]
VALUES = [0.5, 0.7, 0.4, 0.6, 0.3]


def grid() -> Iterator[Sample]:
    """λ, γ, truncation, tools, length, sign, whitening, estimator, clip and KL estimate."""
    choices = itertools.product(
        ("gae", "monte_carlo", "td0"),
        (0.0, 0.5, 1.0),  # λ
        (1.0, 0.9, 0.0),  # γ
        (0.0, 0.8),  # V_end
        ([1, 1, 1, 1, 1], [1, 0, 0, 1, 1]),
        (1, 2, 5),  # tokens
        (1.0, -1.0),  # score
    )
    for k, (estimator, lam, gamma, end, mask, length, score) in enumerate(choices):
        settings: dict[str, Any] = {"estimator": estimator, "gamma": gamma}
        if estimator == "gae":
            settings["lam"] = lam
            if k % 5 == 0:
                settings["lam_critic"] = 1.0 - lam
        elif lam:
            continue
        kinds = ("k1", "k2", "k3", "abs")
        yield from_numbers(
            {
                "old": OLD[:length],
                "ref": REF[:length],
                "new": NEW[k % 2][:length],
                "values": VALUES[:length],
                "new_values": [v + (0.3, 0.1, -0.4)[k % 3] for v in VALUES[:length]],
                "score": score,
                "mask": mask[:length],
                "beta": 0.1 * (k % 3),
                "kl_kind": kinds[k % 4],
                "whiten": k % 4 != 0,
                "dual_clip": 1.5 if k % 7 == 0 else 3.0,
                **({"bootstrap": end, "truncated": True} if end else {}),
                **settings,
            }
        )


def facts_of(tracer: Tracer, t: int) -> dict[str, float]:
    """The numbers of a token, worked out here and not taken from the traces."""
    full = tracer.full
    at = full.written
    columns = full.columns
    s = full.settings
    k = at.index(t)
    rewards = [columns["token_level_rewards"][j] for j in at[k:]]
    values = [columns["values"][j] for j in at[k:]]
    end = full.bootstrap
    update = full.actor_updates[0]
    lam = s.lam(len(at))
    v = full.critic_updates[0].values[t]
    eps = s.critic.clip_value
    own = getattr(s.credit, "lam_critic", None)
    return {
        "r": rewards[0],
        "V": values[0],
        "V_next": [*values, end][1],
        "V_end": end,
        "G": math.fsum(s.gamma**j * r for j, r in enumerate(rewards)),
        "tail": s.gamma ** len(rewards) * end,
        "gamma": s.gamma,
        "lam": lam,
        "lam_R": lam if own is None else own,
        "delta": columns["deltas"][t],
        "A": columns["advantages"][t],
        "R": columns["returns"][t],
        "white": columns["whitened"][t],
        "mean": full.whiten_mean or 0.0,
        "score": columns["token_level_scores"][t],
        "beta": s.credit.kl_coef,
        "kl": columns["kl"][t],
        "old": columns["old_log_probs"][t],
        "ref": columns["ref_log_prob"][t],
        "new": update.log_probs[t],
        "ratio": update.ratio[t],
        "low": 1 - s.actor.clip_low,
        "high": 1 + s.actor.clip_high,
        "v": v,
        "eps": eps,
        "edge": min(max(v, values[0] - eps), values[0] + eps),
    }


def shown_words(trace: Trace) -> Any:
    """The words of the expert's text that is shown."""
    return next((words for words in words_of(trace) if words.zh), None)


def test_every_claim_holds_for_every_sample_of_the_grid() -> None:
    checked: Counter[str] = Counter()
    for sample in (*grid(), *BATCH):
        tracer = Tracer(sample)
        for t in sample.written:
            facts = facts_of(tracer, t)
            for trace in tracer.traces(t):
                words = shown_words(trace)
                if words is None or not words.claim:
                    continue
                checked[words.claim] += 1
                assert evaluate(words.claim, facts), (words.zh, words.claim, facts)
    assert set(checked) == set(all_claims()) - {"ratio == 1"}  # that one needs a first minibatch
    assert sum(checked.values()) > 5000


def all_claims() -> list[str]:
    tables = [definition_texts.CREDIT, definition_texts.OBSERVED, definition_texts.ONE_STEP]
    tables += [definition_texts.CLIP, definition_texts.KL, definition_texts.VALUE]
    claims = [words.claim for table in tables for words in table.values()]
    claims += [entry.get("claim", "") for entry in texts()["expert"].values()]
    return [claim for claim in claims if claim]


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_who_says_that_a_return_is_the_observed_sum_is_right(lang: str) -> None:
    """Only where λ = 1 and nothing was cut off, at the last token, or where γ is 0."""
    said = {"zh": "等于实际得到的折扣奖励之和 G", "en": "equals G"}[lang]
    seen = {True: 0, False: 0}
    for sample in grid():
        if sample.settings.estimator != "gae":
            continue
        tracer = Tracer(sample)
        for t in sample.written:
            facts = facts_of(tracer, t)
            (trace,) = (x for x in tracer.traces(t) if x.name == "return")
            says = said in meaning(trace, lang, "expert")
            is_last = t == sample.written[-1]
            waits = facts["lam_R"] == 1 or is_last or facts["gamma"] == 0
            assert says == (waits and facts["tail"] == 0)
            seen[says] += 1
    assert min(seen.values()) > 20


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_text_speaks_of_the_cut_only_where_there_is_one(lang: str) -> None:
    for sample in grid():
        tracer = Tracer(sample)
        for t in sample.written:
            for trace in tracer.traces(t):
                if trace.name in ("delta", "advantage_sum", "return") and not sample.bootstrap:
                    if sample.settings.estimator == "monte_carlo" and trace.name == "return":
                        continue  # its text says «where cut off»
                    said = meaning(trace, lang, "expert")
                    assert not re.search("V_end|截断|cut", said), said


def test_signs_of_kl_are_those_of_the_estimate() -> None:
    for sample in grid():
        for kl in fill(sample).columns["kl"]:
            if sample.settings.credit.kl_kind != "k1":
                assert kl >= 0
