"""The step as boxes and arrows: calls and shapes for an expert, a story for a child."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from telescope.algorithms.definitions import ESTIMATORS
from telescope.commands import main
from telescope.explain.example import BATCH
from telescope.explain.numbers import from_numbers
from telescope.explain.stages import flow
from telescope.explain.words import texts
from tests.explain.samples import demo, trained, with_tool

NOT_FOR_A_CHILD = re.compile(
    r"[γλδπρμσβεÂθΣ]|\[|\]|\d\.\d\d|e[−-]\d|_|critic|actor|advantage|token|reward|log|答案|response"
)
"""Symbols, shapes, two decimals, and words of the field."""


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_child_gets_the_story(lang: Any, width: int) -> None:
    for sample in (demo(), with_tool(), *BATCH, *trained(2)):
        drawn = flow(sample, lang, width, level="kid", given=True)
        head, _, boxes = drawn.partition("\n┌")
        assert not NOT_FOR_A_CHILD.search(boxes), boxes
        assert ("个词「" if lang == "zh" else "word ") in head
        for line in drawn.splitlines():
            assert cell_len(line) <= width


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_childs_numbers_are_the_words(lang: Any) -> None:
    drawn = flow(BATCH[0], lang, 100, 3, level="kid")
    names = texts()["flow_kid"]["names"]
    colon = "：" if lang == "zh" else ": "
    numbers = {"guess": "0.6", "score": "1", "surprise": "0.1", "credit": "0.4", "target": "0.9"}
    for key, number in numbers.items():
        assert f"{names[key][lang]}{colon}{number}" in drawn


@pytest.mark.parametrize(
    ("lam", "said"), [(0.0, "只看这一步"), (0.95, "从后往前"), (1.0, "从后往前")]
)
def test_how_a_child_is_told_about_credit_depends_on_the_settings(lam: float, said: str) -> None:
    numbers = {"values": [0.5, 0.7, 0.4], "score": 1.0, "lam": lam}
    assert said in flow(from_numbers(numbers), "zh", 100, 0, level="kid").replace("\n", "")


@pytest.mark.parametrize("name", ["reinforce++", "uniform", "last_token"])
def test_without_a_forecaster_there_is_no_surprise_and_no_target(name: str) -> None:
    assert not ESTIMATORS[name].needs.critic
    drawn = flow(trained(1, estimator=name)[0], "en", 100, level="kid")
    credit = drawn.partition("working out the credit")[2].partition("└")[0]
    assert "credit: " in credit
    assert "surprise: " not in credit
    assert "target: " not in credit


@pytest.mark.parametrize("level", ["expert", "kid"])
def test_the_head_is_what_the_user_said_not_the_chat_template(level: Any) -> None:
    turns = ("system\nBe brief.", "user\nWhat is 1+1?")
    prompt = (
        "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"
    )
    drawn = flow(replace(demo(), prompt=prompt), "en", 100, level=level)
    assert drawn.startswith("What is 1+1?")


def test_an_expert_gets_calls_and_shapes() -> None:
    drawn = flow(BATCH[0], "en", 100, 3)
    for said in ("compute_values", "deltas[i] = 0.14   [1, 6]", "i = 3 «等于»"):
        assert said in drawn


@pytest.mark.parametrize("level", ["expert", "kid"])
def test_the_command_takes_the_level(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "--flow", "--level", level, "--lang", "zh"])
    assert ("写作者" in capsys.readouterr().out) == (level == "kid")
