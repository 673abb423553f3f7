"""The tour in a browser: eight steps by keyboard, guesses, four ways to read it, the first visit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from telescope.explain.example import BATCH
from telescope.explain.numbers import batch_from_numbers
from telescope.viewer.report import write_report
from telescope.viewer.typed_run import write_run
from tests.viewer.conftest import Open, Serve, Visit, until
from tests.viewer.fake import fake_run

pytestmark = pytest.mark.browser

SYMBOLS = ["V", "r", "δ", "λ", "A", "R", "Â", "ρ"]
NUMBERS = ["d", "lam", "R", "rho"]
"""Steps in which a number is guessed."""
ROWS = {"r": "row-r", "d": "row-d", "lam": "arcs", "A": "row-A", "W": "row-W", "rho": "row-rho"}
"""Step -> what it adds to the picture."""


@pytest.fixture
def example(tmp_path: Path, serve_run: Serve) -> str:
    return serve_run(write_run(tmp_path / "example", BATCH))


def tour_at(url: str, stop: int = 0, **more: str) -> str:
    fields = {"view": "tour", "stop": str(stop), "sample": "1", "lang": "en", **more}
    return f"{url}#" + "&".join(f"{name}={value}" for name, value in fields.items())


def stop_of(page: Any) -> int:
    found = re.search(r"stop=(\d+)", page.url)
    return int(found[1]) if found else 0


def reach(page: Any, stop: int) -> None:
    wanted = f"stop={stop}" if stop else "view=tour"
    until(page, f"location.hash.includes('{wanted}')")


def text_of(page: Any, selector: str = "#tour") -> str:
    return str(page.inner_text(selector))


# ---- guess and truth ----


def test_all_eight_steps_by_keyboard(example: str, open_page: Open) -> None:
    page = open_page(tour_at(example), locale="en-US")
    page.wait_for_selector("#tour")
    assert page.locator(".tour-progress b").all_inner_texts() == SYMBOLS
    for step in range(8):
        if page.locator("#tour-range").count():
            until(page, "document.activeElement.id === 'tour-range'")
            page.keyboard.press("ArrowRight")
            page.keyboard.press("Enter")
        else:
            until(page, "document.activeElement.matches('.tour-options button')")
            page.keyboard.press("2")
        reach(page, 2 * step + 1)
        page.wait_for_selector(".tour-verdict")
        until(page, "document.activeElement.id === 'tour-next'")
        page.keyboard.press("Enter")
        reach(page, 2 * step + 2)
    page.wait_for_selector(".tour-list")
    assert "of your 8 guesses" in text_of(page, "#tour-count")


def test_a_wrong_guess_is_told_the_truth_and_a_number_how_far_off(
    example: str, open_page: Open
) -> None:
    page = open_page(tour_at(example))
    page.click("[data-option='0']")
    assert text_of(page, ".tour-verdict").endswith("You said « 是 ». It is « 3 ».")
    assert "falls from 0.7 to 0.05" in text_of(page, ".tour-reveal")
    page.goto(tour_at(example, 4))
    page.wait_for_selector("#tour-range")
    page.fill("#tour-range", "-0.5")
    page.click("#tour-say")
    verdict = text_of(page, ".tour-verdict")
    assert verdict.endswith("You said −0.5, it is −0.63. Off by 0.13.")


def test_the_picture_shows_a_thing_only_after_its_truth(example: str, open_page: Open) -> None:
    page = open_page(tour_at(example))
    page.wait_for_selector("#tour svg")
    assert page.locator(".values").count() == 0
    names = ["V", "r", "d", "lam", "A", "R", "W", "rho"]
    for step, name in enumerate(names):
        mark = {"V": ".values", "R": ".target"}.get(name) or f".{ROWS[name]}"
        assert page.locator(mark).count() == 0, name
        page.click("#tour-next")
        reach(page, 2 * step + 1)
        page.wait_for_selector(mark)
        page.click("#tour-next")
        reach(page, 2 * step + 2)


def test_the_numbers_in_the_picture_are_those_of_python(example: str, open_page: Open) -> None:
    page = open_page(tour_at(example, 15))
    page.wait_for_selector(".row-rho")
    cell = lambda name: page.locator(f"[data-cell='{name}']").first.text_content().strip()  # noqa: E731
    assert cell("d-4") == "−0.63"
    assert cell("A-0") == "−0.389"
    assert cell("W-5") == "+0.056"
    assert cell("rho-4") == "×0.577"
    assert page.locator(".scissors").count() == 2  # the digit of each answer


def test_a_token_in_the_picture_can_be_the_guess(example: str, open_page: Open) -> None:
    page = open_page(tour_at(example))
    page.click("g.pick[data-token='4']")
    reach(page, 1)
    assert "Right!" in text_of(page, ".tour-verdict")


def test_every_step_can_be_skipped_and_the_back_button_undoes(
    example: str, open_page: Open
) -> None:
    page = open_page(tour_at(example))
    page.click("#tour-next")
    reach(page, 1)
    assert page.locator(".tour-verdict").count() == 0
    page.click(".tour-progress button >> nth=5")
    reach(page, 10)
    page.go_back()
    reach(page, 1)
    page.click("#tour-leave")
    until(page, "location.hash.includes('view=samples')")


def test_arrows_walk_unless_the_slider_has_them(example: str, open_page: Open) -> None:
    page = open_page(tour_at(example, 3))
    until(page, "document.activeElement.id === 'tour-next'")
    page.keyboard.press("ArrowRight")
    reach(page, 4)
    until(page, "document.activeElement.id === 'tour-range'")
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#tour-range').value > 0")
    assert stop_of(page) == 4


# ---- ways to read it ----


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("kid", [False, True])
def test_it_reads_in_two_languages_and_for_a_child(
    example: str, open_page: Open, lang: str, kid: bool
) -> None:
    page = open_page(tour_at(example, 0, lang=lang, **({"kid": "1"} if kid else {})))
    page.wait_for_selector("#tour")
    for stop in range(1, 17):
        page.click("#tour-next")
        reach(page, stop)
        text = text_of(page)
        assert "tour." not in text
        assert ("{" in text) is False
        if kid:
            assert not re.search(r"[α-ωΑ-ΩÂ]|\b[VrR]\b|\bA =", text), text
    symbol = {("zh", True): "功劳", ("en", True): "credit"}.get((lang, kid), "A")
    assert symbol in text


def test_the_example_is_in_the_readers_language(example: str, open_page: Open) -> None:
    page = open_page(tour_at(example, 0, example="1"), locale="en-US")
    page.wait_for_selector("#tour svg")
    assert "Is 1+1=2?" in text_of(page)
    page.click("#lang [data-value=zh]")
    until(page, "document.querySelector('#tour').textContent.includes('请问1+1=2？')")


def test_nothing_is_wider_than_a_phone_and_buttons_can_be_touched(
    example: str, open_page: Open
) -> None:
    page = open_page(tour_at(example), width=390, height=800, has_touch=True)
    for stop in range(17):
        reach(page, stop)
        page.wait_for_selector("#tour svg")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, stop
        small = (
            "[...document.querySelectorAll('.tour-card button')].filter(b => b.offsetHeight < 44)"
        )
        assert page.evaluate(f"{small}.length") == 0, stop
        if stop < 16:
            page.tap("#tour-next")


# ---- where it comes from ----


def test_it_opens_by_itself_the_first_time_only(
    tmp_path: Path, serve_run: Serve, open_page: Open
) -> None:
    url = serve_run(fake_run(tmp_path / "run"))
    page = open_page(url, first_visit=True)
    page.wait_for_selector("#tour")
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector("#run, .view-run")
    assert page.locator("#tour").count() == 0


def test_it_does_not_open_where_the_address_names_something(visit: Visit) -> None:
    page = visit("view=samples", first_visit=True)
    page.wait_for_selector(".view-samples")
    assert page.locator("#tour").count() == 0


def test_a_report_holds_the_tour_but_does_not_open_it(tmp_path: Path, open_page: Open) -> None:
    report = write_report(fake_run(tmp_path / "run"), tmp_path / "report.html")
    page = open_page(report.as_uri(), first_visit=True)
    page.wait_for_selector(".view-run")
    assert page.locator("#tour").count() == 0
    page.click("#views [data-value=tour]")
    page.wait_for_selector("#tour svg")
    page.click("#tour-source [data-value=example]")
    until(page, "document.querySelector('#tour').textContent.includes('请问1+1=2？')")


def test_the_shown_sample_of_the_run_is_told(visit: Visit) -> None:
    page = visit("view=tour&step=20&sample=4&lang=zh")
    page.wait_for_selector("#tour svg")
    assert "请问2+3=5？" in text_of(page)
    assert "第 20 步第 4 条" in text_of(page)


def test_a_run_that_goes_on_does_not_change_the_tour(
    tmp_path: Path, serve_run: Serve, open_page: Open
) -> None:
    folder = fake_run(tmp_path / "run", {})
    page = open_page(f"{serve_run(folder)}#view=tour")
    page.wait_for_selector("#tour svg")
    fake_run(folder)
    until(page, "document.querySelector('#tour-source') !== null")  # the run's answer is offered
    assert "内置例子" in text_of(page, "#tour-source [aria-pressed=true]")
    page.click("#tour-source [data-value=run]")
    until(page, "location.hash.includes('sample=')")


def test_a_run_that_recorded_nothing_shows_the_example(visit: Visit) -> None:
    page = visit("view=tour", {})
    page.wait_for_selector("#tour svg")
    assert "请问1+1=2？" in text_of(page)


def test_typed_numbers_of_a_single_token_cut_off(
    tmp_path: Path, serve_run: Serve, open_page: Open
) -> None:
    batch = batch_from_numbers({"tokens": ["a"], "values": [0.4], "score": 0.0, "bootstrap": 0.3})
    page = open_page(tour_at(serve_run(write_run(tmp_path / "typed", batch)), 1, sample="0"))
    page.wait_for_selector(".values")
    text = text_of(page, ".tour-reveal")
    assert "Before «a», V = 0.4" in text
    assert "cut off at its length limit" in text


def test_an_estimator_without_a_critic_has_other_steps(
    tmp_path: Path, serve_run: Serve, open_page: Open
) -> None:
    from tests.viewer.test_tour_sentences import group_of_four

    run = write_run(tmp_path / "group", group_of_four("grpo", 0.25, 0.5))
    page = open_page(tour_at(serve_run(run), 5, sample="0"))
    page.wait_for_selector(".tour-group")
    symbols = page.locator(".tour-progress b").all_inner_texts()
    assert symbols[:6] == ["r", "o", "b", "σ", "A", "Aᵢ"]
    assert page.locator(".tour-group circle").count() == 4
    assert "mean b" in text_of(page, ".tour-ask")
    assert page.locator(".values").count() == 0
