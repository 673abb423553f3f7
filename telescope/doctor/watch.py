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
from telescope.doctor.thresholds import WATCH_EACH, WATCH_LEAST
from telescope.errors import TelescopeError


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
        for row in rows:
            self.curves.add(row["step"], row)
        self._said = {finding.id for finding in curve_findings(self.curves)}

    def step(self, step: int, metrics: Mapping[str, float]) -> list[Finding]:
        """The findings that this step's metrics bring up, the worst first."""
        self.curves.add(step, metrics)
        if step % self._pace(step) and not any(name.startswith("eval/") for name in metrics):
            return []
        found = ordered(curve_findings(self.curves))
        new = [each for each in found if each.id not in self._said and each.severity != "note"]
        self._said |= {finding.id for finding in new}
        return new

    @staticmethod
    def _pace(step: int) -> int:
        """Steps between two looks: a long run is looked at less often, at most every tenth step."""
        return min(max(1, step // WATCH_EACH), WATCH_LEAST)

    def stops(self, found: Sequence[Finding]) -> Finding | None:
        """The finding that ends the run, if there is one."""
        return next((each for each in found if each.id in self.stop_on), None)
