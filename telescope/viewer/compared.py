"""Several runs side by side: what differs in their settings, and what came out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.viewer.header import ACCURACIES
from telescope.viewer.run_data import RunData
from telescope.viewer.runs import Runs, differing
from telescope.viewer.settings_list import NOT_COMPARED

SHOWN = (*ACCURACIES, "reward/score_mean")
"""Metrics that are compared unless others are named."""


@dataclass(frozen=True)
class Spread:
    """A number over the runs of a group."""

    mean: float
    std: float | None
    """Standard deviation (n − 1); None for a single run."""

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        std = statistics.stdev(numbers) if len(numbers) > 1 else None
        return cls(statistics.fmean(numbers), std)


@dataclass(frozen=True)
class Result:
    """One metric over the runs of a group that have it."""

    final: Spread
    best: Spread
    """Largest value of each run, or its smallest where less is better."""
    runs: Mapping[str, tuple[float, float]]
    """Run -> its final and best value."""


@dataclass(frozen=True)
class Group:
    """Runs whose settings differ only in the seed."""

    runs: list[str]
    """Folders."""
    seeds: list[int]
    steps: list[int]
    """Last step of each run."""
    settings: dict[str, Any]
    """Settings in which the groups differ."""
    results: dict[str, Result]
    """By metric."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(folders: Sequence[Path], metrics: Sequence[str] = ()) -> list[Group]:
    """Groups of runs. A folder is a run, or holds runs.

    A metric NAME counts as better where it is larger, NAME:min where it is smaller.
    """
    by_group: dict[str, list[RunData]] = {}
    seen: set[Path] = set()
    for folder in folders:
        for run in Runs(folder).found():
            if run.run.resolve() not in seen:
                seen.add(run.run.resolve())
                run.metrics.refresh()
                by_group.setdefault(run.settings.group or str(run.run), []).append(run)
    groups = list(by_group.values())
    names = list(metrics) or [name for name in SHOWN if _have(groups, name)]
    for name in metrics:
        if not _have(groups, name.removesuffix(":min")):
            known = sorted({each for runs in groups for run in runs for each in run.metrics.series})
            raise TelescopeError(f"no run has the metric {name}: choose from {', '.join(known)}")
    settings = differing([runs[0].settings.flat for runs in groups])
    return [_group(runs, own, names) for runs, own in zip(groups, settings, strict=True)]


def _have(groups: Sequence[Sequence[RunData]], name: str) -> bool:
    return any(name in run.metrics.series for runs in groups for run in runs)


def _group(runs: Sequence[RunData], settings: dict[str, Any], names: Sequence[str]) -> Group:
    results = {}
    for name in names:
        metric, _, less = name.partition(":")
        chosen = min if less else max
        found: dict[str, tuple[float, float]] = {}
        for run in runs:
            series = run.metrics.series.get(metric)
            if series:
                found[str(run.run)] = (series.values[-1], chosen(series.values))
        if found:
            final = Spread.of([last for last, _ in found.values()])
            best = Spread.of([best for _, best in found.values()])
            results[name] = Result(final, best, found)
    return Group(
        runs=[str(run.run) for run in runs],
        seeds=[run.settings.seed for run in runs if run.settings.seed is not None],
        steps=[int(run.metrics.last_step or 0) for run in runs],
        settings={key: value for key, value in settings.items() if key not in NOT_COMPARED},
        results=results,
    )


def digits(spread: Spread | None) -> str:
    """0.854 ± 0.018; a single run has no ±."""
    if spread is None:
        return "–"
    if spread.std is None:
        return f"{spread.mean:.4g}"
    return f"{spread.mean:.4g} ± {spread.std:.2g}"
