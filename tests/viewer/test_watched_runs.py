"""The page's answers about runs of other trainers, which lack some columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from telescope.peers import Recorder
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
