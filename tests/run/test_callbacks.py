"""Callbacks: when they are called, what they see, and what they can ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from telescope import Config, Event, Trainer
from telescope.config import load_config
from telescope.errors import TelescopeError
from tests.refusals import length, names_of_checkpoints
from tests.run.compared import MakeConfig, assert_same_run

MakeTiny = Callable[..., Config]


def evaluated(trainer: Trainer) -> list[int]:
    return [row["step"] for row in trainer.history() if "eval/sampled_score" in row]


def test_events_come_in_the_documented_order(make_config: MakeTiny):
    seen: list[tuple[str, int]] = []
    config = make_config(("eval.prompts", "2"), ("checkpoint.every", "0"), ("eval.every", "1"))
    Trainer(config, callbacks=[lambda event: seen.append((event.name, event.step))]).fit()
    assert seen == [
        ("start", 0), ("evaluate", 0), ("step", 1), ("evaluate", 1), ("step", 2), ("evaluate", 2),
        ("save", 2), ("end", 2),
    ]  # fmt: skip


def test_metrics_that_a_callback_adds_are_logged_and_seen_by_the_next(make_config: MakeTiny):
    seen: list[float] = []

    def add(event: Event) -> None:
        if event.name in ("step", "evaluate"):
            event.metrics[f"mine/{event.name}"] = 10 * event.step

    def look(event: Event) -> None:
        if event.name == "step":
            assert "reward/score_mean" in event.metrics
            seen.append(event.metrics["mine/step"])

    trainer = Trainer(make_config(("eval.prompts", "2")), callbacks=[add, look])
    last = trainer.fit()
    assert seen == [10, 20]
    assert (last["mine/step"], last["mine/evaluate"]) == (20, 20)
    assert trainer.history()[0]["mine/evaluate"] == 0


def test_a_callback_can_ask_for_an_evaluation_and_a_checkpoint(make_config: MakeTiny):
    def ask(event: Event) -> None:
        if event.name == "step" and event.step == 2:
            event.evaluate()
        if event.name == "evaluate" and event.step == 2:
            event.save()

    config = make_config(("steps", "4"), ("eval.prompts", "2"), ("checkpoint.every", "0"))
    trainer = Trainer(config, callbacks=[ask])
    trainer.fit()
    assert evaluated(trainer) == [0, 2, 4]
    assert names_of_checkpoints(config) == ["step_000002", "step_000004"]


@pytest.mark.parametrize("name", ["step", "evaluate"])
def test_a_stopped_run_is_evaluated_once_saved_and_resumable(
    make_config: MakeTiny, name: str, capsys: pytest.CaptureFixture[str]
):
    def enough(event: Event) -> None:
        if event.name == name and event.step == 2:
            event.stop("two are enough")

    config = make_config(("steps", "4"), ("eval.prompts", "2"), ("eval.every", "2"))
    trainer = Trainer(config, callbacks=[enough])
    assert "eval/sampled_score" in trainer.fit()
    assert "stopped after step 2: two are enough" in capsys.readouterr().out
    assert evaluated(trainer) == [0, 2]
    assert names_of_checkpoints(config)[-1] == "step_000002"
    again = Trainer(config, resume=True)
    again.fit()
    assert again.step == 4


def test_a_run_with_callbacks_is_the_same_run(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path
):
    config = config_in(tmp_path)
    Trainer(config, callbacks=[lambda event: event.metrics.copy()]).fit()
    assert_same_run(unbroken, config)


def test_a_recipe_names_functions_and_classes(make_config: MakeTiny, tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "def one(event):\n"
        "    if event.name == 'step': event.metrics['mine/one'] = 1\n"
        "class Count:\n"
        "    n = 0\n"
        "    def __call__(self, event):\n"
        "        self.n += event.name == 'step'\n"
        "        if event.name == 'step': event.metrics['mine/count'] = self.n\n"
    )
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('callbacks = ["mine.py:one", "mine.py:Count"]\n')
    found = load_config(recipe).callbacks
    assert found == [f"{tmp_path}/mine.py:one", f"{tmp_path}/mine.py:Count"]
    last = Trainer(make_config(("callbacks", ",".join(found))), reward=length).fit()
    assert (last["mine/one"], last["mine/count"]) == (1, 2)


def breaks(event: Event) -> None:
    raise KeyError("nosuch")


def adds_at_the_start(event: Event) -> None:
    event.metrics["mine"] = 1


def adds_a_text(event: Event) -> None:
    if event.name == "step":
        event.metrics["mine"] = "two"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (breaks, "callback 1 (breaks) raised KeyError at start: 'nosuch' (test_callbacks.py, line"),
        (adds_at_the_start, "callback 1 (adds_at_the_start) added a metric at start: only step"),
        (
            adds_a_text,
            "callback 1 (adds_a_text) raised TypeError at step: the metric 'mine' = 'two' is no",
        ),
        ("nosuch.py:f", "callback 'nosuch.py:f': there is no file nosuch.py"),
        (3, "callback 3 is not a function: give f(event)"),
    ],
    ids=["raises", "no-row", "text", "no-file", "number"],
)
def test_a_mistake_in_a_callback_is_named(
    make_config: MakeTiny, callback: Callable[[Event], None], message: str
):
    with pytest.raises(TelescopeError) as error:
        Trainer(make_config(("steps", "1"), ("eval.prompts", "2")), callbacks=[callback]).fit()
    assert message in str(error.value)
