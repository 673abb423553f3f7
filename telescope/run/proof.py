"""A proof by experiment: back to before a finding, then on twice, as it was and with the change.

    runs/x/proof/lr_too_high/  unchanged/  changed/  proof.svg  proof.json

Both sides are runs like any other. They begin with what the run had recorded until then, so the
doctor reads them as it read the run itself.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from telescope.config import Config, load_saved_config
from telescope.config.paths import check_no_link
from telescope.doctor import Finding, examine
from telescope.doctor.words import Lang, name_of, ui
from telescope.errors import TelescopeError
from telescope.ledger import reader as ledger
from telescope.run.manifest import list_checkpoints, step_of
from telescope.run.metrics import read_metrics
from telescope.run.proof_plot import Curve, svg, terminal_plot

Train = Callable[[Config, int], None]
"""Trains a run from its newest checkpoint, or from the beginning, to a step."""
Outcome = Literal["confirmed", "refuted", "not_reproduced"]
Row = dict[str, Any]

STEPS = 30
"""Steps that each side trains."""
LAST_STEPS = 5
"""Steps whose mean is a curve's end."""
MOST_CHARTS = 2
SCORE = "reward/score_mean"
_CLOCKS = ("timing/", "perf/")


@dataclass(frozen=True)
class Proof:
    """Both sides of an experiment, and what it showed."""

    finding: Finding
    change: Mapping[str, Any]
    start: int
    """The step that both sides go on from."""
    folder: Path
    recorded: Sequence[Row]
    unchanged: Sequence[Row]
    changed: Sequence[Row]
    again: Finding | None
    """The finding in the unchanged side."""
    still: Finding | None
    """The finding in the changed side."""

    @property
    def outcome(self) -> Outcome:
        if self.again is None:
            return "not_reproduced"
        return "confirmed" if self.still is None else "refuted"

    @property
    def steps(self) -> int:
        return int(self.unchanged[-1]["step"]) - self.start

    @property
    def charts(self) -> list[str]:
        """The metrics that show it, the score last."""
        names = [name for name in self.finding.charts if name != SCORE]
        known = [name for name in names if _curve(self.unchanged, name)]
        return [*known[: MOST_CHARTS - 1], SCORE]

    def curves(self, metric: str, lang: Lang) -> list[Curve]:
        """The two curves of a metric."""
        sides = (("unchanged", self.unchanged), ("changed", self.changed))
        return [Curve(ui(name, lang), _curve(rows, metric)) for name, rows in sides]

    def sentences(self, lang: Lang) -> list[str]:
        """What the experiment showed, then the ends of the curves and whether it repeats."""
        steps = self.steps
        first = ui(
            self.outcome,
            lang,
            name=name_of(self.finding.id, lang),
            change=" · ".join(f"{key} = {value}" for key, value in self.change.items()),
            again=self.again.since if self.again else 0,
            still=self.still.since if self.still else 0,
            steps=steps,
            more=2 * steps,
        )
        return [first, *self._ends(lang), *self._repeats(lang)]

    def _ends(self, lang: Lang) -> list[str]:
        said = []
        for metric in self.charts:
            before = _end(self.unchanged, metric)
            after = _end(self.changed, metric)
            if before is not None and after is not None:
                said.append(ui("ends", lang, metric=metric, before=before, after=after))
        return said

    def _repeats(self, lang: Lang) -> list[str]:
        """Compares the unchanged side with the run, as far as that had been recorded."""
        known = {row["step"]: row for row in self.recorded if SCORE in row}
        common = [row for row in self.unchanged if row["step"] > self.start and SCORE in row]
        common = [row for row in common if row["step"] in known]
        for row in common:
            if _numbers(row) != _numbers(known[row["step"]]):
                return [ui("differs", lang, step=row["step"])]
        return [ui("same", lang, count=len(common))] if common else []

    def terminal(self, lang: Lang, width: int = 72) -> str:
        """The plots and the sentences."""
        blocks = [terminal_plot(name, self.curves(name, lang), width) for name in self.charts]
        return "\n\n".join([*blocks, "\n".join(self.sentences(lang))])

    def write(self, lang: Lang) -> Path:
        """Writes proof.svg and proof.json; returns the picture."""
        picture = self.folder / "proof.svg"
        panels = [(name, self.curves(name, lang)) for name in self.charts]
        picture.write_text(svg(panels, self.sentences(lang)[0]), "utf-8")
        result = {
            "finding": self.finding.id,
            "change": dict(self.change),
            "start": self.start,
            "steps": self.steps,
            "outcome": self.outcome,
            **{f"said_{each}": self.sentences(each) for each in ("zh", "en")},
        }
        text = json.dumps(result, ensure_ascii=False, indent=1)
        (self.folder / "proof.json").write_text(text, "utf-8")
        return picture


