"""The page's answers about runs of other trainers, which lack some columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from telescope.peers import Recorder
from telescope.viewer.api import Api
from telescope.viewer.background import KEYS
from telescope.viewer.runs import Runs
from tests.viewer.conftest import Serve

IDS = {"responses": [[5, 6, 7], [8, 9]], "prompts": ["a", "a"], "scores": [1.0, 0.0]}
NUMBERS = [[0.1, 0.2, 0.3], [0.4, 0.5]]
GIVEN: dict[str, dict[str, Any]] = {
    "nothing but tokens": {},
    "advantages": {"advantages": NUMBERS},
    "values and whitened": {"values": NUMBERS, "returns": NUMBERS, "whitened": NUMBERS},
    "log-probs of an update": {"old_log_probs": NUMBERS, "log_probs": NUMBERS},
    "a group's advantages": {
        "settings": {"estimator": "grpo", "kl_coef": 0.0},
        "group": [0, 0],
        "advantages": [[0.7071058] * 3, [-0.7071058] * 2],
    },
}


def test_faults_of_a_watched_batch_and_metrics_that_are_not_finite_are_alarms(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path / "run", strict=True)
    nan = float("nan")
    values = [[0.1, 0.2, 0.3], [0.4, 0.5, nan]]
    padded = {"responses": [[5, 6, 7], [8, 9, 0]], "mask": [[1, 1, 1], [1, 1, 0]]}
    recorder.record(1, **IDS | padded, values=values, metrics={"actor/pg_loss": nan})
    recorder.close()
    runs = Runs(tmp_path / "run")
    waited = runs.first().alarms(wait=True)
    assert runs.first().header()["alarms"] == runs.listing()["runs"][0]["alarms"] == waited
    found = {alarm["id"]: alarm for alarm in waited}
    fault = found["nan_in_padding"]
    assert set(fault) == set(KEYS)
    assert fault["since"] == 1
    assert fault["href"] == "#view=samples&step=1&sample=1&token=2"
    assert fault["what_en"].startswith("Values is not a number at token 2 of row 1")
    assert "掩码" in fault["what_zh"]
    assert found["not_finite"]["severity"] == "serious"


def test_metrics_of_another_trainer_are_charted_under_our_names_too(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", every=2, strict=True)
    for step in (1, 2):
        own = {"critic/score/mean": 0.25, "response_length/clip_ratio": 0.5}
        recorder.record(step, **IDS, metrics=own)
    recorder.close()
    found = Api(Runs(tmp_path / "run")).answer("/api/runs/run/metrics", "")
    series = found.get("series", found)
    assert series["reward/score_mean"] == {"steps": [1, 2], "values": [0.25, 0.5]}
    assert series["critic/score/mean"]["steps"] == series["response/truncated"]["steps"] == [1, 2]


def run_without_advantages(folder: Path) -> Path:
    """As verl's PPO is watched: R and Â are known, δ and A are not."""
    rewards = [[0.0, 0.0, 1.0], [0.0, 0.0]]
    recorder = Recorder(folder, settings={"gamma": 1.0, "lam": 1.0, "kl_coef": 0.0}, strict=True)
    credit = [[0.9, 0.8, 0.7], [-0.4, -0.5]]  # all rewards less V
    mean, std = 0.3, 0.7
    recorder.record(
        1,
        **IDS,
        values=NUMBERS,
        token_level_rewards=rewards,
        returns=[[1.0, 1.0, 1.0], [0.0, 0.0]],
        whitened=[[(a - mean) / std for a in row] for row in credit],
        moments=(mean, std),
    )
    recorder.close()
    return folder


