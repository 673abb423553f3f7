"""The chosen token in a browser: fence picture, arithmetic, formulas, what fails and comes back."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from telescope.audit import file
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.ledger.reader import path_of
from tests.audit.made import made_audit, made_post
from tests.viewer.conftest import Open, Serve, Visit, until
from tests.viewer.fake import EOS, fake_run, lesson, sample, step_of

pytest.importorskip("uvicorn", reason="the live page needs uvicorn")


IMPORTS_MODULES = True
TOKEN = "step=40&sample=0&token=3&lang=en"


@pytest.fixture
def show(visit: Visit) -> Visit:
    """Opens a token of the lesson, or of the samples given."""

    def open_token(
        state: str = TOKEN, samples: dict[int, list[Sample]] | None = None, **options: Any
    ) -> Any:
        page = visit(f"view=samples&{state}", samples, **options)
        page.locator("#answer").wait_for()
        return page

    return open_token


def column(page: Any, name: str) -> list[float]:
    texts = page.locator(f"#table td[data-column={name}]").all_text_contents()
    return [float(text.replace("−", "-")) for text in texts]


def test_a_pinned_token_shows_its_arithmetic(show: Visit) -> None:
    page = show("step=40&sample=0&lang=zh")
    page.locator('#answer [data-token="3"]').click()
    until(page, "document.querySelector('#token-name').textContent.includes('等于')")
    until(page, "document.querySelectorAll('.terms:not(.old) [data-trace]').length > 0")
    trace = page.locator('[data-trace="advantage_sum"]')
    assert trace.locator(".formula").get_attribute("aria-label") == (
        "A₃ = δ₃ + 0.95·δ₄ + 0.95²·δ₅ + 0.95³·δ₆"
    )
    assert "= 0.102 + " in trace.text_content()
    assert "✓" in trace.text_content()
    assert page.locator("#traces .off").count() == 0
    assert "sample=0&token=3" in page.url


def test_recorded_numbers_stand_in_the_table_beside_the_picture(show: Visit) -> None:
    page = show()
    until(page, "document.querySelectorAll('#table td').length > 0")
    for name in ("values", "deltas", "advantages", "returns", "whitened"):
        assert column(page, name) == pytest.approx(lesson()[0].columns[name], abs=5.1e-4)
    heads = page.locator("#table thead th").all_text_contents()
    assert heads[:4] == ["i", "token", "V before", "r"]
    assert page.locator("#table tr.pinned th").text_content() == "3"
    page.locator("#as-table").click()
    assert page.locator("#table").bounding_box()["width"] > 300


def test_a_formula_is_mathml_and_its_tex_can_be_copied(show: Visit) -> None:
    page = show()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator('[data-trace="delta"] math').first.wait_for()
    space = page.locator('[data-trace="delta"] math').first.evaluate("node => node.namespaceURI")
    assert space == "http://www.w3.org/1998/Math/MathML"
    assert "δ" in page.locator('[data-trace="delta"] .formula').text_content()
    page.locator('[data-trace="delta"] .copy-tex').click()
    until(page, "document.querySelector('[data-trace=delta] .copy-tex').textContent === 'copied'")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(r"\delta_{3} = r_{3} + \gamma")


def test_formulas_stay_inside_their_boxes(show: Visit) -> None:
    page = show(TOKEN)
    page.locator(".terms:not(.old) [data-trace=value_loss]").wait_for()
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        sizes = page.locator(".formula").evaluate_all(
            "all => all.map((node) => [node.scrollWidth, node.clientWidth])"
        )
        assert len(sizes) > 5
        assert [size for size in sizes if size[0] > size[1]] == []


def test_a_formula_holds_elements_and_attributes_of_the_list_only(show: Visit) -> None:
    page = show()
    tree = [
        "mrow",
        {"onclick": "window.hacked=1", "mathvariant": "normal"},
        ["mi", {"href": "javascript:window.hacked=1"}, "<img src=x onerror=window.hacked=1>"],
        ["script", {}, "window.hacked=1"],
        ["annotation-xml", {"encoding": "text/html"}, ["img", {"src": "x"}]],
    ]
    made = page.evaluate(
        """async (tree) => {
            const { mathNode } = await import("/token/math.js");
            const node = mathNode(tree);
            document.body.append(node);
            const names = [...node.querySelectorAll("*")].map((each) => each.tagName);
            return [names, node.getAttributeNames(), node.textContent];
        }""",
        tree,
    )
    assert made == [["mi"], ["mathvariant"], "<img src=x onerror=window.hacked=1>"]
    assert page.evaluate("window.hacked") is None


def test_the_picture_is_saved_with_its_colours(show: Visit, tmp_path: Path) -> None:
    page = show()
    page.locator("#picture-A").wait_for()
    with page.expect_download() as download:
        page.locator("#save-svg").click()
    assert download.value.suggested_filename == "token-40-0-3.svg"
    text = Path(download.value.path()).read_text("utf-8")
    assert text.startswith("<svg")
    assert "var(" not in text
    assert "class" not in text or 'fill="rgb' in text
    assert "等于" in text
    assert "+0." in text


def test_the_fence_has_posts_values_and_the_sum(show: Visit) -> None:
    page = show()
    page.locator("#picture-A").wait_for()
    columns = lesson()[0].columns
    assert page.locator("#picture-A").text_content().endswith(f"+{columns['advantages'][3]:.3f}")
    labels = page.locator("#picture text").all_text_contents()
    assert f"V₃={columns['values'][3]:.3f}" in labels
    assert f"R₃={columns['returns'][3]:.3f}" in labels
    assert "×0.95" in labels
    assert "×0.86" in labels  # 0.95³, three tokens ahead
    assert page.locator("#picture .post").count() == 8  # seven tokens, eight states
    assert page.locator("#picture .ribbon").count() == 4


def test_lambda_on_the_fence_is_that_of_the_response(show: Visit) -> None:
    """With lam_alpha a response of T tokens has λ = 1 − 1/(αT)."""
    settings = Settings.of(kl_coef=0.1, lam_alpha=0.5)
    texts = [["a", "b", "c", "d", EOS], ["a"] * 9 + [EOS]]
    made = [
        sample(
            tokens,
            [0.1 * i for i in range(len(tokens))],
            [0.0] * len(tokens),
            score=1.0,
            settings=settings,
        )
        for tokens in texts
    ]
    page = show("step=1&sample=0&token=0&lang=en", {1: step_of(made, 1)})
    page.locator("#picture-A").wait_for()
    for position, lam in ((0, 1 - 1 / 2.5), (1, 1 - 1 / 5)):
        page.locator(f'tr[data-row="{position}"]').click()
        until(page, f"document.querySelector('#about').textContent.startsWith('#{position} ')")
        labels = page.locator("#picture text").all_text_contents()
        assert f"×{lam:.2f}" in labels
        assert f"×{lam * lam:.2f}" in labels
        assert f"λ {lam:.2f}" in page.locator("#about").text_content()


def test_lambda_is_named_where_it_is_used(show: Visit) -> None:
    assert "λ 0.95" in show().locator("#about").text_content()


def test_an_estimator_without_lambda_is_named(show: Visit) -> None:
    settings = Settings.of(kl_coef=0.1, estimator="monte_carlo")
    one = sample(["a", "b", EOS], [0.1, 0.2, 0.3], [0.0] * 3, score=1.0, settings=settings)
    page = show("step=1&sample=0&token=0&lang=en", {1: step_of([one], 1)})
    about = page.locator("#about").text_content()
    assert "estimator" in about
    assert "λ" not in about


def test_the_actors_advantage_is_not_called_whitened_where_nothing_is(show: Visit) -> None:
    settings = Settings.of(kl_coef=0.1, whiten=False)
    one = sample(["a", "b", EOS], [0.1, 0.2, 0.3], [0.0] * 3, score=1.0, settings=settings)
    page = show("step=1&sample=0&token=0&lang=en", {1: step_of([one], 1)})
    card = page.locator('[data-trace="whitened"]')
    card.wait_for()
    assert "this run does not whiten" in card.text_content()
    assert "μ, σ" not in card.locator(".label b").text_content()


def test_without_a_critic_there_is_no_fence_of_zeros(
    serve_run: Serve, open_page: Open, tmp_path: Path
) -> None:
    from pyarrow import parquet

    from tests.viewer.real_step import credited, real_batch, table_of

    run = fake_run(tmp_path / "run", {})
    path = path_of(run, 0)
    path.parent.mkdir(parents=True)
    batch = real_batch()
    batch = credited(batch.with_columns(values=batch["values"] * 0), estimator="grpo")
    parquet.write_table(table_of(batch, estimator="grpo"), path)
    page = open_page(f"{serve_run(run)}#view=samples&step=0&sample=0&token=0&lang=en")
    page.locator(".terms [data-trace]").first.wait_for()
    assert page.locator("#picture .post").count() == 0
    assert page.locator("#v0").count() == 0
    assert page.locator("#minimap .value").count() == 0
    assert page.locator('#colour [data-value="values"]').count() == 0
    assert page.locator('#colour [data-value="whitened"]').count() == 1


def test_a_long_response_moves_the_window_of_the_fence(show: Visit) -> None:
    n = 501
    long = step_of([sample([*["好"] * (n - 1), EOS], [0.5] * n, [0.01] * n, score=1.0)], 1)
    page = show("step=1&sample=0&token=400", {1: long})
    until(page, "document.querySelector('#token-name').textContent.includes('i = 400')")
    assert page.locator('#picture [data-token="400"]').count() == 1
    assert page.locator("#picture [data-token]").count() < 20


def test_keys_walk_along_the_fence(show: Visit) -> None:
    page = show()
    page.locator("#picture-A").wait_for()
    page.locator("#picture").focus()
    page.keyboard.press("ArrowRight")
    until(page, "location.hash.includes('token=4')")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    until(page, "location.hash.includes('token=2')")
    page.keyboard.press("Escape")
    until(page, "!location.hash.includes('token=')")
    page.locator('#picture [data-token="5"]').click()
    until(page, "location.hash.includes('token=5')")


def test_a_tool_token_says_that_nobody_chose_it(show: Visit) -> None:
    page = show("step=40&sample=3&token=3&lang=en")
    until(page, "document.querySelector('#traces').textContent.includes('A tool wrote this')")
    assert page.locator("[data-trace]").count() == 0
    assert page.locator("#table tr[data-i='3'] td").nth(1).text_content() == "–"


def test_a_failed_request_is_shown_and_not_kept(show: Visit) -> None:
    page = show()
    page.locator(".terms:not(.old) [data-trace]").first.wait_for()
    broken = [True]

    def answer(route: Any) -> None:
        if broken[0]:
            route.fulfill(status=500, content_type="application/json", body='{"error": "out"}')
        else:
            route.continue_()

    page.route("**/tokens/5", answer)
    page.locator('#answer [data-token="5"]').click()
    page.locator("#traces .trouble").wait_for()
    assert "out" in page.locator("#traces .trouble").text_content()
    assert page.locator("[data-trace]").count() == 0  # not the terms of another token
    page.locator('#answer [data-token="4"]').click()
    page.locator(".terms:not(.old) [data-trace]").first.wait_for()
    broken[0] = False
    page.locator('#answer [data-token="5"]').click()  # asked again: a failure is never kept
    until(page, "document.querySelector('#token-name').textContent.startsWith('i = 5 ')")
    page.locator(".terms:not(.old) [data-trace]").first.wait_for()
    assert page.locator("#traces .trouble").count() == 0
    page.trouble.clear()


def test_a_failed_request_can_be_repeated(show: Visit) -> None:
    page = show()
    page.locator(".terms:not(.old) [data-trace]").first.wait_for()
    page.route("**/tokens/6", lambda route: route.abort())
    page.locator('#answer [data-token="6"]').click()
    page.locator("#traces .trouble button").wait_for()
    page.unroute("**/tokens/6")
    page.locator("#traces .trouble button").click()
    page.locator(".terms:not(.old) [data-trace]").first.wait_for()
    assert page.locator("#traces .trouble").count() == 0
    page.trouble.clear()


def test_a_child_sees_no_power_of_ten_no_greek_and_one_decimal(show: Visit) -> None:
    one = sample(["是", "的", EOS], [0.4, 0.5, 0.6], [2e-5, -3e-7, 0.0], score=1.0)
    page = show("step=1&sample=0&token=0&lang=en", {1: step_of([one], 1)})
    page.locator(".terms:not(.old) [data-trace]").first.wait_for()
    assert re.search(r"\de[−-]", page.locator("#traces").text_content())
    page.locator("#kid").click()
    until(page, "document.querySelector('#traces').textContent.includes('almost 0')")
    strange = r"\de[−-]|\.\d\d|[γδλρβπμσÂ]|[VRAs][₀-₉]"
    for panel in ("#traces", "#picture", "#about", "#token-name", "#colour", "#legend"):
        leaves = page.locator(f"{panel} :not(:has(*))").all_text_contents()
        assert [text for text in leaves if re.search(strange, text)] == [], panel
    assert "guess" in page.locator("#picture").text_content()


def test_a_child_reads_points_and_hears_of_shares_only_where_there_are_some(show: Visit) -> None:
    def one(lam: float) -> list[Sample]:
        settings = Settings.of(kl_coef=0.1, lam=lam, gamma=1.0)
        values = [0.323, 0.327, 0.325, 0.31]
        made = sample(["a", "b", "c", EOS], values, [0.0] * 4, score=0.1, settings=settings)
        return step_of([made], 1)

    page = show("sample=0&token=1&step=1&lang=en&kid=1", {1: one(1.0)})
    shown = page.locator("#picture").text_content()
    assert "the farther, the less" not in shown
    assert "all of them in full" in shown
    page.locator("#as-table").click()
    assert page.locator("#table tr[data-i='1'] [data-column=deltas]").text_content() == "−0.2"
    assert page.locator("#table tr[data-i='1'] [data-column=values]").text_content() == "32.7"
    assert "guessed 32.7 points before it and 32.5 after it" in " ".join(
        page.locator("#token-line").text_content().split()
    )
    assert "10" in page.locator("#score").text_content()
    until(page, "document.querySelector('[data-trace=delta]') !== null")
    assert "about −0.2 points" in page.locator("[data-trace=delta]").text_content()
    assert "farther" not in page.locator("#traces").text_content()


def test_a_child_hears_that_far_surprises_count_less_where_they_do(show: Visit) -> None:
    page = show("sample=0&token=0&step=40&lang=en&kid=1")
    assert "the farther, the less" in page.locator("#picture").text_content()


@pytest.mark.parametrize(
    ("state", "score"),
    [
        ("lang=zh", 0.0),
        ("lang=en", -67903000.0),
        ("lang=zh&kid=1", 0.0),
        ("lang=en&kid=1", 0.0),
    ],
)
def test_the_fence_fits_a_phone(show: Visit, state: str, score: float) -> None:
    """Four tokens at least, captions left of the first post, no number over another."""
    n = 30
    tokens = [f" w{i}" for i in range(n - 1)] + [EOS]
    one = sample(tokens, [0.1 + 0.01 * (i % 7) for i in range(n)], [0.01] * n, score=score)
    page = show(f"sample=0&token=9&{state}", {1: step_of([one], 1)}, width=390, height=844)
    page.locator("#picture .hit").first.wait_for()
    assert page.locator("#picture .hit").count() >= 4
    first = page.locator("#picture .post").first.bounding_box()["x"]
    captions = page.locator("#picture text.start.ui").evaluate_all(
        "all => all.map((node) => [node.textContent, node.getBoundingClientRect().right])"
    )
    assert [caption for caption in captions if caption[1] > first] == []
    rows = page.locator("#picture text.mid:not(.start):not(.end)").evaluate_all(
        "all => all.map((node) => { const box = node.getBoundingClientRect();"
        " return [Number(node.getAttribute('y')), box.left, box.right, node.textContent]; })"
    )
    beside = [
        (a, b) for a in rows for b in rows if a[0] == b[0] and a[1] < b[1] and b[1] < a[2] - 1
    ]
    assert beside == []


def test_languages_switch(show: Visit) -> None:
    page = show("step=40&sample=0&token=3&lang=zh")
    page.locator(".terms:not(.old) [data-trace]").first.wait_for()
    assert page.locator("html").get_attribute("lang") == "zh-Hans"
    assert page.locator("#fence-title").text_content() == "栅栏图"
    page.locator("#kid").click()
    until(page, "document.querySelector('#traces').textContent.includes('惊喜')")
    page.locator('#lang [data-value="en"]').click()
    until(page, "document.documentElement.lang === 'en'")
    assert "surprise" in page.locator('[data-trace="delta"]').text_content()
    assert "made BEFORE the word" in page.locator(".rule").text_content()
    page.locator("#kid").click()
    until(page, "document.querySelector('.rule').textContent.includes('BEFORE the token')")


def test_a_cut_answer_ends_with_the_bootstrapped_value(show: Visit) -> None:
    one = sample(["a", "b"], [0.4, 0.5], [0.0, 0.0], score=0.0, bootstrap=0.7)
    cut = [replace(each, truncated=True) for each in step_of([one], 1)]
    page = show("step=1&sample=0&token=1&lang=en", {1: cut})
    page.locator("#picture-A").wait_for()
    assert "V=0.700" in page.locator("#picture text").all_text_contents()
    assert page.locator("#table tbody tr").last.text_content() == "end0.700"


def test_audited_posts_carry_the_mean_outcome_with_its_interval(
    serve_run: Serve, open_page: Open, tmp_path: Path
) -> None:
    run = fake_run(tmp_path / "run")
    posts = [made_post(0, 0, 0.5, 0.3), made_post(0, 3, 0.6, 0.5)]
    file.save(made_audit(step=40, needed=39, checkpoint=39, posts=posts), run)
    page = open_page(f"{serve_run(run)}#view=samples&{TOKEN}")
    page.locator(".audited").first.wait_for()
    said = page.locator(".audited title").all_text_contents()
    assert (
        said[1]
        == "64 continuations from here earned 0.500 on average (95 % interval 0.400 to 0.600)."
    )
    assert (
        "what 64 continuations from that post earned" in page.locator(".audit-rule").text_content()
    )
    middle, low, high = page.evaluate(
        "() => { const g = document.querySelectorAll('.audited')[1];"
        " const line = g.querySelector('line');"
        " return [g.querySelector('circle').cy.baseVal.value, line.y1.baseVal.value,"
        " line.y2.baseVal.value] }"
    )
    assert high < middle < low  # the screen counts downwards
    assert middle == pytest.approx((low + high) / 2)
