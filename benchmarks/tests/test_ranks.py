"""The table of several ranks: what counts as a difference, and as a failed case."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.ranks import FLOAT32, Bench, CannotRunError, difference, run


def test_a_difference_is_relative_above_one() -> None:
    one = {"a": torch.tensor([0.5, 100.0]), "b": 0.25}
    assert difference(one, {"a": torch.tensor([0.5, 80.0]), "b": 0.25}) == 0.25
    assert difference(one, {"a": torch.tensor([0.5, 100.0]), "b": 0.5}) == 0.25
    assert difference(one, {"a": one["a"], "b": float("nan")}) == float("inf")
    with pytest.raises(KeyError):
        difference(one, {"a": one["a"]})


@pytest.mark.parametrize(
    ("largest", "passed", "shown"),
    [(1e-5, True, "yes"), (2e-4, False, "NO"), (float("nan"), False, "NO")],
)
def test_a_case_passes_within_its_tolerance(
    largest: float, passed: bool, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench("cpu", Path("unused"), Path("unused"))
    assert run("a case", lambda _: (largest, FLOAT32, "packed"), bench) is passed
    name, _, _, ok, _, note = capsys.readouterr().out.rsplit(maxsplit=5)
    assert (name, ok, note) == ("a case", shown, "packed")


def test_a_case_that_raises_fails_and_one_that_cannot_run_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(_: Bench) -> tuple[float, float, str]:
        raise ValueError("no such rank")

    def absent(_: Bench) -> tuple[float, float, str]:
        raise CannotRunError("vLLM is not installed")

    bench = Bench("cpu", Path("unused"), Path("unused"))
    assert not run("broken", broken, bench)
    assert run("absent", absent, bench)
    shown = capsys.readouterr().out
    assert "ValueError: no such rank" in shown
    assert "vLLM is not installed" in shown
