"""`telescope doctor`: plain text of 80 columns, JSON, two languages, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.cells import cell_len

from telescope.commands import main
from telescope.doctor import findings
from tests.doctor.made import write_step


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Twelve steps with the same score, and a ledger whose log-probs disagree on one token."""
    folder = tmp_path / "run"
    folder.mkdir()
    rows = [
        {"step": s, "reward/score_mean": 0.25, "rollout/logprob_diff": 0.3} for s in range(1, 13)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    logs = {"rollout_log_probs": [-1.0, -1.0], "old_log_probs": [-1.0, -2.5]}
    write_step(folder, 1, [{"responses": [7, 1]} | logs])
    return folder


def test_findings_are_plain_text_of_80_columns(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for lang in ("en", "zh"):
        main(["doctor", str(run), "--lang", lang])
        shown = capsys.readouterr().out
        wide = [
            line for line in shown.splitlines()[1:] if cell_len(line) > 80 and str(run) not in line
        ]
        assert wide == []
        assert "constant_reward" in shown
        assert "sampler_mismatch" in shown
    assert "严重" in shown


def test_the_token_that_shows_it_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", str(run)])
    assert "step 1, sample 0, token 1 «b» rollout_log_prob -1, log_prob -2.5" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_finding_of_the_ledger_names_its_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run does not log the difference, so that only its tokens tell."""
    folder = tmp_path / "quiet"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward/score_mean": 0.25}\n')
    logs = {"rollout_log_probs": [-1.0, -1.0], "old_log_probs": [-1.0, -2.5]}
    write_step(folder, 1, [{"responses": [7, 1]} | logs])
    main(["doctor", str(folder), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["id"] == "sampler_mismatch"
    assert [(place["sample"], place["token"]) for place in found["evidence"]["places"]] == [(0, 1)]


def test_json_has_what_programs_need(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", str(run), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["steps"] == 12
    found = {each["id"]: each for each in answer["findings"]}
    one = found["constant_reward"]
    assert one["severity"] == "serious"
    assert one["since"] == 1
    assert one["evidence"]["numbers"]["score"] == 0.25
    assert one["remedy"].startswith("Call the reward function")
    assert found["sampler_mismatch"]["evidence"]["places"][0]["href"] == (
        "#view=samples&step=1&sample=0&token=1"
    )


def test_a_healthy_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/score_mean": 0.5}\n')
    main(["doctor", str(tmp_path)])
    assert capsys.readouterr().out == "No problem found in 1 steps.\n"


def test_an_unreadable_run_is_one_plain_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", str(tmp_path / "none")])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_page_gets_both_languages_and_a_place(run: Path) -> None:
    found = findings(run)
    assert {"id", "severity", "since", "what_zh", "what_en", "href"} <= set(found[0])
    assert findings(run / "nothing") == []


def test_a_damaged_ledger_file_is_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/score_mean": 0.5}\n')
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "step_000001.parquet").write_bytes(b"PAR1")
    main(["doctor", str(tmp_path)])
    assert f"damaged files of {tmp_path / 'ledger'} are left out: step_000001" in (
        capsys.readouterr().err
    )
