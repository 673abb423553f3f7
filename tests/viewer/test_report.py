from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.viewer.report import write_report
from telescope.viewer.whatif import WhatIf, recompute
from tests.viewer.fake import EOS, fake_run, hostile, lesson, sample, step_of


class _Elements(HTMLParser):
    """What a parser of HTML sees: tags, and the text of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.texts.append("")
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.texts and self.inside:
            self.texts[-1] += data

    def named(self, name: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attrs, text)
            for (tag, attrs), text in zip(self.tags, self.texts, strict=True)
            if tag == name
        ]


def _report(tmp_path: Path, samples: dict[int, list[Sample]] | None = None) -> str:
    run = fake_run(tmp_path / "run", samples)
    out = write_report(run, tmp_path / "out" / "r.html")
    assert [p.name for p in out.parent.iterdir()] == ["r.html"]  # no temporary file is left
    return out.read_text("utf-8")


def _data(html: str) -> dict[str, Any]:
    text = _Elements(html).named("script")[0][1]
    data: dict[str, Any] = json.loads(text)
    return data


def test_report_is_one_file_that_names_no_other(tmp_path: Path) -> None:
    html = _report(tmp_path)
    seen = _Elements(html)
    assert not any(attrs.get(name) for _, attrs in seen.tags for name in ("src",))
    assert [attrs["href"] for tag, attrs in seen.tags if attrs.get("href")] == ["data:,"]
    assert "@import" not in html
    assert "url(" not in html


def test_report_policy_allows_exactly_its_own_script_and_style(tmp_path: Path) -> None:
    seen = _Elements(_report(tmp_path))
    policy = next(
        attrs["content"]
        for attrs, _ in seen.named("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    scripts = [text for attrs, text in seen.named("script") if attrs.get("type") == "module"]
    (style,) = (text for _, text in seen.named("style"))
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (*scripts, style)
    ]
    assert policy is not None
    assert re.findall(r"sha256-([^']+)", policy) == hashes
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_hostile_model_text_stays_inside_the_data(tmp_path: Path) -> None:
    html = _report(
        tmp_path, {1: hostile()[:6], 2: hostile()[6:]}
    )  # a report takes eight samples of a step
    seen = _Elements(html)
    (data, module) = (text for _, text in seen.named("script"))
    assert "hacked" in data  # it is there as data,
    assert "hacked" not in module + "".join(
        text for (tag, _), text in zip(seen.tags, seen.texts, strict=True) if tag != "script"
    )
    assert not set("<>&") & set(data)
    assert (
        json.loads(data)["steps"]["1"]["samples"][0]["prompt"] == "<script>window.hacked=1</script>"
    )
    assert sum(len(step["samples"]) for step in json.loads(data)["steps"].values()) == len(
        hostile()
    )
    assert len(html) < 400_000  # the line of a megabyte was cut
    assert "\x00" not in html
    assert "\x1b" not in html


def test_report_of_long_responses_stays_under_three_megabytes(tmp_path: Path) -> None:
    long = step_of(
        [
            sample(["好"] * 900 + [EOS], [0.5] * 901, [0.01] * 901, score=1.0, prompt=str(i % 3))
            for i in range(12)
        ],
        1,
    )
    html = _report(tmp_path, dict.fromkeys(range(1, 8), long))
    assert len(html.encode()) < 3_000_000
    data = _data(html)
    assert next(iter(data["steps"])) == "7"
    assert all(step["samples"] and step["samples"][0]["traces"] for step in data["steps"].values())


def test_a_small_report_holds_what_ifs_and_a_large_one_does_not(tmp_path: Path) -> None:
    small = _data(_report(tmp_path / "small"))["steps"]["40"]
    whatif = small["whatif"]
    assert whatif["gammas"] == [0.9, 0.95, 0.99, 1.0]
    key = f"gae/{whatif['gammas'].index(0.9)}/{whatif['lams'].index(0.5)}"
    expected = recompute(lesson(), WhatIf("gae", 0.9, 0.5))
    for found, one in zip(whatif["results"][key], expected, strict=True):
        assert found["columns"]["whitened"] == pytest.approx(one.columns["whitened"], abs=1e-4)
    rows = [
        sample(["好"] * 900 + [EOS], [0.5] * 901, [0.01] * 901, score=1.0, prompt=str(i % 3))
        for i in range(12)
    ]
    large = _data(_report(tmp_path / "large", {1: step_of(rows, 1)}))["steps"]["1"]
    assert large["whatif"] is None


def test_report_of_a_run_without_ledger_still_has_its_curves(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", {})
    data = _data(write_report(run, tmp_path / "r.html").read_text("utf-8"))
    assert data["run"]["steps"] == []
    assert data["run"]["curves"]["reward/kl"]


def test_a_damaged_step_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = fake_run(tmp_path / "run")
    last = sorted((run / "ledger").glob("*.parquet"))[-1]
    last.write_bytes(last.read_bytes()[:100])
    assert len(write_report(run, tmp_path / "r.html").read_bytes()) > 10_000
    assert f"left out of the report: {last} cannot be read" in caplog.text


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(TelescopeError, match="cannot write the report"):
        write_report(run, tmp_path / "file" / "r.html")
