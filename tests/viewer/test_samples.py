"""The table of a step's answers, in a browser."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from telescope.explain.sample import Sample
from telescope.ledger.reader import path_of
from telescope.viewer.report import write_report
from telescope.viewer.typed_run import write_step
from tests.viewer.conftest import Open, Serve, Visit, until
from tests.viewer.fake import EOS, fake_run, lesson, sample, step_of

pytest.importorskip("uvicorn", reason="the live page needs uvicorn")


CHAT = (
    "<|im_start|>system\nSolve the problem step by step.<|im_end|>\n"
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
)
LONG_QUESTION = "Anna has 3 boxes with 12 pencils each and gives 8 to her brother. How many remain?"


def answers(*, count: int = 6, tokens: int = 4) -> list[Sample]:
    """`count` answers, one per prompt; every third is right."""
    made = [
        sample(
            [*(f" w{i}" for i in range(tokens - 1)), EOS],
            [0.1 * (k % 7)] * tokens,
            [0.0] * tokens,
            score=float(k % 3 == 0),
            prompt=CHAT.format(question=f"question {k}"),
        )
        for k in range(count)
    ]
    return step_of(made, 1)


@pytest.fixture
def show(visit: Visit) -> Visit:
    """Opens the answers of the lesson, or of the samples or the run given."""

    def opened(run: Any = None, state: str = "", **options: Any) -> Any:
        return visit(f"view=samples&{state}", run, **options)

    return opened


def listed(page: Any) -> list[int]:
    rows = page.locator("tr[data-row]").evaluate_all("rows => rows.map((row) => row.dataset.row)")
    return [int(row) for row in rows]


def wait_for_rows(page: Any, rows: list[int]) -> None:
    wanted = ",".join(map(str, rows))
    shown = "[...document.querySelectorAll('tr[data-row]')].map((row) => row.dataset.row).join()"
    until(page, f"{shown} === '{wanted}'")


def test_a_chat_prompt_shows_the_users_words_and_not_the_template(show: Visit) -> None:
    one = sample(["7", EOS], [0.5, 0.5], [0.0, 0.0], score=0.0)
    chat = replace(one, prompt=CHAT.format(question=LONG_QUESTION))
    page = show({1: step_of([chat], 1)}, width=2000)
    page.locator("#reader").wait_for()
    cell = page.locator('tr[data-row="0"] [data-column="user"]').text_content()
    assert cell == LONG_QUESTION  # it was cut at 40 characters, most of them template
    assert page.locator('tr[data-row="0"] [data-column="answer"]').text_content() == f"7{EOS}"


def test_the_table_takes_the_height_it_needs(show: Visit) -> None:
    page = show({1: answers(count=14)})
    page.locator('tr[data-row="13"]').wait_for()
    box = page.locator("#table-box").evaluate("node => [node.clientHeight, node.scrollHeight]")
    assert box[0] == box[1] > 14 * 25  # all rows in sight; the old list was 152 px high


def test_rows_show_score_parts_length_clipping_truncation_and_tools(
    show: Visit, tmp_path: Path
) -> None:
    rows = lesson()
    cut = replace(rows[1], truncated=True, parts={"verdict": 0.0, "format": 0.25})
    run = fake_run(tmp_path / "run", {40: [rows[0], cut, *rows[2:]]})
    page = show(run, width=2400, locale="en-US")
    page.locator('tr[data-row="5"]').wait_for()

    def cell(row: int, column: str) -> str:
        return str(page.locator(f'tr[data-row="{row}"] [data-column="{column}"]').inner_text())

    assert cell(0, "score").split() == ["✓", "1.00"]
    assert cell(1, "score").split() == ["✗", "0.00"]
    assert cell(1, "part:format") == "0.25"
    assert cell(0, "part:format") == "–"
    assert cell(0, "length") == "7"
    assert cell(0, "clip_fraction") == "14.3 %"  # 1 of 7
    assert "⋯" in cell(1, "marks")
    assert "⋯" not in cell(0, "marks")
    assert "🔧1" in cell(3, "marks")
    assert cell(0, "v0") == "0.40"


def test_filters_by_what_a_row_has(show: Visit) -> None:
    rows = lesson()
    rows[2] = replace(rows[2], truncated=True)
    page = show({40: rows}, locale="en-US")
    wait_for_rows(page, [0, 1, 2, 3, 4, 5])

    def press(name: str) -> None:
        page.locator(f'[data-filter="{name}"]').click()

    press("wrong")
    wait_for_rows(page, [1, 4])
    press("right")  # its opposite goes
    wait_for_rows(page, [0, 2, 3, 5])
    press("truncated")
    wait_for_rows(page, [2])
    press("right")
    press("truncated")
    press("tool")
    wait_for_rows(page, [3])
    press("tool")
    press("clipped")
    wait_for_rows(page, [k for k, s in enumerate(rows) if any(s.actor_updates[-1].clipped)])
    assert "filter=clipped" in page.url
    page.locator("#clear").click()
    wait_for_rows(page, [0, 1, 2, 3, 4, 5])
    page.go_back()
    wait_for_rows(page, [k for k, s in enumerate(rows) if any(s.actor_updates[-1].clipped)])


def test_filter_by_flipped_sign(show: Visit) -> None:
    rows = lesson()
    flipped = [
        k
        for k, s in enumerate(rows)
        if any(
            a * w < 0 for a, w in zip(s.columns["advantages"], s.columns["whitened"], strict=True)
        )
    ]
    assert 0 < len(flipped) < len(rows)
    page = show({40: rows}, "filter=flipped")
    wait_for_rows(page, flipped)


def scored(scores: list[float]) -> list[Sample]:
    made = [
        sample(["x", EOS], [0.1, 0.2], [0.0, 0.0], score=score, prompt=f"p{k // 2}")
        for k, score in enumerate(scores)
    ]
    return step_of(made, 1)


def type_in(page: Any, field: str, text: str) -> None:
    page.locator(field).fill(text)
    page.locator(field).press("Enter")


def test_filter_by_score(show: Visit, tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", {1: scored([0.0, 0.3, 0.6, 1.0])})
    page = show(run)
    type_in(page, "#score-low", "0.3")
    wait_for_rows(page, [1, 2, 3])
    type_in(page, "#score-high", "0.9")
    wait_for_rows(page, [1, 2])
    assert "low=0.3" in page.url
    page.locator("#clear").click()
    wait_for_rows(page, [0, 1, 2, 3])


def test_filter_by_group(show: Visit, tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", {1: scored([0.0, 1.0, 1.0, 0.0])})
    table = parquet.read_table(path_of(run, 1))
    place = table.schema.get_field_index("group")
    groups = pa.array([7, 7, 8, 8], table.schema.field(place).type)
    parquet.write_table(table.set_column(place, table.schema.field(place), groups), path_of(run, 1))
    page = show(run)
    type_in(page, "#group", "8")
    wait_for_rows(page, [2, 3])
    assert page.locator('tr[data-row="2"] [data-column="group"]').text_content() == "8"


def test_search_reads_whole_prompts_and_answers(show: Visit) -> None:
    rows = answers()
    rows[4] = replace(rows[4], response="x" * 300 + " Needle at the end")
    rows[2] = replace(rows[2], prompt=CHAT.format(question="y" * 300 + " a needle too"))
    page = show({1: rows}, locale="en-US")
    page.locator("#search").fill("needle")
    wait_for_rows(page, [2, 4])
    assert page.locator("#samples-count").text_content() == "2 of 6"
    page.locator("#search").press("Escape")
    wait_for_rows(page, [0, 1, 2, 3, 4, 5])


def test_a_column_sorts_both_ways_and_the_address_keeps_it(show: Visit) -> None:
    page = show(locale="en-US")
    wait_for_rows(page, [0, 1, 2, 3, 4, 5])
    page.locator('[data-sort="length"]').click()
    wait_for_rows(page, [4, 0, 1, 3, 5, 2])  # 8, 7, 7, 7, 7 and 3 tokens
    page.locator('[data-sort="length"]').click()
    wait_for_rows(page, [2, 0, 1, 3, 5, 4])
    assert "sort=length" in page.url
    page.reload()
    wait_for_rows(page, [2, 0, 1, 3, 5, 4])
    page.locator('[data-sort="score"]').click()
    wait_for_rows(page, [1, 4, 0, 2, 3, 5])


def test_512_rows_are_not_all_drawn_and_all_can_be_reached(show: Visit) -> None:
    page = show({1: answers(count=512)})
    page.locator('tr[data-row="3"]').wait_for()
    assert len(listed(page)) < 60
    page.locator("#table-box").focus()
    page.keyboard.press("End")
    page.locator('tr.chosen[data-row="511"]').wait_for()
    assert "sample=511" in page.url
    assert len(listed(page)) < 60


def test_arrow_keys_act_on_the_focused_panel_only(show: Visit) -> None:
    page = show(state="step=40&sample=0&token=3&lang=en")
    page.locator(".tok.pinned").wait_for()
    before = page.url
    page.keyboard.press("ArrowDown")  # nothing has the focus: the page scrolls, as pages do
    page.keyboard.press("ArrowRight")
    assert page.url == before
    page.locator("#table-box").focus()
    page.keyboard.press("ArrowDown")
    until(page, "location.hash.includes('sample=1')")
    page.keyboard.press("ArrowRight")
    assert "sample=1" in page.url
    assert "token=3" in page.url  # the table has rows, not tokens
    page.locator("#answer").focus()
    page.keyboard.press("ArrowRight")
    until(page, "location.hash.includes('token=4')")
    page.keyboard.press("ArrowDown")
    assert "sample=1" in page.url  # the reader has tokens, not rows


def test_enter_opens_the_reader_and_escape_clears_the_filters(show: Visit) -> None:
    page = show(state="filter=wrong&lang=en")
    wait_for_rows(page, [1, 4])
    page.wait_for_selector("#answer")
    page.locator("#table-box").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "answer"
    page.locator("#table-box").focus()
    page.keyboard.press("Escape")
    wait_for_rows(page, [0, 1, 2, 3, 4, 5])


def test_one_prompt_across_training_steps(show: Visit) -> None:
    """With «only this prompt» the slider stands only on the steps that recorded it."""
    others = [s for s in lesson(20) if s.prompt != lesson(20)[0].prompt]
    steps = {10: lesson(10), 20: step_of(others, 20), 30: lesson(30), 40: lesson(40)}
    page = show(steps, "step=40&sample=0&token=3")
    wait_for_rows(page, [0, 1, 2, 3, 4, 5])
    page.locator('[data-filter="prompt"]').click()
    wait_for_rows(page, [0, 1, 2, 3])
    until(page, "document.getElementById('step').max === '2'")
    page.locator("#earlier").click()
    until(page, "location.hash.includes('step=30')")
    page.locator("#earlier").click()
    until(page, "location.hash.includes('step=10')")
    wait_for_rows(page, [0, 1, 2, 3])
    page.locator('[data-filter="prompt"]').click()
    wait_for_rows(page, [0, 1, 2, 3, 4, 5])


def test_the_chosen_answer_follows_its_prompt_to_another_step(show: Visit, tmp_path: Path) -> None:
    """The prompt stands at another place of each step, and its answer is shorter there."""
    here, there = lesson(30), lesson(40)
    moved = step_of([here[2], here[5], here[1]], 30)  # its only answer is 1
    run = fake_run(tmp_path / "run", {20: step_of(lesson(20)[:3], 20), 30: moved, 40: there})
    page = show(run, "step=40&sample=4&token=7&lang=en")
    asked: list[str] = []
    page.on("response", lambda answer: asked.append(f"{answer.status} {answer.url}"))
    page.locator('[data-filter="prompt"]').click()
    wait_for_rows(page, [4, 5])
    page.locator("#earlier").click()
    wait_for_rows(page, [1])
    until(page, "document.querySelector('#reader .bar').textContent.includes('step 30, answer 1')")
    assert "2+3=5" in page.locator("#prompt").text_content()
    assert page.locator("tr.chosen").get_attribute("data-row") == "1"
    assert "recorded step 1 of 2 with this prompt" in " ".join(
        page.locator("#steps .of").text_content().split()
    )
    page.locator("#later").click()
    until(page, "document.querySelector('#reader .bar').textContent.includes('step 40, answer 4')")
    page.locator("#earlier").click()
    until(page, "document.querySelector('#reader .bar').textContent.includes('step 30, answer 1')")
    page.locator('[data-filter="prompt"]').click()
    wait_for_rows(page, [0, 1, 2])
    assert page.locator("tr.chosen").get_attribute("data-row") == "1"  # the answer that was read
    page.locator("#traces .ok").first.wait_for()
    assert [line for line in asked if not line.startswith(("200", "304"))] == []


def test_no_panel_covers_another_while_the_page_scrolls(show: Visit) -> None:
    rows = answers(count=20, tokens=200)
    page = show({1: rows}, "lang=en")
    page.locator("#traces .ok").first.wait_for()
    overlaps = """() => {
      const boxes = [...document.querySelectorAll("main .panel")].map((node) => {
        const { left, right, top, bottom } = node.getBoundingClientRect();
        return { id: node.id, left, right, top, bottom };
      });
      const meet = (a, b) =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
      return boxes.flatMap((a, k) =>
        boxes.slice(k + 1).filter((b) => meet(a, b)).map((b) => `${a.id} ${b.id}`),
      );
    }"""
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height > 1800
    for top in range(0, height, 300):
        page.evaluate(f"window.scrollTo(0, {top})")
        assert page.evaluate(overlaps) == [], top


def test_the_question_has_room(serve_run: Serve, open_page: Open, tmp_path: Path) -> None:
    parts = {"gsm8k": 0.0, "lenient": 0.5, "form": 1.0}
    rows = [replace(each, parts=parts) for each in answers(count=4)]
    url = serve_run(fake_run(tmp_path / "run", {1: rows}))
    for width, least in ((1280, 200), (390, 130)):
        page = open_page(f"{url}#view=samples&lang=en", width=width)
        cell = page.locator('tr[data-row="0"] [data-column="user"]')
        assert cell.evaluate("node => node.clientWidth") >= least, width
        box = page.locator("#table-box").evaluate("node => [node.scrollWidth, node.clientWidth]")
        assert box[0] == box[1]


def test_another_step_keeps_the_sample_and_the_token(show: Visit) -> None:
    page = show(state="step=40&sample=4&token=5")
    page.locator('.tok.pinned[data-token="5"]').wait_for()
    page.locator("#earlier").click()
    until(page, "location.hash.includes('step=30')")
    assert "sample=4&token=5" in page.url
    page.locator('.tok.pinned[data-token="5"]').wait_for()
    assert page.locator("tr.chosen").get_attribute("data-row") == "4"


def test_without_a_choice_the_page_opens_on_a_wrong_answer(show: Visit) -> None:
    page = show(state="lang=en")
    page.locator("#facts .verdict.wrong").wait_for()
    assert page.locator("tr.chosen.wrong").count() == 1


def test_a_phone_has_one_column_of_its_own_width(show: Visit) -> None:
    rows = answers(count=8, tokens=300)
    page = show({1: rows}, width=390, height=844)
    page.locator("#traces .ok").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wide = page.evaluate(
        "[...document.querySelectorAll('.panel')].filter((node) => "
        "node.getBoundingClientRect().right > 390).map((node) => node.id)"
    )
    assert wide == []


def test_a_report_searches_what_it_holds(open_page: Open, tmp_path: Path) -> None:
    words = ["z"] * 200
    far = sample([*words, " needle", EOS], [0.1] * 202, [0.0] * 202, score=0.0, prompt="far")
    rows = step_of([far, sample(["a", EOS], [0.1, 0.1], [0.0, 0.0], score=1.0)], 1)
    report = write_report(fake_run(tmp_path / "run", {1: rows}), tmp_path / "r.html")
    page = open_page(f"{report.as_uri()}#view=samples&lang=en")
    wait_for_rows(page, [0, 1])
    page.locator("#search").fill("NEEDLE")
    wait_for_rows(page, [0])


def test_a_long_run_paints_walks_and_follows(
    serve_run: Serve, open_page: Open, tmp_path: Path, record_property: Any
) -> None:
    """Times are printed, not asserted: the suite shares its cores."""
    large = answers(count=256, tokens=60)
    small = answers(count=2, tokens=2)
    run = fake_run(tmp_path / "run", {**dict.fromkeys(range(1, 2_000), small), 2_000: large})
    url = serve_run(run)
    began = time.perf_counter()
    page = open_page(f"{url}#view=samples&step=2000&sample=0")
    page.locator("#picture svg").wait_for()
    first = time.perf_counter() - began
    page.locator("#table-box").focus()
    began = time.perf_counter()
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelector('#about')?.textContent.startsWith('#1 ')")
    page.locator(".terms:not(.old) .ok").first.wait_for()
    following = time.perf_counter() - began
    record_property("first_paint_ms", round(first * 1000))
    record_property("next_sample_ms", round(following * 1000))
    print(f"first paint {first * 1000:.0f} ms, next sample {following * 1000:.0f} ms")
    page.locator("#follow").check()
    write_step(tmp_path / "apart", 2_001, large)
    path_of(tmp_path / "apart", 2_001).rename(path_of(run, 2_001))  # it appears whole
    until(page, "document.querySelector('#step-now').textContent === '2001'")
    assert page.locator("tr.chosen").get_attribute("data-row") == "1"
