"""A run with the metrics and the config that a trainer writes, made by hand and without a model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from telescope.config import Config, to_toml
from tests.viewer.fake import fake_run, lesson

Row = dict[str, float]

CHARTS = [
    "accuracy",
    "reward",
    "kl",
    "entropy",
    "clip",
    "update",
    "explained",
    "value_loss",
    "length",
    "gradient",
    "rate",
    "time",
]
"""The charts that `training_run` fills, in the order of the page."""


def metric_row(step: int, lift: float = 0.0) -> Row:
    """The metrics of one step. `lift` is added to the score and to held-out accuracy."""
    up = 1 - math.exp(-step / 15)
    wave = math.sin(step * 1.7)
    row = {
        "step": step,
        "reward/score_mean": 0.2 + 0.5 * up + 0.03 * wave + lift,
        "reward/verdict": 0.15 + 0.5 * up,
        "reward/kl": 0.08 * up,
        "reward/kl_coef": 0.01,
        "credit/advantage_std": 0.4 - 0.1 * up,
        "critic/explained_variance": up - 0.3,
        "critic/vf_loss": 0.1 - 0.05 * up,
        "critic/grad_norm": 2.0 + wave,
        "critic/lr": 2e-5,
        "actor/entropy": 1.4 - 0.9 * up,
        "actor/pg_clipfrac": 0.12 * (1 - up) + 0.02,
        "actor/approx_kl": 0.001 + 0.0005 * wave,
        "actor/grad_norm": 1.0 + 0.2 * wave,
        "actor/lr": 1e-6,
        "response/length_mean": 120.0 - 0.5 * step,
        "response/truncated": 0.1 * (1 - up),
        "timing/rollout": 2.0,
        "timing/update_actor": 1.5,
        "timing/update_critic": 1.0,
        "timing/step": 4.6,
    }
    if step % 10 == 0:
        row |= {"eval/greedy_accuracy": 0.24 + 0.6 * up + lift}
    return row


def metric_rows(steps: int, lift: float = 0.0) -> list[Row]:
    start = {"step": 0, "eval/greedy_accuracy": 0.24 + lift}
    return [start, *(metric_row(step, lift) for step in range(1, steps + 1))]


def training_run(
    folder: Path,
    *,
    steps: int = 40,
    of: int = 60,
    lift: float = 0.0,
    ledger: tuple[int, ...] = (10, 20, 30, 40),
    **config: Any,
) -> Path:
    """A run folder after `steps` of `of` steps, with a config and a ledger."""
    fake_run(folder, {step: lesson(step) for step in ledger if step <= steps})
    write_rows(folder, metric_rows(steps, lift))
    settings = Config.builtin(
        **{"name": folder.name, "dir": str(folder.parent), "steps": of, **config}
    )
    (folder / "config.toml").write_text(to_toml(settings), "utf-8")
    return folder


def write_rows(run: Path, rows: list[Row]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (run / "metrics.jsonl").write_text(text, "utf-8")


def append_rows(run: Path, rows: list[Row]) -> None:
    """As a run that goes on writes them."""
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
