"""Runs made of plain numbers: curves as lists, ledger steps as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from telescope.doctor.curves import Curves
from telescope.explain.settings import Settings
from telescope.ledger.reader import path_of
from telescope.ledger.table import arrow_table, save_table

Series = Mapping[str, Sequence[float | None]]


def ramp(first: float, last: float, steps: int) -> list[float]:
    """Numbers from `first` to `last`, equally far apart."""
    return [first + (last - first) * i / (steps - 1) for i in range(steps)]


def curves(series: Series, **settings: Any) -> Curves:
    """Metrics of the steps 1, 2, 3, …; `at` in a name's place gives evaluations: {step: value}."""
    made = Curves({key.replace("__", "."): value for key, value in settings.items()})
    longest = max(len(values) for values in series.values())
    for i in range(longest):
        row = {name: values[i] for name, values in series.items() if i < len(values)}
        made.add(i + 1, row)
    return made


def with_accuracy(made: Curves, points: Mapping[int, float]) -> Curves:
    """The curves with held-out accuracy at some steps, step 0 first."""
    for step, value in points.items():
        made.add(step, {"eval/greedy_accuracy": value})
    return made


def healthy_series(steps: int = 60) -> dict[str, list[float]]:
    """A run that learns: entropy falls while the score rises to 1, as the built-in one does."""
    half = steps // 2
    wiggle = [0.01 if i % 2 else -0.01 for i in range(steps)]
    rise = ramp(0.5, 0.97, half) + [0.97] * (steps - half)
    return {
        "reward/score_mean": [a + b for a, b in zip(rise, wiggle, strict=True)],
        "reward/kl": ramp(0.0, 0.17, steps),
        "actor/entropy": ramp(0.34, 0.015, steps),
        "actor/approx_kl": ramp(0.002, 0.0001, steps),
        "actor/pg_clipfrac": ramp(0.02, 0.001, steps),
        "actor/grad_norm": [1.0 + 10 * each for each in wiggle],
        "actor/pg_loss": wiggle,
        "actor/lr": ramp(2e-4, 1e-6, steps),
        "critic/explained_variance": ramp(0.0, 0.4, steps),
        "critic/vf_clipfrac": [0.01] * steps,
        "critic/vf_loss": ramp(0.15, 0.01, steps),
        "critic/grad_norm": [0.5] * steps,
        "critic/value_mean": ramp(0.1, 0.95, steps),
        "critic/return_mean": ramp(0.47, 0.96, steps),
        "credit/advantage_std": ramp(0.33, 0.08, steps),
        "response/length_mean": [7.0] * steps,
        "response/truncated": [0.01] * steps,
        "response/tool_calls": [1.2] * steps,
        "response/tool_failures": [0.02] * steps,
        "rollout/logprob_diff": [0.004] * steps,
        "rollout/staleness": [0.0] * steps,
        "reward/flat_groups": [0.3] * steps,
    }


def write_step(
    run: Path,
    step: int,
    rows: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, int] | None = None,
    **settings: Any,
) -> None:
    """A ledger file. A row has `responses`, and any other column; tokens default to one letter."""
    columns: dict[str, list[Any]] = {}
    names = sorted({name for row in rows for name in row} | {"responses"})
    for i, row in enumerate(rows):
        ids = list(row["responses"])
        full: dict[str, Any] = {
            "sample": i,
            "group": i,
            "prompt": f"prompt {i}",
            "prompt_index": i,
            "response": f"answer {i}",
            "score": 0.0,
            "parts": [],
            "truncated": False,
            "response_mask": [1] * len(ids),
            "token_bytes": [chr(97 + token % 26).encode() for token in ids],
            "actor_updates": [],
        }
        full |= {name: row.get(name, full.get(name)) for name in names}
        for name, value in full.items():
            columns.setdefault(name, []).append(value)
    meta = {
        "version": 3,
        "run": run.name,
        "step": step,
        "settings": Settings.of(**settings).to_json(),
        "tokens": dict(tokens or {}),
    }
    run.mkdir(parents=True, exist_ok=True)
    save_table(arrow_table(columns, meta), path_of(run, step))
