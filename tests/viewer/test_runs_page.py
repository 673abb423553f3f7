"""The list of runs and their overlay, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.viewer.conftest import Visit, until
from tests.viewer.training import append_rows, metric_row, training_run

CHARTS_DRAWN = "document.querySelectorAll('.chart canvas').length > 0"
NAMES = "all => all.map(row => row.dataset.run)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two seeds with one learning rate, and a run with another."""
    runs = tmp_path / "runs"
    training_run(runs / "slow-seed0", steps=40, lift=0.00, seed=0)
    training_run(runs / "slow-seed1", steps=40, lift=0.10, seed=1, ledger=())
    training_run(runs / "fast-seed0", steps=20, lift=0.05, actor={"lr": 7e-5}, ledger=())
    return runs


@pytest.fixture
def open_runs(visit: Visit) -> Visit:
    """The page with its charts drawn. An address with a state opens no tour."""

    def drawn(folder: Path, state: str = "smooth=0", **options: Any) -> Any:
        page = visit(state, folder, **{"locale": "en-US", **options})
        until(page, CHARTS_DRAWN)
        return page

    return drawn


def names(page: Any) -> list[str]:
    return page.locator("table.runs tbody tr").evaluate_all(NAMES)


def lines(page: Any, chart: str) -> list[str]:
    return page.locator(f'[data-chart="{chart}"] .chart-legend .name').all_text_contents()


def test_a_folder_opens_on_the_table_of_its_runs(open_runs: Visit, folder: Path) -> None:
    page = open_runs(folder)
    assert "3 runs in runs" in page.locator("#runs-title").text_content()
    assert names(page) == ["fast-seed0", "slow-seed0", "slow-seed1"]
    row = page.locator('[data-run="slow-seed1"]').text_content()
    now = 100 * metric_row(40, 0.1)["eval/greedy_accuracy"]
    assert f"34.0 % → {now:.1f} %" in row
    assert "40 / 60" in row
    assert "running" in row
    assert re.search(r"\d+ s ago", row)
    settings = page.locator('[data-run="fast-seed0"] .differs').text_content()
    assert settings == "lr=7e-5"


def test_every_column_sorts_and_the_address_keeps_the_order(open_runs: Visit, folder: Path) -> None:
    page = open_runs(folder)
    page.locator('[data-sort="accuracy"]').click()
    assert names(page) == ["slow-seed1", "slow-seed0", "fast-seed0"]
    page.locator('[data-sort="accuracy"]').click()
    assert names(page) == ["fast-seed0", "slow-seed0", "slow-seed1"]
    page.locator('[data-sort="step"]').click()
    assert names(page)[-1] == "fast-seed0"
    assert page.locator('th[aria-sort="descending"]').count() == 1
    page.reload()
    until(page, CHARTS_DRAWN)
    assert names(page)[-1] == "fast-seed0"
    page.get_by_label("search runs").fill("slow")
    assert names(page) == ["slow-seed0", "slow-seed1"]


def test_a_name_opens_its_run_and_back_returns(open_runs: Visit, folder: Path) -> None:
    page = open_runs(folder)
    page.get_by_role("link", name="slow-seed1").click()
    until(page, "document.querySelector('#summary h2')?.textContent === 'slow-seed1'")
    assert page.locator("#run-name").input_value() == "slow-seed1"
    page.locator("#run-name").select_option("fast-seed0")
    until(page, "document.querySelector('#summary h2')?.textContent === 'fast-seed0'")
    page.go_back()
    page.go_back()
    page.locator("table.runs").wait_for()


def test_seeds_are_one_line_with_a_band_from_the_lowest_to_the_highest(
    open_runs: Visit, folder: Path
) -> None:
    page = open_runs(folder)
    assert lines(page, "reward") == ["fast-seed0", "slow (2 seeds)"]
    assert "The band reaches from the lowest to the highest" in page.locator("main").inner_text()
    plot = page.locator('[data-chart="reward"] .u-over')
    size = plot.bounding_box()
    plot.hover(position={"x": size["width"] / 2, "y": 40})
    until(page, "document.querySelector('[data-chart=reward] .raw') !== null")
    said = page.locator('[data-chart="reward"] .chart-at').text_content()
    step = int(re.search(r"step (\d+)", said)[1])
    low, high = (metric_row(step, lift)["reward/score_mean"] for lift in (0.0, 0.1))
    entry = page.locator('[data-chart="reward"] li').nth(1)
    assert float(entry.locator("b").text_content()) == pytest.approx((low + high) / 2, abs=6e-4)
    ends = [float(text) for text in entry.locator(".raw").text_content().split(" … ")]
    assert ends == pytest.approx([low, high], abs=6e-4)
    colours = page.locator('[data-chart="reward"] .line-swatch').evaluate_all(
        "all => all.map(node => [getComputedStyle(node).color,"
        " node.querySelector('line').getAttribute('stroke-dasharray')].join())"
    )
    assert len(set(colours)) == 2


