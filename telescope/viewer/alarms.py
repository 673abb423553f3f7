"""What looks wrong in a run, as the page shows it: a panel, marks in the charts, a badge.

An alarm is {id, severity, since, what_zh, what_en, remedy_zh, remedy_en, href}: `since` is the step
where it began, `href` the place of the page that shows it. They come in the order in which they
should be read, causes before what they lead to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from telescope.doctor import findings

KEYS = ("id", "severity", "since", "what_zh", "what_en", "remedy_zh", "remedy_en", "href")


def find_alarms(run: Path) -> list[dict[str, Any]]:
    """All alarms of a run: what the doctor finds in its curves and its ledger.

    Among them are the faults of a watched trainer's batches, and metrics that are not finite.
    """
    return [{key: finding[key] for key in KEYS} for finding in findings(run)]
