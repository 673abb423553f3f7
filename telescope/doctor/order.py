"""Findings in order: the worst first, causes before what they lead to (causes.toml)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
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
    causes = {finding.id: _causes(finding, found) for finding in found}
    linked = [replace(finding, caused_by=tuple(causes[finding.id])) for finding in found]
    raised = [replace(finding, severity=_severity(finding, linked)) for finding in linked]
    return sorted(raised, key=_key)


def _causes(finding: Finding, found: Sequence[Finding]) -> list[str]:
    """Other findings that explain this one and did not begin later."""
    return [
        other.id
        for other in found
        if other.id != finding.id
        and explains(other.id, finding.id)
        and not _is_mutual(other, finding)
        and other.since <= finding.since + SLACK
        and other.severity != "note"
    ]


def root_causes(finding: Finding, found: Sequence[Finding]) -> list[str]:
    """The causes of a finding that have no cause themselves; its own ones if there are none."""
    causes = {each.id: each.caused_by for each in found}
    to_visit = list(finding.caused_by)
    for id in to_visit:  # it grows
        to_visit += [cause for cause in causes[id] if cause not in to_visit]
    return [id for id in to_visit if not causes[id]] or list(finding.caused_by)


def _is_mutual(other: Finding, finding: Finding) -> bool:
    """Where each could explain the other, the earlier one does, or the one listed first."""
    if not explains(finding.id, other.id):
        return False
    return (finding.since, _stage(finding)) <= (other.since, _stage(other))


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
