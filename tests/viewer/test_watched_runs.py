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
