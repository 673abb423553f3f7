"""What a page is made of, as JSON: the run, its curves, the samples of a step, the traces of a token.

Nothing here computes: columns come from the ledger, arithmetic from telescope.explain. Sizes are bounded, so that neither a
long response nor a hostile one can choke a browser; whatever was cut says so.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.explain.trace import traces
from telescope.explain.words import Lang, Level, formula, meaning
from telescope.ledger import reader as ledger

CURVES = (
    "reward/score_mean",
    "reward/kl",
    "actor/pg_clipfrac",
    "actor/entropy",
    "eval/sampled_accuracy",
    "eval/greedy_accuracy",
)
MAX_POINTS = 400
MAX_TOKENS = 2_000
MAX_TEXT = 2_000
MAX_TOKEN_BYTES = 48
MAX_TRACE_TEXT = 1_500
LANGS: tuple[Lang, ...] = ("zh", "en")
LEVELS: tuple[Level, ...] = ("expert", "kid")
_OF_A_RUN = ("config.toml", "metrics.jsonl", "ledger")
_WHOLE = ("values", "token_level_rewards")
"""Columns sent in full, however long the response: γ and λ can only be tried out with every reward and value at hand."""


class RunData:
    """One run, read on demand: a step's file when the step is shown (the last few stay), a sample's row when it is asked for."""

    def __init__(self, run: Path, *, keep: int = 3) -> None:
        if not run.is_dir():
            raise TelescopeError(
                f"no run {run}: give the folder of a run, e.g. runs/arithmetic-seed0"
            )
        if not any((run / name).exists() for name in _OF_A_RUN):
            raise TelescopeError(
                f"{run} is not a run folder: it has no {' or '.join(_OF_A_RUN)}; give one like runs/arithmetic-seed0"
            )
        self.run, self.right = run, _right_from(run)
        self._table = _Recent(keep)
        self._sample = _Recent(64)
        self._curves = _Recent(1)
        self._prompts: dict[int, set[str]] = {}

    def steps(self) -> list[int]:
        return ledger.steps(self.run)

    def info(self) -> dict[str, Any]:
        """What the page asks for again and again while a run goes on: small whatever the run's length."""
        return {
            "name": _text(self.run.resolve().name, 200),
            "steps": self.steps(),
            "curves": self._read_curves(),
            "right": self.right,
        }

    def index(self, step: int) -> list[dict[str, Any]]:
        """One row per sample of the step, for sorting and filtering."""
        return index_rows(self._read(step)[1], self.right)

    def steps_of_prompt(self, key: str) -> list[int]:
        """The steps that recorded a response to this prompt: one small column of each file, read once."""
        for step in self.steps():
            if step not in self._prompts:
                self._prompts[step] = {
                    prompt_key(p)
                    for p in ledger.read(self.run, step, ["prompt"]).column("prompt").to_pylist()
                }
        return [step for step in self.steps() if key in self._prompts[step]]

    def sample(self, step: int, position: int) -> Sample:
        stamp, table = self._read(step)
        if not 0 <= position < table.num_rows:
            raise TelescopeError(
                f"step {step} has {table.num_rows} recorded samples: 0 to {table.num_rows - 1}"
            )
        return self._sample((*stamp, position), lambda: ledger.sample_of(table, position))

    def _read(self, step: int) -> tuple[tuple[int, int], pa.Table]:
        try:
            stamp = (
                step,
                ledger.path_of(self.run, step).stat().st_mtime_ns,
            )  # a resumed run writes some steps again
        except (OSError, OverflowError):
            raise TelescopeError("the ledger has no such step") from None
        return stamp, self._table(stamp, lambda: ledger.read(self.run, step))

    def _read_curves(self) -> dict[str, list[list[float]]]:
        path = self.run / "metrics.jsonl"
        if not path.exists():
            return {}
        stat = path.stat()
        return self._curves((stat.st_mtime_ns, stat.st_size), lambda: curves(path))


