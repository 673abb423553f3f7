"""The screen: golden in Chinese and English, never wider than asked, and harmless whatever the model wrote.

`UPDATE_GOLDEN=1 pytest tests/explain/test_terminal.py` writes the golden files anew.
"""

import math
import os
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len

from telescope.algorithms import clipped_policy_loss, surrogate_loss
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import fill
from telescope.explain.example import BATCH
from telescope.explain.numbers import from_numbers
from telescope.explain.questions import answer
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.explain.tables import metaphors
from telescope.explain.terminal import render
from telescope.explain.text import both_ends, fold, pieces, plain, visible, wrap
from tests.explain.samples import demo, nearly_equal, trained, with_tool

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b[31mred\x1b]0;title\x07",
    "\x9b31m",
    "\u202eabc\u2066",
    "\x00",
    "a\r\nb",
    "\u200b\ufeff",
    "e" + "\u0301" * 90,
]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize(
    ("name", "sample", "options"),
    [
        ("demo_zh", demo(), {"lang": "zh", "token": 3, "width": 100}),
        ("demo_en", demo(), {"lang": "en", "token": 3, "width": 100}),
        ("demo_zh_kid", demo(), {"lang": "zh", "level": "kid", "token": 3, "width": 100}),
        ("demo_en_kid_narrow", demo(), {"lang": "en", "level": "kid", "token": 3, "width": 60}),
        ("tool_en", with_tool(), {"lang": "en", "token": 0, "width": 100}),
        ("tool_zh_narrow", with_tool(), {"lang": "zh", "token": 1, "width": 60}),
    ],
)
def test_the_screen_is_the_golden_one(name, sample, options):
    text, path = render(sample, color=False, **options), GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text("utf-8")


def hostile() -> Sample:
    texts = [*HOSTILE, "x" * 1_000_000, "\u0301", ""]
    n = len(texts)
    data = {"values": [0.1] * n, "token_level_rewards": [0.2] * n}
    encoded = [*(text.encode() for text in texts[:-1]), b"\xff\xfe"]
    return Sample(
        list(range(n)),
        encoded,
        [1] * n,
        data,
        prompt="".join(texts),
        response="\x1b[2J" * 9,
        run="\x1b[31m",
        parts={"\x1b": 1.0},
    )


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("level", ["expert", "kid"])
def test_no_line_is_wider_than_the_terminal(width, lang, level):
    for sample in (demo(), with_tool(), hostile(), *trained(2)):
        for line in render(sample, lang=lang, level=level, width=width, color=False).splitlines():
            assert cell_len(line) <= width, line


def test_columns_stand_under_each_other_whatever_the_width_of_a_character():
    lines = render(demo(), token=3, lang="zh", width=100, color=False).splitlines()
    table = [line for line in lines if line.count("│") == 5]
    assert len(table) == 8  # head and seven tokens
    bars = {tuple(cell_len(line[: m.start()]) for m in re.finditer("│", line)) for line in table}
    assert len(bars) == 1


def test_what_the_model_wrote_cannot_reach_the_terminal():
    for color in (False, True):
        text = render(hostile(), token=1, width=80, color=color)
        text = re.sub(r"\x1b\[[\d;]*m", "", text) if color else text
        assert not re.search(
            r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]", text
        )
        assert len(text) < 20_000


def test_controls_are_named_and_spaces_shown():
    assert visible("a b\n\t\x1b\x00\u202e") == "a␣b↵⇥␛␀⟨u+202e⟩"
    assert visible("a b", spaces=False) == "a b"


def test_a_character_split_over_tokens_shows_its_bytes_and_itself_once():
    assert pieces([b"\xe4", b"\xb8", b"\xad!"]) == ["⟨e4⟩", "⟨b8⟩", "⟨ad⟩中!"]
    assert pieces([b"\xe4\xb8\xad\xe5", b"\x9b\xbd"]) == ["中⟨e5⟩", "⟨9b⟩⟨bd⟩国"]
    assert pieces([b"\xff", "é".encode(), b""]) == ["⟨ff⟩", "é", "∅"]
    assert pieces(["\u0301".encode()]) == ["◌\u0301"]


