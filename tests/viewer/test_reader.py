"""The reader in a browser: the question, the answer in colours, the minimap, hostile texts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.viewer.report import write_report
from tests.viewer.conftest import Open, Serve, Visit, until
from tests.viewer.fake import EOS, fake_run, hostile, lesson, sample, step_of

pytest.importorskip("uvicorn", reason="the live page needs uvicorn")


CHAT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 1+1?<|im_end|>\n"
    "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\nWhat is 2+3?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.fixture
def read(visit: Visit) -> Visit:
    """Opens the reader on samples of step 1, or on the lesson."""

    def open_reader(samples: list[Sample] | None = None, state: str = "", **options: Any) -> Any:
        steps = None if samples is None else {1: step_of(samples, 1)}
        page = visit(f"view=samples&{state}", steps, **options)
        page.locator("#answer").wait_for()
        return page

    return open_reader


def words(*tokens: str, **options: Any) -> Sample:
    n = len(tokens)
    return sample(tokens, [0.5] * n, [0.0] * n, **({"score": 0.0} | options))


def colours(page: Any) -> list[str]:
    found: list[str] = page.locator("#answer .tok").evaluate_all(
        "all => all.map((node) => node.style.backgroundColor)"
    )
    return found


PAINTED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def test_the_right_answer_of_the_data_stands_beside_the_verdict(read: Visit) -> None:
    row = replace(words("5", EOS), data={"ground_truth": "6", "level": "<b>2</b>"})
    page = read([row], locale="en-US")
    shown = page.locator("#facts .data").all_inner_texts()
    assert [re.sub(r"\s+", " ", text) for text in shown] == ["ground_truth 6", "level <b>2</b>"]
    assert "which the reward functions see" in page.locator("#facts .data").first.get_attribute(
        "title"
    )


def test_the_chat_template_is_folded_and_roles_are_labels(read: Visit) -> None:
    page = read([words("5", EOS, prompt=CHAT)], locale="en-US")
    shown = page.locator("#prompt").inner_text()
    assert "What is 2+3?" in shown
    assert "<|im_start|>" not in shown
    assert page.locator("#prompt > .turn .role").all_text_contents() == ["question"]
    page.locator("#prompt summary").click()
    roles = page.locator("#prompt .turn").evaluate_all("all => all.map((x) => x.dataset.role)")
    assert roles == ["system", "user", "assistant", "user"]
    page.locator("#template").click()
    assert page.locator("#prompt .raw").text_content() == CHAT


def test_a_prompt_without_a_template_stands_whole(read: Visit) -> None:
    page = read([words("5", EOS, prompt="请问2+3=5？")])
    assert page.locator("#prompt .said").text_content() == "请问2+3=5？"
    assert page.locator("#template").count() == 0


def test_lines_break_where_the_answer_breaks_them(read: Visit) -> None:
    page = read([words("one", "\n", "two", ".\n\n", "three", EOS)])
    tops = {i: page.locator(f'#answer [data-token="{i}"]').bounding_box()["y"] for i in (0, 2, 4)}
    assert tops[0] < tops[2] < tops[4]
    one_line = tops[2] - tops[0]
    assert tops[4] - tops[2] == pytest.approx(2 * one_line, abs=2)
    assert page.locator("#answer").text_content() == f"one\ntwo.\n\nthree{EOS}"


def test_markdown_is_readable_and_unchanged(read: Visit) -> None:
    tokens = ["**so", "** `x", "=1`", "\n", "#### ", "42", EOS]
    page = read([words(*tokens)])
    assert page.locator("#answer").text_content() == "".join(tokens)
    assert page.locator("#answer .strong").all_text_contents() == ["**so", "**"]
    assert page.locator("#answer .code").all_text_contents() == ["`x", "=1`"]
    assert page.locator("#answer .head").all_text_contents() == ["#### ", "42"]


def test_tool_output_is_a_block_without_colour(read: Visit) -> None:
    page = read(None, "step=40&sample=3&token=0&lang=en")
    block = page.locator("#answer .tool-output")
    assert block.count() == 1
    assert block.locator(".tok").all_text_contents() == ["\n", "2"]
    assert "2 tokens written by a tool" in block.text_content()
    assert block.evaluate("node => getComputedStyle(node).display") == "block"
    assert block.locator(".tok").last.evaluate("node => node.style.backgroundColor") == ""


def test_truncation_is_visible(read: Visit) -> None:
    cut = replace(words("a", " b", " c"), truncated=True)
    page = read([cut, words("a", EOS)], "sample=0&lang=en")
    assert page.locator("[data-cut=run]").text_content().startswith("cut off after 3 tokens")
    assert page.locator("#facts .cut").text_content() == "cut off"
    assert page.locator("#answer .eos").count() == 0
    page.locator('tr[data-row="1"]').click()
    until(page, "document.querySelector('#answer .eos') !== null")
    assert page.locator("[data-cut]").count() == 0


def test_the_end_mark_is_visible_even_if_it_is_empty(read: Visit) -> None:
    page = read([words("a", "")], "sample=0")
    assert page.locator("#answer .eos").text_content() == "EOS"


def test_score_parts_are_shown(read: Visit) -> None:
    page = read([replace(words("a", EOS), parts={"verdict": 0.0, "format": 0.25})], locale="en-US")
    parts = page.locator("#facts .part")
    assert [" ".join(text.split()) for text in parts.all_text_contents()] == [
        "verdict 0.00",
        "format 0.25",
    ]


def test_parts_stand_with_their_weights_where_they_add_up(
    serve_run: Serve, open_page: Open, tmp_path: Path
) -> None:
    rows = [
        replace(words("a", EOS, score=0.1), parts={"exact": 0.0, "form": 1.0}),
        replace(words("b", EOS, score=1.0), parts={"exact": 1.0, "form": 1.0}),
    ]
    run = fake_run(tmp_path / "run", {1: step_of(rows, 1)})
    config = '[reward]\nfunctions = ["mine.py:exact", "mine.py:form"]\n'
    (run / "config.toml").write_text(config + "[reward.weights]\nexact = 0.9\nform = 0.1\n")
    page = open_page(f"{serve_run(run)}#view=samples&sample=0&lang=en")
    page.locator("#parts").wait_for()
    said = " ".join(page.locator("#parts").inner_text().split())
    assert said.startswith("= 0.9 × exact 0.00 + 0.1 × form 1.00")
    why = page.locator('[data-part="form"]').get_attribute("title")
    assert "mine.py:form" in why
    assert "0.1" in why


@pytest.mark.parametrize(("lam", "kl"), [(1.0, 0.0), (0.9, 0.0), (1.0, 0.1)])
def test_where_only_the_end_pays_it_says_that_tokens_differ_only_through_v(
    read: Visit, lam: float, kl: float
) -> None:
    tokens = ["a", "b", "c", EOS]
    settings = Settings.of(kl_coef=0.1, lam=lam, gamma=1.0)
    one = sample(tokens, [0.3, 0.5, 0.2, 0.1], [kl] * 4, score=1.0, settings=settings)
    page = read([one], "lang=en")
    page.locator("#facts").wait_for()
    columns = step_of([one], 1)[0].columns
    sums = [a + v for a, v in zip(columns["advantages"], columns["values"], strict=True)]
    is_one_number = max(sums) - min(sums) < 1e-6
    assert is_one_number == (lam == 1.0 and kl == 0.0)
    assert page.locator("#only-v").count() == int(is_one_number)
    if is_one_number:
        assert f"A = {sums[0]:.3f} − V" in page.locator("#only-v").text_content()
        worst = page.locator("[data-fact=blamed]").get_attribute("data-at")
        assert worst == "1"  # V is highest there


def test_the_facts_name_the_most_blamed_token_and_what_the_critic_expected(
    read: Visit,
) -> None:
    page = read(None, "step=40&sample=1&lang=en")
    columns = lesson()[1].columns
    worst = min(range(7), key=lambda i: columns["whitened"][i])
    fact = page.locator("[data-fact=blamed]")
    assert fact.get_attribute("data-at") == str(worst)
    assert f"Â −{abs(columns['whitened'][worst]):.3f}" in fact.text_content()  # as the sentence
    assert page.locator("#v0 b").text_content() == f"{columns['values'][0]:.3f}"
    fact.click()
    until(page, f"location.hash.includes('token={worst}')")
    fall = min(range(7), key=lambda i: columns["deltas"][i])
    assert page.locator("[data-fact=drop]").get_attribute("data-at") == str(fall)


@pytest.mark.parametrize("position", [0, 1, 5])
def test_clipped_and_flipped_tokens_are_marked(read: Visit, position: int) -> None:
    page = read(None, f"step=40&sample={position}")
    until(page, "document.querySelectorAll('#answer :is(.clipped, .flipped)').length > 0")
    one = lesson()[position]
    tokens = "all => all.map((node) => Number(node.dataset.token))"
    clipped = page.locator("#answer .clipped").evaluate_all(tokens)
    assert clipped == [i for i, hit in enumerate(one.actor_updates[-1].clipped) if hit]
    flipped = page.locator("#answer .flipped").evaluate_all(tokens)
    assert flipped == flips(one)


def flips(one: Sample) -> list[int]:
    signs = zip(one.columns["advantages"], one.columns["whitened"], strict=True)
    return [i for i, (a, w) in enumerate(signs) if a * w < 0]


def test_every_recorded_quantity_colours_and_the_legend_has_numbers(
    read: Visit,
) -> None:
    page = read(None, "step=40&sample=0&lang=en")
    until(page, "document.querySelector('#answer .tok').style.backgroundColor !== ''")
    offered = page.locator("#colour button").evaluate_all("all => all.map((x) => x.dataset.value)")
    assert offered[:5] == ["whitened", "advantages", "deltas", "kl", "values"]
    assert "entropy" not in offered  # it was not recorded, and that is said
    greyed = page.locator("#no-entropy")
    assert greyed.is_disabled()
    assert "this step has no record of it" in greyed.get_attribute("title")
    seen = [colours(page)]
    for quantity in ("deltas", "values", "kl", "token_level_rewards", "ratio"):
        page.locator(f'#colour [data-value="{quantity}"]').click()
        until(page, f"location.hash.includes('colour={quantity}')")
        page.evaluate(PAINTED)  # the address changes first
        seen.append(colours(page))
    assert len({tuple(each) for each in seen}) == len(seen)
    numbers = page.locator("#legend text").all_text_contents()
    assert numbers[2] == "1.00"  # a ratio of 1 is neutral
    page.locator('#colour [data-value="whitened"]').click()
    edges = [float(x.replace("−", "-")) for x in page.locator("#legend text").all_text_contents()]
    assert edges == sorted(edges)
    assert edges[0] == -edges[-1] != 0


def test_recorded_entropy_colours_the_answer_and_stands_in_the_table(
    serve_run: Serve, open_page: Open, tmp_path: Path
) -> None:
    plain = words("a", "b", "c", EOS)
    one = replace(plain, columns=plain.columns | {"entropy": [0.0, 2.0, 1.0, 0.0]})
    run = fake_run(tmp_path / "run", {1: step_of([one], 1)})
    report = tmp_path / "report.html"
    write_report(run, report)
    for url in (serve_run(run), report.as_uri()):
        page = open_page(f"{url}#view=samples&colour=entropy&lang=en")
        page.locator("#legend").wait_for()
        until(page, "document.querySelector('#answer .tok').style.backgroundColor !== ''")
        sure, wavering, between, end = colours(page)
        assert len({sure, wavering, between}) == 3
        assert sure == end
        legend = page.locator("#legend text").all_text_contents()
        assert legend == ["0", "0.97", "1.94"]  # from 0 to the 98th percentile: never negative
        cells = page.locator('#table [data-column="entropy"]').all_text_contents()
        assert [float(cell) for cell in cells] == [0.0, 2.0, 1.0, 0.0]
        assert page.locator("#no-entropy").count() == 0


def test_colours_keep_their_scale_from_step_to_step(
    serve_run: Serve, open_page: Open, tmp_path: Path
) -> None:
    """The same numbers have the same colours beside small and beside large ones."""

    def step(other: float, number: int) -> list[Sample]:
        same = sample(["a", "b", EOS], [0.2, 0.3, 0.4], [0.0] * 3, score=0.5)
        loud = sample(["a", "b", EOS], [other] * 3, [0.0] * 3, score=0.5, prompt="x")
        return step_of([same, loud], number)

    run = fake_run(tmp_path / "run", {1: step(0.4, 1), 2: step(9.0, 2)})
    state = "view=samples&step=1&sample=0&colour=values"
    page = open_page(f"{serve_run(run)}#{state}")
    until(page, "document.querySelector('#answer .tok')?.style.backgroundColor")
    first = colours(page)
    page.locator("#later").click()
    until(page, "document.querySelector('#step-now').textContent === '2'")
    until(page, "document.querySelector('#reader .quiet').textContent.includes('2')")
    page.locator('#answer [data-token="2"]').wait_for()
    assert colours(page) == first


INVISIBLE = ["\u00a0", "\u200c", "\u200d", "\u3164", "\u115f", "\u2800", "\u200b", "\u202e"]


def test_invisible_characters_are_marked_in_text_and_labels(read: Visit) -> None:
    page = read([words("a b", *INVISIBLE, "\n", EOS)], "sample=0&token=1")
    marks = page.locator("#answer .unseen").all_text_contents()
    assert marks == [f"⟨{ord(c):02X}⟩" for c in INVISIBLE]
    text = page.locator("#answer").text_content()
    assert not set(INVISIBLE) & set(text)
    assert text.startswith("a b")  # ordinary spaces stay
    assert f"\n{EOS}" in text
    assert "⟨A0⟩" in page.locator("#token-name").text_content()
    labels = page.locator("#picture text").all_text_contents()
    assert "⟨A0⟩" in labels
    assert "⟨200C⟩" in labels


def test_a_split_character_is_one_box_and_spaces_are_visible_in_labels(
    read: Visit,
) -> None:
    page = read(None, "step=40&sample=4&token=2")
    box = page.locator("#answer .split")
    assert box.locator("> span").first.text_content() == "等"
    assert box.locator(".tok").all_text_contents() == ["E7 AD", "89"]
    labels = page.locator("#picture text").all_text_contents()
    assert "␣5" in labels
    assert "↵" in labels


def test_hovering_previews_and_a_click_pins(read: Visit) -> None:
    page = read(None, "step=40&sample=0&token=3&lang=en")
    page.locator('.tok.pinned[data-token="3"]').wait_for()
    before = page.url
    page.locator('#answer [data-token="1"]').hover()
    until(page, "document.querySelector('#token-name').textContent.startsWith('i = 1 ')")
    assert page.url == before  # a preview is not a choice
    page.locator("#answer").focus()
    page.keyboard.press("Enter")
    until(page, "location.hash.includes('token=1')")
    page.locator('#answer [data-token="4"]').click()
    until(page, "location.hash.includes('token=4')")
    page.go_back()
    until(page, "location.hash.includes('token=1')")
    page.locator("#answer").focus()
    page.keyboard.press("Escape")
    until(page, "!location.hash.includes('token=')")


def test_the_minimap_shows_the_lens_and_a_click_jumps(read: Visit) -> None:
    n = 400
    values = [0.5 + 0.4 * (i / n) for i in range(n)]
    long = sample([*(["好"] * (n - 1)), EOS], values, [0.01] * n, score=1.0)
    page = read([long], "sample=0&token=20&lang=en")
    lens = page.locator("#minimap .lens")
    until(page, "document.querySelector('#minimap .lens').getAttribute('width') > 0")
    assert 0 <= float(lens.get_attribute("x")) <= 1000 * 20 / n
    assert page.locator("#minimap .value").get_attribute("d").count("L") == n - 1
    box = page.locator("#minimap").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.75, box["y"] + 30)
    until(page, "/token=(29\\d|30\\d)/.test(location.hash)")
    until(page, "Number(document.querySelector('#minimap .lens').getAttribute('x')) > 600")
    assert page.locator("#picture [data-token]").count() < 20
    page.locator("#minimap").focus()
    before = int(re.findall(r"token=(\d+)", page.url)[0])
    page.keyboard.press("ArrowRight")
    until(page, f"location.hash.includes('token={before + 1}')")


def test_2000_tokens_are_read_and_more_are_named(read: Visit) -> None:
    n = 2_100
    page = read([sample(["w "] * n, [0.5] * n, [0.01] * n, score=1.0)], "sample=0&lang=en")
    assert page.locator("#answer .tok").count() == 2_000
    assert "2000" in page.locator("[data-cut=page]").text_content()
    assert "2100" in page.locator("[data-cut=page]").text_content()


def test_hostile_text_is_text(visit: Visit) -> None:
    page = visit("view=samples&sample=0&token=0", {1: hostile()})
    seen = ""
    for row in range(len(hostile())):
        page.locator("#table-box").focus()
        if row:
            page.keyboard.press("ArrowDown")
        until(page, f"document.querySelector('#about')?.textContent.startsWith('#{row} ')")
        seen += page.evaluate("document.getElementById('app').textContent")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#app script, #app img").count() == 0
    assert "<script>window.hacked=1</script>" in seen
    assert not set("\x1b\x00\u202e\u2066\u2028") & set(seen)


def test_dark_and_light_have_readable_tokens(read: Visit) -> None:
    page = read(None, "step=40&sample=1", color_scheme="dark")
    until(page, "document.querySelector('#answer .tok').style.backgroundColor !== ''")
    for theme in ("dark", "light"):
        page.locator(f'#theme [data-value="{theme}"]').click()
        until(page, f"document.documentElement.dataset.theme === '{theme}'")
        pairs = page.locator("#answer .tok").evaluate_all(
            "all => all.map((node) => [getComputedStyle(node).color,"
            " getComputedStyle(node).backgroundColor])"
        )
        assert [pair for pair in pairs if contrast(*pair) < 4.5] == []


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_shade_and_mark_can_be_read_in_a_what_if(read: Visit, theme: str) -> None:
    """One ink on all shades: mid-purple under black has 4.5, and nobody can read it."""
    n = 40
    words = [f" w{i}\n" for i in range(n)]
    ramp = sample(words, [i * i % 41 / 41 for i in range(n)], [0.0] * n, score=1.0)
    page = read([ramp], f"lam=0.7&colour=values&theme={theme}", height=2400)
    until(page, "document.querySelectorAll('#answer .tok[style]').length === 40")
    look = """all => all.map((node) => {
      const own = getComputedStyle(node);
      const mark = getComputedStyle(node.querySelector(".break"), "::before");
      return [own.color, own.backgroundColor, mark.color, mark.opacity];
    })"""
    for quantity in ("values", "whitened", "deltas"):
        page.locator(f'#colour [data-value="{quantity}"]').click()
        page.wait_for_timeout(300)  # tokens out of sight are painted once the numbers rest
        found = page.locator("#answer .tok").evaluate_all(look)
        assert len({ground for _, ground, _, _ in found}) > 2
        assert len({ink for ink, _, _, _ in found}) == 1
        assert min(contrast(ink, ground) for ink, ground, _, _ in found) >= 4.5
        assert min(contrast(mark, ground) for _, ground, mark, _ in found) >= 4.5
        assert {opacity for *_, opacity in found} == {"1"}
        boxes = page.locator("#picture .box").evaluate_all(
            "all => all.map((node) => getComputedStyle(node).fill)"
        )
        inks = page.locator("#picture .box ~ text.ui").evaluate_all(
            "all => all.map((node) => getComputedStyle(node).fill)"
        )
        assert min(contrast(inks[-1], ground) for ground in boxes) >= 4.5


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, WCAG 2."""
    bright = sorted((luminance(one), luminance(other)))
    return (bright[1] + 0.05) / (bright[0] + 0.05)