def prove(
    run: Path,
    finding: Finding,
    train: Train,
    *,
    change: Sequence[tuple[str, str]] = (),
    steps: int = STEPS,
    from_start: bool = False,
    trusted: bool = False,
) -> Proof:
    """Trains both sides from the last checkpoint before the finding, or from step 0.

    `change`, settings as typed, replaces the one that the finding proposes. `trusted`: the run may
    name code that this user has not trained with.
    """
    tried = dict(change) or dict(finding.change)
    if not tried:
        raise TelescopeError(
            f"{finding.id} has no setting to try: its remedy is not a setting; "
            "name one yourself, e.g. --actor.lr 1e-5"
        )
    start = None if from_start else checkpoint_before(run, finding.since)
    first = step_of(start) if start else 0
    folder = run / "proof" / finding.id
    sides: dict[str, dict[str, Any]] = {"unchanged": {}, "changed": tried}
    configs = {
        side: _side_config(run, folder, side, own, trusted=trusted) for side, own in sides.items()
    }
    for place in (folder.parent, folder):
        check_no_link(place)
    shutil.rmtree(folder, ignore_errors=True)
    for side, config in configs.items():
        _begin(run, folder / side, start)
        train(config, min(first + steps, config.steps))
    found = {side: _same_finding(folder / side, finding) for side in configs}
    return Proof(
        finding=finding,
        change=tried,
        start=first,
        folder=folder,
        recorded=read_metrics(run / "metrics.jsonl"),
        unchanged=read_metrics(folder / "unchanged" / "metrics.jsonl"),
        changed=read_metrics(folder / "changed" / "metrics.jsonl"),
        again=found["unchanged"],
        still=found["changed"],
    )


def checkpoint_before(run: Path, since: int) -> Path:
    """The newest checkpoint of a step before `since`."""
    saved = list_checkpoints(run / "checkpoints")
    before = [path for path in saved if step_of(path) < since]
    if before:
        return before[-1]
    kept = ", ".join(path.name for path in saved) or "none"
    raise TelescopeError(
        f"no checkpoint before step {since}, where it began (there: {kept}): "
        "add --from-start to train both sides from step 0; "
        "checkpoint.every and checkpoint.keep decide what later runs keep"
    )


def _side_config(
    run: Path, folder: Path, side: str, change: Mapping[str, Any], *, trusted: bool
) -> Config:
    """The run's settings with a change, in a folder of its own; nothing else may end it early."""
    place = {
        "name": side,
        "dir": str(folder),
        "checkpoint.every": 0,
        "checkpoint.keep": 1,
        "log.trackers": "none",
        "doctor.watch": False,
        "doctor.stop_on": "none",
        "eval.best": "none",
        "eval.best_mode": "max",
        "eval.patience": 0,
    }
    typed = {key: _as_typed(value) for key, value in {**change, **place}.items()}
    return load_saved_config(run / "config.toml", list(typed.items()), trusted=trusted)


def _as_typed(value: Any) -> str:
    """A setting as the command line would have it."""
    return value if isinstance(value, str) else json.dumps(value)


def _begin(run: Path, side: Path, start: Path | None) -> None:
    """Gives a side the checkpoint, and what was recorded until then."""
    side.mkdir(parents=True)
    if (run / "warm_start").is_dir():
        shutil.copytree(run / "warm_start", side / "warm_start", copy_function=_link)
    if start is None:
        return
    step = step_of(start)
    shutil.copytree(start, side / "checkpoints" / start.name, copy_function=_link)
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["step"] <= step]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (side / "metrics.jsonl").write_text(lines, "utf-8")
    (side / "ledger").mkdir()
    for recorded in ledger.steps(run):
        if recorded <= step:
            path = ledger.path_of(run, recorded)
            _link(path, side / "ledger" / path.name)


def _link(source: str | Path, target: str | Path) -> None:
    """A hard link where the disk has them: none of these files is ever changed in place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _same_finding(side: Path, finding: Finding) -> Finding | None:
    found = examine(side).findings()
    return next((each for each in found if each.id == finding.id), None)


def _curve(rows: Sequence[Row], metric: str) -> list[tuple[int, float]]:
    found = [(row["step"], row.get(metric)) for row in rows]
    return [(step, value) for step, value in found if value is not None]


def _end(rows: Sequence[Row], metric: str) -> float | None:
    values = [value for _, value in _curve(rows, metric)][-LAST_STEPS:]
    return statistics.fmean(values) if values else None


def _numbers(row: Row) -> Row:
    """A step's numbers without clocks and evaluations."""
    left_out = (*_CLOCKS, "eval/")
    return {name: value for name, value in row.items() if not name.startswith(left_out)}