class _Recent:
    """The last few things made, by key; made once even if several threads ask."""

    def __init__(self, keep: int) -> None:
        self._keep, self._made, self._lock = keep, OrderedDict[Any, Any](), Lock()

    def __call__(self, key: Any, make: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
                while len(self._made) > self._keep:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return self._made[key]


def curves(path: Path) -> dict[str, list[list[float]]]:
    """metric -> [[step, value], …] in file order, thinned to MAX_POINTS with first and last kept. A half line is skipped."""
    found: dict[str, list[list[float]]] = {}
    for line in _lines(path):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        for name in CURVES:
            value = row.get(name) if isinstance(row, dict) else None
            if (
                isinstance(value, int | float)
                and math.isfinite(value)
                and isinstance(row.get("step"), int)
            ):
                found.setdefault(name, []).append([row["step"], float(f"{value:.7g}")])
    return {name: _thin(points) for name, points in found.items()}


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise TelescopeError(
            f"{path} cannot be read: {error.strerror}; a run writes its metrics into that file"
        ) from None


def prompt_key(prompt: str) -> str:
    return hashlib.blake2s(prompt.encode("utf-8", "replace"), digest_size=6).hexdigest()


def index_rows(table: pa.Table, right: float) -> list[dict[str, Any]]:
    """What sorting, filtering and grouping need, for every sample of a step: from a few columns, not from whole samples."""
    prompts, scores = (table.column(name).to_pylist() for name in ("prompt", "score"))
    advantages, whitened = (
        _per_row(table.column(name).combine_chunks()) for name in ("advantages", "whitened")
    )
    rows = zip(prompts, scores, advantages, whitened, _last_clipped(table), strict=True)
    return [
        {
            "prompt_key": prompt_key(prompt),
            "prompt": _text(prompt, 120),
            "score": _number(score),
            "right": score is not None and score >= right,
            "length": len(a),
            "max_abs_a": _number(float(np.abs(a).max(initial=0.0))),
            "clipped": bool(clipped.any()),
            "flipped": bool((a * w < 0).any()),
        }
        for prompt, score, a, w, clipped in rows
    ]


def _per_row(lists: pa.ListArray) -> list[np.ndarray]:
    """Each row's numbers, flags as 0 and 1. By hand, because Arrow's to_numpy first imports pandas: a third of a second."""
    values = lists.values.cast(pa.float32())
    flat = np.frombuffer(values.buffers()[1] or b"", np.float32)[
        values.offset : values.offset + len(values)
    ]
    return [flat[i:j] for i, j in itertools.pairwise(lists.offsets.to_pylist())]


def _last_clipped(table: pa.Table) -> list[np.ndarray]:
    """Where a clip set the gradient to 0 in each sample's last actor update; empty for a sample without one."""
    updates = table.column("actor_updates").combine_chunks()
    one, dual = (_per_row(updates.values.field(name)) for name in ("clipped", "dual_clipped"))
    ends = updates.offsets.to_pylist()
    return [one[j - 1] + dual[j - 1] if j > i else np.zeros(0) for i, j in itertools.pairwise(ends)]


def page_sample(sample: Sample, *, max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    """Sample.to_json for a browser: floats at 7 digits, non-finite as null, long text and tokens cut, only the last update's ρ."""
    out = replace(
        sample, columns={}, token_ids=[], token_bytes=[], actor_updates=[], critic_updates=[]
    ).to_json()  # it copies deeply
    shown = min(len(sample), max_tokens)
    update = sample.actor_updates[-1] if sample.actor_updates else None
    out["columns"] = {
        name: _numbers(c if name in _WHOLE else c[:shown]) for name, c in sample.columns.items()
    }
    out["token_ids"] = sample.token_ids[:shown]
    out["token_bytes"] = [list(b[:MAX_TOKEN_BYTES]) for b in sample.token_bytes[:shown]]
    out["token_sizes"] = {
        t: len(b) for t, b in enumerate(sample.token_bytes[:shown]) if len(b) > MAX_TOKEN_BYTES
    }
    out["length"] = len(sample)
    out["prompt"], out["response"] = (
        _text(sample.prompt, MAX_TEXT),
        _text(sample.response, MAX_TEXT),
    )
    out["parts"] = {_text(k, 80): _number(v) for k, v in list(sample.parts.items())[:20]}
    out["updates"] = len(sample.actor_updates)
    if update is not None:
        out["columns"]["ratio"] = _numbers(update.ratio[:shown])
        flags = (update.clipped[:shown], update.dual_clipped[:shown])
        out["clipped"] = sorted({t for column in flags for t, hit in enumerate(column) if hit})
        out["update"] = [update.epoch, update.minibatch]
    for name in ("score", "bootstrap", "whiten_mean", "whiten_std"):
        out[name] = _number(out[name])
    del out["actor_updates"], out["critic_updates"]
    return out


def page_traces(sample: Sample, t: int, words: dict[str, Any]) -> list[dict[str, Any]]:
    """The traces of token t as telescope.explain made them. Their sentences, shared by many tokens, are added to `words`."""
    if not 0 <= t < len(sample):
        raise TelescopeError(f"the response has {len(sample)} tokens: 0 to {len(sample) - 1}")
    estimator, loss, out = sample.settings.estimator, sample.settings.loss, []
    for trace in traces(sample, t):
        key = f"{trace.name}:{trace.state}:{trace.variant}:{estimator}:{loss}"
        if key not in words:
            words[key] = {
                lang: {level: meaning(trace, lang, level, estimator, loss) for level in LEVELS}
                | {"formula_in_words": formula(trace, lang, "kid", estimator)}
                for lang in LANGS
            }
        out.append(
            {
                k: _text(v, MAX_TRACE_TEXT) if isinstance(v, str) else v
                for k, v in trace.to_json().items()
            }
            | {"words": key}
        )
    return out


def dumps(value: Any) -> bytes:
    """Strict JSON as UTF-8; half a surrogate pair, which UTF-8 cannot say, stays an escape."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def _text(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … (+{len(text) - limit:,})"


def _number(x: float | None) -> float | None:
    return float(f"{x:.7g}") if x is not None and math.isfinite(x) else None


def _numbers(values: Sequence[float | None]) -> list[float | None]:
    return [_number(x) for x in values]


def _thin(points: list[list[float]]) -> list[list[float]]:
    if len(points) <= MAX_POINTS:
        return points
    stride = (len(points) - 1) / (MAX_POINTS - 1)
    return [points[round(i * stride)] for i in range(MAX_POINTS)]


def _right_from(run: Path) -> float:
    """The score from which a response counts as right, from the run's config; 1 without one."""
    try:
        section = tomllib.loads((run / "config.toml").read_text("utf-8"))["eval"]
        return float(
            section.get("correct_score", section.get("right", 1.0))
        )  # runs before 0.2 say `right`
    except (OSError, KeyError, TypeError, ValueError):
        return 1.0
