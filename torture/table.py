"""What the faults did: one row per kind, and the details of whatever went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

from torture.processes import Ended


@dataclass
class Row:
    """The faults of one kind."""

    kind: str
    faults: int = 0
    runs: int = 0
    """Runs or readings that were compared."""
    refused: int = 0
    """Commands that ended with one line saying what is wrong."""
    differences: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    """Results that differ although nothing was said."""

    def look(self, ended: Ended, what: str) -> None:
        """Counts how a command ended."""
        self.refused += ended.refused
        if ended.has_traceback:
            self.tracebacks.append(f"{what}: exit code {ended.code}\n{ended.said[-3000:]}")

    def compare(self, differences: list[str], what: str) -> None:
        """Counts a run that went to its end."""
        self.runs += 1
        if differences:
            self.differences.append(f"{what}: {', '.join(differences[:8])}")

    def not_ended(self, ended: Ended, what: str) -> None:
        """Counts a run that should have gone to its end."""
        self.differences.append(f"{what}: exit code {ended.code}: {ended.said[-500:]}")

    @property
    def is_clean(self) -> bool:
        return not (self.differences or self.tracebacks or self.silent)


HEADER = ("fault", "number", "compared", "refused", "differences", "tracebacks", "silent")


def markdown(rows: list[Row]) -> str:
    """The table."""
    lines = [HEADER, ("---",) * len(HEADER)]
    for row in rows:
        numbers = (
            row.faults,
            row.runs,
            row.refused,
            len(row.differences),
            len(row.tracebacks),
            len(row.silent),
        )
        lines.append((row.kind, *(f"{number:,}" for number in numbers)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def details(rows: list[Row]) -> str:
    """Everything that went wrong."""
    parts = []
    for row in rows:
        for title in ("differences", "tracebacks", "silent"):
            parts += [f"{row.kind}, {title}: {text}" for text in getattr(row, title)]
    return "\n".join(parts)
