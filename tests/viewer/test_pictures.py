"""Faults that the pictures of a GSM8K run showed: texts over texts, and texts that leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.ledger.completions import Completion, save_completions
from telescope.ledger.reader import path_of
from telescope.viewer.tour_facts import Sum
from telescope.viewer.tour_texts import _shown
from tests.viewer.conftest import Open, Serve, Visit, until
from tests.viewer.fake import fake_run, sample, step_of
from tests.viewer.training import training_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ENGLISH = {"locale": "en-US"}
OVERLAP = """nodes => {
  const boxes = nodes.map((node) => node.getBoundingClientRect());
  return boxes.some((a, i) => boxes.slice(i + 1).some((b) =>
    a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom));
}"""
FALL = 80
"""The token at which the answer goes wrong."""


def wrong_answer() -> Sample:
    """V is 0.7 until one token, 0.34 after it; only the end pays, as in the run."""
    count = 200
    words = ["approach", " ", "9", "."] * 49 + ["so", "it", "is", "<|im_end|>"]
    values = [0.7 + 0.003 * (i % 4) for i in range(FALL + 1)]
    values += [0.339, 0.403] + [0.35 + 0.02 * (i % 4) for i in range(count - FALL - 3)]
    settings = Settings.of(kl_coef=0.0, lam=1.0, gamma=1.0)
    return sample(words, values, [0.0] * count, score=0.1, settings=settings)


@pytest.fixture
def wrong(tmp_path: Path, serve_run: Serve) -> str:
    return serve_run(fake_run(tmp_path / "run", {1: step_of([wrong_answer()], 1)}))


# ---- one token ----


def test_a_value_near_the_floor_does_not_stand_on_before_or_after(
    wrong: str, open_page: Open
) -> None:
    address = f"{wrong}#view=samples&step=1&sample=0&token={FALL}&lam=0.95&lang=en"
    page = open_page(address, **ENGLISH)
    after = page.locator("#picture text", has_text="after")
    after.wait_for()
    until(page, "document.querySelector('#picture').textContent.includes('0.95')")
    number = page.locator("#picture text", has_text="V₈₁=0.339")
    boxes = [node.bounding_box() for node in (after, number)]
    low, high = sorted(boxes, key=lambda box: box["y"])
    assert low["y"] + low["height"] - 3 < high["y"]


def test_subscripts_stand_below_the_line(wrong: str, open_page: Open) -> None:
    page = open_page(f"{wrong}#view=samples&step=1&sample=0&token=3&lang=en", **ENGLISH)
    page.locator("#traces math msub").first.wait_for()
    drops = page.locator("#traces math msub").evaluate_all(
        """all => all.map(({ children: [base, below] }) =>
          below.getBoundingClientRect().bottom - base.getBoundingClientRect().bottom)"""
    )
    assert min(drops) >= 1


def test_a_child_reads_0_where_the_mark_is_0(wrong: str, open_page: Open) -> None:
    page = open_page(f"{wrong}#view=samples&step=1&sample=0&token=3&kid=1&lang=en", **ENGLISH)
    mark = page.locator("[data-trace=reward] .math")
    mark.wait_for()
    assert mark.text_content().strip().startswith("0")


# ---- colours ----


def test_the_legend_counts_tokens_beyond_its_scale(wrong: str, open_page: Open) -> None:
    address = f"{wrong}#view=samples&step=1&sample=0&token={FALL}&lang=en"
    page = open_page(address, **ENGLISH)
    page.locator("#legend").wait_for()
    assert page.locator("#beyond").count() == 0
    page = open_page(f"{address}&lam=0.5", **ENGLISH)
    page.locator("#beyond").wait_for()
    said = page.locator("#beyond").text_content()
    assert said.startswith("off the scale, in its darkest colour: ")
    assert int(said.split()[-2]) > 0


# ---- the tour ----


@pytest.mark.parametrize("more", ["", "&kid=1"])
def test_values_on_a_phone_do_not_overprint_each_other(
    wrong: str, open_page: Open, more: str
) -> None:
    page = open_page(f"{wrong}#view=tour&step=1&sample=0&lang=en&stop=9{more}", width=390)
    numbers = page.locator("svg >> nth=0 >> .values .state")
    numbers.first.wait_for()
    assert numbers.count() >= 8
    assert not numbers.evaluate_all(OVERLAP)
    boxes = page.locator("svg >> nth=0 >> .token .box, .token .quiet")
    assert not boxes.evaluate_all(OVERLAP)


@pytest.mark.parametrize("width", [1280, 390])
def test_words_stay_inside_their_boxes(wrong: str, open_page: Open, width: int) -> None:
    page = open_page(f"{wrong}#view=tour&step=1&sample=0&lang=en&stop=9", width=width)
    page.locator(".token .word").first.wait_for()
    spare = page.locator(".token").evaluate_all(
        """all => all.map((node) => node.querySelector(".box").getBoundingClientRect().width
          - node.querySelector(".word").getBoundingClientRect().width)"""
    )
    assert min(spare) >= 0


def test_a_sum_whose_written_digits_do_not_add_says_that_it_is_rounded() -> None:
    fall = Sum([0.0, 0.33853, -0.70932], -0.37079)
    assert _shown(fall, "", "en") == "0 + 0.339 − 0.709 ≈ −0.371, rounded"
    assert _shown(fall, "", "zh") == "0 + 0.339 − 0.709 ≈ −0.371，有舍入"
    assert _shown(Sum([0.17, -0.2554], -0.0854), "", "en") == "0.17 − 0.255 = −0.085"
    assert _shown(Sum([0.45, -0.2], 0.25, {0: 0.9}), "", "en") == "0.9·0.5 − 0.2 = 0.25"


# ---- the critic ----


def test_counts_of_the_calibration_lie_on_no_bar(visit: Visit) -> None:
    rows = [
        sample(["x"] * 40, [0.3 + 0.004 * k] * 40, [0.0] * 40, score=float(k % 3 == 0))
        for k in range(120)
    ]
    page = visit(
        "view=compare&compare=calibration&step=1&lang=en", {1: step_of(rows, 1)}, **ENGLISH
    )
    page.locator(".point circle").first.wait_for()
    assert page.locator(".point text").count() > 3
    covered = page.locator("#calibration svg").evaluate(
        """svg => {
          const boxes = (kind) =>
            [...svg.querySelectorAll(kind)].map((node) => node.getBoundingClientRect());
          return boxes(".point text").some((a) => boxes(".error, circle").some((b) =>
            a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom));
        }"""
    )
    assert not covered


# ---- answers of an evaluation ----

LONG = "Let's think. " * 30 + "So it is #### 42"


@pytest.fixture
def evaluated(tmp_path: Path, serve_run: Serve) -> str:
    run = training_run(tmp_path / "run")
    question = "How many pens? " * 20 + "The end."
    answers = [Completion("", "greedy", 0, question, LONG, 0.1, False, {}) for _ in range(30)]
    save_completions(answers, path_of(run, 40, "completions"))
    return serve_run(run)


def test_the_end_of_a_long_answer_is_listed_and_a_click_shows_all(
    evaluated: str, open_page: Open
) -> None:
    page = open_page(f"{evaluated}#view=run&lang=en", **ENGLISH)
    row = page.locator("#evaluated tbody tr").first
    row.wait_for()
    short = row.locator("summary").inner_text()
    assert short.startswith("Let's think.")
    assert short.endswith("#### 42")
    assert len(short) < 320
    assert row.locator("td").first.inner_text().endswith("…")
    row.locator("summary").click()
    assert row.locator(".whole").inner_text() == LONG


def test_twelve_answers_of_an_evaluation_are_printed(evaluated: str, open_page: Open) -> None:
    page = open_page(f"{evaluated}#view=run&lang=en", **ENGLISH)
    page.locator("#evaluated tbody tr").first.wait_for()
    seen = "[...document.querySelectorAll('#evaluated tbody tr')].filter(e => e.checkVisibility())"
    assert page.evaluate(f"{seen}.length") == 30
    assert not page.locator(".on-paper").is_visible()
    page.emulate_media(media="print")
    assert page.evaluate(f"{seen}.length") == 12
    assert page.locator(".on-paper").inner_text() == "On paper: the first 12."
