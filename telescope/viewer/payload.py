"""Samples, traces and what-ifs as the JSON that a browser gets.

A trace is the formula of one number with its values put in. A what-if is the same rollout with
another γ, λ or estimator.

Nothing here computes: columns come from the ledger, arithmetic from telescope.explain. Sizes are
bounded, so that a long response cannot choke a browser; whatever was cut says so.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.explain.trace import Trace, traces
from telescope.explain.words import Lang, formula, meaning
from telescope.viewer.whatif import SHOWN, delta_weights

MAX_TOKENS = 2_000
MAX_TEXT = 2_000
MAX_TOKEN_BYTES = 48
MAX_TRACE_TEXT = 1_500
LANGS: tuple[Lang, ...] = ("zh", "en")

Numbers = npt.NDArray[np.float32]


# ---- the list of samples ----


def prompt_key(prompt: str) -> str:
    """A short name for a prompt, to group its samples by."""
    return hashlib.blake2s(prompt.encode("utf-8", "replace"), digest_size=6).hexdigest()


def index_rows(table: pa.Table, correct_score: float) -> list[dict[str, Any]]:
    """What sorting, filtering and grouping need of every sample of a step.

    Made from a few columns, not from whole samples.
    """
    prompts = table.column("prompt").to_pylist()
    scores = table.column("score").to_pylist()
    advantages = numbers_per_row(table.column("advantages").combine_chunks())
    whitened = numbers_per_row(table.column("whitened").combine_chunks())
    rows = zip(prompts, scores, advantages, whitened, _last_clipped(table), strict=True)
    return [
        {
            "prompt_key": prompt_key(prompt),
            "prompt": shorten_text(prompt, 120),
            "score": number_of(score),
            "right": score is not None and score >= correct_score,
            "length": len(a),
            "max_abs_a": number_of(float(np.abs(a).max(initial=0.0))),
            "clipped": bool(clipped.any()),
            "flipped": bool((a * w < 0).any()),
        }
        for prompt, score, a, w, clipped in rows
    ]


def numbers_per_row(lists: pa.ListArray) -> list[Numbers]:
    """Each row's numbers, flags as 0 and 1.

    By hand, because Arrow's to_numpy first imports pandas, which takes a third of a second.
    """
    values = lists.values.cast(pa.float32())
    flat = np.frombuffer(values.buffers()[1] or b"", np.float32)
    flat = flat[values.offset : values.offset + len(values)]
    return [flat[i:j] for i, j in itertools.pairwise(lists.offsets.to_pylist())]


def _last_clipped(table: pa.Table) -> list[Numbers]:
    """Which tokens were clipped in each sample's last actor update; empty without an update."""
    updates = table.column("actor_updates").combine_chunks()
    clipped = numbers_per_row(updates.values.field("clipped"))
    dual_clipped = numbers_per_row(updates.values.field("dual_clipped"))
    ends = itertools.pairwise(updates.offsets.to_pylist())
    none = np.zeros(0, np.float32)
    return [
        clipped[end - 1] + dual_clipped[end - 1] if end > start else none for start, end in ends
    ]


# ---- one sample ----


def page_sample(sample: Sample, *, max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    """Sample.to_json for a browser: seven digits, non-finite numbers as null, long text cut.

    Of the updates only the last one's ratio and clipped tokens are sent.
    """
    shown = min(len(sample), max_tokens)
    pieces = sample.token_bytes[:shown]
    long = {t: len(piece) for t, piece in enumerate(pieces) if len(piece) > MAX_TOKEN_BYTES}
    out = _without_lists(sample).to_json()
    out |= {
        "columns": _columns(sample.columns, shown),
        "settings": _settings(sample.settings),
        "weights": _numbers(delta_weights(sample)),
        "token_ids": sample.token_ids[:shown],
        "token_bytes": [list(piece[:MAX_TOKEN_BYTES]) for piece in pieces],
        "token_sizes": long,
        "length": len(sample),
        "prompt": shorten_text(sample.prompt, MAX_TEXT),
        "response": shorten_text(sample.response, MAX_TEXT),
        "parts": {shorten_text(k, 80): number_of(v) for k, v in list(sample.parts.items())[:20]},
        "updates": len(sample.actor_updates),
    }
    if sample.actor_updates:
        update = sample.actor_updates[-1]
        flags = itertools.zip_longest(update.clipped, update.dual_clipped)
        out["columns"]["ratio"] = _numbers(update.ratio[:shown])
        out["clipped"] = [t for t, hit in enumerate(map(any, flags)) if hit and t < shown]
        out["update"] = [update.epoch, update.minibatch]
    for name in ("score", "bootstrap", "whiten_mean", "whiten_std"):
        out[name] = number_of(out[name])
    del out["actor_updates"], out["critic_updates"]
    return out


def _without_lists(sample: Sample) -> Sample:
    """The sample without what is sent in another form: to_json copies deeply."""
    return replace(
        sample, columns={}, token_ids=[], token_bytes=[], actor_updates=[], critic_updates=[]
    )


def _settings(settings: Settings) -> dict[str, Any]:
    """The settings that the page shows."""
    return {
        "estimator": settings.estimator,
        "label": settings.estimator_definition.name,
        "gamma": number_of(settings.gamma),
        "lam": number_of(settings.own_lam),
        "kl_coef": number_of(settings.credit.kl_coef),
    }


def page_whatif(
    position: int, recomputed: Sample, *, max_tokens: int = MAX_TOKENS, digits: int = 7
) -> dict[str, Any]:
    """What a what-if changes of the sample at `position`."""
    columns = {name: recomputed.columns[name] for name in SHOWN if name in recomputed.columns}
    return {
        "position": position,
        "columns": _columns(columns, max_tokens, digits),
        "weights": _numbers(delta_weights(recomputed), digits),
    }


def _columns(
    columns: dict[str, list[float]], shown: int, digits: int = 7
) -> dict[str, list[float | None]]:
    return {name: _numbers(column[:shown], digits) for name, column in columns.items()}


# ---- one token ----


def page_traces(sample: Sample, t: int, words: dict[str, Any]) -> list[dict[str, Any]]:
    """The traces of token t. Their sentences, shared by many tokens, are added to `words`."""
    if not 0 <= t < len(sample):
        raise TelescopeError(f"the response has {len(sample)} tokens: 0 to {len(sample) - 1}")
    settings = sample.settings
    used = f"{settings.estimator}:{settings.loss}:{settings.critic.loss}"
    out = []
    for trace in traces(sample, t):
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
    """A trace with its long texts cut."""
    return {
        key: shorten_text(value, MAX_TRACE_TEXT) if isinstance(value, str) else value
        for key, value in trace.to_json().items()
    }


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


def _numbers(values: Sequence[float | None], digits: int = 7) -> list[float | None]:
    return [number_of(x, digits) for x in values]
