"""V along right and wrong answers: the numbers that the page draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope.explain.sample import Sample
from telescope.viewer.run_data import RunData
from tests.viewer.fake import fake_run, sample, step_of


def answer(values: list[float], score: float, mask: list[int] | None = None) -> Sample:
    return sample(["x"] * len(values), values, [0.0] * len(values), score=score, mask=mask)


def paths(tmp_path: Path, samples: list[Sample]):
    run = fake_run(tmp_path / "run", {1: step_of(samples, 1)})
    return RunData(run).step(1)["paths"]


def test_right_and_wrong_answers_are_kept_apart_with_mean_and_spread(tmp_path: Path) -> None:
    found = paths(
        tmp_path,
        [answer([0.4, 0.6, 0.8], 1.0), answer([0.6, 0.8, 1.0], 1.0), answer([0.5, 0.1], 0.0)],
    )
    assert found["right"]["count"] == 2
    assert found["right"]["mean"] == pytest.approx([0.5 + 0.04 * i for i in range(11)], abs=1e-3)
    assert found["right"]["spread"] == pytest.approx([0.1] * 11, abs=1e-3)
    assert found["wrong"]["count"] == 1
    assert found["wrong"]["mean"] == pytest.approx([0.5 - 0.04 * i for i in range(11)], abs=1e-3)
    assert found["wrong"]["spread"] == [0.0] * 11


def test_a_tools_tokens_do_not_count(tmp_path: Path) -> None:
    found = paths(tmp_path, [answer([0.2, 9.0, 0.4], 0.0, mask=[1, 0, 1])])
    assert found["wrong"]["mean"][::5] == pytest.approx([0.2, 0.3, 0.4], abs=1e-3)
    assert found["right"] == {"count": 0, "mean": [], "spread": []}


def test_a_single_token_is_a_flat_line(tmp_path: Path) -> None:
    found = paths(tmp_path, [answer([0.3], 1.0)])
    assert found["right"]["mean"] == pytest.approx([0.3] * 11, abs=1e-6)


def test_without_a_critic_there_is_nothing_to_draw(tmp_path: Path) -> None:
    assert paths(tmp_path, [answer([0.0, 0.0], 1.0), answer([0.0, 0.0], 0.0)]) is None
