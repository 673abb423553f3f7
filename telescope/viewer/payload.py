"""Samples, traces and what-ifs as the JSON that a browser gets.

A trace is the formula of one number with its values put in. A what-if is the same rollout with
another γ, λ or estimator.

Nothing here computes: columns come from the ledger, arithmetic from telescope.explain. Sizes are
bounded, so that a long response cannot choke a browser; whatever was cut says so.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from telescope.algorithms.definitions.notation import num
from telescope.audit.findings import Audit
from telescope.errors import TelescopeError
from telescope.explain import chat
from telescope.explain.instructive import instructive
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.explain.trace import Trace, Tracer
from telescope.explain.words import Lang, assumed, formula, meaning
from telescope.viewer.columns import OF_A_CRITIC
from telescope.viewer.delta_weights import delta_weights
from telescope.viewer.derived import with_derived
from telescope.viewer.formulas import formula_of

MAX_TOKENS = 2_000
"""Of one sample."""
MAX_PROMPT = 20_000
"""Characters of a prompt, from its end: the question stands there."""
MAX_TOKEN_BYTES = 48
MAX_PARTS = 20
MAX_TRACE_TEXT = 1_500
LANGS: tuple[Lang, ...] = ("zh", "en")


# ---- one sample ----


def page_sample(sample: Sample) -> dict[str, Any]:
    """A sample for a browser: seven digits, non-finite numbers as null, long text cut.

    Of the updates only the last one's ratio and clipped tokens are sent. Without a critic there
    is no V and no δ.
    """
    shown = min(len(sample), MAX_TOKENS)
    pieces = sample.token_bytes[:shown]
    long = {t: len(piece) for t, piece in enumerate(pieces) if len(piece) > MAX_TOKEN_BYTES}
    needs = sample.settings.estimator_definition.needs
    values = sample.columns.get("values")
    critic = values is not None and (needs.critic or any(values))
    known = with_derived(sample).items()
    columns = {k: v for k, v in known if critic or k not in OF_A_CRITIC}
    out: dict[str, Any] = {
        "step": sample.step,
        "count": sample.count,
        "policy_version": sample.policy_version,
        "prompt_index": sample.prompt_index,
        "prompt_parts": prompt_parts(sample.prompt),
        "prompt_cut": max(len(sample.prompt) - MAX_PROMPT, 0),
        "response_parts": response_parts(sample.mask[:shown]),
        "mask": sample.mask[:shown],
        "length": len(sample),
        "token": min(instructive(sample), max(shown - 1, 0)),
        "token_ids": sample.token_ids[:shown],
        "token_bytes": [list(piece[:MAX_TOKEN_BYTES]) for piece in pieces],
        "token_sizes": long,
        "columns": {name: _numbers(column[:shown]) for name, column in columns.items()},
        "settings": page_settings(sample.settings) | {"critic": critic},
        "weights": _numbers(delta_weights(sample)),
        "parts": parts_of(sample.parts),
        "data": sample.data,
        "truncated": sample.truncated,
        "updates": len(sample.actor_updates),
        "remarks": remarks_of(sample),
    }
    if sample.actor_updates:
        update = sample.actor_updates[-1]
        flags = itertools.zip_longest(update.clipped, update.dual_clipped)
        out["columns"]["ratio"] = _numbers(update.ratio[:shown])
        out["clipped"] = [t for t, hit in enumerate(map(any, flags)) if hit and t < shown]
        out["update"] = [update.epoch, update.minibatch]
    for name in ("score", "bootstrap", "scale", "whiten_mean", "whiten_std"):
        out[name] = number_of(getattr(sample, name))
    return out


def remarks_of(sample: Sample) -> list[dict[str, str]]:
    """What is wrong in a step of another trainer, its rules where a number disagrees, and what is
    assumed of its settings."""
    said = list(sample.faults)
    if sample.rules:
        tracer = Tracer(sample)
        tokens = range(min(len(sample), MAX_TOKENS))
        disagrees = any(not ok for t in tokens for ok in tracer.verdicts(t).values())
        is_scaled = sample.scale is not None  # its σ has another 1e-6 in it, and stands in a term
        if disagrees or is_scaled:
            said += sample.rules
    remarks: list[dict[str, str]] = [{lang: remark.said(lang) for lang in LANGS} for remark in said]
    if assumed(sample, "en", "expert"):
        remarks.append({lang: assumed(sample, lang, "expert") for lang in LANGS})
    return remarks


def prompt_parts(prompt: str) -> list[dict[str, str]]:
    """The end of the prompt, taken apart into turns and the template's markup."""
    return [asdict(part) for part in chat.parts(prompt[-MAX_PROMPT:])]


def response_parts(mask: Sequence[int]) -> list[dict[str, Any]]:
    """Who wrote which tokens: stretches [start, end) of the policy and of tools."""
    found = []
    start = 0
    for written, tokens in itertools.groupby(mask, key=bool):
        end = start + len(list(tokens))
        role = "assistant" if written else "tool"
        found.append({"role": role, "start": start, "end": end})
        start = end
    return found


