"""A run made by hand: a ledger of samples with consistent arithmetic, without a model."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from telescope.explain.arithmetic import fill, moments
from telescope.explain.sample import ActorUpdate, CriticUpdate, Sample
from telescope.explain.settings import Settings
from telescope.viewer.typed_run import write_step
from tests.viewer.big import big_run as big_run

HOSTILE = [
    "<script>window.hacked=1</script>", "</script><script>window.hacked=1</script>",
    "<!--<script>", "\x1b[31mred\x1b]8;;http://x\x07", "\u202eabc\u2066",
    "\x00", "<img src=x onerror=window.hacked=1>", "&lt;", "\u2028", "]]>", "x" * 1_000_000,
]  # fmt: skip


def sample(
    tokens: Sequence[str | bytes],
    values: Sequence[float],
    kl: Sequence[float],
    *,
    score: float,
    ratios: Sequence[float] | None = None,
    mask: Sequence[int] | None = None,
    prompt: str = "请问1+1=2？",
    settings: Settings | None = None,
    bootstrap: float = 0.0,
) -> Sample:
    n = len(tokens)
    mask = list(mask or [1] * n)
    last = max(t for t in range(n) if mask[t])
    old = [-0.02 - 0.07 * (t * 5 % 7) for t in range(n)]
    pieces = [t if isinstance(t, bytes) else t.encode("utf-8", "surrogatepass") for t in tokens]
    ratios = list(ratios or [1.0] * n)
    return Sample(
        token_ids=[100 + 7 * t for t in range(n)],
        token_bytes=pieces,
        mask=mask,
        columns={
            "rollout_log_probs": [x * m for x, m in zip(old, mask, strict=True)],
            "old_log_probs": [x * m for x, m in zip(old, mask, strict=True)],
            "ref_log_prob": [(x - k) * m for x, k, m in zip(old, kl, mask, strict=True)],
            "values": [v * m for v, m in zip(values, mask, strict=True)],
            "token_level_scores": [score if t == last else 0.0 for t in range(n)],
        },
        settings=settings or Settings.of(kl_coef=0.1),
        prompt=prompt,
        response=b"".join(pieces).decode("utf-8", "replace"),
        score=score,
        parts={"verdict": score},
        bootstrap=bootstrap,
        actor_updates=[
            ActorUpdate(0, 0, old, old, [], [], [], []),
            ActorUpdate(
                1,
                0,
                old,
                [x + math.log(p) for x, p in zip(old, ratios, strict=True)],
                [],
                [],
                [],
                [],
            ),
        ],
        critic_updates=[CriticUpdate(1, 0, [v + 0.03 for v in values], [], [])],
    )


def step_of(samples: list[Sample], step: int) -> list[Sample]:
    """Fills every column, whitening over all of them together, as the trainer does."""
    raw = [fill(s) for s in samples]
    mean, std = moments(
        [a for s in raw for a, m in zip(s.columns["advantages"], s.mask, strict=True) if m]
    )
    whole = [
        replace(
            s,
            whiten_mean=mean,
            whiten_std=std,
            step=step,
            policy_version=max(step - 1, 0),
            index=i,
            count=len(samples),
        )
        for i, s in enumerate(samples)
    ]
    return [fill(s) for s in whole]


YES = ["是", "的", "，", "等于", "2", "！", "<eos>"]
EOS = "<eos>"


def lesson(step: int = 40) -> list[Sample]:
    """Six responses to two prompts.

    请问1+1=2？ is answered right (V rises), wrong (V falls), in short, and with a tool; the other
    prompt with a character split over two tokens, and right.
    """
    other = "请问2+3=5？"
    rows = [
        sample(
            YES,
            [0.40, 0.55, 0.56, 0.60, 0.72, 0.88, 0.93],
            [0.15, 0.0, -0.01, 0.18, -0.01, 0.0, 0.0],
            ratios=[1.17, 1.02, 0.98, 1.234, 1.05, 0.99, 1.0],
            score=1.0,
        ),
        sample(
            ["不", "对", "，", "等于", "3", "！", EOS],
            [0.40, 0.18, 0.20, 0.22, 0.35, 0.06, 0.04],
            [0.3, 0.1, 0, 0.05, 0.22, 0, 0],
            ratios=[0.74, 0.9, 1.0, 0.97, 0.78, 1.0, 1.01],
            score=0.0,
        ),
        sample(
            ["是", "的", EOS],
            [0.40, 0.55, 0.71],
            [0.15, 0.0, 0.04],
            ratios=[1.1, 1.0, 1.08],
            score=1.0,
        ),
        sample(
            ["算", "：", " 1+1", "\n", "2", "对", EOS],
            [0.40, 0.46, 0.50, 0, 0, 0.84, 0.95],
            [0.1, 0.02, 0.0, 0, 0, 0.03, 0.0],
            ratios=[1.3, 1.0, 1.0, 1.0, 1.0, 0.9, 1.0],
            score=1.0,
            mask=[1, 1, 1, 0, 0, 1, 1],
        ),
        sample(
            ["对", "，", b"\xe7\xad", b"\x89", "于", " 5", "\n", EOS],
            [0.6, 0.62, 0.64, 0.63, 0.66, 0.7, 0.12, 0.05],
            [0.05] * 8,
            ratios=[1.0, 1.1, 1.0, 0.95, 1.0, 0.7, 1.0, 1.0],
            score=0.0,
            prompt=other,
        ),
        sample(
            ["是", "的", "，", "等于", "5", "！", EOS],
            [0.6, 0.7, 0.74, 0.75, 0.9, 0.95, 0.97],
            [0.1, 0.0, 0.0, 0.02, 0.0, 0.0, 0.0],
            ratios=[1.0, 1.0, 1.02, 1.0, 1.0, 1.0, 1.0],
            score=1.0,
            prompt=other,
        ),
    ]
    return step_of(rows, step)


def hostile() -> list[Sample]:
    many = [
        sample([text, "2", EOS], [0.4, 0.5, 0.6], [0.1, 0.0, 0.0], score=1.0, prompt=text)
        for text in HOSTILE
    ]
    broken = sample(
        [b"\xff\xfe", b"\xe7", b"", b"\x89"], [0.4, 0.5, 0.6, 0.7], [0.0] * 4, score=1.0
    )
    return step_of([*many, broken], 1)


def data_of_report(html: str) -> dict[str, Any]:
    """What a report holds: answers, words, shapes."""
    (packed,) = re.findall(r'<script type="text/plain" id="data">([^<]*)</script>', html)
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return data


def fake_run(folder: Path, samples: dict[int, list[Sample]] | None = None) -> Path:
    """A run folder with curves and a ledger of steps 10, 20, 30, 40, or of the samples given."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, float]] = [
        {"step": 0, "eval/sampled_accuracy": 0.18, "eval/greedy_accuracy": 0.22}
    ]
    for step in range(1, 41):
        up = 1 - math.exp(-step / 15)
        noise = 0.03 * math.sin(step * 1.7)
        row = {
            "step": step,
            "reward/score_mean": 0.2 + 0.7 * up + noise,
            "reward/kl": 0.08 * up + noise / 9,
        }
        row |= {
            "actor/pg_clipfrac": 0.12 * (1 - up) + 0.02 + noise / 6,
            "actor/entropy": 1.4 - 0.9 * up,
        }
        if step % 10 == 0:
            row |= {
                "eval/sampled_accuracy": 0.2 + 0.68 * up,
                "eval/greedy_accuracy": 0.24 + 0.72 * up,
            }
        rows.append(row)
    text = (
        "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 41, "rew'
    )  # a crash cut the last line
    (folder / "metrics.jsonl").write_text(text, "utf-8")
    for step, found in (
        {step: lesson(step) for step in (10, 20, 30, 40)} if samples is None else samples
    ).items():
        write_step(folder, step, found)
    return folder
