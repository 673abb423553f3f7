"""What somebody needs who sees the page for the first time: nothing cut, every number explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope.viewer.typed_run import write_run, write_step
from tests.viewer.conftest import Open, Serve, Visit, until
from tests.viewer.fake import sample, step_of
from tests.viewer.training import metric_rows, training_run, write_rows

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ENGLISH = {"locale": "en-US"}
TOUCH = """nodes => {
  const boxes = nodes.map((node) => node.getBoundingClientRect());
  return boxes.some((a, i) => boxes.slice(i + 1).some((b) =>
    a.left < b.right + 4 && b.left < a.right + 4 && a.top + 3 < b.bottom && b.top + 3 < a.bottom));
}"""
"""Whether two of the texts touch or overprint each other."""
CUT = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).length"


@pytest.fixture
def long(tmp_path: Path, serve_run: Serve) -> str:
    """A long answer with numbers of three decimals, and one to another question."""
    count = 202
    words = ["Therefore", "␣", ".", "miles"] * 50 + ["so", "<|im_end|>"]
    values = [0.254 + 0.0137 * (i * 5 % 7) for i in range(count)]
    ratios = [1.0 + 0.0071 * (i * 3 % 5 - 2) for i in range(count)]
    made = [
        sample(words, values, [0.013] * count, score=score, ratios=ratios, prompt=prompt)
        for score, prompt in ((0.1, "How many miles?"), (1.0, "How many boats?"))
    ]
    return serve_run(write_run(tmp_path / "long", step_of(made, 0)))


def tour(url: str, stop: int, more: str = "") -> str:
    return f"{url}#view=tour&step=0&sample=0&lang=en&stop={stop}{more}"


# ---- the tour ----


def test_tabs_have_words_that_are_not_cut(long: str, open_page: Open) -> None:
    for width in (1280, 390):
        for more in ("", "&kid=1"):
            page = open_page(tour(long, 15, more), width=width, **ENGLISH)
            page.wait_for_selector(".tour-progress")
            tabs = page.locator(".tour-progress button")
            assert tabs.evaluate_all(CUT) == 0, (width, more)
            names = "guess" if more else "expectation"
            assert names in tabs.first.inner_text(), (width, more)


@pytest.mark.parametrize("more", ["", "&kid=1"])
def test_numbers_on_a_phone_do_not_run_together(long: str, open_page: Open, more: str) -> None:
    page = open_page(tour(long, 15, more), width=390, **ENGLISH)
    page.wait_for_selector(".row-rho")
    for row in ("row-r", "row-d", "row-A", "row-W", "row-rho"):
        numbers = page.locator(f"svg >> nth=0 >> .{row} [data-cell] text")
        assert numbers.count() == 7, row
        assert not numbers.evaluate_all(TOUCH), row
    assert not page.locator("svg >> nth=0 >> .arcs .halo").evaluate_all(TOUCH)


def test_a_special_token_can_be_read_on_a_phone(long: str, open_page: Open) -> None:
    page = open_page(tour(long, 0), width=390, **ENGLISH)
    last = page.locator(".token").last
    assert last.locator(".word").text_content() == "im_end"
    assert "<|im_end|>" in last.locator("title").text_content()


def test_the_childs_target_does_not_stand_on_a_post(long: str, open_page: Open) -> None:
    for width in (1280, 390):
        page = open_page(tour(long, 11, "&kid=1"), width=width, **ENGLISH)
        name = page.locator(".target-name").first
        name.wait_for()
        box = name.bounding_box()
        posts = [post.bounding_box() for post in page.locator(".post").all()]
        inside = [
            p for p in posts if box["x"] < p["x"] + p["width"] and p["x"] < box["x"] + box["width"]
        ]
        assert inside == [], width


def test_a_child_sees_small_changes_of_the_update(long: str, open_page: Open) -> None:
    page = open_page(tour(long, 15, "&kid=1"), **ENGLISH)
    page.wait_for_selector(".row-rho")
    numbers = page.locator("svg >> nth=0 >> .row-rho [data-cell]").all_text_contents()
    assert any(text.strip() in ("+1.4 %", "−1.4 %", "+0.7 %", "−0.7 %") for text in numbers)
    assert "×1" not in page.inner_text("#tour")


def test_the_second_answers_question_is_shown(long: str, open_page: Open) -> None:
    page = open_page(tour(long, 12), **ENGLISH)
    page.wait_for_selector("#tour-second")
    assert "How many boats?" in page.inner_text("#tour-second")


def test_the_whole_answer_is_there_without_a_scrollbar_of_its_own(
    long: str, open_page: Open
) -> None:
    page = open_page(tour(long, 0), width=390, **ENGLISH)
    page.click(".tour-whole summary")
    text = page.locator(".tour-whole p")
    assert text.inner_text().endswith("so<|im_end|>")
    assert text.evaluate("node => node.scrollHeight <= node.clientHeight + 1")


def test_one_button_leads_from_the_tour_to_the_curves(
    tmp_path: Path, serve_run: Serve, open_page: Open
) -> None:
    page = open_page(serve_run(training_run(tmp_path / "r")), first_visit=True, **ENGLISH)
    page.wait_for_selector("#tour")
    page.get_by_role("button", name="Is it learning?").click()
    page.wait_for_selector("[data-chart=accuracy]")


# ---- the dashboard ----


def test_a_legend_says_which_step_its_values_are_of(tmp_path: Path, open_run: Visit) -> None:
    page = open_run(training_run(tmp_path / "r"))
    place = page.locator("[data-chart=reward] .chart-at")
    assert place.inner_text() == "last values"
    page.locator("[data-chart=reward] .plot").press("ArrowRight")
    until(page, "!document.querySelector('[data-chart=reward] .chart-at .last')")
    assert place.inner_text().startswith("step ")


def test_the_task_is_a_sentence_from_the_config(tmp_path: Path, open_run: Visit) -> None:
    run = training_run(
        tmp_path / "r",
        model={"path": "a/model"},
        data={"files": ["maths/train.parquet"]},
        reward={
            "functions": ["own.py:exact", "own.py:loose", "own.py:form"],
            "weights": {"exact": 0.9, "loose": 0.0, "form": 0.1},
            "clip": 2.0,
        },
    )
    page = open_run(run)
    assert page.inner_text("#task") == (
        "Task: a/model learns to answer the prompts of maths/train.parquet. "
        "An answer's score = 0.9 × exact + 0.1 × form, from own.py. "
        "Only watched, with weight 0: loose. "
        "Settings that change the score after that: reward.clip = 2."
    )


def test_the_built_in_task_has_its_own_weights(tmp_path: Path, open_run: Visit) -> None:
    page = open_run(training_run(tmp_path / "r"))
    said = page.inner_text("#task")
    assert "the built-in task" in said
    assert "0.5 × verdict + 0.5 × sum" in said


def test_settings_are_not_cut(tmp_path: Path, open_run: Visit) -> None:
    page = open_run(training_run(tmp_path / "r"))
    page.click("#settings summary")
    page.check("#settings input[type=checkbox]")
    box = page.locator("#settings .scroll")
    assert page.locator("#settings tbody tr").count() > 50
    assert box.evaluate("node => node.scrollHeight <= node.clientHeight + 1")


def test_names_of_metrics_are_not_cut_on_a_phone(tmp_path: Path, open_run: Visit) -> None:
    run = training_run(tmp_path / "r")
    name = "reward/a_function_whose_name_says_everything_it_looks_at"
    write_rows(run, [row | {name: 0.01 * row["step"]} for row in metric_rows(40)])
    page = open_run(run, width=390)
    assert page.locator(".chart-legend .name, .chart h3").evaluate_all(CUT) == 0
    assert page.locator(".chart-legend").evaluate_all(CUT.replace("Width", "Height")) == 0


def test_marks_of_the_axis_do_not_overprint(tmp_path: Path, visit: Visit) -> None:
    run = training_run(tmp_path / "r")
    made = [
        sample(["a", "b"], [0.002, value], [0.0, 0.0], score=score)
        for value, score in ((0.6, 1.0), (-0.01, 0.0))
    ]
    write_step(run, 30, step_of(made, 30))
    page = visit("view=run&step=30", run, **ENGLISH)
    page.wait_for_selector("#paths svg")
    marks = page.locator("#paths svg text[text-anchor=end]")
    assert marks.count() == 2
    assert not marks.evaluate_all(TOUCH)
    said = page.inner_text("#paths .meaning")
    assert "starts at the same V" not in said
    assert "from the question alone" in said


# ---- marks, keys, print ----


def test_arrow_keys_go_on_from_the_token_that_a_fact_opens(long: str, open_page: Open) -> None:
    page = open_page(f"{long}#view=samples&step=0&sample=0&lang=en", **ENGLISH)
    fact = page.locator("[data-fact]").first
    at = int(fact.get_attribute("data-at"))
    fact.click()
    page.keyboard.press("ArrowRight")
    until(page, f"location.hash.includes('token={at + 1}')")


def test_facts_and_sentence_say_that_their_numbers_are_a_what_if(
    long: str, open_page: Open
) -> None:
    page = open_page(f"{long}#view=samples&step=0&sample=0&token=3&lam=0.5&lang=en", **ENGLISH)
    page.wait_for_selector("[data-fact] small")
    assert page.locator("#token-line").inner_text().startswith("What if:")
    page.goto(f"{long}#view=samples&step=0&sample=0&token=3&lang=en")
    until(page, "document.querySelector('[data-fact] small') === null")
    assert page.locator("#token-line").inner_text().startswith("Token 3")


def test_logarithmic_counts_leave_the_charts_as_they_are(long: str, open_page: Open) -> None:
    page = open_page(f"{long}#view=compare&compare=distributions&step=0&lang=en", **ENGLISH)
    page.locator("#log-counts").check()
    until(page, "location.hash.includes('logcounts=1')")
    assert "&log=" not in page.url


def test_print_keeps_headings_facts_and_the_chosen_colour(long: str, open_page: Open) -> None:
    page = open_page(f"{long}#view=samples&step=0&sample=0&lang=en", **ENGLISH)
    page.wait_for_selector("[data-fact]")
    page.emulate_media(media="print")
    for kept in (".samples th button", "[data-fact]", '#colour [aria-pressed="true"]'):
        assert page.locator(kept).first.is_visible(), kept
    assert not page.locator('#colour [aria-pressed="false"]').first.is_visible()
