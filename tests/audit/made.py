"""Audits made by hand."""

from __future__ import annotations

from typing import Any

from telescope.audit.findings import Audit, Judged, Post
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings


def made_post(sample: int, token: int, predicted: float | None, mean: float, **more: Any) -> Post:
    """A state of a response of six tokens, known to ± 0.1."""
    given = {"length": 6, "prompt": sample, "state": 10 * sample + token, "error": 0.0} | more
    return Post(
        sample,
        token,
        predicted=predicted,
        mean=mean,
        low=round(mean - 0.1, 6),
        high=round(mean + 0.1, 6),
        **given,
    )


def made_token(sample: int, token: int, a: float, mean: float, off: float = 0.1) -> Judged:
    low = round(mean - off, 6)
    high = round(mean + off, 6)
    credit = {"advantages": a, "whitened": round(a - 0.3, 6), "deltas": -a}
    return Judged(sample, token, credit, mean, low, high)


def made_audit(**more: Any) -> Audit:
    posts = [
        made_post(0, 0, 0.5, 0.3),
        made_post(0, 2, 0.6, 0.5),
        made_post(0, 5, 0.8, 0.9),
        made_post(1, 0, 0.1, 0.1),
    ]
    tokens = [made_token(0, 0, 0.2, 0.2), made_token(0, 2, 0.4, -0.4), made_token(1, 0, 0.5, 0.05)]
    given: dict[str, Any] = {
        "run": "made",
        "step": 50,
        "checkpoint": 49,
        "needed": 49,
        "continuations": 64,
        "states": 4,
        "estimate": "values",
        "settings": {"gamma": 1.0, "kl_coef": 0.05, "kl_kind": "k1", "bootstrap_truncated": False},
        "posts": posts,
        "tokens": tokens,
        "prompts": {0: "请问1+1=2？", 1: "1+2"},
        "seconds": 2.0,
        "device": "cpu",
        "date": "2026-11-16",
    }
    return Audit(**(given | more))


def made_sample(index: int, ids: list[int], deltas: list[float], prompt: int = 0) -> Sample:
    return Sample(
        token_ids=ids,
        token_bytes=[b"x"] * len(ids),
        mask=[1] * len(ids),
        columns={"deltas": deltas},
        settings=Settings.of(),
        index=index,
        prompt_index=prompt,
    )
