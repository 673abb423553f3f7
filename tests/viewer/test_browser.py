"""The page in a real browser.

Skipped where there is no Chromium (Debian: apt-get install chromium) or no Playwright.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from telescope.explain.sample import Sample
from telescope.ledger.reader import path_of
from telescope.viewer.report import write_report
from tests.viewer.fake import EOS, fake_run, lesson, sample, step_of

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


def test_lambda_zero_makes_advantages_deltas_and_one_makes_them_return_minus_value(
    page: Any, tmp_path: Path
) -> None:
    open_report(page, tmp_path, state="#step=40&sample=0&token=3")
    assert not page.locator("#whatif").is_visible()
    recorded = column(page, "advantages")
    assert recorded == pytest.approx(lesson()[0].columns["advantages"], abs=5.1e-4)
    slide(page, "#lam", "0")
    assert (
        column(page, "advantages")
        == column(page, "deltas")
        == pytest.approx([0.135, 0.01, 0.041, 0.102, 0.161, 0.05, 0.07], abs=5.1e-4)
    )
    assert "6" in page.locator("#whatif").text_content()
    slide(page, "#lam", "1")
    rewards, values = (lesson()[0].columns[name] for name in ("token_level_rewards", "values"))
    expected = [sum(rewards[t:]) - values[t] for t in range(7)]
    assert column(page, "advantages") == pytest.approx(expected, abs=5.1e-4)
    assert "telescope view" in page.locator("#if").text_content()  # which has the arithmetic
    page.get_by_role("button", name="TD0").click()
    assert column(page, "advantages") == column(page, "deltas")
    page.locator("#reset").click()
    assert column(page, "advantages") == recorded
    assert not page.locator("#whatif").is_visible()


def test_lambda_is_named_only_where_it_is_used(page: Any, tmp_path: Path) -> None:
    open_report(page, tmp_path, state="#step=40&sample=0&token=3&lang=en")
    assert "λ 0.95" in page.locator("#about").text_content()
    page.get_by_role("button", name="TD0").click()
    assert "estimator td0" in page.locator("#about").text_content()
    assert "λ" not in page.locator("#about").text_content()
    shared = [replace(s, settings=s.settings.change(estimator="uniform")) for s in lesson()]
    open_report(page, tmp_path, {40: shared}, state="#step=40&sample=0&token=3&lang=en")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert "estimator uniform" in page.locator("#about").text_content()
    assert page.locator("#lam-now").text_content() == "–"
    assert page.locator("#picture-A").count() == 0  # no δ comes back: no fan
    page.get_by_role("button", name="GAE").click()
    assert "λ 0.95" in page.locator("#about").text_content()
    assert page.locator("#whatif").is_visible()


def test_tool_tokens_take_no_time_step_in_a_what_if(page: Any, tmp_path: Path) -> None:
    open_report(page, tmp_path, state="#step=40&sample=3&token=0&gamma=0.9&lam=0.5&est=gae")
    r, v, keep = (
        *(lesson()[3].columns[name] for name in ("token_level_rewards", "values")),
        (0, 1, 2, 5, 6),
    )
    after, expected = 0.0, []
    for t, n in reversed(list(zip(keep, [*keep[1:], None], strict=True))):
        after = r[t] + 0.9 * (0.0 if n is None else v[n]) - v[t] + 0.9 * 0.5 * after
        expected.insert(0, after)
    texts = page.locator("#table td[data-column=advantages]").all_text_contents()
    assert [texts[3], texts[4]] == ["–", "–"]
    assert [float(texts[t].replace("−", "-")) for t in keep] == pytest.approx(expected, abs=5.1e-4)


def test_live_page_of_a_long_run_paints_walks_and_follows(
    page: Any, tmp_path: Path, record_property: Any
) -> None:
    pytest.importorskip("uvicorn", reason="the live page needs uvicorn")
    from tests.viewer.test_server import start

    many = step_of(
        [
            sample(
                ["好"] * 60 + [EOS], [0.5] * 61, [0.01] * 61, score=float(i % 2), prompt=str(i // 8)
            )
            for i in range(256)
        ],
        1,
    )
    run = fake_run(tmp_path / "run", {1: many})
    for step in range(2, 2_001):
        os.link(path_of(run, 1), path_of(run, step))
    server, port = start(run)
    try:
        page.goto("about:blank")
        began = time.perf_counter()
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("html[data-ready]")
        first = time.perf_counter() - began
        page.locator("#picture svg").wait_for()
        began = time.perf_counter()
        page.keyboard.press("ArrowDown")
        until(page, "document.querySelector('#traces .ok') && location.hash.includes('sample=1')")
        following = time.perf_counter() - began
        record_property(
            "first_paint_ms", round(first * 1000)
        )  # measured, not asserted: the suite shares its cores
        record_property("next_sample_ms", round(following * 1000))
        print(f"first paint {first * 1000:.0f} ms, next sample {following * 1000:.0f} ms")
        page.locator("#follow").check()
        os.link(path_of(run, 1), path_of(run, 2_001))
        until(page, "location.hash.includes('step=2001')")
    finally:
        server.should_exit = True


def test_live_page_asks_python_for_a_what_if(page: Any, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the live page needs uvicorn")
    from tests.viewer.test_server import start

    server, port = start(fake_run(tmp_path / "run"))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(f"http://127.0.0.1:{port}/#step=40&sample=0&token=3&lang=en")
        page.wait_for_selector("html[data-ready]")
        page.locator("#lam").evaluate(
            "(node) => { for (const value of [0.9, 0.5, 1]) {"
            " node.value = value; node.dispatchEvent(new Event('input')); } }"
        )
        assert page.locator("#lam-now").text_content() == "1.00"
        until(page, "document.querySelector('#if')?.textContent.includes('A₃[MC] = r₃ + r₄')")
        rewards, values = (lesson()[0].columns[name] for name in ("token_level_rewards", "values"))
        expected = [sum(rewards[t:]) - values[t] for t in range(7)]
        assert column(page, "advantages") == pytest.approx(expected, abs=5.1e-4)
        columns = [url for url in asked if "/whatif?" in url and "&t=" not in url]
        assert len(columns) == 1  # for the value at which the slider came to rest
        page.locator("#reset").click()
        recorded = lesson()[0].columns["advantages"]
        assert column(page, "advantages") == pytest.approx(recorded, abs=5.1e-4)
        page.get_by_role("button", name="td0").click()
        until(page, "document.querySelector('#if')?.textContent.includes('A₃ = δ₃')")
        assert column(page, "advantages") == column(page, "deltas")
    finally:
        server.should_exit = True


def test_a_report_without_what_ifs_says_where_to_try_them(page: Any, tmp_path: Path) -> None:
    rows = [
        sample(["好"] * 600 + [EOS], [0.5] * 601, [0.01] * 601, score=1.0, prompt=str(i))
        for i in range(8)
    ]
    open_report(page, tmp_path, {1: step_of(rows, 1)}, state="#step=1&lang=en&gamma=0.9")
    assert "telescope view" in page.locator("#whatif").text_content()
    assert page.locator("#gamma").is_disabled()
    assert page.locator("#gamma-now").text_content() == "1.00"


def test_a_report_moves_its_sliders_to_what_it_holds(page: Any, tmp_path: Path) -> None:
    open_report(page, tmp_path, state="#step=40&sample=0&token=3")
    slide(page, "#gamma", "0.92")
    assert page.locator("#gamma-now").text_content() == "0.90"
    slide(page, "#lam", "0.3")
    assert page.locator("#lam-now").text_content() in ("0.50", "0.00")


def test_screenshot(page: Any, tmp_path: Path) -> None:
    """TELESCOPE_SCREENSHOT=docs/page.png keeps it."""
    open_report(page, tmp_path, state="#step=40&sample=0&token=3")
    path = Path(os.environ.get("TELESCOPE_SCREENSHOT", tmp_path / "page.png"))
    page.screenshot(path=path)
    assert path.stat().st_size > 50_000
