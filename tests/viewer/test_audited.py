"""What the page and the report get of an audit."""

from __future__ import annotations

from pathlib import Path

from telescope.audit import file
from telescope.viewer.api import Api
from telescope.viewer.report_data import report_data
from telescope.viewer.runs import Runs
from tests.audit.made import made_audit, made_post
from tests.viewer.fake import fake_run

SAMPLE = "/api/runs/run/steps/40/samples/{}"


def test_a_sample_has_the_audited_states_of_its_own(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    api = Api(Runs(run))
    assert api.answer(SAMPLE.format(0))["audit"] is None
    posts = [made_post(0, 0, 0.5, 0.3), made_post(0, 3, 0.6, 0.5), made_post(9, 0, 0.1, 0.1)]
    file.save(made_audit(step=40, needed=39, checkpoint=39, posts=posts), run)
    assert api.answer(SAMPLE.format(0))["audit"] == {
        "continuations": 64,
        "own_policy": True,
        "posts": [[0, 0.3, 0.2, 0.4], [3, 0.5, 0.4, 0.6]],
    }
    assert api.answer(SAMPLE.format(1))["audit"] is None
    answers = report_data(Runs(run), room=1_000_000)["answers"]
    assert answers["api/runs/run/steps/40/samples/0"]["audit"]["posts"][1][0] == 3


def test_a_later_audit_replaces_the_former_one(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    api = Api(Runs(run))
    file.save(made_audit(step=40, posts=[made_post(0, 0, 0.5, 0.3)]), run)
    api.answer(SAMPLE.format(0))
    file.save(made_audit(step=40, needed=39, posts=[made_post(0, 1, 0.5, 0.2)]), run)
    found = api.answer(SAMPLE.format(0))["audit"]
    assert (found["own_policy"], found["posts"][0][0]) == (False, 1)