def parts_of(parts: Mapping[str, float]) -> dict[str, float | None]:
    """The parts of a score, the first twenty."""
    first = list(parts.items())[:MAX_PARTS]
    return {shorten_text(name, 80): number_of(value) for name, value in first}


def page_settings(settings: Settings) -> dict[str, Any]:
    """The settings that the numbers of a step were made with."""
    definition = settings.estimator_definition
    return {
        **{name: _plain(value) for name, value in settings.by_name().items()},
        "label": definition.name,
        "formula": definition.formula,
        "critic": definition.needs.critic,
        "groups": definition.needs.groups,
        "lam": number_of(settings.own_lam),
        "lam_critic": number_of(settings.lam_critic),
        "lam_alpha": _plain(getattr(settings.credit, "lam_alpha", None)),
    }


def _plain(value: Any) -> Any:
    """A setting as JSON."""
    if isinstance(value, float):
        return number_of(value)
    is_plain = value is None or isinstance(value, bool | int | str)
    return value if is_plain else shorten_text(str(value), 200)


def page_audit(audit: Audit | None, position: int) -> dict[str, Any] | None:
    """The audited states of one sample: [token, mean outcome, ends of its interval] each."""
    posts = [] if audit is None else [post for post in audit.posts if post.sample == position]
    if audit is None or not posts:
        return None
    ends = [(post.token, post.mean, post.low, post.high) for post in posts]
    return {
        "continuations": audit.continuations,
        "own_policy": audit.checkpoint == audit.needed,
        "posts": [[token, *_numbers(numbers)] for token, *numbers in ends],
    }


# ---- one token ----


def page_traces(tracer: Tracer, t: int, words: dict[str, Any]) -> list[dict[str, Any]]:
    """The traces of token t. Their sentences, shared by many tokens, are added to `words`."""
    sample = tracer.sample
    if not 0 <= t < len(sample):
        raise TelescopeError(f"the response has {len(sample)} tokens: 0 to {len(sample) - 1}")
    return page_terms(tracer.traces(t), sample.settings, words)


def page_terms(
    found: Sequence[Trace], settings: Settings, words: dict[str, Any]
) -> list[dict[str, Any]]:
    """Traces of one token. Their sentences are added to `words`."""
    used = f"{settings.estimator}:{settings.loss}:{settings.critic.loss}"
    out = []
    for trace in found:
        key = f"{trace.name}:{trace.state}:{trace.variant}:{used}"
        if key not in words:
            words[key] = {lang: _sentences(trace, lang) for lang in LANGS}
        out.append(page_term(trace) | {"words": key})
    return out


def _sentences(trace: Trace, lang: Lang) -> dict[str, str]:
    """What the trace means, for an expert and for a child, and its formula in words."""
    return {
        "expert": meaning(trace, lang, "expert"),
        "kid": meaning(trace, lang, "kid"),
        "formula_in_words": formula(trace, lang, "kid"),
    }


def page_term(trace: Trace) -> dict[str, Any]:
    """A trace with its long texts cut. `shown`: the result with four digits."""
    out = trace.to_json()
    for name in ("result", "recorded"):
        if isinstance(out[name], float):
            out[name] = number_of(out[name])
    for key, value in out.items():
        if isinstance(value, str):
            out[key] = shorten_text(value, MAX_TRACE_TEXT)
    return out | {"shown": num(trace.result)}


def with_formulas(term: dict[str, Any]) -> dict[str, Any]:
    """The term with `tex`, its whole line, and MathML of the formula and of its numbers.

    All are None where the line is too long, or cannot be translated.
    """
    texts = (term["formula"], term["substituted"], term["shown"])
    if any(len(text) > MAX_TRACE_TEXT for text in texts):
        return term | {"tex": None, "math": None, "math_numbers": None}
    formula, numbers, result = map(formula_of, texts)
    if formula is None or numbers is None or result is None:
        return term | {"tex": None, "math": None, "math_numbers": None}
    line = [formula[0], numbers[0], *([result[0]] if result[0] != numbers[0] else [])]
    return term | {"tex": " = ".join(line), "math": formula[1], "math_numbers": numbers[1]}


# ---- JSON ----


def dumps(value: Any) -> bytes:
    """Strict JSON as UTF-8. Half a surrogate pair, which UTF-8 cannot hold, stays an escape."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def shorten_text(text: str, limit: int) -> str:
    """The text, or its beginning and how many characters follow."""
    return text if len(text) <= limit else f"{text[:limit]} … (+{len(text) - limit:,})"


def number_of(x: float | None, digits: int = 7) -> float | None:
    return float(f"{x:.{digits}g}") if x is not None and math.isfinite(x) else None


def _numbers(values: Sequence[float | None]) -> list[float | None]:
    return [number_of(x) for x in values]
