"""Questions and their answers: titles, numbers of the sample, tokens, stand-ins.

What the sentences claim is checked on a grid in test_texts.py.
"""

import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import telescope
from telescope.algorithms.definitions.notation import num
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import fill
from telescope.explain.example import RIGHT
from telescope.explain.facts import facts
from telescope.explain.numbers import from_numbers
from telescope.explain.questions import (
    answer,
    count_sentences,
    find_question,
    questions,
    titles,
)
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.explain.tex import prose
from telescope.explain.text import wrap
from telescope.explain.words import texts
from tests.explain.samples import demo, trained, with_tool

THREE = from_numbers({"rewards": [0.0, 0.0, 1.0], "values": [0.3, 0.4, 0.6], "lam": 0.95})
LANGS = pytest.mark.parametrize("lang", ["zh", "en"])
LEVELS = pytest.mark.parametrize("level", ["expert", "kid"])


def said(name, sample, lang="en", level="expert", token=None) -> str:
    return answer(name, sample, lang, level, token).text()


# ---- the list ----


@LANGS
@LEVELS
def test_there_are_at_least_60_questions_with_titles_of_their_own(lang, level):
    found = titles(lang, level)
    assert [key for key, _ in found] == [f"q{n}" for n in range(1, len(found) + 1)]
    assert len(found) >= 60
    assert len({title for _, title in found}) == len(found)


def test_no_two_questions_share_a_wording():
    seen: dict[str, str] = {}
    for question in questions().values():
        for wording in question.asked:
            key = re.sub(r"\W", "", wording).lower()
            assert seen.setdefault(key, question.id) == question.id, wording


def test_every_question_has_wordings_in_both_languages_and_related_questions():
    for question in questions().values():
        chinese = [w for w in question.asked if re.search("[一-鿿]", w)]
        assert len(chinese) >= 8, question.id
        assert len(question.asked) - len(chinese) >= 6, question.id
        assert all(key in questions() for key in question.related), question.id


def test_a_question_is_found_by_number_and_by_id():
    assert find_question(9) is find_question("9") is find_question("q9")
    with pytest.raises(TelescopeError, match=r"no question 999: there are 1 to \d+"):
        find_question(999)


# ---- numbers ----


@LANGS
@LEVELS
def test_every_question_has_an_answer_for_every_kind_of_sample(lang, level):
    one = Sample([0], [b"x"], [1], {"token_level_rewards": [1.0], "values": [0.4]})
    bare = Sample([0], [b"x"], [0], {})
    for sample in (demo(), with_tool(), THREE, one, bare):
        for key in questions():
            text = said(key, sample, lang, level)
            assert text
            assert not re.search(r"\{[a-zA-Z]|nan|None", text), (key, text)


def test_the_two_languages_say_the_same_numbers():
    for key in questions():
        zh = set(re.findall(r"\d+\.\d+", said(key, demo(), "zh")))
        en = set(re.findall(r"\d+\.\d+", said(key, demo(), "en")))
        assert zh == en, key


@LANGS
def test_a_child_reads_no_symbols_and_at_most_one_decimal(lang):
    symbol = re.compile(r"[γλδπρμσβεÂθΣ]|V_|\[|\d\.?e[+−-]?\d|critic|\bTD|GAE|\d\.\d\d")
    for sample in (demo(), replace(THREE, token_bytes=[b"a", b"b", b"c"])):
        for key, title in titles(lang, "kid"):
            assert not symbol.search(title), key
            text = said(key, sample, lang, "kid")
            assert not symbol.search(text.split("）")[-1].split(".)")[-1]), (key, text)


@LANGS
def test_the_discounted_sum_is_the_same_number_in_every_question(lang):
    cut = from_numbers(
        {"rewards": [0.1, 1.0], "values": [0.3, 0.4], "bootstrap": 0.5, "gamma": 0.9, "lam": 1.0}
    )
    for sample in (cut, THREE, with_tool(), demo()):
        known = facts(sample, lang)
        wanted = {num(known["G"]), num(known["came"])}
        for key in ("q3", "q5", "q10"):
            for name in re.findall(r"G\[0\] = (−?[\d.]+\d)", said(key, sample, lang)):
                assert name in wanted, (key, name, wanted)


def test_sums_have_the_digits_that_they_need():
    found = 0
    for given in (
        {"rewards": [-0.0037], "values": [22.45]},
        {"rewards": [0.0, 0.0], "values": [122.004, 131.146], "gamma": 0.99},
    ):
        for key in questions():
            text = said(key, from_numbers(given)).replace("−", "-").replace("×", "*")
            for left, right in re.findall(
                r"= ([\d.()+* -]*[+-] [\d.()+* -]*) = (-?\d*\.?\d+)", text
            ):
                assert eval(left) == pytest.approx(float(right), rel=2e-3), (key, left, right)
                found += 1
    assert found > 8


