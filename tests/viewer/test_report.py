from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telescope.commands import main
from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.viewer.api import Api
from telescope.viewer.payload import dumps
from telescope.viewer.report import write_report
from telescope.viewer.report_data import chosen_samples
from telescope.viewer.run_data import RunData
from telescope.viewer.runs import Runs
from tests.viewer.fake import big_run, data_of_report, fake_run, hostile

RUN = "api/runs/run"
MADE = ("tex", "math", "math_numbers")
"""What the page makes from the shapes of the report."""


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


def _answers(html: str) -> dict[str, Any]:
    answers: dict[str, Any] = data_of_report(html)["answers"]
    return answers


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
    assert "hacked" not in html  # it is packed,
    answers = _answers(html)
    prompts = [
        "".join(part["text"] for part in answers[f"{RUN}/steps/{step}/samples/{i}"]["prompt_parts"])
        for step, count in ((1, 6), (2, len(hostile()) - 6))
        for i in range(count)
    ]
    assert prompts[0] == "<script>window.hacked=1</script>"  # and whole
    assert len(prompts) == len(hostile())
    assert len(html) < 700_000  # the line of a megabyte was cut
    assert "\x00" not in html
    assert "\x1b" not in html


def test_every_token_that_a_report_shows_has_its_arithmetic(tmp_path: Path) -> None:
    answers = _answers(_report(tmp_path))
    api = Api(Runs(tmp_path / "run"))
    samples = [path for path in answers if re.search(r"/samples/\d+$", path)]
    assert len(samples) == 4 * 6
    for path in samples:
        assert answers[path] == json.loads(dumps(api.answer(f"/{path}")))
        tokens = answers[f"{path}/tokens"]
        assert len(tokens) == answers[path]["length"]
        for t, traces in enumerate(tokens):
            live = api.answer(f"/{path}/tokens/{t}")["traces"]
            assert traces == [{k: v for k, v in one.items() if k not in MADE} for one in live]


def test_a_report_opens_on_a_sample_that_it_holds_with_a_token_that_is_explained(
    tmp_path: Path,
) -> None:
    run = big_run(tmp_path / "run", steps=12, samples=32, tokens=20)
    answers = _answers(write_report(run, tmp_path / "r.html").read_text("utf-8"))
    header = answers[RUN]
    first = header["instructive"]
    path = f"{RUN}/steps/{first['step']}/samples/{first['sample']}"
    written = [t for t, mask in enumerate(answers[path]["mask"]) if mask]
    assert all(answers[f"{path}/tokens"][t] for t in written)
    assert first["step"] in header["ledger"]


def test_the_sample_that_a_report_opens_with_has_its_group_beside_it(tmp_path: Path) -> None:
    run = big_run(tmp_path / "run", steps=3, samples=32, tokens=20)
    header = RunData(run).header()
    index = RunData(run).index(header["instructive"]["step"])
    first = header["instructive"]["sample"]
    chosen = chosen_samples(index, first)
    assert chosen[0] == first
    group = [row["position"] for row in index if row["group"] == index[first]["group"]]
    assert set(chosen[:4]) == set(group)
    assert len(set(chosen)) == len(chosen) == 8


def test_a_report_says_what_it_left_out_and_how_it_chose(tmp_path: Path) -> None:
    run = big_run(tmp_path / "run", steps=12, samples=32, tokens=20)
    answers = _answers(write_report(run, tmp_path / "r.html").read_text("utf-8"))
    recorded = answers[RUN]["recorded"]
    assert (recorded["shown_steps"], recorded["steps"]) == (5, 12)
    assert (recorded["shown_samples"], recorded["samples"]) == (8, 32)
    assert "|A|" in recorded["how_zh"]
    assert "|A|" in recorded["how_en"]
    assert len(answers[RUN]["ledger"]) == 5
    for step in answers[RUN]["ledger"]:
        index = answers[f"{RUN}/steps/{step}"]["index"]
        assert len(index) == 8
        for row in index:
            assert (
                answers[f"{RUN}/steps/{step}/samples/{row['position']}"]["position"]
                == row["position"]
            )
            rows = answers[f"{RUN}/prompts/{row['prompt_key']}"]["rows"]
            assert (step, row["position"]) in [(one["step"], one["position"]) for one in rows]


