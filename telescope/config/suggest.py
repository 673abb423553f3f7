"""What a setting that does not exist was probably meant to be: ours, or another trainer's name."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_LIKENESS = 0.65
_LIKENESS_ELSEWHERE = 0.75
"""From this on, 1 being equal, a name counts as misspelt: in its section, in any other."""


@functools.cache
def peers() -> dict[str, dict[str, list[str]]]:
    """Trainer -> the end of its setting's name -> ours."""
    return tomllib.loads(Path(__file__).with_name("peers.toml").read_text("utf-8"))


def advice(key: str, known: Mapping[str, str]) -> str:
    """What to write instead of `key`; `known` has our settings with their descriptions."""
    theirs = names_at_peers(key)
    if theirs:
        return _did_you_mean_one_of(theirs, known)
    ours = _longer(key, known) or same_name(key, known) or misspelt(key, known)
    if ours:
        return f"did you mean {' or '.join(f'`{name}`' for name in ours)}?"
    return "`telescope train --help` lists them all"


def leaves(key: str, value: Any) -> Iterator[str]:
    """The keys inside a section, or the key itself: `actor_rollout_ref.rollout.n`."""
    if not isinstance(value, Mapping) or not value:
        yield key
        return
    for name, inner in value.items():
        yield from leaves(f"{key}.{name}", inner)


def names_at_peers(key: str) -> list[str]:
    """Our names of another trainer's setting, by the longest end of its name in the table.

    Of `critic.learning_rate`, which may be `actor.lr` or `critic.lr`, it is the critic's.
    """
    parts = key.split(".")
    for start in range(len(parts)):
        end = ".".join(parts[start:])
        found = [name for table in peers().values() for name in table.get(end, [])]
        if found:
            ours = list(dict.fromkeys(found))
            return [name for name in ours if name.split(".")[0] in parts[:-1]] or ours
    return []


def same_name(key: str, known: Mapping[str, str]) -> list[str]:
    """Our settings that are called the same in another section."""
    sections, _, name = key.rpartition(".")
    if name in ("name", "dir"):  # every trainer has some
        return []
    ours = [other for other in known if other.rpartition(".")[2] == name]
    ours.sort(key=lambda other: other.startswith("warm_start."))  # seldom the one that is meant
    return [other for other in ours if other.split(".")[0] in sections.split(".")] or ours


def _longer(key: str, known: Mapping[str, str]) -> list[str]:
    """Settings of the same section that have all words of the name: `max_tokens`."""
    section, _, name = key.rpartition(".")
    words = set(name.split("_"))
    same = [other for other in known if section and other.rpartition(".")[0] == section]
    return [other for other in same if words <= set(other.rpartition(".")[2].split("_"))]


def misspelt(key: str, known: Mapping[str, str]) -> list[str]:
    """The closest name of the same section; else of any setting or section."""
    section, _, name = key.rpartition(".")
    sections = {other.split(".")[0] for other in known if "." in other}
    same = [other for other in known if other.rpartition(".")[0] == section]
    rest = [other for other in known if "." in other] if section else [*known, *sorted(sections)]
    for others, likeness in ((same, _LIKENESS), (rest, _LIKENESS_ELSEWHERE)):
        by_name = {other.rpartition(".")[2]: other for other in others}
        close = difflib.get_close_matches(name, by_name, 1, likeness)
        if close:
            return [by_name[close[0]]]
    return []


def _did_you_mean_one_of(names: Sequence[str], known: Mapping[str, str]) -> str:
    """The names, each with the first clause of its description."""
    by_meaning: dict[str, list[str]] = {}
    for name in names:
        by_meaning.setdefault(known.get(name, "").split(";")[0], []).append(f"`{name}`")
    parts = [
        " or ".join(group) + (f" ({meaning})" if meaning else "")
        for meaning, group in by_meaning.items()
    ]
    return f"did you mean {', or '.join(parts)}?"