# ---- tokens ----


@LANGS
def test_an_answer_about_a_token_is_about_the_one_asked_for(lang):
    for key in ("q5", "q9", "q12", "q22"):
        assert "3 «等于»" in said(key, demo(), lang, token=3), key
        assert said(key, demo(), lang, token=0) == said(key, demo(), lang)
    with pytest.raises(TelescopeError, match="token 1 was not written by the policy"):
        answer(9, with_tool(), lang, token=1)


@LANGS
def test_sutton_writes_the_reward_of_token_3_with_the_index_4(lang):
    text = said("q5", demo(), lang, token=3)
    assert "R₄" in text or "R_4" in text
    assert "R₁" not in text
    assert "R_1" not in text


def test_the_value_after_a_token_is_that_of_the_next_one_the_policy_wrote():
    assert "V[3] = 0.4" in said("q9", with_tool())  # tokens 1 and 2 are the tool's


# ---- samples that lack something ----


def test_a_sample_without_the_columns_gets_the_built_in_example_and_says_so():
    bare = Sample([0], [b"x"], [1], {"values": [0.4]})
    assert said(12, bare).startswith("(This sample has no token_level_rewards; the numbers are of")
    assert said(12, bare, "zh").startswith("（这条样本没有 token_level_rewards")


@LANGS
@LEVELS
@pytest.mark.parametrize("number", [69, 70, 71])
def test_no_example_stands_in_where_the_question_is_about_this_answer(number, lang, level):
    text = said(number, Sample([0], [b"x"], [1], {}), lang, level)
    assert not re.search(r"example|内置|等于|\d", text)


def test_nothing_is_said_of_what_an_unknown_estimator_does():
    unknown = Sample([0], [b"x"], [1], {}, settings=Settings.of(estimator="?"), assumed=("gamma",))
    assert "no critic" not in said(66, unknown)
    assert "Here γ" not in said(43, unknown)
    assert said(12, unknown).startswith("(This sample has no token_level_rewards, values;")


def test_assumed_settings_are_named_before_what_follows_from_them():
    given = replace(THREE, assumed=("gamma", "lam", "clip_low", "whiten"))
    note = "(γ 1, λ 0.95, ε 0.2, no whitening assumed)"
    assert answer(12, given, "en").blocks[0] == note
    assert answer(12, given, "zh").blocks[0] == "（假定 γ 1, λ 0.95, ε 0.2, 不白化）"
    assert note not in said(32, replace(given, mask=[0, 0, 0]))


@pytest.mark.parametrize(("ratio", "has_times"), [(0.98, False), (1.02, False), (0.6, True)])
def test_a_child_never_hears_of_one_times_the_old_chance(ratio, has_times):
    one = demo()
    update = replace(one.actor_updates[-1], ratio=[])
    update = replace(update, log_probs=[x + math.log(ratio) for x in update.old_log_probs])
    for lang, times in (("zh", "机会是原来的"), ("en", "times the old")):
        text = said(38, fill(replace(one, actor_updates=[update])), lang, "kid", token=2)
        assert (times in text) == has_times


@LEVELS
@pytest.mark.parametrize("number", [48, 68])
def test_a_kl_in_the_loss_is_not_called_free(number, level):
    loss = RIGHT.settings.change(kl_coef=0.0, kl_loss_coef=0.5)
    with_loss = said(number, replace(RIGHT, settings=loss), "en", level)
    without = said(number, replace(RIGHT, settings=RIGHT.settings.change(kl_coef=0.0)), "en", level)
    assert re.search("0.5" if level == "expert" else "pulled back", with_loss)
    assert "No KL holds" not in said(63, replace(RIGHT, settings=loss), "en", level)
    for free in ("costs nothing", "no rope"):
        assert free not in with_loss
    assert level == "expert" or re.search("costs nothing|no rope", without)


@LEVELS
def test_blame_is_what_the_loss_asks_for_not_what_the_update_did(level):
    """ρ is 1.6 on the blamed token: other tokens raised it."""
    one = demo()
    worst = min(range(7), key=lambda t: one.columns["whitened"][t])
    old = one.actor_updates[-1].old_log_probs
    new = [x + 0.5 * (t == worst) for t, x in enumerate(old)]
    update = replace(one.actor_updates[-1], log_probs=new, ratio=[])
    text = said(70, fill(replace(one, actor_updates=[update])), "en", level)
    assert "asks" in text
    assert "makes it less likely" not in text
    assert "will write it less" not in text


