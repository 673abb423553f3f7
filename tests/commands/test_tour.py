"""telescope tour, and telescope view on typed numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from telescope.viewer.api import Api
from telescope.viewer.runs import Runs
from tests.commands.calls import Capture, printed, refusal

NUMBERS = """
lam = 1.0
[[responses]]
tokens = ["2", "!"]
values = [0.5, 0.9]
score = 1.0
[[responses]]
tokens = ["3", "!"]
values = [0.5, 0.1]
score = 0.0
"""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page answers while it is served; the server itself is not started."""
    seen: dict[str, Any] = {}

    def serve(run: Path, *rest: Any, address: str = "", **more: Any) -> None:
        api = Api(Runs(run))
        seen["address"] = address
        seen["name"] = run.name
        seen["status"] = api.answer(f"/api/runs/{run.name}")["status"]
        seen["step"] = api.answer(f"/api/runs/{run.name}/steps/0")
        seen["tour"] = api.answer(f"/api/runs/{run.name}/steps/0/samples/1/tour")
        seen["whatif"] = api.answer(f"/api/runs/{run.name}/steps/0/whatif", "lam=0.5")
        seen["token"] = api.answer(f"/api/runs/{run.name}/steps/0/samples/1/tokens/0")

    monkeypatch.setattr("telescope.viewer.server.serve", serve)
    return seen


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(NUMBERS, "utf-8")
    return str(path)


def test_the_tour_needs_no_run(served: dict[str, Any], capsys: Capture) -> None:
    printed(capsys, "tour", "--lang", "en")
    assert served["address"] == "#view=tour&example=1&lang=en"
    assert served["step"]["index"][1]["answer"] == "Yes, it equals 3!"
    assert len(served["tour"]["steps"]) == 8


def test_the_tour_of_typed_numbers(served: dict[str, Any], numbers: str, capsys: Capture) -> None:
    printed(capsys, "tour", "--numbers", numbers, "--lang", "zh")
    assert served["address"] == "#view=tour&lang=zh"
    assert served["name"] == "mine"
    reveals = {step["id"]: " ".join(step["reveal"]["en"]) for step in served["tour"]["steps"]}
    assert "100 %. At λ = 1 all later δ come back in full" in reveals["lam"]
    assert "rho" not in reveals  # the file has no log-probabilities


def test_the_whole_page_on_typed_numbers(
    served: dict[str, Any], numbers: str, capsys: Capture
) -> None:
    printed(capsys, "view", "--numbers", numbers)
    assert served["address"] == ""
    assert served["status"] == "finished"
    assert [row["score"] for row in served["step"]["index"]] == [1.0, 0.0]
    assert {"deltas", "advantages"} <= set(served["whatif"]["columns"])
    advantage = next(x for x in served["token"]["traces"] if x["name"] == "advantage")
    assert advantage["ok"] is True


def test_a_page_is_about_a_run_or_about_numbers(capsys: Capture, numbers: str) -> None:
    wanted = "give a run folder, or numbers with --numbers FILE"
    assert wanted in refusal(capsys, "view")
    assert wanted in refusal(capsys, "view", "somewhere", "--numbers", numbers)
