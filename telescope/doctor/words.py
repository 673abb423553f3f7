"""The sentences of the findings, from words.toml."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from telescope.doctor import thresholds

Lang = Literal["zh", "en"]
PARTS = ("name", "rule", "what", "why", "remedy")
"""What every finding has words for."""


@functools.cache
def texts() -> dict[str, dict[str, dict[str, str]]]:
    """Finding -> part -> language -> text."""
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))


def said(
    finding: str, part: str, lang: Lang, variant: str = "", numbers: Mapping[str, Any] | None = None
) -> str:
    """A sentence with its numbers filled in; that of the variant where there is one."""
    of_finding = texts()[finding]
    found = of_finding.get(f"{part}_{variant}", of_finding[part])
    known = {name: _or_unknown(value) for name, value in (numbers or {}).items()}
    return found[lang].format(**limits(), **known)


class _Unknown:
    """Stands for a number that is not known, in any format."""

    def __format__(self, spec: str) -> str:
        return "?"


def _or_unknown(value: Any) -> Any:
    return _Unknown() if isinstance(value, float) and math.isnan(value) else value


def name_of(finding: str, lang: Lang) -> str:
    return said(finding, "name", lang)


def rule_of(finding: str, lang: Lang) -> str:
    """The rule in one line, with its thresholds."""
    return said(finding, "rule", lang)


def ui(key: str, lang: Lang, **values: Any) -> str:
    """A label of the output."""
    return texts()["ui"][key][lang].format(**values)


@functools.cache
def limits() -> dict[str, Any]:
    """Every threshold by its name."""
    return {name: value for name, value in vars(thresholds).items() if name.isupper()}
