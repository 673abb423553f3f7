"""A run as the page reads it: steps, samples and metrics, read on demand and kept for a while."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from telescope.audit import file as audit_file
from telescope.audit.findings import Audit
from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.explain.trace import Tracer
from telescope.ledger import reader as ledger
from telescope.ledger.damage import LedgerDamage
from telescope.viewer.background import (
    Background,
    Lines,
    files_written,
    find_alarms,
    find_damage,
    written,
)
from telescope.viewer.columns import has_critic, step_columns
from telescope.viewer.derived import derived_table, lacks
from telescope.viewer.header import (
    SCALED,
    accuracy_of,
    instructive_row,
    is_surprising,
    joined_scales,
    scales_of_step,
    spread_steps,
)
from telescope.viewer.offers import loss_offers, offers
from telescope.viewer.payload import number_of, page_audit, page_settings
from telescope.viewer.prompts import PromptIndex
from telescope.viewer.recent import Recent
from telescope.viewer.recorded import RecordedStep
from telescope.viewer.rows import index_rows
from telescope.viewer.series import Metrics
from telescope.viewer.settings_list import RunSettings
from telescope.viewer.status import FILES_OF_A_RUN, Status, is_run, status_of
from telescope.viewer.value_paths import value_paths
from telescope.viewer.whatif import Recomputed, WhatIf, recompute

Stamp = tuple[int, int]
"""A step and when its file was written: a resumed run writes some steps again."""
_FOR_SCALES = ("response_mask", "actor_updates", *SCALED)
_LOOKED_AT = (0, 1, 2, 5, 9)
"""Which recorded steps the first sample to show is taken from: early ones, but not only those in
which the critic is still untrained. They stay the same while a run goes on."""


class RunData:
    """One run. A step's file is read when the step is shown, a sample when it is asked for."""

    def __init__(self, run: Path, *, name: str | None = None) -> None:
        if not run.is_dir():
            raise TelescopeError(
                f"no run {run}: give the folder of a run, e.g. runs/arithmetic-seed0"
            )
        if not is_run(run):
            files = " or ".join(FILES_OF_A_RUN)
            raise TelescopeError(
                f"{run} is not a run folder: it has no {files}; give one like runs/arithmetic-seed0"
            )
        self.run = run
        self.id = name or run.resolve().name or "run"
        self.metrics = Metrics(run / "metrics.jsonl")
        self._tables = Recent[pa.Table](3)
        self._derived_tables = Recent[pa.Table](3)
        self._samples = Recent[Sample](64)
        self._recorded = Recent[RecordedStep](3)
        self._audits = Recent[Audit | None](3)
        self._tracers = Recent[Tracer](8)
        self._whatifs = Recent[Recomputed](8)
        self._steps = Recent[dict[str, Any]](16)
        self._indices = Recent[list[dict[str, Any]]](16)
        self._scales = Recent[dict[str, float]](64)
        self._settings = Recent[RunSettings](1)
        self._prompts = PromptIndex(run)
        self._alarms = Background[list[dict[str, Any]]](partial(find_alarms, run), [])
        self._damage = Background[Lines](partial(find_damage, run, LedgerDamage(run)), [])

    # ---- the run ----

    @property
    def settings(self) -> RunSettings:
        """What config.toml says now."""
        stamp = written(self.run / "config.toml")
        return self._settings(stamp, lambda: RunSettings.read(self.run))

    @property
    def correct_score(self) -> float:
        return self.settings.correct_score

    def steps(self) -> list[int]:
        """The recorded steps, in order."""
        return ledger.steps(self.run)

    def status(self) -> Status:
        """How far the run is, and whether it goes on."""
        return status_of(self.run, self.metrics.refresh(), self.settings.total_steps)

    def listed(self) -> dict[str, Any]:
        """The run's row in a list of runs. `error`: its metrics cannot be read."""
        error = None
        try:
            self.metrics.refresh()
        except TelescopeError as problem:  # it costs this run's numbers, not the list
            error = str(problem)
        status = status_of(self.run, self.metrics, self.settings.total_steps).to_json()
        kept = ("status", "silent_for", "step", "total_steps", "eta_s", "updated")
        return {
            **self._about({key: status[key] for key in kept}),
            "alarms": self.alarms(),
            "error": error,
        }

    def header(self) -> dict[str, Any]:
        """What the page polls while a run goes on."""
        status = self.status()
        steps = self.steps()
        return {
            **self._about(status.to_json()),
            "config": self.settings.to_json(),
            "ledger": steps,
            "evaluations": ledger.steps(self.run, "completions"),
            "rows": max((len(series) for series in self.metrics.series.values()), default=0),
            "metrics": sorted(self.metrics.series),
            "correct_score": number_of(self.correct_score),
            "alarms": self.alarms(),
            "damage": self.damage(),
            "instructive": self.instructive(steps),
            "scales": self.scales(steps),
            "recorded": None,
        }

    def _about(self, status: dict[str, Any]) -> dict[str, Any]:
        """What a row of a list and the header have in common."""
        return {
            "id": self.id,
            "name": self.id,
            **status,
            "seed": self.settings.seed,
            "group": self.settings.group or self.id,
            "accuracy": accuracy_of(self.metrics),
        }

    def alarms(self, *, wait: bool = False) -> list[dict[str, Any]]:
        """What looks wrong, as far as it is known; `wait`: all of it."""
        steps = self.steps()
        stamp = (written(self.run / "metrics.jsonl"), len(steps), steps[-1:])
        return self._alarms.known(str(stamp), wait=wait) if self.run.is_dir() else []

    def damage(self, *, wait: bool = False) -> Lines:
        """Which files are damaged, as far as it is known; `wait`: all of them."""
        return self._damage.known(files_written(self.run), wait=wait) if self.run.is_dir() else []

    def instructive(self, steps: list[int]) -> dict[str, int] | None:
        """The sample that the page opens with: a wrong answer at an early step."""
        rows: list[dict[str, Any]] = []
        for step in (steps[place] for place in _LOOKED_AT if place < len(steps)):
            try:
                row = instructive_row(self.index(step))
            except TelescopeError:  # a damaged file: another one may do
                continue
            if row is not None:
                rows.append(row | {"step": step})
                if is_surprising(row):
                    break
        found = rows[-1] if rows and is_surprising(rows[-1]) else instructive_row(rows)
        return None if found is None else {"step": found["step"], "sample": found["position"]}

    def scales(self, steps: list[int]) -> dict[str, float | None]:
        """Where the colours of each quantity end: the same for all steps of the run."""
        found = []
        for step in spread_steps(steps):
            try:
                found.append(self._scales(self._stamp(step), partial(self._scale, step)))
            except TelescopeError:
                continue
        return joined_scales(found)

    def _scale(self, step: int) -> dict[str, float]:
        table = ledger.read(self.run, step, list(_FOR_SCALES))
        if lacks(table.column_names):
            _, table = self._derived(step)
        return scales_of_step(table, critic=has_critic(table))

    # ---- one step ----

    def step(self, step: int) -> dict[str, Any]:
        """The list of the step's samples and what they have in common."""
        key = (self._stamp(step), written(self.run / "config.toml"))
        return self._steps(key, lambda: self._make_step(step))

    def _make_step(self, step: int) -> dict[str, Any]:
        stamp, table = self._read(step)
        answer = {
            "step": step,
            "stamp": str(stamp[1]),
            "index": self.index(step),
            "offers": [],
            "losses": [],
            "settings": None,
            "whiten": None,
            "paths": None,
            "part_weights": {},
        }
        if table.num_rows:
            settings = page_settings(ledger.settings_of(table))
            answer["settings"] = settings | {"critic": has_critic(table)}
            recorded = self.recorded(step)
            answer["offers"] = [offer.to_json() for offer in offers(recorded)]
            answer["losses"] = [offer.to_json() for offer in loss_offers(recorded)]
            answer["whiten"] = recorded.whitening()
            answer["part_weights"] = recorded.part_weights
            if has_critic(table):
                answer["paths"] = value_paths(table, self.correct_score)
        return answer

    def index(self, step: int) -> list[dict[str, Any]]:
        """One row per sample of the step, for sorting and filtering."""
        stamp = self._stamp(step)
        return self._indices((stamp, self.correct_score), lambda: self._make_index(step))

    def _make_index(self, step: int) -> list[dict[str, Any]]:
        _, table = self._derived(step)
        return index_rows(table, self.correct_score, critic=has_critic(table))

    def columns(self, step: int) -> dict[str, Any]:
        """The numbers of all samples of the step."""
        _, table = self._derived(step)
        return step_columns(table, critic=has_critic(table))

    def search(self, step: int, text: str) -> list[int]:
        """Positions of the samples whose prompt or response contains the text, in any case."""
        _, table = self._read(step)
        wanted = text.casefold()
        prompts = table.column("prompt").to_pylist()
        responses = table.column("response").to_pylist()
        pairs = enumerate(zip(prompts, responses, strict=True))
        return [i for i, pair in pairs if any(wanted in said.casefold() for said in pair)]

    def recorded(self, step: int) -> RecordedStep:
        """The step as a what-if reads it."""
        stamp, table = self._derived(step)
        weights = self.settings.part_weights
        size = self.settings.group_size
        return self._recorded(
            (stamp, written(self.run / "config.toml")),
            lambda: RecordedStep(table, part_weights=weights, group_size=size),
        )

    def whatif(self, step: int, whatif: WhatIf) -> Recomputed:
        """All samples of the step with their credit computed anew."""
        key = (self._stamp(step), whatif)
        return self._whatifs(key, lambda: recompute(self.recorded(step), whatif))

    # ---- samples ----

    def sample(self, step: int, position: int) -> Sample:
        """The sample at this position of the step."""
        stamp, table = self._read(step)
        if not 0 <= position < table.num_rows:
            raise TelescopeError(
                f"step {step} has {table.num_rows} recorded samples: 0 to {table.num_rows - 1}"
            )
        return self._samples((*stamp, position), lambda: ledger.sample_of(table, position))

    def audit(self, step: int, position: int) -> dict[str, Any] | None:
        """What an audit of the step found on the sample's posts, if there is one."""
        path = audit_file.path_of(self.run, step)
        audit = self._audits((step, written(path)), lambda: audit_file.load(self.run, step))
        return page_audit(audit, position)

    def tracer(self, step: int, position: int) -> Tracer:
        """Explains the sample's tokens."""
        sample = self.sample(step, position)
        return self._tracers((self._stamp(step), position), lambda: Tracer(sample))

    def samples_of(self, step: int) -> list[Sample]:
        """Every recorded sample of the step."""
        _, table = self._read(step)
        return [self.sample(step, position) for position in range(table.num_rows)]

    def evaluated(self, step: int, position: int) -> Sample:
        """The answer at this position of the evaluation after a step."""
        self.check_exists()
        table = ledger.read(self.run, step, kind="eval")
        if not 0 <= position < table.num_rows:
            raise TelescopeError(f"the evaluation after step {step} has {table.num_rows} answers")
        return ledger.sample_of(table, position)

    def prompt_rows(self, key: str) -> list[dict[str, Any]]:
        """Every recorded response to a prompt, step by step."""
        self.check_exists()
        return self._prompts.rows(key, self.correct_score)

    def recurring_prompts(self) -> list[dict[str, Any]]:
        """The prompts that several steps recorded, those of most steps first."""
        self.check_exists()
        return self._prompts.recurring()

    # ---- files ----

    def check_exists(self) -> None:
        """Says so if the folder is gone."""
        if not self.run.is_dir():
            raise TelescopeError(f"the run {self.id} was deleted")

    def _stamp(self, step: int) -> Stamp:
        self.check_exists()
        try:
            return step, ledger.path_of(self.run, step).stat().st_mtime_ns
        except (OSError, OverflowError):
            raise TelescopeError("the ledger has no such step") from None

    def _read(self, step: int) -> tuple[Stamp, pa.Table]:
        stamp = self._stamp(step)
        return stamp, self._tables(stamp, lambda: ledger.read(self.run, step))

    def _derived(self, step: int) -> tuple[Stamp, pa.Table]:
        """The same with what follows from it; samples are read without, so that ✓ stays true."""
        stamp, table = self._read(step)
        return stamp, self._derived_tables(stamp, lambda: derived_table(table))
