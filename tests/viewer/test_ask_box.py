"""The question box in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from telescope.explain.settings import Settings
from telescope.viewer.report import write_report
from tests.viewer.conftest import Open, Serve, Visit, until
from tests.viewer.fake import EOS, fake_run, sample, step_of

pytest.importorskip("uvicorn", reason="the live page needs uvicorn")

TOKEN = "#view=samples&step=40&sample=0&token=3&lang=zh"


def send(page: Any, text: str) -> None:
    page.locator("#ask-input").fill(text)
    page.locator("#ask-input").press("Enter")


def until_answer(page: Any, part: str) -> None:
    until(page, f"document.querySelector('#ask-answer').textContent.includes('{part}')")


def test_the_box_answers_follows_up_and_offers_the_nearest(
    serve_run: Serve, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(serve_run(fake_run(tmp_path / "run")) + TOKEN)
    page.locator("#ask-input").wait_for()
    assert page.locator("#ask-title").text_content() == "提问"
    assert "λ=1 呢" in page.locator("#ask-follow").text_content()  # the run's λ is 0.95
    send(page, "为什么不直接令 A = δ？")
    until_answer(page, "0.102")
    assert page.locator("#ask-nearest button").count() == 2
    send(page, "λ=1 呢？")
    until_answer(page, "λ 换成 1")

    send(page, "<img src=x onerror=window.hacked=1> 红烧肉怎么做")
    until(page, "document.querySelectorAll('#ask-nearest button').length === 3")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#ask img").count() == 0
    assert "<img" in page.locator("#ask-asked").text_content()
    title = page.locator("#ask-nearest button").first.text_content()
    page.locator("#ask-nearest button").first.click()
    until(page, f"document.querySelector('#ask-asked').textContent === {title!r}")
    until(page, "!/没有现成|……/.test(document.querySelector('#ask-answer').textContent)")
    page.locator('#lang [data-value="en"]').click()
    until(page, "document.querySelector('#ask-title').textContent === 'Ask'")


def test_a_question_that_failed_can_be_asked_again(
    serve_run: Serve, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(serve_run(fake_run(tmp_path / "run")) + TOKEN)
    page.locator("#ask-input").wait_for()
    page.route("**/ask?*", lambda route: route.abort())
    send(page, "为什么不直接令 A = δ？")
    page.locator("#ask .trouble").wait_for()
    page.unroute("**/ask?*")
    page.locator("#ask .trouble button").click()
    until_answer(page, "0.102")
    assert page.locator("#ask .trouble").count() == 0
    page.trouble.clear()


def test_the_hint_asks_for_another_lambda_than_the_runs(visit: Visit) -> None:
    one = sample(["a", EOS], [0.1, 0.2], [0.0, 0.0], score=1.0, settings=Settings.of(lam=1.0))
    page = visit("view=samples", {1: step_of([one], 1)})
    page.locator("#ask-follow").wait_for()
    assert "λ=0.95 呢" in page.locator("#ask-follow").text_content()


def test_a_report_has_no_box(open_page: Open, tmp_path: Path) -> None:
    report = write_report(fake_run(tmp_path / "run"), tmp_path / "r.html")
    page = open_page(report.as_uri() + TOKEN)
    page.locator("#answer").wait_for()
    assert page.locator("#ask").count() == 0
