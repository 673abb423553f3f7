from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from telescope.algorithms.definitions.notation import num
from telescope.explain.arithmetic import fill
from telescope.explain.ask.conversation import Conversation, Reply
from telescope.explain.ask.log import Log
from telescope.explain.ask.retry import retry
from telescope.explain.dialogue import Dialogue
from telescope.explain.example import RIGHT, WRONG
from telescope.explain.questions import answer, find_question
from telescope.explain.settings import Settings

WHY_NOT_DELTA = "why can't we just use delta as the advantage"


def after(*texts: str, **options: object) -> Reply:
    """The reply to the last of these messages."""
    conversation = Conversation(RIGHT, **options)  # type: ignore[arg-type]
    for text in texts:
        reply = conversation.ask(text)
    return reply


def test_the_first_example_is_question_9() -> None:
    reply = after("V_t 是写 token 之前还是之后的估值？")
    assert (reply.answered, reply.lang, reply.level) == ("q9", "zh", "expert")
    assert reply.nearest[0] == "q9"
    assert len(reply.nearest) == 3
    assert reply.text == answer("q9", RIGHT, "zh").text()


@pytest.mark.parametrize(
    ("text", "lang"), [("bootstrap 是什么意思", "zh"), ("what does bootstrap mean", "en")]
)
def test_the_answer_is_in_the_language_of_the_question(text: str, lang: str) -> None:
    assert after(text).lang == lang
    assert after(text, lang="en").lang == "en"


def test_what_has_no_answer_is_refused_with_three_questions_to_choose_from() -> None:
    reply = after("how do I cook pasta")
    assert reply.answered is None
    assert len(reply.nearest) == 3
    for key in reply.nearest:
        assert find_question(key).title("en") in reply.text
    chosen = after("how do I cook pasta", "2")
    assert chosen.answered == reply.nearest[1]


def test_a_question_may_be_named_by_its_number() -> None:
    assert after("q9").answered == "q9"
    assert after("问题 9").answered == "q9"
    assert after("q999").answered is None


def test_lambda_one_recomputes_the_same_response() -> None:
    reply = after(WHY_NOT_DELTA, "λ=1 呢？")
    assert reply.answered == "q12"
    assert reply.changed == {"lam": 1.0}
    assert reply.lang == "zh"
    rewards = fill(RIGHT).columns["token_level_rewards"]
    values = RIGHT.columns["values"]
    assert f"A 就等于 G − V，即 {num(sum(rewards) - values[0])}" in reply.text


def test_a_changed_clip_range_is_applied_to_the_same_ratios() -> None:
    clipped = retry(RIGHT, {"clip_low": 0.001, "clip_high": 0.001}, "en")
    before = fill(RIGHT).actor_updates[-1]
    now = fill(clipped).actor_updates[-1]
    assert now.ratio == before.ratio
    assert sum(now.clipped) > sum(before.clipped)
    assert now.loss != before.loss


def test_changes_add_up_and_can_be_taken_back() -> None:
    assert after(WHY_NOT_DELTA, "λ=1", "γ=0.9").changed == {"lam": 1.0, "gamma": 0.9}
    assert after(WHY_NOT_DELTA, "λ=1", "reset").changed == {}
    assert after(WHY_NOT_DELTA, "λ=1", "what does bootstrap mean").changed == {}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("why is this answer wrong?", "q69"),
        ("这个回答为什么错了？", "q69"),
        ("which token was blamed most?", "q70"),
        ("哪个词元受的责备最多？", "q70"),
        ("is the critic well calibrated?", "q71"),
        ("评论家校准得好吗？", "q71"),
    ],
)
def test_questions_about_the_answer_on_the_screen(text: str, key: str) -> None:
    assert after(text).answered == key


def test_the_most_blamed_token_is_the_one_with_the_smallest_advantage() -> None:
    whitened = fill(WRONG).columns["whitened"]
    written = [i for i, m in enumerate(WRONG.mask) if m]
    worst = min(written, key=lambda i: whitened[i])
    said = Conversation(WRONG).ask("which token was blamed most?").text
    assert said.startswith(f"Token {worst} «")
    assert f"Â = {num(whitened[worst])} is the smallest of {len(written)} tokens" in said


@pytest.mark.parametrize(
    "before",
    [
        (),
        ("what is the capital of France",),
        ("why is this answer wrong?", "is the critic well calibrated?"),
        (WHY_NOT_DELTA, "which token was blamed most?"),
    ],
)
def test_another_lambda_says_what_it_does_to_a_token(before: tuple[str, ...]) -> None:
    reply = after(*before, "what if λ=0.5", token=3)
    tried = fill(retry(RIGHT, {"lam": 0.5}, "en")).columns["advantages"][3]
    recorded = fill(RIGHT).columns["advantages"][3]
    assert reply.changed == {"lam": 0.5}
    assert f"A was {num(recorded)} and is {num(tried)}." in reply.text


def test_an_impossible_setting_is_explained_and_forgotten() -> None:
    reply = after(WHY_NOT_DELTA, "λ=3 呢")
    assert reply.text == "λ 不能取 3：最大是 1。"
    assert (reply.answered, reply.changed) == ("q12", {})
    assert after(WHY_NOT_DELTA, "λ=3 呢", "again").changed == {}


def test_a_setting_that_the_estimator_lacks_is_said_to_be_missing() -> None:
    grouped = replace(RIGHT, settings=Settings.of(estimator="grpo"))
    conversation = Conversation(grouped)
    conversation.ask("what does the sign of the advantage do")
    assert "has no setting λ" in conversation.ask("what if λ=1").text


