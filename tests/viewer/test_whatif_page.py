"""The what-if on the page: its numbers, its controls, and what it says about them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from telescope.ledger.reader import path_of
from telescope.viewer.report import write_report
from telescope.viewer.whatif import WhatIf, recompute
from tests.viewer.conftest import Open, Serve, Visit, until
from tests.viewer.fake import fake_run, lesson
from tests.viewer.real_step import credited, flat, real_batch, step_of, table_of

IMPORTS_MODULES = True
SETTLED = """async () => {
  const { isPending } = await import("/whatif/whatif.js");
  const { columns, step } = await import("/core/data.js");
  return step.value !== null && columns.value !== null && !isPending.value;
}"""
NUMBERS = """async (count) => {
  const { viewOf } = await import("/whatif/whatif.js");
  const { columns, stepShown } = await import("/core/data.js");
  const { offsets } = columns.value;
  const out = {};
  for (let position = 0; position < count; position++) {
    const mask = Array(offsets[position + 1] - offsets[position]).fill(1);
    const sample = { step: stepShown.value, position, mask, columns: {}, weights: [] };
    for (const [name, column] of Object.entries(viewOf(sample).columns)) {
      out[name] = [...(out[name] ?? []), ...column];
    }
  }
  return out;
}"""
CHOOSE = """async (changes) => {
  const { go } = await import("/core/state.js");
  go({ est: null, gamma: null, lam: null, own: null, whiten: null, loss: null, ...changes });
}"""


def real_run(folder: Path, **settings: Any) -> Path:
    """A run whose one step went through the real tensor code."""
    path = path_of(folder, 0)
    path.parent.mkdir(parents=True)
    parquet.write_table(table_of(credited(real_batch(), **settings), **settings), path)
    return folder


def settled(page: Any) -> None:
    for _ in range(1_000):
        if page.evaluate(SETTLED):
            return
        page.wait_for_timeout(20)
    raise AssertionError("the what-if did not settle")


def numbers(page: Any, count: int = 8) -> dict[str, list[float]]:
    settled(page)
    found: dict[str, list[float]] = page.evaluate(NUMBERS, count)
    return found


def slide(page: Any, which: str, value: str) -> None:
    page.locator(which).evaluate(
        "(node, value) => { node.value = value;"
        " node.dispatchEvent(new Event('input', {bubbles: true}));"
        " node.dispatchEvent(new Event('change', {bubbles: true})); }",
        value,
    )


def column(page: Any, name: str) -> list[float]:
    """A column of the token table."""
    texts = page.locator(f"td[data-column={name}]").all_text_contents()
    return [float(text.replace("−", "-")) for text in texts if text != "–"]


# ---- the same numbers as Python ----


@pytest.mark.parametrize(
    "recorded",
    [
        {"lam": 0.95},
        {"lam": 0.6, "gamma": 0.97, "whiten": False},
        {"lam_alpha": 0.4, "lam_critic": 0.9},
    ],
    ids=str,
)
def test_the_page_computes_what_python_computes(
    recorded: dict[str, Any], open_page: Open, serve_run: Serve, tmp_path: Path
) -> None:
    page = open_page(serve_run(real_run(tmp_path / "run", **recorded)) + "#view=samples")
    step = step_of(real_batch(), **recorded)
    settled(page)
    tried: list[tuple[dict[str, Any], WhatIf]] = [
        ({"gamma": gamma, "lam": lam}, WhatIf.of_names(gamma=gamma, lam=lam))
        for gamma, lam in itertools.product((0.0, 0.5, 0.9, 0.99, 1.0), (0.0, 0.3, 0.95, 1.0))
    ]
    tried += [
        ({"own": "lam_alpha:0.7"}, WhatIf.of_names(lam_alpha=0.7)),
        ({"own": "lam_critic:0.2"}, WhatIf.of_names(lam_critic=0.2)),
        ({"est": "td0", "gamma": 0.9}, WhatIf.of_names("td0", gamma=0.9)),
        ({"est": "monte_carlo"}, WhatIf("monte_carlo")),
        ({"lam": 0.4, "whiten": "0"}, WhatIf.of_names(lam=0.4, whiten=False)),
        ({"lam": 0.4, "whiten": "1"}, WhatIf.of_names(lam=0.4, whiten=True)),
    ]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for changes, whatif in tried:
        page.evaluate(CHOOSE, changes)
        found = numbers(page)
        expected = recompute(step, whatif).columns
        if not found:  # as recorded
            assert whatif.of(step.settings).credit == step.settings.credit
            continue
        for name in ("deltas", "advantages", "returns", "whitened"):
            assert found[name] == pytest.approx(expected[name].tolist(), abs=1e-6), (changes, name)
    assert not [url for url in asked if "/whatif?" in url]


@pytest.mark.parametrize(
    "tried",
    [
        {"estimator": "grpo"},
        {"estimator": "rloo"},
        {"estimator": "reinforce++", "gamma": 0.9},
        {"estimator": "n_step", "n": 2},
        {"estimator": "last_token", "last_k": 3},
    ],
    ids=lambda tried: tried["estimator"],
)
def test_any_other_estimator_is_a_real_update(
    tried: dict[str, Any], visit: Visit, tmp_path: Path
) -> None:
    page = visit("view=samples", real_run(tmp_path / "run", lam=0.95))
    settled(page)
    page.locator("#estimator").select_option(tried["estimator"])
    for name, value in tried.items():
        if name == "gamma":
            slide(page, "#gamma", str(value))
        elif name != "estimator":
            page.locator(f"#own-{name}").fill(str(value))
            page.locator(f"#own-{name}").press("Tab")
    page.wait_for_timeout(200)
    found = numbers(page)
    real = credited(real_batch(), **tried)
    for name in ("advantages", "returns", "whitened"):
        assert found[name] == pytest.approx(flat(real, name), abs=1e-6), name


# ---- the controls ----


def test_lambda_zero_makes_advantages_deltas_and_one_makes_them_return_minus_value(
    open_page: Open, serve_run: Serve, tmp_path: Path
) -> None:
    url = serve_run(fake_run(tmp_path / "run"))
    page = open_page(url + "#view=samples&step=40&sample=0&token=3")
    settled(page)
    page.locator("#as-table").click()
    recorded = column(page, "advantages")
    assert recorded == pytest.approx(lesson()[0].columns["advantages"], abs=5.1e-4)
    assert page.locator("#reset").is_disabled()
    slide(page, "#lam", "0")
    assert (
        column(page, "advantages")
        == column(page, "deltas")
        == pytest.approx([0.135, 0.01, 0.041, 0.102, 0.161, 0.05, 0.07], abs=5.1e-4)
    )
    slide(page, "#lam", "1")
    rewards, values = (lesson()[0].columns[name] for name in ("token_level_rewards", "values"))
    expected = [sum(rewards[t:]) - values[t] for t in range(7)]
    assert column(page, "advantages") == pytest.approx(expected, abs=5.1e-4)
    page.locator("#reset").click()
    assert column(page, "advantages") == recorded
    assert "lam=" not in page.url


def test_a_drag_is_one_step_of_the_back_button(
    open_page: Open, serve_run: Serve, tmp_path: Path
) -> None:
    page = open_page(serve_run(fake_run(tmp_path / "run")) + "#view=samples&step=40&sample=0")
    settled(page)
    page.locator("#lam").evaluate(
        "(node) => { for (const value of [0.9, 0.7, 0.5]) {"
        " node.value = value; node.dispatchEvent(new Event('input', {bubbles: true})); }"
        " node.dispatchEvent(new Event('change', {bubbles: true})); }"
    )
    assert page.locator("#lam-now").text_content() == "0.500"
    assert "lam=0.5" in page.url
    page.go_back()
    until(page, "document.querySelector('#lam-now').textContent === '0.950'")
    assert page.locator("#reset").is_disabled()


def test_recorded_numbers_stay_beside_the_new_ones_and_no_tick_stands_at_a_different_number(
    visit: Visit,
) -> None:
    page = visit("view=samples&step=40&sample=0&token=3&lam=0.5&lang=en")
    settled(page)
    page.locator("#if tr[data-column=advantages]").wait_for()
    was, now = page.locator("#if tr[data-column=advantages] td").all_text_contents()
    recorded = lesson()[0].columns["advantages"][3]
    assert float(was) == pytest.approx(recorded, abs=1e-5)
    assert float(now) != pytest.approx(recorded, abs=1e-3)
    assert "✓" not in page.locator("#if").text_content()
    until(page, "document.querySelector('#traces h3') !== null")
    assert page.locator("#traces h3").text_content() == "The recorded arithmetic"


def test_the_new_numbers_come_with_their_arithmetic(visit: Visit) -> None:
    page = visit("view=samples&step=40&sample=0&token=3&lam=1&lang=en")
    settled(page)
    rewards, values = (lesson()[0].columns[name] for name in ("token_level_rewards", "values"))
    expected = f"{sum(rewards[3:]) - values[3]:.5f}"
    results = "[...document.querySelectorAll('#if .terms b')].map((each) => each.textContent)"
    # written out, in one step, and as what λ = 1 comes to: rewards less V
    until(page, f"{results}.filter((x) => x === '{expected}').length === 3")


def test_tool_tokens_take_no_time_step(visit: Visit) -> None:
    page = visit("view=samples&step=40&sample=3&token=0&gamma=0.9&lam=0.5")
    settled(page)
    page.locator("#as-table").click()
    rewards, values = (lesson()[3].columns[name] for name in ("token_level_rewards", "values"))
    kept = (0, 1, 2, 5, 6)
    after = 0.0
    expected: list[float] = []
    for t, n in reversed(list(zip(kept, [*kept[1:], None], strict=True))):
        later = 0.0 if n is None else values[n]
        after = rewards[t] + 0.9 * later - values[t] + 0.9 * 0.5 * after
        expected.insert(0, after)
    assert column(page, "advantages") == pytest.approx(expected, abs=5.1e-4)


def test_lambda_by_length_is_the_one_that_is_shown(visit: Visit, tmp_path: Path) -> None:
    run = real_run(tmp_path / "run", lam=0.95, lam_alpha=0.5, lam_critic=1.0)
    page = visit("view=samples&step=0&sample=0&token=0&lang=en", run)
    settled(page)
    assert "λ 0.71" in page.locator("#about").text_content()  # 1 − 1/(0.5·7), not 0.95
    assert page.locator("#lam-now").text_content() == "0.714"
    assert "α = 0.500" in page.locator("#lam-by-length").text_content()
    slide(page, "#lam", "0.9")
    assert "λ 0.90" in page.locator("#about").text_content()
    assert page.locator("#lam-by-length").count() == 0
    said = page.locator("#whatif-said").text_content()
    assert "The critic's targets have a λ of their own: 1.000." in said


def test_lambda_is_named_only_where_it_is_used(visit: Visit) -> None:
    page = visit("view=samples&step=40&sample=0&token=3&lang=en")
    settled(page)
    assert "λ 0.95" in page.locator("#about").text_content()
    page.locator("#estimator").select_option("td0")
    assert "estimator td0" in page.locator("#about").text_content()
    assert "λ" not in page.locator("#about").text_content()
    assert page.locator("#lam").count() == 0
    page.locator("#estimator").select_option("uniform")
    assert page.locator("#gamma").count() == 0  # it does not discount


def test_the_sentence_says_what_is_whitened(visit: Visit, tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    (run / "config.toml").write_text("[rollout]\nbatch_size = 256\nn = 2\n", "utf-8")
    page = visit("view=samples&step=40&sample=0&lang=en", run)
    settled(page)
    said = page.locator("#whatif-said")
    assert "as recorded" in said.text_content()
    slide(page, "#lam", "0.9")
    assert "all 6 recorded samples of 512 are computed anew" in said.text_content()
    assert "scaled so that the recorded setting gives the recorded Â" in said.text_content()
    page.locator("#whiten").uncheck()
    assert "Nothing is whitened: Â = A." in said.text_content()
    page.get_by_role("button", name="中文").click()
    assert "整批 512 条中记录的全部 6 条回答都重新计算" in said.text_content()
    page.get_by_role("button", name="12").first.click()
    text = page.locator("#whatif").text_content()
    assert not set("γλμσÂδρ") & set(text)


def test_whitened_advantages_do_not_jump_at_the_recorded_setting(
    visit: Visit, tmp_path: Path
) -> None:
    """With a part of the batch recorded, −0.817 at 0.95 once became −0.596 at 0.955."""
    table = table_of(credited(real_batch(), lam=0.95), rows=3, lam=0.95)
    path = path_of(tmp_path / "run", 0)
    path.parent.mkdir(parents=True)
    parquet.write_table(table, path)
    page = visit("view=samples&step=0&sample=0", tmp_path / "run")
    recorded = table.column("whitened")[0].as_py()
    settled(page)
    slide(page, "#lam", "0.955")
    found = numbers(page, count=1)["whitened"]
    assert found != recorded
    assert found == pytest.approx(recorded, abs=0.05)


def test_what_cannot_be_tried_says_why_in_both_languages(visit: Visit) -> None:
    alone = [replace(one, prompt=str(i)) for i, one in enumerate(lesson())]
    page = visit("view=samples&lang=en", {40: alone})
    settled(page)
    refused = page.locator("#estimator").evaluate(
        "(list) => [...list.options].filter((each) => each.disabled).map((each) => each.value)"
    )
    assert "grpo" in refused
    assert "td0" not in refused
    page.locator("#whatif-reasons summary").click()
    reason = page.locator("#whatif-reasons li[data-offer=grpo]")
    assert "there is no group to compare with" in reason.text_content()
    page.get_by_role("button", name="中文").click()
    assert "没有同组的回答可比" in reason.text_content()


def test_another_loss_clips_other_tokens(visit: Visit) -> None:
    page = visit("view=samples&step=40&sample=0&lang=en")
    settled(page)
    until(page, "document.querySelectorAll('#answer .tok.clipped').length === 1")
    page.locator("#loss").select_option("cpi")  # which clips nothing
    page.wait_for_timeout(200)
    settled(page)
    until(page, "document.querySelectorAll('#answer .tok.clipped').length === 0")
    shares = page.locator("#clip-shares").text_content()
    assert shares.strip().endswith("→ 0.0 %")


def test_a_choice_survives_reload_and_a_failure_is_said(visit: Visit) -> None:
    page = visit("view=samples&step=40&lang=en")
    settled(page)
    page.route("**/whatif?*", lambda route: route.fulfill(status=500, body="{}"))
    page.locator("#estimator").select_option("grpo")
    page.locator("#whatif .trouble").wait_for()
    page.trouble.clear()
    page.unroute("**/whatif?*")
    page.locator("#whatif .trouble button").click()
    said = "compared with the recorded answers to the same prompt"
    until(page, f"document.querySelector('#whatif-said')?.textContent.includes('{said}')")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    settled(page)
    assert page.locator("#estimator").input_value() == "grpo"


def test_python_is_asked_once_where_a_slider_comes_to_rest(
    open_page: Open, serve_run: Serve, tmp_path: Path
) -> None:
    page = open_page(
        serve_run(fake_run(tmp_path / "run")) + "#view=samples&step=40&est=reinforce%2B%2B"
    )
    settled(page)
    page.locator("#gamma").wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#gamma").evaluate(
        "(node) => { for (const value of [0.9, 0.7, 0.5]) {"
        " node.value = value; node.dispatchEvent(new Event('input', {bubbles: true})); } }"
    )
    page.wait_for_timeout(400)
    settled(page)
    found = [url for url in asked if "/whatif?" in url]
    assert len(found) == 1
    assert "gamma=0.5" in found[0]


def test_a_report_recomputes_what_it_can_and_offers_nothing_else(
    open_page: Open, tmp_path: Path
) -> None:
    run = fake_run(tmp_path / "run")
    address = write_report(run, tmp_path / "r.html").as_uri()
    page = open_page(address + "#view=samples&step=40&sample=0&token=3&lang=en")
    page.locator("#lam").wait_for()
    page.locator("#as-table").click()
    slide(page, "#lam", "0")
    assert column(page, "advantages") == column(page, "deltas")
    said = page.locator("#whatif-said").text_content()
    assert "the 6 samples of the step in this file are computed anew" in said
    offered = page.locator("#estimator").evaluate(
        "(list) => [...list.options].map((each) => each.value)"
    )
    assert offered == ["gae", "monte_carlo", "td0"]
    assert page.locator("#loss").count() == 0
    until(page, "document.querySelector('#if')?.textContent.includes('telescope view')")


def test_dragging_lambda_over_many_samples_prints_its_speed(
    visit: Visit, tmp_path: Path, record_property: Any
) -> None:
    """Measured, not asserted: the suite shares its cores."""
    from tests.viewer.fake import EOS, sample
    from tests.viewer.fake import step_of as whitened_together

    rows = [
        sample(["好"] * 299 + [EOS], [0.5] * 300, [0.01] * 300, score=float(i % 2), prompt=str(i))
        for i in range(64)
    ]
    run = fake_run(tmp_path / "run", {1: whitened_together(rows, 1)})
    page = visit("view=samples&step=1&sample=0", run)
    settled(page)
    page.wait_for_selector("#lam")
    frames = page.evaluate(
        """async () => {
          const slider = document.querySelector("#lam");
          const frame = () => new Promise((done) => requestAnimationFrame(done));
          const busy = [];
          const start = performance.now();
          for (let k = 0; k < 60; k++) {
            const began = performance.now();
            slider.value = String(0.5 + k / 150);
            slider.dispatchEvent(new Event("input", { bubbles: true }));
            await Promise.resolve();
            busy.push(performance.now() - began);
            await frame();
          }
          const seconds = (performance.now() - start) / 1000;
          return { fps: 60 / seconds, busy: busy.reduce((a, b) => a + b) / 60 };
        }"""
    )
    record_property("lambda_drag", json.dumps(frames))
    print(f"64 x 300: {frames['fps']:.0f} frames per second")
    assert frames["fps"] > 0
