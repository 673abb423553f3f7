"""Findings in order: the worst first, causes before what they lead to (causes.toml)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from telescope.doctor.check import CHECKS, FAMILIES
from telescope.doctor.finding import SEVERITIES, Finding, Severity
from telescope.doctor.thresholds import SLACK


def ordered(found: Sequence[Finding]) -> list[Finding]:
    """The findings with their causes, by severity, cause, place in the loop and onset.

    A cause is as serious as the worst that it leads to.
    """
    by_id = {finding.id: finding for finding in found}
    links = _without_circles({finding.id: _causes(finding, found) for finding in found}, by_id)
    linked = [replace(finding, caused_by=tuple(links[finding.id])) for finding in found]
    raised = [replace(finding, severity=_severity(finding, linked)) for finding in linked]
    return sorted(raised, key=_key)


def _causes(finding: Finding, found: Sequence[Finding]) -> list[str]:
    """Other findings that explain this one and did not begin later."""
    return [
        other.id
        for other in found
        if other.id != finding.id
        and explains(other.id, finding.id)
        and other.since <= finding.since + SLACK
        and other.severity != "note"
    ]


def _without_circles(
    causes: dict[str, list[str]], by_id: Mapping[str, Finding]
) -> dict[str, list[str]]:
    """Where findings explain each other in a circle, the link with the latest cause is removed."""

    def lateness(link: tuple[str, str]) -> tuple[int, int]:
        cause, finding = by_id[link[0]], by_id[link[1]]
        return (cause.since - finding.since, _stage(cause) - _stage(finding))

    while circle := _circle(causes):
        cause, finding = max(circle, key=lateness)
        causes[finding].remove(cause)
    return causes


def _circle(causes: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """(cause, finding) of the links of a circle; none if there is no circle."""
    seen: set[str] = set()
    for start in causes:
        path: list[str] = []
        found = _walk_back(start, causes, path, seen)
        if found is not None:
            members = path[path.index(found) :]
            return list(zip(members[1:] + members[:1], members, strict=True))
    return []


def _walk_back(
    id: str, causes: Mapping[str, Sequence[str]], path: list[str], seen: set[str]
) -> str | None:
    """Goes from a finding to its causes. Returns the first that is met twice on one `path`."""
    if id in path:
        return id
    if id in seen:
        return None
    seen.add(id)
    path.append(id)
    for cause in causes[id]:
        again = _walk_back(cause, causes, path, seen)
        if again is not None:
            return again
    path.pop()
    return None


def root_causes(finding: Finding, found: Sequence[Finding]) -> list[str]:
    """The causes of a finding that have no cause themselves; its own ones if there are none."""
    causes = {each.id: each.caused_by for each in found}
    to_visit = list(finding.caused_by)
    for id in to_visit:  # it grows
        to_visit += [cause for cause in causes[id] if cause not in to_visit]
    return [id for id in to_visit if not causes[id]] or list(finding.caused_by)


def explains(cause: str, consequence: str) -> bool:
    """Whether one finding leads to another. Outcomes follow from everything."""
    if CHECKS[consequence].family == "outcome":
        return CHECKS[cause].family != "outcome"
    return (cause, consequence) in links()


@functools.cache
def links() -> set[tuple[str, str]]:
    """(cause, consequence) of the findings that lead to others."""
    told = tomllib.loads(Path(__file__).with_name("causes.toml").read_text("utf-8"))
    groups = [(group["causes"], group["lead_to"]) for group in told["groups"]]
    groups += [([cause], ids) for cause, ids in told["leads_to"].items()]
    return {pair for causes, ids in groups for pair in product(causes, ids)}


def _severity(finding: Finding, found: Sequence[Finding]) -> Severity:
    own = [finding.severity]
    own += [other.severity for other in found if finding.id in other.caused_by]
    return min(own, key=SEVERITIES.index)


def _stage(finding: Finding) -> int:
    return FAMILIES.index(CHECKS[finding.id].family)


def _key(finding: Finding) -> tuple[int, bool, int, int, float]:
    return (
        SEVERITIES.index(finding.severity),
        bool(finding.caused_by),
        _stage(finding),
        finding.since,
        -finding.confidence,
    )