def test_tokens_count_from_zero_and_the_reply_says_so() -> None:
    reply = after(WHY_NOT_DELTA, "第 3 个 token 呢")
    assert (reply.answered, reply.token) == ("q12", 3)
    assert "第 3 个 token，从 0 数：「等于」" in reply.text
    assert reply.text.endswith(answer("q12", RIGHT, "zh", token=3).text())
    assert after(WHY_NOT_DELTA, "what about the last token").token == len(RIGHT) - 1


def test_a_token_that_is_not_there_is_refused() -> None:
    reply = after(WHY_NOT_DELTA, "what about token 99")
    assert reply.text == "This response has tokens 0 to 5; there is no 99."
    assert (reply.answered, reply.token) == ("q12", None)


def test_a_token_that_a_tool_wrote_is_refused() -> None:
    conversation = Conversation(replace(RIGHT, mask=[1, 1, 0, 1, 1, 1]))
    conversation.ask(WHY_NOT_DELTA)
    assert "was not written by the policy" in conversation.ask("what about token 2").text


def test_kid_and_english_keep_the_question() -> None:
    reply = after("为什么 GAE 的方差比 MC 小", "给 12 岁讲")
    assert (reply.answered, reply.level, reply.lang) == ("q14", "kid", "zh")
    assert reply.text == answer("q14", RIGHT, "zh", "kid").text()
    reply = after("为什么 GAE 的方差比 MC 小", "给 12 岁讲", "in English")
    assert reply.text == answer("q14", RIGHT, "en", "kid").text()


def test_a_child_reads_no_symbol_in_the_note() -> None:
    reply = after("为什么 GAE 的方差比 MC 小", "给 12 岁讲", "λ=1 呢？")
    assert "λ" not in reply.text
    assert "远处再打的折" in reply.text


def test_an_example_shows_the_arithmetic_of_the_terms() -> None:
    reply = after(WHY_NOT_DELTA, "give an example")
    assert reply.answered == "q12"
    assert "A₄ = δ₄ + γλ·A₅ = " in reply.text or "A₃ = δ₃ + γλ·A₄ = " in reply.text


def test_why_tells_of_a_related_question_and_keeps_the_id() -> None:
    reply = after("what does bootstrap mean", "why?")
    assert reply.answered == "q15"
    titles = [find_question(key).title("en") for key in find_question("q15").related]
    assert any(title in reply.text for title in titles)


def test_again_repeats_the_answer() -> None:
    assert after(WHY_NOT_DELTA, "say that again").text == after(WHY_NOT_DELTA).text


def test_a_follow_up_without_a_question_asks_for_one() -> None:
    reply = after("第 3 个 token 呢？")
    assert reply.answered is None
    assert "前面还没有问题" in reply.text


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("policy_version 是什么", "column:policy_version"),
        ("what is response/length_mean", "metric:response/length_mean"),
        ("setting data.max_prompt_tokens?", "setting:data.max_prompt_tokens"),
    ],
)
def test_a_name_without_a_question_of_its_own_is_looked_up(text: str, key: str) -> None:
    reply = after(text)
    assert reply.answered == key
    assert key.partition(":")[2] in reply.text


ROUNDS = [
    ("V_t 是写 token 之前还是之后的估值？", "q9"),
    ("为什么不直接令 A_t = δ_t", "q12"),
    ("λ=1 呢？", "q12"),
    ("第 3 个 token 呢", "q12"),
    ("in English please", "q12"),
    ("why does GAE have lower variance than monte carlo", "q14"),
    ("给 12 岁讲", "q14"),
    ("what is the weather today", None),
    ("whiten 是什么意思", "q23"),
    ("举个例子", "q23"),
]
"""A conversation in both languages, with follow-ups and one question that has no answer."""


def test_ten_rounds_are_saved_read_back_and_continued(tmp_path: Path) -> None:
    conversation = Conversation(RIGHT)
    log = Log(RIGHT)
    path = log.start(tmp_path, datetime(2026, 11, 16, 9, 5, 7))
    replies = []
    for text, expected in ROUNDS:
        reply = conversation.ask(text)
        replies.append(reply)
        assert reply.answered == expected, text
        log.add(text, reply.answer.markdown(), reply)

    assert path.name == "telescope_20261116_090507.md"
    read = Dialogue.read(path)
    assert [question for question, _ in read.rounds] == [text for text, _ in ROUNDS]
    assert [text for _, text in read.rounds] == [reply.answer.markdown() for reply in replies]
    assert "\n- 回答：是的，等于2！\n" in read.text
    (settings,) = [line for line in read.text.splitlines() if line.startswith("- 设置：")]
    assert settings.startswith("- 设置：估计器 gae，")
    assert "λ=0.95" in settings
    assert "### 问题 3\n背景：λ=1\n用户：" in read.text
    assert "### 问题 4\n用户：" in read.text

    before = path.read_bytes()
    resumed = Conversation(RIGHT)
    again = Log(RIGHT)
    for text in again.read(path):
        resumed.ask(text)
    follow_up = resumed.ask("λ=1 呢？")
    assert follow_up.answered == "q23"
    again.add("λ=1 呢？", follow_up.answer.markdown(), follow_up)
    assert path.read_bytes().startswith(before.rstrip(b"\n"))
    rounds = Dialogue.read(path).rounds
    assert len(rounds) == 11
    assert rounds[-1] == ("λ=1 呢？", follow_up.answer.markdown())
    assert "### 问题 11" in path.read_text("utf-8")
