"""telescope doctor --prove: back to before a finding, then on twice, as it was and changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from telescope.config import Config, load_saved_config
from telescope.doctor import Finding
from telescope.errors import TelescopeError
from telescope.run.folder import write_config
from telescope.run.metrics import read_metrics
from telescope.run.proof import Proof, checkpoint_before, prove
from telescope.run.proof_plot import Curve, svg, terminal_plot
from telescope.trainer import Trainer
from tests.tiny import tiny_config


def a_finding(**changes: Any) -> Finding:
    given: dict[str, Any] = {
        "id": "entropy_explosion",
        "severity": "serious",
        "since": 4,
        "numbers": {},
        "confidence": 0.9,
        "charts": ("actor/entropy", "reward/score_mean"),
        "change": {"actor.entropy_coef": 0.0},
    }
    return Finding(**{**given, **changes})


def train(config: Config, until: int) -> None:
    Trainer(config, resume=True).fit(until)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Five steps with a large bonus, and the checkpoints of steps 2 and 4 and of the end."""
    config = tiny_config(
        tmp_path_factory.mktemp("runs"),
        tiny_model,
        ("steps", "5"),
        ("actor.entropy_coef", "1.0"),
        ("checkpoint.every", "2"),
        ("checkpoint.keep", "5"),
    )
    Trainer(config).fit()
    return config.run_dir


@pytest.fixture(scope="module")
def proved(run: Path) -> Proof:
    return prove(run, a_finding(), train, steps=3)


def steps_of(rows: Any) -> list[int]:
    return sorted({row["step"] for row in rows if "reward/score_mean" in row})


def test_both_sides_go_on_from_the_checkpoint_before_the_finding(proved: Proof) -> None:
    assert proved.start == 2
    assert steps_of(proved.unchanged) == [1, 2, 3, 4, 5]
    assert steps_of(proved.changed) == [1, 2, 3, 4, 5]


def test_the_unchanged_side_is_the_run_and_the_changed_one_differs(proved: Proof) -> None:
    assert proved.sentences("en")[-1].endswith("repeats the recorded run bit for bit (3 steps).")
    entropies = [
        [row["actor/entropy"] for row in side if "actor/entropy" in row]
        for side in (proved.unchanged, proved.changed)
    ]
    assert entropies[0][:3] == entropies[1][:3]  # that of step 3 is from before its update
    assert entropies[0][3:] != entropies[1][3:]


def test_only_the_proposed_setting_differs(proved: Proof) -> None:
    coefs = [
        load_saved_config(proved.folder / side / "config.toml").actor.entropy_coef
        for side in ("unchanged", "changed")
    ]
    assert coefs == [1.0, 0.0]


def test_the_run_itself_is_left_as_it_was(run: Path, proved: Proof) -> None:
    assert steps_of(read_metrics(run / "metrics.jsonl")) == [1, 2, 3, 4, 5]
    assert [path.name for path in sorted((run / "checkpoints").glob("step_*"))] == [
        "step_000002",
        "step_000004",
        "step_000005",
    ]


def test_picture_and_result_are_written_beside_the_sides(proved: Proof) -> None:
    picture = proved.write("en")
    assert picture.read_text().count("<polyline") == 4
    result = json.loads((proved.folder / "proof.json").read_text())
    assert (result["start"], result["steps"]) == (2, 3)
    assert result["change"] == {"actor.entropy_coef": 0.0}


def test_without_a_checkpoint_before_it_says_so_and_offers_the_start(run: Path) -> None:
    with pytest.raises(TelescopeError, match=r"no checkpoint before step 2.*--from-start"):
        checkpoint_before(run, 2)


def test_a_finding_without_a_setting_asks_for_one(run: Path) -> None:
    with pytest.raises(TelescopeError, match="has no setting to try"):
        prove(run, a_finding(change={}), train)


@pytest.mark.parametrize("link", ["proof", "proof/entropy_explosion"])
def test_a_proof_is_not_written_through_a_link(link: str, tiny_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_config(tiny_config(tmp_path, tiny_model))
    (tmp_path / "elsewhere").mkdir()
    (run / link).parent.mkdir(exist_ok=True)
    (run / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TelescopeError, match="is a link, and nothing is written through it"):
        prove(run, a_finding(), train, from_start=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_from_the_start_trains_only_so_many_steps(run: Path) -> None:
    """And a setting that was typed replaces the proposal."""
    found = prove(run, a_finding(), train, change=[("actor.lr", "1e-4")], steps=2, from_start=True)
    assert found.start == 0
    assert steps_of(found.changed) == [1, 2]
    assert found.change == {"actor.lr": "1e-4"}
    assert load_saved_config(found.folder / "changed" / "config.toml").actor.lr == 1e-4


def outcome_of(again: Finding | None, still: Finding | None) -> Proof:
    rows = [{"step": step, "reward/score_mean": 0.5, "actor/entropy": 1.0} for step in (1, 2)]
    return Proof(a_finding(), {"actor.lr": 0.1}, 0, Path(), rows, rows, rows, again, still)


def test_a_finding_that_comes_back_only_as_it_was_is_confirmed() -> None:
    proof = outcome_of(a_finding(since=7), None)
    assert proof.outcome == "confirmed"
    assert "comes back at step 7" in proof.sentences("en")[0]
    assert "actor.lr = 0.1" in proof.sentences("zh")[0]


def test_a_finding_that_stays_is_not_confirmed() -> None:
    assert outcome_of(a_finding(), a_finding(since=9)).outcome == "refuted"
    assert "(step 9)" in outcome_of(a_finding(), a_finding(since=9)).sentences("en")[0]


def test_a_finding_that_does_not_come_back_shows_nothing() -> None:
    proof = outcome_of(None, None)
    assert proof.outcome == "not_reproduced"
    assert "--steps 4" in proof.sentences("en")[0]


def test_the_plot_puts_the_largest_value_on_top() -> None:
    lines = terminal_plot("x", [Curve("a", [(1, 0.0), (2, 1.0)])], width=20).splitlines()
    assert lines[1].startswith(" 1│")
    assert lines[1].endswith("·")
    assert lines[10].startswith(" 0│·")


def test_a_constant_curve_can_be_drawn() -> None:
    assert "nan" not in svg([("x", [Curve("a", [(1, 2.0), (2, 2.0)])])], "caption <1>")
    assert "caption &lt;1&gt;" in svg([], "caption <1>")
