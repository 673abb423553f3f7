"""Compare: one prompt through training, two runs or settings, distributions, the critic."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from telescope.explain.sample import Sample
from telescope.ledger import reader as ledger
from telescope.ledger.reader import path_of
from telescope.viewer.report import write_report
from tests.viewer.conftest import Open, Serve, Visit, until
from tests.viewer.fake import EOS, fake_run, lesson, sample, step_of
from tests.viewer.real_step import credited, real_batch, table_of

QUESTION = "请问1+1=2？"


def growing(folder: Path) -> Path:
    """Steps 10, 20 and 30 of one prompt: wrong with V₀ 0.2, then right with 0.5 and 0.8."""
    steps: dict[int, list[Sample]] = {}
    for step, word, v0, score in ((10, "3", 0.2, 0.0), (20, "2", 0.5, 1.0), (30, "2", 0.8, 1.0)):
        values = [v0, v0, v0]
        one = sample(["等于", word, EOS], values, [0.0, 0.1, 0.0], score=score, prompt=QUESTION)
        other = sample(["对", EOS], [0.5, 0.6], [0.0, 0.0], score=1.0, prompt=f"别的题 {step}")
        steps[step] = step_of([other, one], step)
    return fake_run(folder, steps)


def numbers(texts: list[str]) -> list[float]:
    return [float(text.replace("−", "-").replace("+", "")) for text in texts]


# ---- one prompt ----


def test_one_prompt_is_stacked_step_by_step_with_score_and_first_value(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit("view=compare&step=20&sample=1&lang=en", growing(tmp_path / "run"))
    until(page, "document.querySelectorAll('.stack .coloured').length === 3")
    rows = page.locator(".stack > li")
    assert rows.evaluate_all("all => all.map((row) => row.dataset.step)") == ["10", "20", "30"]
    assert numbers(page.locator(".stack .score").all_text_contents()) == [0.0, 1.0, 1.0]
    assert numbers(page.locator(".stack .v0").all_text_contents()) == [0.2, 0.5, 0.8]
    assert [
        "".join(row.split()) for row in page.locator(".stack .coloured").all_text_contents()
    ] == ["等于3<eos>", "等于2<eos>", "等于2<eos>"]
    assert "3 of 3 recorded answers" in page.locator("#prompt-count").text_content()
    assert QUESTION in page.locator("#prompt").text_content()


def test_the_same_number_has_the_same_colour_at_every_step(visit: Visit, tmp_path: Path) -> None:
    page = visit("view=compare&step=20&sample=1&colour=values", growing(tmp_path / "run"))
    until(page, "document.querySelectorAll('.stack .coloured').length === 3")
    colours = page.locator(".stack .coloured [data-token='0']").evaluate_all(
        "all => all.map((token) => getComputedStyle(token).backgroundColor)"
    )
    assert len(set(colours)) == 3  # 0.2, 0.5 and 0.8: rescaled, each would be the full colour
    row = page.locator(".stack > li").first.locator("[data-token]")
    own = row.evaluate_all("all => all.map((token) => token.style.backgroundColor)")
    assert len(set(own)) == 1  # 0.2 three times


def test_a_prompt_is_chosen_from_the_list_and_a_token_opens(
    open_page: Open, serve_run: Serve, tmp_path: Path
) -> None:
    page = open_page(serve_run(growing(tmp_path / "run")) + "#view=compare&step=20&sample=1")
    until(page, "document.querySelectorAll('.stack .coloured').length === 3")
    page.locator("#prompt-choice").select_option(label="别的题 20")
    until(page, "document.querySelectorAll('.stack > li').length === 1")
    assert re.search(r"prompt=[0-9a-f]{12}", page.url)
    page.go_back()
    until(page, "document.querySelectorAll('.stack .coloured').length === 3")
    page.locator(".stack > li[data-step='30'] [data-token='1']").click()
    for part in ("view=samples", "step=30", "sample=1", "token=1"):
        assert part in page.url


def test_prompts_that_come_back_are_offered_first_with_their_count(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit("view=compare&step=20&lang=en", growing(tmp_path / "run"))
    until(page, "document.querySelector('#prompt-choice optgroup option') !== null")
    until(page, "document.querySelectorAll('#prompt-choice optgroup').length === 2")
    groups = page.locator("#prompt-choice optgroup").evaluate_all(
        "all => all.map((part) => [...part.children].map((one) => one.textContent.trim()))"
    )
    assert groups == [[f"3 steps · {QUESTION}"], ["别的题 20"]]  # it stands second in the step


def test_evaluated_answers_to_a_fixed_prompt_are_stacked_in_their_own_colours(
    open_page: Open, serve_run: Serve, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for step in (0, 10, 20):
        held_out = sample(["a", "b", EOS], [0.1, 0.2, 0.3], [0.0] * 3, score=0.0, prompt="held out")
        fake_run(run, {step: step_of([held_out], step)})
        table = ledger.read(run, step).drop_columns(["whitened"])
        parquet.write_table(table, path_of(run, step, "eval"))
        path_of(run, step).unlink()
    once = sample(["c", EOS], [0.5, 0.5], [0.0] * 2, score=1.0, prompt="only once")
    fake_run(run, {20: step_of([once], 20)})
    write_report(run, tmp_path / "report.html")
    for url in (serve_run(run), (tmp_path / "report.html").as_uri()):
        page = open_page(f"{url}#view=compare&step=20&lang=en")
        until(page, "document.querySelectorAll('.stack .coloured').length === 3")
        heads = page.locator(".stack .stack-head b[title]").all_text_contents()
        assert heads == [f"greedy, after step {step}" for step in (0, 10, 20)]
        pressed = page.locator("#colour [aria-pressed='true']").get_attribute("data-value")
        assert pressed == "advantages"  # Â is over a training batch
        token = page.locator(".stack [data-token='1']").first
        assert token.evaluate("node => node.style.backgroundColor") != ""
        choices = page.locator("#prompt-choice option").all_text_contents()
        assert [choice.strip() for choice in choices] == ["3 steps · held out", "only once"]


# ---- two runs, two settings ----


def pair_of_runs(folder: Path) -> Path:
    growing(folder / "first")
    answer = sample(["等于", "4", "！", EOS], [0.1] * 4, [0.0] * 4, score=0.5, prompt=QUESTION)
    fake_run(folder / "second", {20: step_of([answer], 20)})
    return folder


def test_two_runs_stand_side_by_side_and_the_first_difference_is_marked(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit(
        "view=compare&compare=runs&run=first&other=second&step=20&sample=1&lang=en",
        pair_of_runs(tmp_path / "runs"),
    )
    until(page, "document.querySelectorAll('.side .coloured').length === 2")
    assert numbers(page.locator(".side .score").all_text_contents()) == [1.0, 0.5]
    marked = page.locator(".side .differs")
    assert [text.strip() for text in marked.all_text_contents()] == ["2", "4"]
    said = page.locator("#difference").text_content()
    assert "The first difference is at token i = 1." in said
    assert "less that of the first: −0.50" in said
    assert "is compared with step" not in said  # both are of step 20
    assert page.locator(".side .tok.eos").count() == 2  # the end mark looks as in the reader
    page.locator("#prompt-choice").select_option(label="别的题 20")
    page.get_by_text("This run recorded no answer to this prompt.").wait_for()
    page.go_back()
    page.locator("#kid").click()
    until(page, "document.querySelector('#difference').textContent.includes('−50')")  # points


def test_two_runs_at_different_steps_are_said_to_be(visit: Visit, tmp_path: Path) -> None:
    page = visit(
        "view=compare&compare=runs&run=first&other=second&step=10&sample=1&lang=en",
        pair_of_runs(tmp_path / "runs"),
    )
    until(page, "document.querySelectorAll('.side .coloured').length === 2")
    assert "Step 10 is compared with step 20" in page.locator("#difference").text_content()


def test_two_settings_stand_side_by_side_on_the_same_answer(visit: Visit) -> None:
    page = visit("view=compare&compare=runs&step=40&sample=0&colour=advantages&lang=en")
    until(page, "document.querySelectorAll('.side .coloured').length === 2")
    assert "Both are as recorded" in page.locator("#difference").text_content()
    assert page.locator(".side .differs").count() == 0
    page.locator("#estimator").select_option("td0")
    until(page, "document.querySelectorAll('.side .differs').length === 2")
    assert "i = 0" in page.locator("#difference").text_content()
    colours = [
        page.locator(f".side[data-run={side}] [data-token='0']").evaluate(
            "token => token.style.backgroundColor"
        )
        for side in ("recorded", "now")
    ]
    assert colours[0] != colours[1]


# ---- distributions ----


@pytest.fixture
def real_page(open_page: Open, serve_run: Serve, tmp_path: Path) -> Callable[[str], Any]:
    path = path_of(tmp_path / "run", 0)
    path.parent.mkdir(parents=True)
    parquet.write_table(table_of(credited(real_batch(), lam=0.95), lam=0.95), path)
    url = serve_run(tmp_path / "run")
    return lambda state: open_page(f"{url}#view=compare&step=0&lang=en&{state}")


def test_a_histogram_counts_every_written_token_once(real_page: Callable[[str], Any]) -> None:
    page = real_page("compare=distributions&column=whitened")
    page.locator("#distribution .bin").first.wait_for()
    counts = page.locator("#distribution .bin").evaluate_all(
        "all => all.map((bin) => Number(bin.dataset.count))"
    )
    batch = credited(real_batch(), lam=0.95)
    written = batch["whitened"][batch.mask.bool()].numpy()
    assert sum(counts) == len(written)
    expected, _ = np.histogram(written, 48)
    assert counts == expected.tolist()
    said = page.locator("#distribution-said").text_content()
    assert said.startswith(f"{len(written)} written tokens: Â from ")


def test_a_bin_lists_its_tokens_and_a_token_opens(real_page: Callable[[str], Any]) -> None:
    only_another = "filter=prompt&prompt=0123456789ab"  # left over from the list of answers
    page = real_page(f"compare=distributions&column=advantages&{only_another}")
    batch = credited(real_batch(), lam=0.95)
    largest = (batch["advantages"] * batch.mask).argmax()
    row, token = divmod(int(largest), batch.mask.shape[1])
    last = page.locator("#distribution .bin[data-bin='47']")
    last.focus()
    page.keyboard.press("Enter")
    link = page.locator(f"#bin-tokens a[data-sample='{row}'][data-token='{token}']")
    link.wait_for()
    assert f"{float(batch['advantages'][row, token]):.3f}" in link.text_content()
    assert "bin=47" in page.url
    link.click()
    for part in ("view=samples", f"sample={row}", f"token={token}"):
        assert part in page.url
    assert "prompt" not in page.url  # that sample is shown, whatever its prompt is
    page.go_back()
    page.locator("#bin-tokens").wait_for()


def test_the_ratio_has_its_clip_limits(visit: Visit) -> None:
    page = visit("view=compare&compare=distributions&column=ratio&lang=en", {40: lesson()})
    page.locator(".limit").first.wait_for(state="attached")
    assert page.locator(".plot .strong").all_text_contents() == ["0.80", "1.20"]
    outside = sum(
        not 0.8 <= ratio <= 1.2
        for one in lesson()
        for ratio, m in zip(one.actor_updates[-1].ratio, one.mask, strict=True)
        if m
    )
    every = sum(sum(one.mask) for one in lesson())
    share = f"{100 * outside / every:.1f} %"
    said = page.locator("#distribution-said").text_content()
    assert f"Outside 0.80 to 1.20 the ratio may be clipped: {share}" in said


def test_values_and_returns_make_a_grid_whose_cells_list_tokens(
    real_page: Callable[[str], Any],
) -> None:
    page = real_page("compare=distributions")
    page.locator(".cell").first.wait_for()
    counts = page.locator(".cell").evaluate_all("all => all.map((c) => Number(c.dataset.count))")
    assert sum(counts) == int(real_batch().mask.sum())
    cell = page.locator(".cell").first
    count = cell.get_attribute("data-count")
    cell.dispatch_event("click")
    page.locator("#values-returns #bin-tokens").wait_for()
    assert page.locator("#values-returns #bin-tokens li").count() == int(count)


# ---- the critic ----


def test_calibration_compares_values_with_observed_returns(visit: Visit) -> None:
    rows = [
        sample(["x", "y", EOS], [v] * 3, [0.0] * 3, score=score)
        for v, score in ((0.1, 0.0), (0.2, 0.0), (0.8, 1.0), (0.9, 1.0))
    ]
    page = visit("view=compare&compare=calibration&step=1&lang=en", {1: step_of(rows, 1)})
    page.locator(".point").first.wait_for()
    points = page.locator(".point circle").evaluate_all(
        "all => all.map((dot) => [Number(dot.dataset.x), Number(dot.dataset.y)])"
    )
    expected = [[0.1, 0.0], [0.2, 0.0], [0.8, 1.0], [0.9, 1.0]]
    assert [x for pair in points for x in pair] == pytest.approx(
        [x for pair in expected for x in pair], abs=1e-6
    )
    counts = page.locator(".point").evaluate_all("all => all.map((dot) => dot.dataset.count)")
    assert counts == ["3"] * 4
    assert page.locator(".diagonal").count() == 1
    # V − G is 0.1, 0.2, −0.2, −0.1: variance 0.025 against 0.25
    said = page.locator("#explained").text_content()
    assert "Explained variance 0.90: V explains 90 % of the variance" in said
    assert "neither too high nor too low" in said
    page.locator(".point").first.dispatch_event("click")
    assert page.locator("#bin-tokens li").count() == 3
    page.get_by_role("button", name="中文").click()
    assert "解释方差 0.90：V 解释了实际回报方差的 90 %" in page.locator("#explained").text_content()
    page.get_by_role("button", name="12").first.click()
    assert not set("γλμσÂδρ") & set(page.locator("#calibration").text_content())


def test_the_error_bars_of_the_calibration_count_answers_not_tokens(visit: Visit) -> None:
    # Ten answers, five right: each is one observation, however many tokens it has.
    rows = [sample(["x"] * 3 + [EOS], [0.7] * 4, [0.0] * 4, score=float(k < 5)) for k in range(10)]
    page = visit("view=compare&compare=calibration&step=1&lang=en", {1: step_of(rows, 1)})
    point = page.locator(".point")
    point.wait_for()
    # √(10/9 · Σ of 10 answers (4 · 0.5)²) / 40 = √(400/9) / 40 = 1/6; by tokens 0.0801
    assert float(page.locator(".point .error").get_attribute("data-error")) == pytest.approx(
        1 / 6, abs=1e-6
    )
    label = point.get_attribute("aria-label")
    assert label == "V 0.700, observed 0.500 (± 0.167): 40 tokens of 10 answers"
    rests = page.locator("#calibration-rests").text_content()
    assert "10 recorded answers: 40 of their 40 tokens." in rests
    assert "counted by answers" in rests
    said = page.locator("#explained").text_content()
    assert "On average V is 0.200 too high. One standard error, by answers, is 0.167" in said


def test_a_calibration_of_few_answers_has_no_error_bars(visit: Visit, tmp_path: Path) -> None:
    rows = [sample(["x", EOS], [0.7] * 2, [0.0] * 2, score=float(k < 5)) for k in range(9)]
    folder = fake_run(tmp_path / "run", {1: step_of(rows, 1)})
    (folder / "config.toml").write_text("[rollout]\nbatch_size = 128\nn = 4\n")
    page = visit("view=compare&compare=calibration&step=1&lang=en", folder)
    page.locator(".point").wait_for()
    assert page.locator(".point .error").count() == 0
    assert "too few answers for an error bar" in page.locator(".point").get_attribute("aria-label")
    rests = page.locator("#calibration-rests").text_content()
    assert "9 of 512 answers of this step: 18 of their 18 tokens." in rests
    assert "There are no error bars: too few answers." in rests
    page.get_by_role("button", name="中文").click()
    assert "这一步 512 条回答中的 9 条" in page.locator("#calibration-rests").text_content()


def test_without_a_critic_nothing_is_calibrated(visit: Visit, tmp_path: Path) -> None:
    page = visit("view=compare&compare=calibration&lang=en", grouped_run(tmp_path / "run"))
    page.locator("#no-critic").wait_for()
    assert "no critic" in page.locator("#no-critic").text_content()


# ---- the picture of a group ----


def grouped_run(folder: Path, estimator: str = "grpo") -> Path:
    """Eight answers in two groups, without a critic."""
    batch = real_batch()
    batch = batch.with_columns(values=batch["values"] * 0)
    table = table_of(credited(batch, estimator=estimator), estimator=estimator)
    path = path_of(folder, 0)
    path.parent.mkdir(parents=True)
    parquet.write_table(table, path)
    return folder


def outcomes() -> list[float]:
    batch = credited(real_batch(), estimator="grpo")
    found: list[float] = (batch["token_level_rewards"] * batch.mask).sum(1).tolist()
    return found


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_a_group_is_drawn_as_dots_and_no_fence_of_zeros(
    estimator: str, visit: Visit, tmp_path: Path
) -> None:
    page = visit(
        "view=samples&step=0&sample=0&token=0&lang=en", grouped_run(tmp_path / "run", estimator)
    )
    page.locator(".member").first.wait_for()
    assert page.locator("#picture").count() == 0  # the fence
    members = page.locator(".member").evaluate_all("all => all.map((dot) => dot.dataset.member)")
    assert sorted(members) == ["0", "1", "4", "7"]
    group = [outcomes()[k] for k in (0, 1, 4, 7)]
    mean = np.mean(group)
    baseline = mean if estimator == "grpo" else np.mean(group[1:])
    advantage = float(credited(real_batch(), estimator=estimator)["advantages"][0, 0])
    said = page.locator("#group-said").text_content()
    assert "4 answers to the same prompt" in said
    assert f"mean {mean:.3f}, σ {np.std(group, ddof=1):.3f}" in said
    sign = "+" if advantage > 0 else "−"
    assert f"= {sign}{abs(advantage):.3f}. Every token" in said
    assert f"{group[0]:.3f} − {baseline:.3f}" in said
    assert page.locator("#distance path").count() == 1


def test_a_click_on_a_dot_opens_that_answer(
    open_page: Open, serve_run: Serve, tmp_path: Path
) -> None:
    page = open_page(serve_run(grouped_run(tmp_path / "run")) + "#view=samples&step=0&sample=0")
    page.locator(".member[data-member='4']").click()
    assert "sample=4" in page.url
    until(page, "document.querySelector('.member.chosen')?.dataset.member === '4'")
    page.locator(".member[data-member='7']").focus()
    page.keyboard.press("Enter")
    assert "sample=7" in page.url


def test_a_child_reads_the_group_without_symbols(visit: Visit, tmp_path: Path) -> None:
    page = visit("view=samples&step=0&sample=0&kid=1&lang=en", grouped_run(tmp_path / "run"))
    page.locator("#group-said").wait_for()
    text = page.locator("#group-said").text_content()
    group = [outcomes()[k] for k in (0, 1, 4, 7)]
    how = "more" if group[0] > np.mean(group) else "less"
    points = f"{100 * np.mean(group):.1f}".removesuffix(".0")
    assert f"answered this question 4 times and got {points} points" in text
    assert f"{how} than average" in text
    outcome = f"{100 * group[0]:.1f}".removesuffix(".0")
    page.locator("#traces .math").first.wait_for()
    assert f"about {outcome} points" in page.locator("#traces").inner_text().replace("−", "-")
    assert not re.search(r"[γλμσδρÂ=]|\.\d\d", text)


def test_a_what_if_without_a_critic_draws_the_group_above_the_fence(visit: Visit) -> None:
    page = visit("view=samples&step=40&sample=0")
    page.locator("#estimator").wait_for()
    assert page.locator("#group-picture").count() == 0
    page.locator("#estimator").select_option("grpo")
    page.locator("#group-picture .member").first.wait_for()
    assert page.locator("#group-picture .member").count() == 4  # 请问1+1=2？ four times
    assert page.locator("#picture").count() == 1


# ---- everywhere ----


@pytest.mark.parametrize("part", ["prompt", "runs", "distributions", "calibration"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_one_column(part: str, scheme: str, visit: Visit) -> None:
    page = visit(
        f"view=compare&compare={part}&step=40&sample=0&est=td0",
        width=390,
        height=844,
        color_scheme=scheme,
    )
    page.locator("main .panel").first.wait_for()
    page.wait_for_timeout(400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_hostile_text_is_text_when_compared(visit: Visit) -> None:
    from tests.viewer.fake import hostile

    rows = [replace(one, prompt="p") for one in hostile()[:8]]
    page = visit("view=compare&step=1", {1: rows})
    until(page, "document.querySelectorAll('.stack .coloured').length === 8")
    assert page.evaluate("window.hacked") is None
    assert page.locator(".stack script, .stack img").count() == 0
    assert "<script>window.hacked=1</script>" in page.locator(".stack").text_content()