def test_with_lambda_one_no_value_brings_news_earlier():
    for level in ("expert", "kid"):
        half = said(40, replace(THREE, settings=Settings.of(lam=0.5)), level=level)
        whole = said(40, replace(THREE, settings=Settings.of(lam=1.0)), level=level)
        for word in ("news",):
            assert word in half
            assert word not in whole


@LANGS
@LEVELS
@pytest.mark.parametrize("number", [40, 42, 46, 54, 57])
def test_an_answer_that_needs_no_critic_does_not_speak_of_one_that_is_not_there(
    number, lang, level
):
    plain = replace(RIGHT, settings=RIGHT.settings.change(estimator="reinforce++"))
    text = said(number, fill(replace(plain, columns=_without_values(plain))), lang, level)
    assert not re.search(r"V\b|GAE|价值|value|λ|(?<!no )(critic|forecaster) (?!is needed)", text)


def _without_values(sample):
    return {k: v for k, v in sample.columns.items() if k not in ("values", "returns", "deltas")}


def test_question_7_needs_only_log_probs_and_whitened_advantages():
    given = from_numbers({"whitened": [0.5, -1.0], "old": [-0.5, -1.0]})
    for lang in ("zh", "en"):
        for level in ("expert", "kid"):
            assert "built-in" not in said("q7", given, lang, level)
            assert "内置" not in said("q7", given, lang, level)


def test_question_4_uses_the_values_and_returns_that_were_given():
    given = Sample([0], [b"x"], [1], {"values": [0.8], "returns": [0.95]})
    text = said("q4", given)
    assert "built-in" not in text
    assert "0.95" in text
    assert "0.8" in text


def test_whitening_names_the_batch_or_says_that_there_is_none():
    batch = said("q23", trained(1)[0])
    for one in (THREE, fill(THREE)):
        assert said("q23", one) != batch
    assert num(facts(trained(1)[0])["mu"]) in batch


@LANGS
@LEVELS
def test_a_paragraph_has_at_most_four_sentences_and_five_lines(lang, level):
    joined = 0
    for key in questions():
        starts = {each.text(lang)[:12] for each in find_question(key).sentences}
        for block in answer(key, RIGHT, lang, level).blocks:
            if isinstance(block, str):
                assert count_sentences(block) <= 4, block
                assert len(wrap(block, 80)) <= 7, block
                joined += sum(start in block for start in starts if start) > 1
    assert joined > 10  # short sentences stand together


def test_a_new_thought_opens_a_paragraph():
    for lang in ("zh", "en"):
        first, second, *_ = answer(21, RIGHT, lang).blocks
        assert second.startswith(("整条回答的结果", "The outcome of the whole response"))
        assert "REINFORCE" not in first


@LANGS
@LEVELS
@pytest.mark.parametrize("token", ["<b>x", "»<b>x", "」<b>x"])
def test_a_token_cannot_write_markdown_into_an_answer(lang, level, token):
    texts = [token.encode(), *THREE.token_bytes[1:]]
    sample = replace(THREE, token_bytes=texts)
    for key in ("q1", "q12", "q13"):
        shown = answer(key, sample, lang, level).markdown(prose)
        assert "<b>" not in shown


def kid_texts(lang: str) -> Iterator[str]:
    """Every text of ours that a child may read."""
    for question in questions().values():
        yield question.title(lang, "kid")
        yield from (each.text(lang) for each in question.sentences if each.level == "kid")
    tables = texts()
    for entry in (*tables["ui_kid"].values(), *tables["column_kid"].values()):
        yield entry[lang]
    for entry in tables["kid"].values():
        yield entry.get(lang, "") + entry.get(f"formula_{lang}", "")
    for stage in tables["flow_kid"].values():
        yield from (said[lang] for said in stage.values())
    path = Path(telescope.__file__).parent / "algorithms/definitions/texts.toml"
    for family in tomllib.loads(path.read_text("utf-8")).values():
        for entry in family.values():
            yield entry.get(f"kid_{lang}", "") + entry.get(f"kid_formula_{lang}", "")


@pytest.mark.parametrize(
    ("lang", "word", "others"),
    [
        ("zh", "回答", r"答案|答复|词 \{tok\}|«|tok\} [一-鿿]"),
        ("en", "answer", r"\b(?:response|reply|token)s?\b"),
    ],
)
def test_a_child_has_one_word_for_the_answer_and_one_for_a_word(
    lang: str, word: str, others: str
) -> None:
    every = list(kid_texts(lang))
    assert len(every) > 300
    assert sum(word in text for text in every) > 30
    written = [re.sub(r"\{tokens\}|--token", "", text) for text in every]
    wrong = [text for text in written if re.search(others, text)]
    assert wrong == []


def test_a_child_counts_words_in_chinese_as_one_says_it() -> None:
    text = answer(12, RIGHT, "zh", "kid").text()
    assert "第 0 个词「是」" in text
