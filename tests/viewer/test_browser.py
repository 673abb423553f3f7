"""The page in a real browser.

Skipped where there is no Chromium (Debian: apt-get install chromium) or no Playwright.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from telescope.explain.sample import Sample
from telescope.viewer.report import write_report
from tests.viewer.fake import fake_run

playwright = pytest.importorskip(
    "playwright.sync_api", reason="browser tests need Playwright: pip install playwright"
)
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
if not CHROMIUM.exists():
    pytest.skip(f"browser tests need {CHROMIUM}: apt-get install chromium", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=str(CHROMIUM),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="zh-CN")
    page, trouble = context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "console", lambda message: trouble.append(message.text) if message.type == "error" else None
    )
    page.on(
        "request",
        lambda request: (
            trouble.append(request.url)
            if not request.url.startswith(("file:", "data:", "http://127.0.0.1"))
            else None
        ),
    )
    yield page
    context.close()
    assert trouble == []


def open_report(
    page: Any, tmp_path: Path, samples: dict[int, list[Sample]] | None = None, state: str = ""
) -> None:
    run = fake_run(tmp_path / "arithmetic-seed0", samples)
    page.goto(write_report(run, tmp_path / "r.html").as_uri() + state)
    page.wait_for_selector("html[data-ready]")


def column(page: Any, name: str) -> list[float]:
    texts = page.locator(f"#table td[data-column={name}]").all_text_contents()
    return [float(text.replace("−", "-")) for text in texts]


def slide(page: Any, which: str, value: str) -> None:
    page.locator(which).evaluate(
        "(node, value) => { node.value = value;"
        " node.dispatchEvent(new Event('input', {bubbles: true})); }",
        value,
    )


def until(page: Any, condition: str) -> None:
    """Asks again and again from outside.

    The page's own policy forbids Playwright's wait_for_function, which evaluates text.
    """
    deadline = time.monotonic() + 10
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(5)


def test_screenshot(page: Any, tmp_path: Path) -> None:
    """TELESCOPE_SCREENSHOT=docs/page.png keeps it."""
    open_report(page, tmp_path, state="#step=40&sample=0&token=3")
    path = Path(os.environ.get("TELESCOPE_SCREENSHOT", tmp_path / "page.png"))
    page.screenshot(path=path)
    assert path.stat().st_size > 50_000
