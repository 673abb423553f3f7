"""A report in a browser: it opens from disk, and shows what the live page shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from telescope.viewer.api import Api
from telescope.viewer.payload import dumps
from telescope.viewer.report import write_report
from telescope.viewer.runs import Runs
from tests.viewer.conftest import Open, until
from tests.viewer.fake import big_run, data_of_report, fake_run, hostile

IMPORTS_MODULES = True


def test_a_report_opens_without_an_error_and_shows_every_level(
    tmp_path: Path, open_page: Open
) -> None:
    out = write_report(fake_run(tmp_path / "run"), tmp_path / "r.html")
    for view in ("run", "samples", "compare", "tour"):
        page = open_page(f"{out.as_uri()}#view={view}")
        page.wait_for_timeout(200)
        assert page.inner_text("#app").strip()


def test_a_report_opens_on_a_token_that_has_its_arithmetic(tmp_path: Path, open_page: Open) -> None:
    run = big_run(tmp_path / "run", steps=7, samples=32, tokens=40)
    out = write_report(run, tmp_path / "r.html")
    page = open_page(f"{out.as_uri()}#view=samples")
    until(page, "document.querySelectorAll('#app math').length > 5")


def test_a_report_says_how_much_of_the_run_it_holds_and_how_that_was_chosen(
    tmp_path: Path, open_page: Open
) -> None:
    run = big_run(tmp_path / "run", steps=12, samples=32, tokens=20)
    page = open_page(write_report(run, tmp_path / "r.html").as_uri(), locale="en-US")
    until(page, "document.querySelector('details#liveness') !== null")
    # How many fit depends on how well the report is packed.
    held = re.search(r"5 of 12 steps, (\d+) of 32 answers", page.inner_text("#liveness"))
    assert held is not None
    assert 4 <= int(held[1]) <= 12
    page.click("#liveness summary")
    assert "largest |A|" in page.inner_text("#liveness")


def test_a_report_makes_the_formulas_that_the_server_sends(
    tmp_path: Path, open_page: Open, serve_run: Callable[[Path], str]
) -> None:
    run = fake_run(tmp_path / "run")
    html = write_report(run, tmp_path / "r.html").read_text("utf-8")
    api = Api(Runs(run))
    path = "api/runs/run/steps/40/samples"
    paths = [f"{path}/{i}/tokens/{t}" for i in (0, 3, 4) for t in range(7)]
    page = open_page(serve_run(run))
    made = page.evaluate(
        """async ([data, paths]) => {
            const { answerIn } = await import("/core/report.js");
            return paths.map((path) => answerIn(data, path).traces);
        }""",
        [data_of_report(html), paths],
    )
    for found, path in zip(made, paths, strict=True):
        assert found == json.loads(dumps(api.answer(f"/{path}")["traces"]))


def test_a_report_of_a_run_with_any_name_opens(tmp_path: Path, open_page: Open) -> None:
    run = fake_run(tmp_path / "100% #1? (a)'s 训练!")
    page = open_page(f"{write_report(run, tmp_path / 'r.html').as_uri()}#view=samples")
    until(page, "document.querySelectorAll('#app [data-row]').length === 6")


def test_hostile_text_in_a_report_does_nothing(tmp_path: Path, open_page: Open) -> None:
    run = fake_run(tmp_path / "run", {1: hostile()[:6], 2: hostile()[6:]})
    out = write_report(run, tmp_path / "r.html")
    for step, count in ((1, 6), (2, len(hostile()) - 6)):
        for sample in range(count):
            page = open_page(f"{out.as_uri()}#view=samples&step={step}&sample={sample}&token=0")
            until(page, "document.querySelectorAll('#app [data-row]').length > 0")
            assert page.evaluate("window.hacked === undefined")


def test_the_page_for_visitors_opens_at_every_level(tmp_path: Path, open_page: Open) -> None:
    from tests.viewer.test_server import start

    server, port = start(fake_run(tmp_path / "run"), modules=False)
    try:
        for view in ("runs", "run", "samples", "compare", "tour"):
            page = open_page(f"http://127.0.0.1:{port}/#view={view}")
            until(page, "document.querySelector('main')?.innerText.trim().length > 20")
    finally:
        server.should_exit = True
