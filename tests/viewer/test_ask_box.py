"""The question box in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the live page needs uvicorn")

from tests.viewer.fake import fake_run
from tests.viewer.test_browser import browser, open_report, page, until
from tests.viewer.test_server import start

__all__ = ["browser", "page"]


def send(page: Any, text: str) -> None:
    page.locator("#ask-input").fill(text)
    page.locator("#ask-input").press("Enter")


def test_the_box_answers_follows_up_and_offers_the_nearest(page: Any, tmp_path: Path) -> None:
    server, port = start(fake_run(tmp_path / "run"))
    try:
        page.goto(f"http://127.0.0.1:{port}/#step=40&sample=0&token=3&lang=zh")
        page.wait_for_selector("html[data-ready]")
        assert page.locator("#ask-title").text_content() == "提问"
        send(page, "为什么不直接令 A = δ？")
        until(page, "document.querySelector('#ask-answer').textContent.includes('0.102')")
        assert page.locator("#ask-nearest button").count() == 2
        send(page, "λ=1 呢？")
        until(page, "document.querySelector('#ask-answer').textContent.includes('λ 换成 1')")

        send(page, "<img src=x onerror=window.hacked=1> 红烧肉怎么做")
        until(page, "document.querySelectorAll('#ask-nearest button').length === 3")
        assert page.evaluate("window.hacked") is None
        assert page.locator("#ask img").count() == 0
        assert "<img" in page.locator("#ask-asked").text_content()
        title = page.locator("#ask-nearest button").first.text_content()
        page.locator("#ask-nearest button").first.click()
        until(page, "!document.querySelector('#ask-answer').textContent.includes('没有现成')")
        assert page.locator("#ask-asked").text_content() == title
        page.get_by_role("button", name="English").click()
        assert page.locator("#ask-title").text_content() == "Ask"
    finally:
        server.should_exit = True


def test_a_report_has_no_box(page: Any, tmp_path: Path) -> None:
    open_report(page, tmp_path)
    assert not page.locator("#ask").is_visible()