def test_the_columns_of_a_report_are_those_of_its_samples(tmp_path: Path) -> None:
    run = big_run(tmp_path / "run", steps=1, samples=16, tokens=20)
    answers = _answers(write_report(run, tmp_path / "r.html").read_text("utf-8"))
    held = [row["position"] for row in answers[f"{RUN}/steps/1"]["index"]]
    found = answers[f"{RUN}/steps/1/columns"]
    assert found["count"] == 16
    values = np.frombuffer(base64.b64decode(found["columns"]["values"]["data"]), np.float32)
    for position in range(16):
        start, end = found["offsets"][position : position + 2]
        if position not in held:
            assert start == end
            continue
        sample = answers[f"{RUN}/steps/1/samples/{position}"]
        assert values[start:end].tolist() == pytest.approx(sample["columns"]["values"])


def test_a_report_of_long_responses_stays_under_five_megabytes(tmp_path: Path) -> None:
    run = big_run(tmp_path / "run", steps=3, samples=16, tokens=500)
    html = write_report(run, tmp_path / "r.html").read_bytes()
    assert len(html) < 5_000_000
    answers = _answers(html.decode())
    assert answers[RUN]["ledger"] == [1, 2, 3]
    for step in (1, 2, 3):
        assert answers[f"{RUN}/steps/{step}"]["index"]


def test_a_chat_prompt_is_whole_in_a_report(tmp_path: Path) -> None:
    run = big_run(tmp_path / "run", steps=1, samples=4, tokens=10)
    answers = _answers(write_report(run, tmp_path / "r.html").read_text("utf-8"))
    parts = answers[f"{RUN}/steps/1/samples/0"]["prompt_parts"]
    asked = next(part["text"] for part in parts if part["role"] == "user")
    assert asked.endswith("How many are left?")
    assert len(asked) > 40


def test_a_report_of_a_run_without_ledger_still_has_its_curves(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", {})
    answers = _answers(write_report(run, tmp_path / "r.html").read_text("utf-8"))
    assert answers[RUN]["ledger"] == []
    assert answers[RUN]["recorded"]["shown_steps"] == 0
    assert answers[f"{RUN}/metrics"]["series"]["reward/kl"]["values"]


def test_a_run_that_goes_on_has_stopped_in_its_report(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    (run / "config.toml").write_text("steps = 100\n")
    answers = _answers(write_report(run, tmp_path / "r.html").read_text("utf-8"))
    assert answers[RUN]["status"] == answers["api/runs"]["runs"][0]["status"] == "stopped"
    assert answers[RUN]["eta_s"] is None


def test_a_report_has_the_tour_of_the_example_and_of_its_samples(tmp_path: Path) -> None:
    answers = _answers(_report(tmp_path))
    assert answers["api/tour"]
    assert answers[f"{RUN}/steps/40/samples/1/tour"]


def test_a_folder_of_runs_has_no_report(tmp_path: Path) -> None:
    fake_run(tmp_path / "a")
    with pytest.raises(TelescopeError, match="a report is about one"):
        write_report(tmp_path, tmp_path / "r.html")


def test_reports_of_the_same_files_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fake_run(tmp_path / "run")
    first = write_report(run, tmp_path / "first.html").read_bytes()
    later = time.time() + 100_000
    monkeypatch.setattr(time, "time", lambda: later)
    assert write_report(run, tmp_path / "second.html").read_bytes() == first


def test_every_damaged_file_of_the_ledger_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fake_run(tmp_path / "run")
    (run / "ledger" / "eval_000003.parquet").write_bytes(b"PAR1")
    main(["report", str(run)])
    assert "are left out: eval_000003.parquet" in capsys.readouterr().err


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