def test_color_is_off_when_asked_and_always_with_no_color(monkeypatch):
    assert "\x1b[" in render(demo(), color=True)
    assert "\x1b[" not in render(demo(), color=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in render(demo(), color=True)


def test_color_changes_no_character():
    assert re.sub(r"\x1b\[[\d;]*m", "", render(demo(), color=True, width=80)) == render(
        demo(), color=False, width=80
    )


def test_a_wrong_number_is_marked_in_the_table_and_in_its_term():
    sample = demo()
    spoiled = replace(
        sample, columns={**sample.columns, "deltas": [0.5, *sample.columns["deltas"][1:]]}
    )
    text = render(spoiled, token=0, lang="en", width=100, color=False)
    assert "▶0✗" in text
    assert "+0.500✗" in text
    assert "✗ recorded 0.5" in text
    assert render(sample, lang="en", color=False).count("✗") == 1  # «0 ✗» of the count


def test_every_recorded_number_carries_its_tick():
    for sample in trained(4):
        text = render(sample, lang="en", width=120, color=False)
        recorded = int(re.search(r"(\d+) recorded numbers recomputed: (\d+) ✓ 0 ✗", text)[1])
        assert recorded == 9 * sum(sample.mask)  # A has two traces and is one number


@pytest.mark.parametrize(
    ("column", "mark"),
    [
        ("advantages", "+0.370✗"),
        ("deltas", "+0.112✗"),
        ("returns", "0.970✗"),
        ("whitened", "+0.437✗"),
    ],
)
def test_one_wrong_number_is_one_cross_in_the_count_and_in_the_table(column, mark):
    sample = demo()
    spoiled = [x + 0.01 if t == 3 else x for t, x in enumerate(sample.columns[column])]
    text = render(
        replace(sample, columns={**sample.columns, column: spoiled}),
        token=0,
        lang="en",
        width=120,
        color=False,
    )
    assert "63 recorded numbers recomputed: 62 ✓ 1 ✗" in text
    table = text.partition(" i  token")[2].partition("recorded numbers")[0]
    assert table.count("✗") == 2  # of the row and of the number
    assert mark in table


def test_one_wrong_advantage_typed_by_hand_is_one_cross():
    given = {"rewards": [0, 0, 1], "values": [0.3, 0.4, 0.6], "advantages": [0.651, 0.5, 0.4]}
    assert "3 recorded numbers recomputed: 2 ✓ 1 ✗" in render(
        from_numbers(given), lang="en", color=False
    )


def test_what_stands_after_the_end_is_named_and_no_tools_word():
    data = {"values": [0.3, 0.4, 0.6, 0.5], "rewards": [0, 0, 1, 0.7], "mask": [1, 0, 1, 0]}
    text = render(from_numbers(data), lang="en", width=100, color=False)
    assert "slot 3 after the end holds V 0.5, r 0.7: not used" in text
    assert "⚙[1]" in text  # between the policy's own tokens: a tool's
    assert "⚙[3]" not in text
    assert (
        "padding"
        in render(from_numbers(data), token=3, lang="en", color=False).rpartition("token 3")[2]
    )
    clean = render(
        from_numbers(
            {**data, "values": [0.3, 0, 0.6, 0], "rewards": [0, 0, 1, 0], "mask": [1, 1, 1, 0]}
        ),
        lang="en",
        color=False,
    )
    assert "padding after the end of the response, not used: 3\n" in clean
    assert "holds" not in clean
    assert "tool" not in clean


def test_typed_numbers_without_anything_to_check_say_so():
    sample = Sample(
        [0, 1], [b"a", b"b"], [1, 1], {"token_level_rewards": [0.0, 1.0], "values": [0.3, 0.6]}
    )
    text = render(sample, lang="en", color=False)
    assert "nothing recorded to check" in text
    assert "of this response alone" in text


def test_one_response_through_the_roles_says_that_the_statistics_are_its_own():
    batch, one = (
        trained(1)[0],
        demo(),
    )  # fill gave the demo μ and σ of its own tokens, as a batch of one response has
    for lang, note in (
        ("en", "μ and σ are of this response alone"),
        ("zh", "μ、σ 只来自这一条回答"),
    ):
        assert note in render(one, lang=lang, color=False)
        assert note not in render(batch, lang=lang, color=False)
    assert "whole batch" not in render(one, token=3, lang="en", color=False).partition("Â₃")[2]


def test_new_log_probs_given_by_hand_are_called_that():
    given = {"values": [0.1, 0.2], "rewards": [0, 1], "old": [-0.5, -0.4], "whiten": False}
    moved, first = (
        render(from_numbers(x), token=0, lang="en", width=160, color=False)
        for x in ({**given, "new": [-0.24, -0.4]}, given)
    )
    assert "ρ and ✂: of the new log-probs that were given" in moved
    assert "epoch 0" not in moved
    assert "exactly 1" not in moved
    assert "epoch 0, minibatch 0" in first
    assert "it is exactly 1" in first


@pytest.mark.parametrize(
    ("lang", "said"),
    [
        ("en", "token i = 3 «⟨e4⟩» (counted from 0, of 6)"),
        ("zh", "token i = 3 «⟨e4⟩»（从 0 数，共 6 个）"),
    ],
)
def test_the_index_is_i_from_0_everywhere_with_tools_too(lang, said):
    text = render(with_tool(), token=3, lang=lang, width=80, color=False)
    assert said in text  # tokens 1 and 2 are the tool's
    assert re.search(r"^ i  token +│", text, re.MULTILINE)
    assert re.findall(r"(?<![A-Za-z])t(?![A-Za-z])(?:_\w)?|\w_t\b|\[t\]", text) == []


def test_the_last_token_is_not_chosen_because_there_every_estimator_is_the_same():
    spread = from_numbers(
        {"rewards": [0, 0, 1], "values": [0.3, 0.4, 0.0]}
    )  # |A| is largest on the last token
    assert "▶0" in render(spread, lang="en", color=False)
    assert "▶0" in render(from_numbers({"rewards": [1], "values": [0.4]}), lang="en", color=False)
    text = render(spread, token=2, lang="en", width=160, color=False)
    assert "the last token, no δ follows: A is δ" in text
    assert "credit = this surprise: 1" in render(
        spread, token=2, lang="en", level="kid", color=False
    )


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_childs_words_name_every_discount_and_no_power_of_ten(lang):
    small = replace(demo(), settings=demo().settings.change(kl_coef=1e-5))
    blank = {
        name: demo().columns[name]
        for name in ("old_log_probs", "ref_log_prob", "token_level_scores", "values")
    }
    text = render(
        replace(small, columns=blank), token=3, lang=lang, level="kid", width=200, color=False
    )
    assert not re.search(r"\de[−-]", text)
    assert {"zh": "几乎 0", "en": "almost 0"}[lang] in text  # 1e-5 × 0.18
    assert {
        "zh": "折扣 × 远处再打的折 × 下一个词的功劳",
        "en": "discount × extra discount × the next word's credit",
    }[lang] in text
    assert plain("−4e−07 + (−6.8e−06)", "almost 0") == "almost 0 + (−0.000007)"


@pytest.mark.parametrize("estimator", ["td0", "monte_carlo"])
def test_lambda_is_named_only_where_it_is_used(estimator):
    sample = trained(1, estimator=estimator)[0]
    text, gae = (
        render(x, token=0, lang="en", width=200, color=False) for x in (sample, trained(1)[0])
    )
    assert f"estimator {estimator}" in text.splitlines()[0]
    assert "λ" not in text.splitlines()[0]
    assert "λ 0.9" in gae.splitlines()[0]
    assert "λ-return" not in text
    assert "λ-return" in gae
    assert "λ 0.75" in render(
        replace(demo(), settings=Settings.of(lam_alpha=4 / 7)), lang="en", color=False
    )  # 1 − 1/(7·4/7)


def test_without_a_token_the_largest_advantage_is_taken_apart():
    assert "token i = 0 «是» (counted from 0, of 7) · largest |A| before the last token" in render(
        demo(), lang="en", width=100, color=False
    )


def test_only_log_probs_are_enough_for_a_screen():
    sample = Sample([0], [b"a"], [1], {"old_log_probs": [-0.1], "ref_log_prob": [-0.2]})
    assert "kl₀" in render(sample, lang="en", color=False)


def test_a_token_that_is_not_there_is_refused():
    with pytest.raises(TelescopeError, match="no token 9"):
        render(demo(), token=9)


def test_wrapping_loses_nothing_but_spaces():
    text = "优势（max）的 mean of «a» over 很长的一句话，和 averylongword" * 3
    for width in (12, 20, 47):
        lines = wrap(text, width)
        assert max(map(cell_len, lines)) <= width
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_an_answer_is_folded_line_by_line():
    said = answer(2, demo(), "zh").text()
    text = f"What is λ?\n{said}\n\nend"
    folded = fold(text, 80, "  ")
    assert max(map(cell_len, folded.splitlines())) <= 80
    assert folded.startswith(f"What is λ?\n{said[:8]}")
    assert folded.endswith("\n\nend")
    assert re.sub(r"\s", "", folded) == re.sub(r"\s", "", text)


def test_a_long_prompt_shows_how_it_ends():
    prompt = "<|im_start|>system↵" + "be brief " * 40 + "what is 14 - 86 ="
    shown = both_ends(prompt, 60)
    assert cell_len(shown) == 60
    assert shown.startswith("<|im_start|>system")
    assert shown.endswith("what is 14 - 86 =")
    assert both_ends("请问1+1=2？", 12) == "请问1+1=2？"
    assert cell_len(both_ends("请问" * 40, 20)) <= 20


# ---- the first screen, and long responses ----


def long_response(length: int, **more: object) -> Sample:
    """Numbers without a pattern; the largest |A| is somewhere in the middle."""
    rng = random.Random(length)
    columns = {
        name: [round(low + span * rng.random(), 3) for _ in range(length)]
        for name, low, span in (("values", 0.3, 0.5), ("old", -1.5, 1.4), ("ref", -1.5, 1.4))
    }
    columns["new"] = [x + 0.3 * (rng.random() - 0.5) for x in columns["old"]]
    columns["new"] = [min(x, -0.001) for x in columns["new"]]
    tokens = [rng.choice(["the", "数", "，", "等于", " longer than a cell"]) for _ in range(length)]
    return from_numbers({"tokens": tokens, "score": 1.0, "beta": 0.01, **columns, **more})


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("length", [1, 2, 6, 8, 9, 13, 500])
def test_the_first_screen_fits_a_small_terminal_and_says_what_to_type_next(length, lang):
    sample = long_response(length, prompt="请问1+1=2？" * 30)
    others = (*BATCH, demo(), with_tool(), *trained(2), nearly_equal(9, estimator="grpo"))
    for shown in (sample, *others):
        text = render(shown, lang=lang, width=80, color=False, extent="first", above=1)
        lines = text.splitlines()
        assert 1 + len(lines) <= 24
        assert max(map(cell_len, lines)) <= 80
        for option in ("--token", "--all", "--question", "--code", "--notation", "--numbers"):
            assert option in text


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("length", [1, 6, 500])
def test_a_childs_first_screen_fits_too(length, lang):
    samples = (
        long_response(length),
        *BATCH,
        demo(),
        with_tool(),
        nearly_equal(9, estimator="grpo"),
    )
    for sample in samples:
        shown = {"lang": lang, "level": "kid", "width": 80, "color": False}
        lines = render(sample, extent="first", above=1, **shown).splitlines()
        assert 1 + len(lines) <= 24
        assert max(map(cell_len, lines)) <= 80
        assert "--token" in lines[-1]


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_first_screen_has_the_terms_of_the_largest_advantage(lang):
    text = render(BATCH[0], lang=lang, width=80, color=False, extent="first")
    for formula in ("δ₃ = r₃ + γ·V₄ − V₃", "A₃ = δ₃ + ", "R₃ = A₃ + V₃", "Â₃ = (A₃ − μ)/σ"):
        assert formula in text


def test_a_long_response_shows_a_window_and_a_summary():
    sample = long_response(500)
    text = render(sample, token=250, lang="en", width=80, color=False)
    assert len(text.splitlines()) < 110
    rows = {int(row) for row in re.findall(r"^[▶ ] *(\d+)  ", text, re.MULTILINE)}
    full = fill(sample)
    advantages = full.columns["advantages"]
    largest = sorted(range(500), key=lambda t: -abs(advantages[t]))[:5]
    assert rows == {*range(247, 254), 0, 499, *largest}
    sums = re.search(r"^ Σ.*$", text, re.MULTILINE)[0]
    for name in ("token_level_rewards", "deltas", "advantages"):
        assert f"{math.fsum(full.columns[name]):+.3f}" in sums


def test_all_rows_are_there_when_asked():
    text = render(long_response(500), lang="en", width=80, color=False, extent="all")
    rows = re.findall(r"^[▶ ] *(\d+)  ", text, re.MULTILINE)
    assert {int(row) for row in rows} == set(range(500))
    assert "summary" not in text


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_small_table_handles_wide_characters(lang):
    lines = render(BATCH[0], token=0, lang=lang, width=80, color=False, batch=BATCH).splitlines()
    start = next(
        k for k, line in enumerate(lines) if line.startswith(("sample  token", "样本  token"))
    )
    block = lines[start : start + 4]
    ends = {cell_len(line) for line in block}
    assert len(ends) == 1  # right-aligned: every line ends in the same cell


# ---- which way a token is pushed ----


def pushed(a: float, ratio: float, lang: str = "en", **settings: object) -> str:
    """The sentence on the push, for one token with this Â and ρ."""
    sample = from_numbers(
        {"A": [a], "old": [-1.0], "new": [-1.0 + math.log(ratio)], "whiten": False, **settings}
    )
    text = render(sample, token=0, lang=lang, width=160, color=False)
    return re.search(r"→ .*", text)[0]


@pytest.mark.parametrize(
    ("a", "ratio", "settings", "said"),
    [
        (1.0, 1.1, {}, "> 0: this term makes the token more likely"),
        (-1.0, 1.1, {}, "< 0: this term makes the token less likely"),
        (0.0, 1.5, {}, "= 0: this term does not move its probability"),
        (1.0, 1.5, {}, "already more than 1 + ε times as likely: no further"),
        (-1.0, 0.5, {}, "already less than 1 − ε times as likely: no further"),
        (-1.0, 1.5, {}, "< 0: this term makes the token less likely"),  # kept: pulled back
        (1.0, 0.5, {}, "> 0: this term makes the token more likely"),
        (-1.0, 2.7, {"dual_clip": 2.0}, "the dual clip leaves it alone"),
        (1.0, 1.5, {"loss": "cpi"}, "> 0: this term makes the token more likely"),
    ],
)
def test_the_push_is_that_of_the_gradient(a, ratio, settings, said):
    assert said in pushed(a, ratio, **settings)
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    change = slope(log_ratio, a, **settings)
    if "more likely" in said:
        assert change > 0
    elif "less likely" in said:
        assert change < 0
    else:
        assert change == 0


def slope(
    log_ratio: torch.Tensor, a: float, *, dual_clip: float | None = None, loss: str = "clip"
) -> float:
    """How the objective of one token changes with its log-probability."""
    old = torch.zeros(1, 1, dtype=torch.float64)
    advantage = torch.full((1, 1), a, dtype=torch.float64)
    mask = torch.ones(1, 1)
    if loss == "cpi":
        terms = surrogate_loss(log_ratio.view(1, 1), old, advantage, mask)
    else:
        terms = clipped_policy_loss(
            log_ratio.view(1, 1),
            old,
            advantage,
            mask,
            clip_low=0.2,
            clip_high=0.2,
            dual_clip=dual_clip,
        )
    (-terms.loss.sum()).backward()
    return float(log_ratio.grad[0])


# ---- a child's view ----

SYMBOL = re.compile(
    r"[γδλρπμσβεΣÂ√²½_^≈]|\b(?:V|A(?! tool)|R|r|min|max|exp|KL|critic|token)\b|\[[\d−.]"
)


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_child_sees_no_symbol_and_at_most_one_decimal(lang):
    samples = [demo(), with_tool(), *BATCH, *trained(2), long_response(40)]
    for estimator in ("td0", "monte_carlo"):
        samples += trained(1, estimator=estimator)
    samples.append(from_numbers({"rewards": [0, 0.5, 1], "estimator": "uniform"}))
    for sample in samples:
        for t, m in enumerate(sample.mask[:6]):
            text = render(sample, token=t, lang=lang, level="kid", width=200, color=False)
            body = re.sub(
                r"«[^»]*»|(?:个词|^)「[^」]*」|--[a-z]+|^.*(?:question|answer|题目|回答) .*$",
                "",
                text,
                flags=re.M,
            )
            table_free = [line for line in body.splitlines() if "│" not in line]
            assert not SYMBOL.search("\n".join(table_free)), (
                t,
                m,
                SYMBOL.search("\n".join(table_free)),
            )
            assert not re.search(r"\d\.\d\d", body)
            assert not re.search(r"\d, −?\d", body)  # no list of numbers


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_no_picture_calls_whitening_a_ranking(lang):
    for quantities in metaphors().values():
        said = quantities["whitening"][lang]
        if re.search("名次|排名|rank", said):
            assert re.search("不是排名次|not a ranking", said)


def test_the_title_of_the_first_screen_gives_up_text_of_the_token_before_its_reason():
    """At 80 columns a long token had cut off «token»."""
    long = replace(demo(), token_bytes=[b"seven words of text, no less"] * 7)
    shown = render(long, lang="en", extent="first", width=80, color=False).splitlines()
    title = next(line for line in shown if line.startswith("token i ="))
    assert title.endswith("largest |A| before the last token")
    assert len(title) <= 80


def test_no_token_is_called_the_largest_where_all_are_alike():
    columns = {"token_level_rewards": [0.0] * 11 + [1.0], "advantages": [0.5] * 12}
    alike = Sample(list(range(12)), [b"x"] * 12, [1] * 12, columns)
    alike = replace(alike, settings=Settings.of(estimator="grpo", whiten=False))
    shown = render(alike, lang="en", extent="first", width=80, color=False)
    assert "largest" not in shown
    assert "both ends: " in shown
