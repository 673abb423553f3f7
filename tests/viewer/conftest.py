"""What the browser tests share: Chromium, a page that reports its errors, a server of the page.

They are skipped where there is no Chromium (Debian: apt-get install chromium) or no Playwright.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.viewer.fake import fake_run

Open = Callable[..., Any]
Visit = Callable[..., Any]
Serve = Callable[[Path], str]

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
SEEN_BEFORE = "try { localStorage.setItem('telescope.tour', '1') } catch {}"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="browser tests need Playwright: pip install playwright"
    )
    if not CHROMIUM.exists():
        pytest.skip(f"browser tests need {CHROMIUM}: apt-get install chromium")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens an address: `open_page(url, width=390, locale="en-US", color_scheme="dark")`.

    The test fails if a page raised an error, wrote one to its console or asked a foreign host.
    `trouble` of the page lists them, for tests that expect some: they clear it. The visitor has
    been here before, so that the tour does not open by itself; `first_visit=True`: for once.
    """
    contexts = []
    pages = []

    def open_one(
        url: str,
        *,
        width: int = 1280,
        height: int = 900,
        locale: str = "zh-CN",
        first_visit: bool = False,
        **options: Any,
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, locale=locale, **options
        )
        contexts.append(context)
        if not first_visit:
            context.add_init_script(SEEN_BEFORE)
        page = context.new_page()
        page.trouble = _listen_for_trouble(page)
        pages.append(page)
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_one
    trouble = [text for page in pages for text in page.trouble]
    for context in contexts:
        context.close()
    assert trouble == []


def _listen_for_trouble(page: Any) -> list[str]:
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "console",
        lambda message: trouble.append(message.text) if message.type == "error" else None,
    )
    page.on("request", lambda request: _note_foreign(request.url, trouble))
    return trouble


def _note_foreign(url: str, trouble: list[str]) -> None:
    if not url.startswith(("file:", "data:", "blob:", "http://127.0.0.1")):
        trouble.append(url)


def until(page: Any, condition: str, seconds: float = 20.0) -> None:
    """Asks again and again from outside until the expression is true.

    The page's own policy forbids Playwright's wait_for_function, which evaluates text.
    """
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(10)


@pytest.fixture
def serve_run(request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Serves a run folder, or a folder of runs, and returns the page's address.

    As one script, which opens four times as fast; as single modules for a test file that says
    `IMPORTS_MODULES = True`.
    """
    import uvicorn

    from telescope.viewer import server
    from telescope.viewer.runs import Runs

    running: list[tuple[Any, threading.Thread]] = []
    modules = getattr(request.module, "IMPORTS_MODULES", False)

    def serve(folder: Path) -> str:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        page = server.app(Runs(folder), names=set(), port=port, modules=modules)
        made = uvicorn.Server(uvicorn.Config(page, log_level="warning"))
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((made, thread))
        return f"http://127.0.0.1:{port}/"

    yield serve
    for made, thread in running:
        made.should_exit = True
        thread.join(timeout=10)


@pytest.fixture
def visit(open_page: Open, serve_run: Serve, tmp_path: Path) -> Visit:
    """Opens a part of the live page: `visit("view=samples&step=40", run, width=390)`.

    `run` is a folder, or the samples of each step of a run made by hand; the lesson without it.
    """

    def open_state(state: str = "", run: Any = None, **options: Any) -> Any:
        folder = run if isinstance(run, Path) else fake_run(tmp_path / "run", run)
        return open_page(f"{serve_run(folder)}#{state}", **options)

    return open_state


@pytest.fixture
def open_run(visit: Visit) -> Visit:
    """The dashboard of a run in English, with its charts drawn."""

    def drawn(run: Path, state: str = "view=run", **options: Any) -> Any:
        page = visit(state, run, **{"locale": "en-US", **options})
        until(page, "document.querySelectorAll('.chart canvas').length > 0")
        return page

    return drawn