def test_what_follows_from_rewards_and_values_is_shown_but_not_as_recorded(tmp_path: Path) -> None:
    api = Api(Runs(run_without_advantages(tmp_path / "run")))
    sample = api.answer("/api/runs/run/steps/1/samples/0", "")
    assert sample["columns"]["deltas"] == pytest.approx([0.1, 0.1, 0.7])
    assert sample["columns"]["advantages"] == pytest.approx([0.9, 0.8, 0.7])
    columns = api.answer("/api/runs/run/steps/1/columns", "")["columns"]
    assert {"deltas", "advantages"} <= columns.keys()
    assert api.answer("/api/runs/run", "")["scales"]["advantages"] == pytest.approx(0.9, abs=0.02)
    index = api.answer("/api/runs/run/steps/1", "")["index"]
    assert [row["max_abs_a"] for row in index] == pytest.approx([0.9, 0.5])
    terms = api.answer("/api/runs/run/steps/1/samples/0/tokens/0", "")["traces"]
    recorded = {term["name"] for term in terms if term["recorded"] is not None}
    assert recorded == {"return", "whitened"}


def test_another_lambda_can_be_tried_where_advantages_were_not_recorded(
    open_page: Callable[..., Any], serve_run: Serve, tmp_path: Path
) -> None:
    url = serve_run(run_without_advantages(tmp_path / "run"))
    page = open_page(f"{url}#view=samples&step=1&sample=0&token=0&lam=0.5&lang=en")
    page.locator("#fence svg").first.wait_for()
    page.get_by_text("computed anew").first.wait_for()
    shown = page.inner_text("#fence")
    assert "+0.325" in shown  # A₀ = 0.1 + 0.5·0.1 + 0.25·0.7
    assert "+0.900" in shown  # as it was
    head = page.inner_text("#if thead").split()
    assert head == ["in", "training", "now"]  # δ and A were not recorded


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_every_address_answers_with_what_is_there(given: dict[str, Any], tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", strict=True)
    recorder.record(1, **IDS, **given)
    recorder.close()
    api = Api(Runs(tmp_path / "run"))
    for rest in ("", "/metrics", "/steps/1", "/prompts", "/steps/1/samples/1/tokens/0"):
        assert api.answer(f"/api/runs/run{rest}", "")
    sample = api.answer("/api/runs/run/steps/1/samples/0", "")
    columns = api.answer("/api/runs/run/steps/1/columns", "")["columns"]
    assumed = [remark["en"] for remark in sample["remarks"] if "assumed)" in remark["en"]]
    assert len(assumed) == 1
    assert ("ε 0.2" in assumed[0]) == ("log_probs" in given)
    for name in ("advantages", "values", "whitened"):
        assert (name in columns) == (name in given)
        assert name in sample["columns"] or name not in given


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_every_view_draws_what_is_there_and_says_nothing_of_what_is_not(
    given: dict[str, Any], open_page: Callable[..., Any], serve_run: Serve, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path / "run", strict=True)
    recorder.record(1, **IDS, **given)
    recorder.close()
    url = serve_run(tmp_path / "run")
    page = open_page(f"{url}#view=samples&step=1&sample=0&token=0&lang=en")
    page.locator("#answer").wait_for()
    page.locator("#token").wait_for()
    text = page.inner_text("#app")
    if "values" not in given:
        assert "critic" not in page.inner_text("#reader")
    is_alike = "group" in given
    has_numbers = "advantages" in given or "values" in given
    assert (page.locator("#minimap").count() == 1) == has_numbers
    assert (page.locator("#group-picture").count() == 1) == is_alike
    assert ("most praised" in text) == ("whitened" in given or given.get("advantages") == NUMBERS)
    page = open_page(f"{url}#view=compare&compare=distributions&step=1&lang=en")
    drawn = page.locator("#distribution")
    if has_numbers:
        drawn.wait_for()
    else:
        page.locator("#no-numbers").wait_for()
        assert drawn.count() == 0
    page = open_page(f"{url}#view=compare&compare=calibration&step=1&lang=en")
    page.locator("#no-numbers" if "values" in given else "#no-critic").wait_for()
