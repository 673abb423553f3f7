"""A run's dashboard in a real browser: how the run does, its charts, the step bar."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from telescope.ledger.reader import path_of
from telescope.viewer.typed_run import write_step
from tests.viewer.conftest import Open, Serve, Visit, until
from tests.viewer.fake import sample, step_of
from tests.viewer.test_evaluations import with_answers
from tests.viewer.training import (
    CHARTS,
    append_rows,
    metric_row,
    metric_rows,
    training_run,
    write_rows,
)

ENGLISH = {"locale": "en-US"}
CHARTS_DRAWN = "document.querySelectorAll('.chart canvas').length > 0"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return training_run(tmp_path / "arithmetic-seed0")


def last_value(page: Any, chart: str, line: str) -> str:
    """What the legend of a chart says."""
    return page.locator(f'[data-chart="{chart}"] [data-line="{line}"] b').text_content()


def plot_of(page: Any, chart: str) -> Any:
    return page.locator(f'[data-chart="{chart}"] .u-over')


def at(page: Any, chart: str, share: float) -> dict[str, float]:
    """A place in a plot, `share` of its width from the left."""
    size = plot_of(page, chart).bounding_box()
    return {"x": size["width"] * share, "y": size["height"] / 2}


def drag(page: Any, chart: str, start: float, stop: float) -> None:
    plot_of(page, chart).scroll_into_view_if_needed()
    box = plot_of(page, chart).bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (start + stop) / 2, y, steps=3)
    page.mouse.move(box["x"] + box["width"] * stop, y, steps=3)
    page.mouse.up()


def picture(page: Any, chart: str) -> str:
    return page.locator(f'[data-chart="{chart}"] canvas').evaluate("node => node.toDataURL()")


# ---- how the run does ----


def test_the_header_says_how_far_the_run_is_and_what_it_reached(open_run: Visit, run: Path) -> None:
    page = open_run(run)
    assert page.locator("#summary h2").text_content() == "arithmetic-seed0"
    assert "running" in page.locator("#summary .status").text_content()
    assert page.locator("#figure-step b").text_content() == "40"
    assert "of 60" in page.locator("#figure-step").text_content()
    now = metric_row(40)["eval/greedy_accuracy"]
    assert page.locator("#figure-accuracy b").text_content() == f"24.0 % → {100 * now:.1f} %"
    assert page.locator("#figure-pace b").text_content() == "4.6 s"
    assert page.locator("#figure-eta b").text_content() == "2 min"  # 20 steps of 4.6 s
    assert page.title() == "arithmetic-seed0 40/60 – Telescope"


@pytest.mark.parametrize(
    ("seconds", "of", "word"),
    [
        (0, 60, "running"),
        (600, 60, "silent for 10 min"),
        (7200, 60, "stopped"),
        (7200, 40, "finished"),
    ],
)
def test_the_status_is_a_word(
    open_run: Visit, tmp_path: Path, seconds: int, of: int, word: str
) -> None:
    run = training_run(tmp_path / "r", of=of)
    then = time.time() - seconds
    for path in [run / "metrics.jsonl", *(run / "ledger").iterdir()]:
        os.utime(path, (then, then))
    page = open_run(run)
    assert word in page.locator("#summary .status").text_content()


def test_settings_are_shown_beside_their_defaults(open_run: Visit, tmp_path: Path) -> None:
    run = training_run(tmp_path / "r", seed=3, actor={"lr": 7e-5})
    page = open_run(run)
    assert not page.locator("#settings table").is_visible()
    page.locator("#settings summary").click()
    rows = page.locator("#settings tbody tr").all_text_contents()
    assert any(row.startswith("seed3") and row.endswith("0") for row in rows)
    changed = len(rows)
    page.get_by_label("show all").check()
    assert page.locator("#settings tbody tr").count() > changed
    page.get_by_label("search settings").fill("actor.lr")
    assert page.locator("#settings tbody th").first.text_content() == "actor.lr"


def test_an_empty_run_says_so_and_fills_itself(visit: Visit, tmp_path: Path) -> None:
    run = training_run(tmp_path / "r", ledger=())
    (run / "metrics.jsonl").unlink()
    page = visit("view=run", run, **ENGLISH)
    until(page, "document.body.innerText.includes('nothing written yet')")
    assert page.locator(".chart").count() == 0
    write_rows(run, metric_rows(5))
    until(page, CHARTS_DRAWN)


# ---- liveness ----


def test_the_page_says_that_it_is_up_to_date_and_that_the_server_is_gone(
    open_run: Visit, run: Path
) -> None:
    page = open_run(run)
    live = page.locator("#liveness")
    assert re.search(r"updated \d+ s ago", live.text_content())
    page.route("**/api/**", lambda route: route.abort())
    until(page, "document.querySelector('#liveness').textContent.includes('unreachable')")
    assert "retrying" in live.text_content()
    assert live.get_attribute("role") == "alert"
    assert page.locator(".chart").count() == len(CHARTS)  # what was there stays
    page.unroute("**/api/**")
    until(page, "/updated \\d+ s ago/.test(document.querySelector('#liveness').textContent)")
    page.trouble.clear()  # the browser wrote every refused request to its console


def test_a_deleted_run_is_reported_and_what_was_loaded_stays(open_run: Visit, run: Path) -> None:
    page = open_run(run)
    shutil.rmtree(run)
    until(page, "document.querySelector('#deleted') !== null")
    assert "This run was deleted." in page.locator("#deleted").text_content()
    assert "deleted" in page.locator("#summary .status").text_content()
    assert page.locator(".chart").count() == len(CHARTS)
    assert page.locator("#figure-step b").text_content() == "40"
    page.trouble.clear()  # a request on its way at that moment finds nothing


def test_charts_grow_when_only_metrics_grow_and_keep_their_zoom(open_run: Visit, run: Path) -> None:
    page = open_run(run, "view=run&zoom=10-60")
    before = picture(page, "length")
    assert last_value(page, "length", "response/length_mean") == "100"
    append_rows(run, [metric_row(step) for step in range(41, 51)])
    legend = '[data-chart="length"] [data-line="response/length_mean"] b'
    until(page, f"document.querySelector('{legend}').textContent === '95'")
    assert picture(page, "length") != before
    assert "zoom=10-60" in page.url
    assert "steps 10–60" in page.locator("#unzoom").text_content()


# ---- charts ----


def test_every_chart_has_a_title_a_meaning_and_a_plot(open_run: Visit, run: Path) -> None:
    page = open_run(run)
    charts = page.locator(".chart")
    assert charts.evaluate_all("all => all.map(node => node.dataset.chart)") == CHARTS
    for name in CHARTS:
        chart = page.locator(f'[data-chart="{name}"]')
        assert len(chart.locator("h3").text_content()) > 2
        assert chart.locator(".meaning").text_content().endswith(".")
        assert chart.locator("canvas").count() == 1
        assert re.search(r"from .* to ", chart.locator(".plot").get_attribute("aria-label"))
    phases = page.locator('[data-chart="time"] [data-line]')
    assert phases.evaluate_all("all => all.map(node => node.dataset.line)") == [
        "timing/update_critic",
        "timing/update_actor",
        "timing/rollout",
    ]


def test_a_chart_without_its_metric_is_not_drawn(open_run: Visit, run: Path) -> None:
    kept = ("step", "reward/score_mean", "actor/entropy")
    write_rows(run, [{k: v for k, v in row.items() if k in kept} for row in metric_rows(40)])
    page = open_run(run)
    drawn = page.locator(".chart").evaluate_all("all => all.map(node => node.dataset.chart)")
    assert drawn == ["reward", "entropy"]


def test_one_crosshair_stands_in_all_charts(open_run: Visit, run: Path) -> None:
    page = open_run(run)
    plot_of(page, "reward").hover(position=at(page, "reward", 0.5))
    until(page, "document.querySelector('[data-chart=reward] .chart-at .last') === null")
    said = page.locator('[data-chart="reward"] .chart-at').text_content()
    step = int(re.search(r"step (\d+)", said)[1])
    assert 18 <= step <= 23
    assert "click: answers of step 20" in said
    for name in ("entropy", "length", "time"):
        assert f"step {step}" in page.locator(f'[data-chart="{name}"] .chart-at').text_content()
    assert float(last_value(page, "reward", "reward/score_mean")) == pytest.approx(
        metric_row(step)["reward/score_mean"], abs=5e-4
    )
    assert float(last_value(page, "entropy", "actor/entropy")) == pytest.approx(
        metric_row(step)["actor/entropy"], abs=5e-3
    )
    page.mouse.move(5, 5)
    until(page, "document.querySelector('[data-chart=reward] .chart-at .last') !== null")


def test_a_drag_zooms_all_charts_and_a_double_click_or_back_resets(
    open_run: Visit, run: Path
) -> None:
    page = open_run(run)
    whole = picture(page, "entropy")
    drag(page, "reward", 0.25, 0.5)
    until(page, "location.hash.includes('zoom=')")
    first, last = map(int, re.search(r"zoom=(\d+)-(\d+)", page.url).groups())
    assert 9 <= first <= 12
    assert 20 <= last <= 22
    zoomed = picture(page, "entropy")
    assert zoomed != whole
    page.go_back()
    until(page, "!location.hash.includes('zoom=')")
    assert picture(page, "entropy") == whole
    page.go_forward()
    until(page, "location.hash.includes('zoom=')")
    plot_of(page, "kl").dblclick(position=at(page, "kl", 0.5))
    until(page, "!location.hash.includes('zoom=')")
    assert "view=samples" not in page.url  # the two clicks opened nothing


def test_smoothing_is_a_moving_average_and_the_raw_value_stays(open_run: Visit, run: Path) -> None:
    page = open_run(run, "smooth=0.9")
    scores = [metric_row(step)["reward/score_mean"] for step in range(1, 41)]
    weights = [0.9 ** (39 - i) for i in range(40)]
    mean = sum(w * x for w, x in zip(weights, scores, strict=True)) / sum(weights)
    assert float(last_value(page, "reward", "reward/score_mean")) == pytest.approx(mean, abs=6e-4)
    page.locator('[data-chart="reward"] .plot').press("ArrowLeft")  # the last step
    raw = page.locator('[data-chart="reward"] .raw').first.text_content()
    assert float(raw.strip("()")) == pytest.approx(scores[-1], abs=6e-4)
    page.locator("#smooth").fill("0")
    until(page, "document.querySelector('[data-chart=reward] .raw') === null")
    assert "smooth" not in page.url


def test_an_axis_has_room_for_its_labels(open_run: Visit, run: Path) -> None:
    write_rows(run, [row | {"actor/lr": 1.1e-6, "critic/lr": 1.1e-6} for row in metric_rows(40)])
    page = open_run(run)
    label = """() => {
        const context = document.createElement("canvas").getContext("2d");
        context.font = '11px system-ui, -apple-system, "Segoe UI", "Noto Sans CJK SC", sans-serif';
        return context.measureText("1.10e−6").width;
    }"""
    axis = page.locator('[data-chart="rate"] .u-axis').nth(1)
    gap_and_tick = 7
    assert axis.bounding_box()["width"] >= page.evaluate(label) + gap_and_tick


def test_a_log_scale_where_it_can_be(open_run: Visit, run: Path) -> None:
    page = open_run(run)
    before = {name: picture(page, name) for name in ("kl", "explained")}
    page.get_by_label("log scale").check()
    until(page, "location.hash.includes('log=1')")
    assert picture(page, "kl") != before["kl"]
    assert picture(page, "explained") == before["explained"]  # it is below 0 at first
    said = page.locator('[data-chart="explained"] .chart-at').text_content()
    assert said.split(" · ")[0].strip() == "linear: has values below 0"


def test_any_other_metric_is_drawn_by_its_name(open_run: Visit, run: Path) -> None:
    page = open_run(run)
    page.locator("#picker summary").click()
    page.get_by_label("search metrics").fill("advantage")
    assert page.locator("#picker [data-metric]").count() == 1
    page.locator('[data-metric="credit/advantage_std"]').check()
    chart = page.locator('[data-chart="credit/advantage_std"]')
    chart.wait_for()
    assert "charts=credit%2Fadvantage_std" in page.url
    assert "σ of whitening" in chart.locator(".meaning").text_content()
    page.reload()
    chart.wait_for()
    chart.get_by_role("button").click()
    assert "charts=" not in page.url
    assert chart.count() == 0


def test_a_click_opens_the_answers_of_the_nearest_recorded_step(open_run: Visit, run: Path) -> None:
    page = open_run(run)
    plot_of(page, "entropy").click(position=at(page, "entropy", 0.7))
    until(page, "location.hash.includes('view=samples')")
    assert "step=30" in page.url
    page.go_back()
    until(page, CHARTS_DRAWN)


def test_keys_move_the_crosshair_of_the_focused_chart_and_enter_opens_the_step(
    open_run: Visit, run: Path
) -> None:
    page = open_run(run)
    page.locator('[data-chart="reward"] .plot').focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('[data-chart=reward] .chart-at .last') === null")
    assert "step 3" in page.locator('[data-chart="reward"] .chart-at').text_content()
    page.keyboard.press("Enter")
    until(page, "location.hash.includes('view=samples')")
    assert "step=10" in page.url


def test_the_shown_step_is_marked(open_run: Visit, run: Path) -> None:
    page = open_run(run, "step=10")
    before = picture(page, "kl")
    page.locator("#later").click()
    until(page, "document.querySelector('#step-now').textContent === '20'")
    assert picture(page, "kl") != before


def test_alarms_are_listed_marked_and_lead_to_their_step(open_run: Visit, run: Path) -> None:
    for step in (10, 20, 30, 40):  # nothing else looks wrong: no prompt comes twice
        once = [sample(["a", "b"], [0.4] * 2, [0.0] * 2, score=1.0, prompt=f"{step}")]
        write_step(run, step, step_of(once, step))
    page = open_run(run)
    before = picture(page, "rate")
    assert page.locator("#alarms").count() == 0
    broken = [metric_row(step) for step in range(1, 41)]
    broken[30] |= {"actor/grad_norm": float("nan")}
    write_rows(run, broken)
    alarm = page.locator('#alarms [data-alarm="not_finite"]')
    alarm.wait_for()
    assert alarm.get_attribute("data-severity") == "serious"
    said = alarm.text_content()
    assert "since step 31:" in said
    assert "actor/grad_norm is not a finite number." in said
    assert "lower the learning rate" in said
    until(page, f"document.querySelector('[data-chart=rate] canvas').toDataURL() !== '{before}'")
    alarm.locator("button").click()
    until(page, "location.hash.includes('view=samples')")
    until(page, "document.querySelector('#step-now').textContent === '30'")  # the nearest recorded


def test_damaged_files_are_named_in_one_line(open_run: Visit, run: Path) -> None:
    page = open_run(run)
    assert page.locator(".notice.damage").count() == 0
    path = path_of(run, 20)
    path.write_bytes(path.read_bytes()[:-100])
    line = page.locator(".notice.damage")
    line.wait_for()
    assert line.text_content() == "damaged files of ledger are left out: step_000020.parquet"
    page.locator("#lang button", has_text="中文").click()
    until(
        page,
        "document.querySelector('.notice.damage').textContent.startsWith('ledger 里有文件坏了')",
    )


# ---- the step bar ----


def test_steps_and_following_keep_the_chosen_sample_and_token(
    open_page: Open, serve_run: Serve, run: Path
) -> None:
    state = "#view=samples&step=10&sample=2&token=1"
    page = open_page(serve_run(run) + state, **ENGLISH)
    page.locator("#later").click()
    until(page, "document.querySelector('#step-now').textContent === '20'")
    assert "step=20&sample=2&token=1" in page.url
    page.locator("#step").fill("3")
    until(page, "document.querySelector('#step-now').textContent === '40'")
    assert "step=40&sample=2&token=1" in page.url
    page.locator("#follow").check()
    assert "sample=2&token=1" in page.url
    assert "step=" not in page.url
    rows = [sample(["a", "b", "c"], [0.1, 0.2, 0.3], [0.0] * 3, score=1.0)] * 3
    write_step(run, 50, step_of(rows, 50))
    until(page, "document.querySelector('#step-now').textContent === '50'")
    assert "sample=2&token=1" in page.url
    page.go_back()
    until(page, "location.hash.includes('step=40')")


# ---- V along the answers ----


def test_v_is_drawn_along_right_and_wrong_answers(open_run: Visit, tmp_path: Path) -> None:
    def answer(values: list[float], score: float) -> Any:
        return sample(["x"] * len(values), values, [0.0] * len(values), score=score)

    answers = [answer([0.4, 0.6, 0.8], 1.0), answer([0.6, 0.8, 1.0], 1.0), answer([0.5, 0.1], 0.0)]
    run = training_run(tmp_path / "r", ledger=())
    write_step(run, 1, step_of(answers, 1))
    page = open_run(run)
    box = page.locator("#paths")
    box.wait_for()
    right = box.locator('[data-path="right"]').text_content()
    assert "2 right: V from 0.500 to 0.900" in right
    wrong = box.locator('[data-path="wrong"]').text_content()
    assert "1 wrong: V from 0.500 to 0.100" in wrong
    heights = {
        side: [
            float(y)
            for y in box.locator(f"g.path.{side} circle").evaluate_all(
                "all => all.map(x => x.getAttribute('cy'))"
            )
        ]
        for side in ("right", "wrong")
    }
    assert heights["right"] == sorted(heights["right"], reverse=True)  # SVG counts downwards
    assert heights["wrong"] == sorted(heights["wrong"])
    assert box.locator(".band").count() == 2
    page.get_by_role("button", name="中文").click()
    assert "2 条答对：V 从 0.500 到 0.900" in box.text_content()


def test_without_values_no_v_is_drawn(open_run: Visit, tmp_path: Path) -> None:
    run = training_run(tmp_path / "r", ledger=())
    write_step(run, 1, step_of([sample(["x", "y"], [0.0] * 2, [0.0] * 2, score=1.0)], 1))
    page = open_run(run)
    until(page, "document.querySelector('#step-now').textContent === '1'")
    assert page.locator("#paths").count() == 0


# ---- looks ----


@pytest.mark.parametrize("view", ["run", "samples", "compare", "tour"])
def test_a_phone_has_one_column_and_nothing_wider(
    open_page: Open, serve_run: Serve, run: Path, view: str
) -> None:
    page = open_page(serve_run(run) + f"#view={view}", width=390, height=844)
    until(page, f"document.querySelector('main.view-{view}')?.textContent.length > 200")
    if view == "run":
        until(page, CHARTS_DRAWN)
        lefts = page.locator(".chart").evaluate_all("all => all.map(x => x.offsetLeft)")
        assert len(set(lefts)) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_wide_screen_has_four_columns(open_run: Visit, run: Path) -> None:
    page = open_run(run, width=2560, height=1440)
    lefts = page.locator(".chart").evaluate_all("all => all.map(x => x.offsetLeft)")
    assert len(set(lefts)) == 4
    assert page.evaluate("document.documentElement.scrollWidth") == 2560


def test_dark_follows_the_system_unless_the_visitor_chooses(open_run: Visit, run: Path) -> None:
    page = open_run(run, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    assert max(map(int, re.findall(r"\d+", dark))) < 60
    plot = picture(page, "kl")
    page.locator('#theme [data-value="light"]').click()
    assert min(map(int, re.findall(r"\d+", page.evaluate(background)))) > 200
    until(page, "location.hash.includes('theme=light')")
    assert picture(page, "kl") != plot  # lines and axes change too
    page.go_back()
    until(page, "document.documentElement.dataset.theme === 'dark'")


def test_lines_differ_without_colour(open_run: Visit, run: Path) -> None:
    page = open_run(run)
    dashes = page.locator('[data-chart="reward"] .line-swatch line').evaluate_all(
        "all => all.map(line => line.getAttribute('stroke-dasharray'))"
    )
    assert len(dashes) == 2
    assert len(set(dashes)) == 2


def test_paper_is_light_and_has_two_columns(open_run: Visit, run: Path) -> None:
    page = open_run(run, color_scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    until(page, "document.querySelector('.uplot').offsetWidth === 320")
    assert not page.locator("header nav").is_visible()
    assert not page.locator(".tools").first.is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_back_button_undoes_a_change_of_view(open_run: Visit, run: Path) -> None:
    page = open_run(run)
    page.locator('#views [data-value="samples"]').click()
    until(page, "document.querySelector('main').className === 'view-samples'")
    page.go_back()
    until(page, "document.querySelector('main').className === 'view-run'")


def test_a_child_sees_no_names_of_metrics_and_one_decimal(open_run: Visit, run: Path) -> None:
    page = open_run(run, "kid=1")
    until(page, "document.body.innerText.includes('Points')")
    said = page.locator("main").inner_text()
    assert not re.search(r"\b(actor|critic|reward|timing|eval)/|KL|[γδλρσβ]|\d\.\d\d", said)
    assert page.locator("#settings").count() == 0


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_every_control_has_a_name(open_run: Visit, run: Path, locale: str) -> None:
    page = open_run(run, locale=locale)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, summary")]
            .filter(node => !node.textContent.trim() && !node.labels?.[0]?.textContent.trim())
            .filter(node => !node.getAttribute("aria-label"))
            .map(node => node.outerHTML)"""
    )
    assert nameless == []


def test_the_answers_of_an_evaluation_can_be_filtered(run: Path, open_run: Visit) -> None:
    page = open_run(with_answers(run))
    rows = page.locator("#evaluated tbody tr")
    until(page, "document.querySelectorAll('#evaluated tbody tr').length === 3")
    assert "1 of 3 are right." in page.locator("#evaluated").text_content()
    page.click('#evaluated-is [data-value="wrong"]')
    until(page, "document.querySelectorAll('#evaluated tbody tr').length === 2")
    assert "不对<b>" in rows.first.text_content()  # as text
    page.select_option("#evaluated-set", "math")
    page.click('#evaluated-is [data-value="all"]')
    until(page, "document.querySelectorAll('#evaluated tbody tr').length === 1")
    assert "set=math" in page.url
