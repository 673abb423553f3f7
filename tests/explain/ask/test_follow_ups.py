from __future__ import annotations

from typing import Any

import pytest

from telescope.explain.ask.follow_ups import FollowUp, recognise
from telescope.explain.ask.wordings import ELSEWHERE, all_wordings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("举个例子", {"kind": "example"}),
        ("能不能举个例子呢？", {"kind": "example"}),
        ("give me an example", {"kind": "example"}),
        ("为什么", {"kind": "why"}),
        ("Why?", {"kind": "why"}),
        ("why is that", {"kind": "why"}),
        ("更详细", {"kind": "more"}),
        ("more detail please", {"kind": "more"}),
        ("再说一遍", {"kind": "again"}),
        ("say that again", {"kind": "again"}),
        ("和 verl 的哪一行对应？", {"kind": "code"}),
        ("which line in the code", {"kind": "code"}),
        ("which line of verl computes this?", {"kind": "code"}),
        ("在 verl 里是哪个函数", {"kind": "code"}),
        ("给 12 岁讲", {"level": "kid"}),
        ("我还是没懂。请把我当做12岁小孩进行解释", {"level": "kid"}),
        ("explain it like I'm 12", {"level": "kid"}),
        ("explain to a 12-year-old", {"level": "kid"}),
        ("给专家讲", {"level": "expert"}),
        ("用英文", {"lang": "en"}),
        ("in English please", {"lang": "en"}),
        ("换成中文", {"lang": "zh"}),
        ("λ=1 呢？", {"changes": {"lam": 1.0}}),
        ("如果 λ 取 0 呢", {"changes": {"lam": 0.0}}),
        ("what if γ=0.9", {"changes": {"gamma": 0.9}}),
        ("what if gamma were .9?", {"changes": {"gamma": 0.9}}),
        ("β=0 呢", {"changes": {"kl_coef": 0.0}}),
        ("clip=0.1 呢", {"changes": {"clip_low": 0.1, "clip_high": 0.1}}),
        ("不白化呢", {"changes": {"whiten": False}}),
        ("第 3 个 token 呢", {"token": 3}),
        ("what about token 3", {"token": 3}),
        ("那最后一个 token 呢", {"token": -1}),
        ("λ=1 and token 2?", {"changes": {"lam": 1.0}, "token": 2}),
        ("what if lambda was zero", {"changes": {"lam": 0.0}}),
        ("lam=0.5会怎么样", {"changes": {"lam": 0.5}}),
        ("在verl里对应哪个变量", {"kind": "code"}),
        ("用英文给 12 岁讲", {"level": "kid", "lang": "en"}),
        ("恢复原来的设置", {"reset": True}),
    ],
)
def test_a_follow_up_says_what_is_to_be_different(text: str, expected: dict[str, Any]) -> None:
    assert recognise(text) == FollowUp(**{"kind": "again", **expected})


@pytest.mark.parametrize(
    "text",
    [
        "V_t 是写 token 之前还是之后的估值？",
        "为什么 GAE 的方差小",
        "why is the loss 0 at first",
        "λ=1 时优势等于什么",
        "token 级别的奖励是什么",
        "what is whitening",
        "why whiten",
        "代码里 eos_mask 是什么",
        "entropy?",
    ],
)
def test_a_question_of_its_own_is_no_follow_up(text: str) -> None:
    assert recognise(text) is None


def test_hardly_any_known_wording_is_taken_for_a_follow_up() -> None:
    wordings = [text for key, each in all_wordings().items() if key != ELSEWHERE for text in each]
    taken = [text for text in wordings if recognise(text) is not None]
    assert len(taken) <= 0.01 * len(wordings), taken