def luminance(colour: str) -> float:
    parts = [int(x) / 255 for x in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_one_sentence_says_what_the_critic_expected_and_what_the_actor_learns(
    read: Visit,
) -> None:
    page = read(None, "step=40&sample=1&token=4&lang=en")
    until(page, "document.querySelector('#token-line').textContent.includes('Token 4')")
    columns = lesson()[1].columns
    values = columns["values"]
    said = " ".join(page.locator("#token-line").text_content().split())
    assert f"expected {values[4]:.3f} before it and {values[5]:.3f} after it" in said
    assert columns["whitened"][4] < 0
    assert f"Â = −{abs(columns['whitened'][4]):.3f}: to be written less" in said
    assert said.endswith("Clipped in the last update: no further.")
    page.locator('#answer [data-token="6"]').click()
    until(page, "document.querySelector('#token-line').textContent.includes('Token 6')")
    said = " ".join(page.locator("#token-line").text_content().split())
    assert f"expected {values[6]:.3f} before it; then the answer ended, with 0.000 left" in said
    assert "Clipped" not in said
    page.locator("#kid").click()
    until(page, "document.querySelector('#token-line').textContent.includes('forecaster')")
    assert not re.search(r"\.\d\d|[ÂδV]", page.locator("#token-line").text_content())
