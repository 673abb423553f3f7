"""The page's answers about runs of other trainers, which lack some columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from telescope.peers import Recorder
from telescope.viewer.alarms import KEYS
from telescope.viewer.api import Api
from telescope.viewer.runs import Runs

IDS = {"responses": [[5, 6, 7], [8, 9]], "prompts": ["a", "a"], "scores": [1.0, 0.0]}
NUMBERS = [[0.1, 0.2, 0.3], [0.4, 0.5]]
GIVEN: dict[str, dict[str, Any]] = {
    "nothing but tokens": {},
    "advantages": {"advantages": NUMBERS},
    "values and whitened": {"values": NUMBERS, "returns": NUMBERS, "whitened": NUMBERS},
    "log-probs of an update": {"old_log_probs": NUMBERS, "log_probs": NUMBERS},
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
    for name in ("advantages", "values", "whitened"):
        assert (name in columns) == (name in given)
        assert name in sample["columns"] or name not in given