def test_chosen_runs_are_drawn_and_what_differs_is_a_table(open_runs: Visit, folder: Path) -> None:
    page = open_runs(folder)
    page.locator("#differences summary").click()
    rows = page.locator("#differences tbody tr").all_text_contents()
    assert len(rows) == 1
    assert rows[0].startswith("actor.lr7e-5")
    page.get_by_label("draw slow-seed1").uncheck()
    until(page, "location.hash.includes('with=fast-seed0%2Cslow-seed0')")
    assert lines(page, "reward") == ["fast-seed0", "slow-seed0"]
    page.get_by_label("draw all runs").check()
    assert "with=" not in page.url
    page.get_by_label("draw all runs").uncheck()
    until(page, "document.querySelectorAll('.chart').length === 0")
    page.go_back()
    until(page, CHARTS_DRAWN)


def test_runs_are_laid_over_the_shown_one_and_taken_away(open_runs: Visit, folder: Path) -> None:
    page = open_runs(folder, "run=slow-seed0&with=fast-seed0")
    until(page, "document.querySelectorAll('[data-chart=reward] li').length === 2")
    assert lines(page, "reward") == ["slow-seed0", "fast-seed0"]
    page.locator("#overlay button").click()
    until(page, "document.querySelector('#overlay') === null")
    assert lines(page, "reward") == ["score_mean", "verdict"]


def test_the_charts_of_a_run_in_the_list_grow(open_runs: Visit, folder: Path) -> None:
    page = open_runs(folder, "with=fast-seed0")
    value = page.locator('[data-chart="length"] b')
    assert value.text_content() == "110"
    append_rows(folder / "fast-seed0", [metric_row(step) for step in range(21, 31)])
    until(page, "document.querySelector('[data-chart=length] b').textContent === '105'")


def test_alarms_are_counted_in_the_table(open_runs: Visit, folder: Path) -> None:
    append_rows(folder / "fast-seed0", [metric_row(21) | {"actor/grad_norm": float("nan")}])
    page = open_runs(folder)
    badge = page.locator('[data-run="fast-seed0"] .warned')
    badge.wait_for()
    assert "alarms: 1" in badge.text_content()
    assert badge.get_attribute("title") == "actor/grad_norm is not a finite number."
    assert page.locator('[data-run="slow-seed1"] .warned').count() == 0


def test_a_folder_of_one_run_opens_that_run(open_runs: Visit, tmp_path: Path) -> None:
    training_run(tmp_path / "runs" / "only")
    page = open_runs(tmp_path / "runs")
    assert page.locator("#summary h2").text_content() == "only"
    page.locator('#views [data-value="runs"]').click()
    page.locator("table.runs").wait_for()
    assert names(page) == ["only"]
    until(page, CHARTS_DRAWN)


def test_fifty_runs_are_listed_and_drawn(open_runs: Visit, tmp_path: Path) -> None:
    for i in range(50):
        training_run(
            tmp_path / "runs" / f"run{i:02}",
            steps=12,
            lift=i / 500,
            seed=i,
            actor={"lr": 1e-5 * (1 + i % 25)},
            ledger=(),
        )
    page = open_runs(tmp_path / "runs")
    assert len(names(page)) == 50
    until(page, "document.querySelectorAll('[data-chart=reward] li').length === 25")
    looks = page.locator('[data-chart="reward"] .line-swatch').evaluate_all(
        "all => all.map(node => [getComputedStyle(node).color,"
        " node.querySelector('line').getAttribute('stroke-dasharray')].join())"
    )
    assert len(set(looks)) == 25  # 25 learning rates: no two lines look the same


def test_the_list_fits_a_phone(open_runs: Visit, folder: Path) -> None:
    page = open_runs(folder, width=390, height=844, locale="zh-CN")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
