"""During training: a line when a problem starts, once; and a run that ends by itself."""

from __future__ import annotations

import pytest

from telescope.doctor import Watcher
from telescope.doctor.terminal import live_line
from telescope.errors import TelescopeError
from tests.doctor.made import healthy_series


def row(step: int, score: float, entropy: float) -> dict[str, float]:
    return {"step": step, "reward/score_mean": score, "actor/entropy": entropy}


def collapsing(steps: int = 30) -> list[dict[str, float]]:
    """Entropy falls at step 6, and the score stands still."""
    return [row(s, 0.5 + 0.01 * (s % 2), 0.4 if s < 6 else 0.01) for s in range(1, steps + 1)]


def test_a_problem_is_said_once_when_it_starts() -> None:
    watcher = Watcher({})
    said = [(r["step"], f.id) for r in collapsing() for f in watcher.step(int(r["step"]), r)]
    assert said == [(12, "collapse")]  # the running median is low from step 8 on, for 5 steps


def test_a_healthy_run_says_nothing() -> None:
    watcher = Watcher({})
    series = healthy_series(120)
    for i in range(120):
        metrics = {name: values[i] for name, values in series.items()}
        assert watcher.step(i + 1, metrics) == []


def test_a_resumed_run_does_not_say_it_again() -> None:
    rows = collapsing()
    watcher = Watcher({}, ["collapse"], rows[:15])
    later = [watcher.step(int(r["step"]), r) for r in rows[15:]]
    assert later == [[]] * 15


def test_resuming_before_the_problem_finds_it_at_the_same_step() -> None:
    rows = collapsing()
    watcher = Watcher({}, (), rows[:9])
    said = [(r["step"], f.id) for r in rows[9:] for f in watcher.step(int(r["step"]), r)]
    assert said == [(12, "collapse")]


def test_only_the_chosen_findings_end_a_run() -> None:
    rows = collapsing()
    for stop_on, expected in ((["collapse"], 12), (["kl_runaway"], None)):
        watcher = Watcher({}, stop_on)
        ends = [
            int(r["step"])
            for r in rows
            if watcher.stops(watcher.step(int(r["step"]), r)) is not None
        ]
        assert ends[:1] == ([] if expected is None else [expected])


def test_a_finding_that_training_cannot_look_for_is_refused() -> None:
    with pytest.raises(TelescopeError, match="training cannot look for `colapse`"):
        Watcher({}, ["colapse"])
    with pytest.raises(TelescopeError, match="law_broken"):
        Watcher({}, ["law_broken"])  # it needs the ledger


def test_the_line_has_step_sentence_and_id() -> None:
    watcher = Watcher({})
    found = [f for r in collapsing() for f in watcher.step(int(r["step"]), r)]
    line = live_line(found[0], 12)
    assert line == (
        "doctor: step 12: Entropy fell from 0.4 to 0.01 nats while the score gained nothing. "
        "(collapse)"
    )


def cut_off(steps: int, begin: int = 1) -> list[dict[str, float]]:
    return [{"step": s, "response/truncated": 0.7} for s in range(begin, begin + steps)]


def said_of(watcher: Watcher, rows: list[dict[str, float]]) -> list[tuple[int, str]]:
    return [(int(r["step"]), f.id) for r in rows for f in watcher.step(int(r["step"]), r)]


def test_what_an_untrained_model_may_learn_away_is_said_after_20_steps() -> None:
    assert said_of(Watcher({}), cut_off(30)) == [(20, "mostly_truncated")]
    ends = cut_off(12) + [{"step": s, "response/truncated": 0.1} for s in range(13, 40)]
    assert said_of(Watcher({}), ends) == []
    later = [{"step": s, "response/truncated": 0.0} for s in range(1, 8)] + cut_off(10, begin=8)
    assert said_of(Watcher({}), later) == [(14, "mostly_truncated")]


def test_what_it_was_too_early_to_say_is_said_after_resuming() -> None:
    rows = cut_off(30)
    assert said_of(Watcher({}, (), rows[:10]), rows[10:]) == [(20, "mostly_truncated")]
    assert said_of(Watcher({}, (), rows[:25]), rows[25:]) == []


def test_a_rise_since_before_training_is_no_score_without_accuracy() -> None:
    """Accuracy rises at once and then stands still, while the score rises slowly."""
    rows = [{"step": s, "reward/score_mean": 0.02 * s} for s in range(1, 31)]
    for step in (10, 20, 30):
        rows[step - 1]["eval/greedy_accuracy"] = 0.5
    before = {"step": 0, "eval/greedy_accuracy": 0.0}
    assert "partial_credit" not in dict(map(reversed, said_of(Watcher({}), [before, *rows])))
    assert "partial_credit" in dict(map(reversed, said_of(Watcher({}), rows)))
