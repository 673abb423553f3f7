"""The tour's sentences are true for the numbers they stand next to, over a grid of answers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from telescope.explain.claims import evaluate
from telescope.explain.example import BATCH, RIGHT, WRONG
from telescope.explain.numbers import batch_from_numbers
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.viewer.tour import WITH_CRITIC, Told, example_tour, tour_of
from telescope.viewer.tour_facts import Calculation
from telescope.viewer.tour_texts import SKINS, Sentence, _shown, chosen, points, short, steps
from tests.explain.grid import cells
from tests.viewer.fake import sample, step_of

pytestmark = pytest.mark.slow

GREEK = re.compile(r"[Α-Ωα-ωÂϵ]")
EXPERT_WORDS = re.compile(r"\b[VrARoTbi] ?=|KL|token|critic|actor|whiten|白化|优势|策略")


def batches() -> Iterator[tuple[str, list[Sample]]]:
    """Every cell by itself; every seventh also beside another answer."""
    for number, cell in enumerate(cells()):
        yield cell.name, [cell.sample]
        if number % 7 == 0:
            other = replace(cell.sample, index=1, score=(cell.sample.score or 0.0) + 1)
            yield f"{cell.name} + another", [replace(cell.sample, count=2), replace(other, count=2)]
    yield "example, wrong", [*reversed(BATCH)]
    yield "example, right", list(BATCH)
    for lam, gamma in itertools.product((0.0, 0.5, 1.0), (1.0, 0.9)):
        for given in (RIGHT, WRONG):
            columns = {
                name: column
                for name, column in given.columns.items()
                if name not in ("deltas", "advantages", "returns", "whitened")
            }
            settings = given.settings.change(lam=lam, gamma=gamma)
            bare = replace(
                given, columns=columns, settings=settings, whiten_mean=None, whiten_std=None
            )
            yield f"example λ={lam} γ={gamma}", [bare]

    yield "V stands still", batch_from_numbers({"values": [0.3] * 4, "score": 1.0})
    yield "no surprise", batch_from_numbers({"values": [0.3] * 3, "r": [0.0, 0.0, 0.3]})
    yield "rewards are all the same", batch_from_numbers({"values": [0.3] * 3, "r": [0.1] * 3})
    wrong = {"values": [0.3, 0.5, 0.6], "r": [0.0, 0.1, 0.9], "deltas": [0.5, 0.5, 0.5]}
    yield "δ does not follow", batch_from_numbers(wrong)
    other = replace(BATCH[0], columns={**BATCH[0].columns, "whitened": [0.5] * 6})
    yield "Â does not follow", [other]
    for name, ratios in UPDATES.items():
        yield name, [updated(ratios)]
    for estimator, baseline, scale in (("grpo", 0.25, 0.5), ("rloo", 1 / 3, 1.0)):
        yield f"a group of four, {estimator}", group_of_four(estimator, baseline, scale)


UPDATES = {
    "only against Â": [1.007, 1.02, 1.0, 1.0],
    "only against Â, down": [1.0, 1.0, 0.98, 0.99],
    "too small to see": [1.0002, 1.0, 1.0, 1.0],
    "one moved as Â says": [1.02, 0.995, 0.9, 1.0],
}
"""ρ of four tokens with Â −, −, +, +."""


def updated(ratios: list[float]) -> Sample:
    """An answer whose second update has these ratios."""
    made = sample(
        ["a", ".", "b", "<|im_end|>"], [0.5, 0.6, 0.1, 0.2], [0.0] * 4, score=0.3, ratios=ratios
    )
    (whole,) = step_of([made], 0)
    signs = [a > 0 for a in whole.columns["whitened"]]
    assert signs == [False, False, True, True]
    return whole


def group_of_four(estimator: str, baseline: float, scale: float) -> list[Sample]:
    """Four answers to one prompt; only the last is right. The first is shown."""
    return [
        Sample(
            token_ids=[0, 1, 2],
            token_bytes=[b"a", b"b", b"c"],
            mask=[1, 1, 1],
            columns={"token_level_scores": [0.0, 0.0, score], "baselines": [baseline] * 3},
            settings=Settings.of(estimator=estimator),
            score=score,
            scale=scale,
            index=i,
            count=4,
        )
        for i, score in enumerate((0.0, 0.0, 0.0, 1.0))
    ]


@pytest.fixture(scope="module")
def told() -> list[tuple[str, Told]]:
    return [(name, Told(batch, 0)) for name, batch in batches()]


def said(found: Told) -> Iterator[tuple[str, Sentence]]:
    for step in found.texts():
        for sentence in [*chosen(step.ask, found.facts), *chosen(step.reveal, found.facts)]:
            yield step.id, sentence


def test_every_sentence_that_is_said_is_true(told: list[tuple[str, Told]]) -> None:
    for name, found in told:
        for step, sentence in said(found):
            assert evaluate(sentence.claim, found.facts), (name, step, sentence)


def test_every_sentence_is_said_somewhere(told: list[tuple[str, Told]]) -> None:
    heard = {id(sentence) for _, found in told for _, sentence in said(found)}
    every = [(step.id, x) for step in steps().values() for x in (*step.ask, *step.reveal)]
    assert [(name, x.texts["en"]) for name, x in every if id(x) not in heard] == []


def test_every_step_asks_and_reveals_in_four_ways(told: list[tuple[str, Told]]) -> None:
    for name, found in told:
        for step in found.steps():
            for skin in SKINS:
                assert step["ask"][skin], (name, step["id"])
                assert step["reveal"][skin], (name, step["id"])
                text = " ".join([*step["ask"][skin], *step["reveal"][skin]])
                assert "{" not in text
                assert "nan" not in text
                assert "−0 " not in text
                if skin.startswith("kid_"):
                    assert not GREEK.search(text), (name, text)
                    assert not EXPERT_WORDS.search(text), (name, text)


def test_the_truth_can_be_chosen(told: list[tuple[str, Told]]) -> None:
    for name, found in told:
        for step in found.steps():
            guess = step["guess"]
            if guess["kind"] == "number":
                assert guess["low"] <= guess["truth"] <= guess["high"], (name, step["id"])
                continue
            options = {option["id"] for option in guess["options"]}
            assert 2 <= len(options) <= 3, (name, step["id"])
            assert set(guess["truth"]) <= options, (name, step["id"])


def test_an_answer_with_a_critic_has_all_eight_steps() -> None:
    assert [step["id"] for step in tour_of(BATCH, 1)["steps"]] == list(WITH_CRITIC)
    assert len(WITH_CRITIC) == 8


def test_one_new_symbol_per_step() -> None:
    symbols = [step["symbol"]["en"] for step in tour_of(BATCH, 1)["steps"]]
    assert symbols == ["V", "r", "δ", "λ", "A", "R", "Â", "ρ"]


def test_a_symbol_is_not_used_before_its_step() -> None:
    symbols: list[str] = []
    for step in tour_of(BATCH, 1)["steps"]:
        symbols.append(step["symbol"]["en"])
        for later in {"V", "r", "δ", "λ", "A", "R", "Â", "ρ"} - set(symbols):
            text = " ".join(step["ask"]["en"] + step["reveal"]["en"])
            assert not re.search(rf"(?<![\w'’]){later}(?!\w)", text), (step["id"], later, text)


def test_the_example_speaks_the_readers_language() -> None:
    found = example_tour()["languages"]
    assert found["zh"]["answers"][0]["response"] == "是的，等于3！"
    assert found["en"]["answers"][0]["response"] == "Yes, it equals 3!"
    numbers = [[cell["V"] for cell in found[lang]["answers"][0]["cells"]] for lang in ("zh", "en")]
    assert numbers[0] == numbers[1]


def test_numbers_of_a_long_answer_fit_the_picture() -> None:
    values = [0.5] * 60
    values[41:] = [0.1] * 19
    (sample,) = batch_from_numbers({"values": values, "score": 0.0, "lam": 0.95})
    picture = tour_of([sample], 0)["answers"][0]
    shown = [cell["i"] for cell in picture["cells"]]
    assert shown == [36, 37, 38, 39, 40, 41, 59]
    assert [cell["folded"] for cell in picture["cells"]] == [0, 0, 0, 0, 0, 17, 0]
    assert picture["skipped"] == 36


def test_numbers_are_written_short() -> None:
    assert [short(x) for x in (0.7, -0.63, 0.1107, 3e-5, 0.0, 12.0)] == [
        "0.7", "−0.63", "0.111", "3e−5", "0", "12"
    ]  # fmt: skip
    assert [points(x) for x in (0.7, -0.6301, 0.0, -1e-9)] == ["70", "−63", "0", "0"]


# ---- a sentence and what stands beside it ----


def paragraph_of(found: dict[str, Any], step: str, skin: str = "en") -> str:
    (text,) = [x for x in found["steps"] if x["id"] == step]
    return " ".join([*text["ask"][skin], *text["reveal"][skin]])


def test_the_update_is_shown_by_a_token_that_moved_as_its_advantage_says() -> None:
    found = tour_of([updated(UPDATES["one moved as Â says"])], 0)
    assert found["steps"][-1]["tokens"] == [1]
    text = paragraph_of(found, "rho")
    assert "«.» has Â = −" in text
    assert "≈ 0.995." in text
    assert "yet" not in text


def test_a_token_that_moved_against_its_advantage_is_explained() -> None:
    text = paragraph_of(tour_of([updated(UPDATES["only against Â"])], 0), "rho")
    assert "Â is minus, yet the probability rose: one update changes" in text
    text = paragraph_of(tour_of([updated(UPDATES["only against Â, down"])], 0), "rho")
    assert "Â is plus, yet the probability fell" in text


def test_a_child_reads_small_changes_in_percent() -> None:
    found = tour_of([updated(UPDATES["one moved as Â says"])], 0)
    assert "About 0.5 % less often." in paragraph_of(found, "rho", "kid_en")
    assert "少写了约 0.5 %" in paragraph_of(found, "rho", "kid_zh")


def test_the_most_blamed_token_is_in_the_picture() -> None:
    values = [0.9, *[0.5] * 40, *[0.1] * 19]
    (long,) = batch_from_numbers({"values": values, "score": 0.0, "lam": 1.0})
    found = Told([long], 0)
    shown = [cell["A"] for cell in tour_of([long], 0)["answers"][0]["cells"]]
    assert found.facts["low_A"] == pytest.approx(min(shown))
    assert "in the picture" in paragraph_of(tour_of([long], 0), "A")


def test_the_end_is_not_counted_as_a_change_of_the_estimate() -> None:
    (steep,) = batch_from_numbers({"values": [0.5, 0.6, 0.7, 0.8], "score": 1.0})
    text = paragraph_of(tour_of([steep], 0), "V")
    assert "The end not counted, after which one token" in text
    assert "That last drop is the end and was not counted." in text


def test_a_quotient_says_where_the_written_digits_do_not_give_it() -> None:
    assert _shown(Calculation(0.7812, "/", 0.3438, 2.2723), "", "en") == "0.781 / 0.344 ≈ 2.272"
    assert _shown(Calculation(0.5, "/", 0.25, 2.0), "", "en") == "0.5 / 0.25 = 2"
    assert _shown(Calculation(0.8145, "×", -0.63, -0.51314), "", "en") == "0.815 × −0.63 = −0.513"


EQUATION = re.compile(r"(?<![e\d.−])(−?[\d.]+) ([/×]) (−?[\d.]+) = (−?[\d.]*\d)(?![\de])")


def test_the_written_digits_give_every_result_after_an_equals_sign(
    told: list[tuple[str, Told]],
) -> None:
    checked = 0
    for name, found in told:
        for step in found.steps():
            for first, sign, second, result in EQUATION.findall(" ".join(step["reveal"]["en"])):
                x, y, z = (float(text.replace("−", "-")) for text in (first, second, result))
                assert abs((x / y if sign == "/" else x * y) - z) < 0.000501, (name, step["id"])
                checked += 1
    assert checked > 100


def test_the_second_answers_question_and_the_whole_answer_are_there() -> None:
    long = replace(BATCH[0], prompt="another", response="x" * 5000)
    first, second = tour_of([BATCH[1], long], 0)["answers"]
    assert (first["prompt"], second["prompt"]) == ("请问1+1=2？", "another")
    assert len(second["response"]) == 5000


def test_punctuation_is_a_sign_and_not_a_word_to_a_child() -> None:
    nouns = [_shown(token, "noun", "kid_en") for token in ("cat", ".", "␣", "<|im_end|>", "16")]
    assert nouns == ["word", "sign", "sign", "sign", "word"]
    text = paragraph_of(tour_of([updated([1.0] * 4)], 0), "r", "kid_en")
    assert "On the last sign, «<|im_end|>»" in text


@pytest.mark.parametrize("position", [0, 1])
def test_a_token_of_the_second_answer_is_said_to_be_its(position: int) -> None:
    told = Told(list(BATCH), position)
    assert told.facts["w"] == "！"
    assert told.facts["w_who"] == 1 - position  # the same token, once of the second answer
    said = str(tour_of(list(BATCH), position))
    assert ("«！» of the second answer has A" in said) == (position == 0)
    assert ("第二条回答里「！」的 A" in said) == (position == 0)
