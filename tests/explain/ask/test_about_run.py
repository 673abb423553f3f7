"""Questions about the run: found in both languages, answered with its numbers, and no others."""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from telescope.algorithms.definitions.notation import num
from telescope.explain.arithmetic import fill
from telescope.explain.ask.about_run import topic_of
from telescope.explain.ask.conversation import Conversation
from telescope.explain.ask.wordings import all_wordings
from telescope.explain.example import BATCH, RIGHT, WRONG
from telescope.explain.facts import facts
from telescope.explain.settings import Settings
from tests import ROOT
from tests.explain.samples import with_tool

HERE = Path(__file__).parent


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose accuracy goes from 0.25 to 0.75, and whose score falls from 0.5 to 0.25."""
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "config.toml").write_text(
        '[data]\nfiles = ["train.jsonl"]\n[reward]\nfunctions = ["my.py:exact"]\n', "utf-8"
    )
    rows = [
        {"step": 0, "eval/greedy_accuracy": 0.25},
        {"step": 1, "reward/score_mean": 0.5},
        {"step": 2, "reward/score_mean": 0.25},
        {"step": 2, "eval/greedy_accuracy": 0.75, "reward/score_mean": 0.25},
    ]
    lines = [json.dumps(row) for row in rows]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 3, "rew']), "utf-8")
    return folder


def ask(text: str, run: Path | None = None, *, sample=WRONG, **options) -> str:
    return Conversation(sample, run=run, batch=lambda: BATCH, **options).ask(text).text


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("what is the task?", "task"),
        ("What's this run about?", "task"),
        ("what is the model supposed to do", "task"),
        ("tell me about the task", "task"),
        ("任务是什么？", "task"),
        ("这个训练是干什么的", "task"),
        ("is it learning?", "learning"),
        ("so is it learning at all?", "learning"),
        ("did it improve?", "learning"),
        ("how accurate is the model now?", "learning"),
        ("它在学习吗？", "learning"),
        ("有进步吗", "learning"),
        ("准确率多少了", "learning"),
        ("what did the critic expect there?", "expected"),
        ("what did the critic predict for token 3", "expected"),
        ("critic's guess at this token?", "expected"),
        ("这里 critic 预期多少？", "expected"),
        ("第 3 个 token 的 V 是多少", "expected"),
        ("what estimator is used?", "settings"),
        ("Is there a critic in this run?", "settings"),
        ("what is lambda here?", "settings"),
        ("how many answers are in the group?", "settings"),
        ("用的是什么估计器？", "settings"),
        ("这次训练有 critic 吗？", "settings"),
        ("这里的 λ 是多少？", "settings"),
        ("一组有几条回答？", "settings"),
        ("how long is this answer?", "length"),
        ("did the answer stop by itself?", "length"),
        ("was it cut off?", "length"),
        ("这条回答有多长？", "length"),
        ("回答是自己停下的吗？", "length"),
        ("what is the right answer?", "right"),
        ("正确答案是什么？", "right"),
    ],
)
def test_a_question_about_the_run_is_found(text: str, topic: str) -> None:
    assert topic_of(text) == topic
    assert Conversation(RIGHT).ask(text).answered == f"run:{topic}"


def test_no_wording_of_another_question_and_no_stranger_is_taken_for_one() -> None:
    known = [text for texts in all_wordings().values() for text in texts]
    for section in tomllib.loads((HERE / "wordings.toml").read_text("utf-8")).values():
        known += [text for texts in section.values() for text in texts]
    for file in HERE.glob("paraphrases*.jsonl"):
        known += [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]
    assert len(known) > 3000
    assert [text for text in known if topic_of(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "is it raining?",
        "what is the task of a lawyer",
        "who is learning French",
        "任务管理器怎么打开",
    ],
)
def test_a_question_that_only_sounds_like_it_is_not_answered(text: str) -> None:
    assert not (Conversation(RIGHT).ask(text).answered or "").startswith("run:")


def test_learning_is_told_with_the_first_and_the_last_number(run: Path) -> None:
    assert ask("is it learning?", run) == (
        "Held-out accuracy, greedy: from 0.25 (step 0) up to 0.75 (step 2). "
        "Mean score of the training answers (at each end over 1 step(s)): from 0.5 (step 1) down to "
        "0.25 (step 2)."
    )
    assert ask("它在学吗？", run) == (
        "留出准确率（greedy）：从 0.25（第 0 步）升到 0.75（第 2 步）。"
        "训练回答的平均得分（各取 1 步的平均）：从 0.5（第 1 步）降到 0.25（第 2 步）。"
    )


def test_one_measurement_shows_no_change_and_none_says_so(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 0, "eval/greedy_accuracy": 0.5}\n', "utf-8")
    assert "0.5 at step 0; it was measured once" in ask("is it learning?", run)
    assert "第 0 步是 0.5；只测过一次" in ask("它在学吗", run)
    row = '{"step": %d, "eval/greedy_accuracy": 0.5}\n'
    (run / "metrics.jsonl").write_text(row % 0 + row % 4, "utf-8")
    assert "0.5 at step 0, and no other at step 4" in ask("is it learning?", run)
    assert "第 0 步是 0.5，第 4 步还是 0.5" in ask("它在学吗", run)
    (run / "metrics.jsonl").write_text("", "utf-8")
    assert "has logged no step yet" in ask("is it learning?", run)
    assert "name its folder" in ask("is it learning?")


def test_the_task_is_told_from_the_config_and_the_prompts(run: Path) -> None:
    said = ask("what is the task?", run, sample=replace(WRONG, parts={}))
    assert said.startswith("The prompts of the run sums come from `train.jsonl`. ")
    assert f"Here the model was asked «{WRONG.prompt}»." in said
    assert "An answer is scored by `my.py:exact`;" in said
    other = replace(WRONG, prompt="another", parts={"exact": 0.0})
    conversation = Conversation(other, run=run, batch=lambda: [WRONG, other, RIGHT])
    said = conversation.ask("what is the task?").text
    assert f"Other prompts of the same step: «{WRONG.prompt}»." in said
    assert "scored by `exact`" in said


@pytest.mark.parametrize("token", [0, 4])
def test_what_the_critic_expected_is_v_before_the_token(token: int) -> None:
    known = facts(WRONG, "en", token)
    columns = fill(WRONG).columns
    said = ask("what did the critic expect there?", token=token)
    assert f"V[{token}] = {num(columns['values'][token])} of reward still to come" in said
    assert f"After it V = {num(known['V_next'])}; its δ is {num(columns['deltas'][token])}." in said
    assert f"What really came from there on was {num(known['came'])}." in said
    named = ask(f"what did the critic predict for token {token}")
    assert named == said


def test_another_token_and_another_language_may_follow() -> None:
    conversation = Conversation(WRONG)
    conversation.ask("what did the critic expect there?")
    reply = conversation.ask("what about token 2")
    assert (reply.answered, reply.token) == ("run:expected", 2)
    assert f"V[2] = {num(WRONG.columns['values'][2])}" in reply.text
    assert "critic 预期" in conversation.ask("in Chinese").text
    assert "there is no 99" in conversation.ask("what about token 99").text


def test_without_a_critic_there_is_no_expectation() -> None:
    grouped = replace(WRONG, settings=Settings.of(estimator="grpo"))
    assert "no critic" in ask("what did the critic expect there?", sample=grouped)


def test_the_right_answer_is_told_where_the_data_has_it() -> None:
    known = replace(WRONG, data={"answer": "2", "level": "easy"})
    assert ask("what is the right answer?", sample=known).startswith(
        "The data's column `answer` says «2». The model wrote «"
    )
    assert "The data's column `answer` says «2»." in ask("why is this answer wrong?", sample=known)
    unknown = replace(WRONG, data={"level": "easy"})
    said = ask("what is the right answer?", sample=unknown)
    assert "no right answer on record (its columns: level)" in said
    assert "column" not in ask("why is this answer wrong?", sample=unknown)


def test_a_damaged_config_is_left_out(run: Path) -> None:
    config = run / "config.toml"
    written = config.read_text("utf-8")
    assert "train.jsonl" in ask("what is the task?", run)
    config.write_text(f"# crc32 of the lines below: 1\n{written}", "utf-8")
    assert "train.jsonl" not in ask("what is the task?", run)


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl"])
def test_a_pipe_in_the_run_is_not_read(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    assert ask("what is the task?", run)


def test_a_child_reads_no_symbol() -> None:
    said = ask("what did the critic expect there?", level="kid", token=4)
    assert said == "Before word 4 «3» the forecaster guessed 0.7. What really came was 0.0."


@pytest.mark.parametrize(
    ("page", "title"), [("ask.md", "## About the run"), ("zh/ask.md", "## 关于这次训练")]
)
def test_the_questions_on_the_page_are_answered_as_it_says(page: str, title: str) -> None:
    section = (ROOT / "docs" / page).read_text("utf-8").partition(title)[2].partition("\n## ")[0]
    asked = re.findall(r"^\| (.*[?？]) \|", section, re.MULTILINE)
    asked += re.findall(r'^telescope ask "(.*?)"', section, re.MULTILINE)
    answered = [Conversation(RIGHT).ask(text).answered for text in asked]
    topics = [
        "run:learning",
        "run:task",
        "run:settings",
        "run:length",
        "run:expected",
        "run:right",
        "q70",
    ]
    assert answered == [*topics, "run:learning", "run:expected"]


def test_settings_are_those_of_the_answer_at_hand() -> None:
    text = ask("what estimator is used?", sample=RIGHT)
    assert "`gae`. There is a critic. γ = 1. λ = 0.95." in text
    assert "weight 0.1 in the rewards and 0 in the loss" in text
    assert "ε = 0.2" in text
    group = RIGHT.settings.change(estimator="grpo", kl_coef=0.0, kl_loss_coef=0.5, clip_low=0.1)
    text = ask("这里的 λ 是多少？", sample=replace(RIGHT, settings=group))
    assert "估计器是 `grpo`。没有 critic，也就没有 V。" in text
    assert "这一组记录了 2 条" in text
    assert "在损失里是 0.5" in text
    assert "ε = 0.1" in text
    assert "λ" not in text
    for lang, said in (("zh", "没有预测员"), ("en", "no forecaster")):
        child = ask(
            "what estimator is used?", sample=replace(RIGHT, settings=group), level="kid", lang=lang
        )
        assert said in child
        assert not re.search(r"[βγλε=`]|critic", child)


def test_an_estimator_that_nobody_said_is_not_described() -> None:
    text = ask(
        "is there a critic in this run?", sample=replace(RIGHT, settings=Settings.of(estimator="?"))
    )
    assert text == "The trainer did not record its estimator, and its numbers do not show one."


def test_the_task_is_what_the_user_said_not_the_chat_template() -> None:
    turns = ("system\nBe brief.", "user\nWhat is 1+1?")
    prompt = (
        "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"
    )
    assert "asked «What is 1+1?»" in ask("what is the task?", sample=replace(RIGHT, prompt=prompt))


def test_a_tools_tokens_are_not_counted_as_the_policys() -> None:
    text = ask("how long is this answer?", sample=with_tool())
    assert (
        text
        == "This answer has 6 tokens, of which the policy wrote 4. It was cut off before its end."
    )
    assert "没有被截断" in ask("这条回答有多长？", sample=RIGHT)
    assert "token" not in ask("how long is this answer?", sample=RIGHT, level="kid")
