"""The checks of metrics during training: a line when a problem starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from telescope.doctor.check import CHECKS
from telescope.doctor.curves import Curves
from telescope.doctor.examine import curve_findings
from telescope.doctor.finding import Finding
from telescope.doctor.order import ordered
from telescope.doctor.settings import flat_settings
from telescope.doctor.thresholds import SLACK, WATCH_EACH, WATCH_LEAST, WATCH_START
from telescope.errors import TelescopeError

LEARNED_AWAY = ("mostly_truncated", "flat_groups")
"""What an untrained model may show, and soon learns away."""


def _is_early(finding: Finding, step: int) -> bool:
    """Whether it is too early to say this."""
    from_start = finding.id in LEARNED_AWAY and finding.since <= SLACK
    return from_start and step < WATCH_START


class Watcher:
    """Follows a run's metrics. `step` returns the findings that are new, notes left out."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        stop_on: Sequence[str] = (),
        rows: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """`rows`: metrics of earlier steps, of a run that is resumed. What they show is old."""
        known = [id for id, check in CHECKS.items() if check.of_curves is not None]
        unknown = [id for id in stop_on if id not in known]
        if unknown:
            raise TelescopeError(
                f"doctor.stop_on: training cannot look for `{unknown[0]}`; "
                f"choose from {', '.join(sorted(known))}"
            )
        self.stop_on = tuple(stop_on)
        self.curves = Curves(flat_settings(settings))
        rows_read = list(rows)
        for row in rows_read:
            self.curves.add(row["step"], row)
        last = int(rows_read[-1]["step"]) if rows_read else 0
        found = curve_findings(self.curves)
        self._said = {finding.id for finding in found if not _is_early(finding, last)}

    def step(self, step: int, metrics: Mapping[str, float]) -> list[Finding]:
        """The findings that this step's metrics bring up, the worst first."""
        self.curves.add(step, metrics)
        if step % self._pace(step) and not any(name.startswith("eval/") for name in metrics):
            return []
        found = ordered(curve_findings(self.curves))
        due = [each for each in found if each.severity != "note" and not _is_early(each, step)]
        new = [each for each in due if each.id not in self._said]
        self._said |= {finding.id for finding in new}
        return new

    @staticmethod
    def _pace(step: int) -> int:
        """Steps between two looks: a long run is looked at less often, at most every tenth step."""
        return min(max(1, step // WATCH_EACH), WATCH_LEAST)

    def stops(self, found: Sequence[Finding]) -> Finding | None:
        """The finding that ends the run, if there is one."""
        return next((each for each in found if each.id in self.stop_on), None)
