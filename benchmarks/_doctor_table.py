"""The verdicts of benchmarks/doctor.py as a table, and their totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

Said = tuple[str, str]
"""A finding's id, and its severity."""

SERIOUS = ("serious", "critical")
"""What the doctor and the other tools call their worst findings."""
MINOR = ("note", "info")
GROUPS = {
    "held out": "half that is held out",
    "tuning": "half for tuning",
    "earlier": "five further faults",
    "read": "eight faults whose runs were read to find missing rules",
    "blind": "twelve faults that were judged only when those rules were final",
    "reported": "33 faults of the kind that users report",
    "other": "twelve further settings",
    "settings": "twenty more settings",
}
"""Groups of runs, and what the totals call them."""


@dataclass(frozen=True)
class Verdict:
    """What was said about one run."""

    case: str
    what: str
    """What differs from the base."""
    seed: int
    expected: tuple[str, ...]
    """Findings that name the cause; none: the run is healthy."""
    group: str
    """One of GROUPS."""
    said: Sequence[Said]
    """The findings, the top one first."""
    peers: Mapping[str, Sequence[Said]] = field(default_factory=dict)
    """The same of other tools, by tool."""
    peers_right: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What comes near the fault in their terms."""

    @property
    def top(self) -> str:
        """The top finding, unless it is only a note."""
        return top(self.said)

    @property
    def is_right(self) -> bool:
        return is_right(self.said, self.expected)

    def peer_is_right(self, tool: str) -> bool:
        expected = self.peers_right.get(tool, ()) if self.expected else ()
        if self.expected and not expected:
            return False  # the tool has no check for this fault
        return is_right(self.peers[tool], expected)


def top(said: Sequence[Said]) -> str:
    """The first finding that is more than a note; – if there is none."""
    return next((name for name, severity in said if severity not in MINOR), "–")


def is_right(said: Sequence[Said], expected: tuple[str, ...]) -> bool:
    """A fault's top finding names it; a healthy run has no serious finding."""
    if expected:
        return top(said) in expected
    return not any(severity in SERIOUS for _, severity in said)


def table(verdicts: Sequence[Verdict], tools: Sequence[str] = ()) -> list[str]:
    """One line per case: what it is, the top findings of its runs, and how many are right."""
    columns = ["case", "what differs", "top finding", "right", *tools]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for case in dict.fromkeys(verdict.case for verdict in verdicts):
        runs = [verdict for verdict in verdicts if verdict.case == case]
        cells = [case, runs[0].what, _tops(runs), _share(run.is_right for run in runs)]
        cells += [_share(run.peer_is_right(tool) for run in runs) for tool in tools]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _tops(runs: Sequence[Verdict]) -> str:
    """The top findings of a case's runs, the most frequent first."""
    counts = Counter(run.top for run in runs)
    said = [(f"`{name}`" if name != "–" else name, count) for name, count in counts.most_common()]
    return ", ".join(name if len(runs) == count else f"{name} ×{count}" for name, count in said)


def _share(right: Iterable[bool]) -> str:
    found = list(right)
    return f"{sum(found)}/{len(found)}"


def totals(verdicts: Sequence[Verdict], tools: Sequence[str] = ()) -> list[str]:
    """The shares that the benchmark is about, by half, with the other tools' beside them."""
    lines = [f"| {' | '.join(['runs', 'doctor', *tools])} |", "|---" * (len(tools) + 2) + "|"]
    for (group, what), is_faulty in product(GROUPS.items(), (True, False)):
        runs = [v for v in verdicts if v.group == group and bool(v.expected) == is_faulty]
        if not runs:
            continue
        right = "top finding right" if is_faulty else "no serious finding"
        kind = "faults" if is_faulty else "healthy"
        name = f"{what}, {kind}: {right}"
        cells = [_share(run.is_right for run in runs)]
        cells += [_share(run.peer_is_right(tool) for run in runs) for tool in tools]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines
