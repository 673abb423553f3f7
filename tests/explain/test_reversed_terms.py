"""A term's text says what it claims: reverse its meaning, and this test fails.

The claim is checked against numbers in test_trace_texts. Here each claim has the words in which a
text may state it. Whoever rewords a text changes them here too, and thinks about both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from telescope.algorithms.definitions import texts as definition_texts
from telescope.explain.words import texts

pytestmark = pytest.mark.slow

SAYS: dict[str, tuple[str, str]] = {
    "r == score - beta * kl": (
        "任务得分减去 KL 代价 β·kl；不是回报$",
        "task score less the cost of KL, β·kl; not a return$",
    ),
    "delta == r + gamma * V_next - V": (
        r"V\[i\] 是写它之前的预期；V\[i⁺\] 才看到了它，i⁺ 是下一个有效 token$",
        r"V\[i\] is from before the token; only V\[i⁺\], at the next valid token, has seen it$",
    ),
    "delta == r - V": (
        "这是最后一个 token，之后没有奖励了，后面的价值是 0$",
        "this is the last token: nothing follows, the value after it is 0$",
    ),
    "delta == r + gamma * V_end - V": (
        "在这里被截断，后面的价值用 critic 的估计 V_end 代替$",
        "was cut off here, and the critic's V_end stands for what follows$",
    ),
    "(white > 0) == (A > mean) and (white < 0) == (A < mean)": (
        "：高于(?:整批|它的)均值(?: μ )?为正，低于为负(?:，以 σ 为单位。白化让它的大小与奖励的尺度无关，同一个学习率才适用)?$",
        "positive above (?:the batch's|their) mean(?: μ)?, negative below(?:, in units of σ. Whitening "
        "makes its size independent of the scale of the reward, so one learning rate fits)?$",
    ),
    "white == A": ("这里没有白化，就是 A$", "not whitened here, so it is A$"),
    "(ratio > 1) == (new > old) and (ratio < 1) == (new < old)": (
        "^新策略与采样时策略的概率之比：大于 1 表示更可能了，小于 1 表示更不可能了$",
        "^new over sampling-time probability: above 1 the token has become more likely, below 1 "
        "less likely$",
    ),
    "ratio == 1": ("第一次更新之前两者相同，恰为 1$", "before the first update they are the same, so"
                   " it is exactly 1$"),
    "A == delta": (
        r"λ = 0，后面的 δ 都不计入，A\[i\] 就是 δ\[i\]$|γλ = 0，下一个 token 的 A 不计入$"
        r"|^最后一个 token，之后没有 δ 了：A 就是 δ$|只看一步，后面的意外不计入$",
        r"λ = 0, no later δ counts, and A\[i\] is δ\[i\]$|γλ = 0, so the next token's A does not count$"
        r"|^the last token, no δ follows: A is δ$|one step only, later surprises do not count$",
    ),
    "gamma * lam < 1": (
        "：从这里到结尾每一步的 δ，隔 k 步乘 \\(γλ\\)ᵏ，越远越少$",
        ": every δ from here to the end; k steps ahead it counts \\(γλ\\)ᵏ, the farther the less$",
    ),
    "A == G - V": (
        r"：这里 critic 后面的 V 全部抵消，A\[i\] = G\[i\] − V\[i\]，G\[i\] 是实际得到的折扣奖励之和$"
        "|：实际得到的折扣奖励之和，减去写之前的预期$",
        r"here the critic's later V cancel, A\[i\] = G\[i\] − V\[i\], where G\[i\] is the discounted sum"
        " of the rewards that came$|rewards that really came, less what was expected before$",
    ),
    "A == G + tail - V": (
        r"这里 critic 中间的 V 全部抵消，只剩截断处的 V_end；A\[i\] = 实际奖励的折扣和 \+ 折扣后的 V_end − V\[i\]$"
        "|：实际得到的折扣奖励之和，加上截断处折扣后的 V_end，减去写之前的预期$",
        r"here the V in between cancel and only V_end is left; A\[i\] = the discounted rewards that "
        r"came \+ the discounted V_end − V\[i\]$|rewards that really came plus the discounted V_end of "
        "the cut, less what was expected before$",
    ),
    "R == G": (
        r"用未白化的 A；与 V\[i\] 同下标，含 r\[i\]；这里等于实际得到的折扣奖励之和 G\[i\]$",
        r"from the raw A; same index as V\[i\], r\[i\] included; here it equals G\[i\], the discounted "
        "sum of the rewards that came$",
    ),
    "R == G + tail": (
        r"同下标，含 r\[i\]；这里等于实际奖励的折扣和，加上截断处折扣后的 V_end$"
        r"|：实际得到的折扣奖励之和（截断时加折扣后的 V_end），与 V\[i\] 同下标，含 r\[i\]$",
        r"same index as V\[i\], r\[i\] included; here it equals the discounted rewards that came plus the "
        r"discounted V_end of the cut$|: the discounted rewards that came \(plus the discounted V_end "
        r"where cut off\); same index as V\[i\], r\[i\] included$",
    ),
    "0 < lam_R < 1": (
        r"与 V\[i\] 同下标，含 r\[i\]；一部分是实际奖励，一部分是 critic 自己后面的 V$",
        r"same index as V\[i\], r\[i\] included; partly rewards that came, partly the critic's own later"
        " V$",
    ),
    "R == r + gamma * V_next": (
        r"一步 TD 目标 r\[i\] \+ γ·V\[i⁺\]；与 V\[i\] 同下标，含 r\[i\]$"
        r"|一步 TD 目标，这一步的奖励加上折扣后的下一个价值；与 V\[i\] 同下标，含 r\[i\]$",
        r"one-step TD target r\[i\] \+ γ·V\[i⁺\]; same index as V\[i\], r\[i\] included$"
        r"|one-step TD target, this reward plus the discounted next value; same index as V\[i\], r\[i\] "
        "included$",
    ),
    "white < 0 and ratio > 1": (
        r"Â\[i\] < 0 且比率过大，被 dual clip 封顶：梯度为 0$",
        r"Â\[i\] < 0 and the ratio is far above 1; the dual clip bounds it: gradient 0$",
    ),
    "white * (ratio - 1) > 0": (
        "^✂ 取了裁剪后的一项，它与参数无关：梯度为 0$",
        "^✂ the clipped term wins, and it does not depend on the weights: gradient 0$",
    ),
    "white * (ratio - 1) < 0": (
        "^比率在区间外，但 min 取了未裁剪的一项，把它往回拉：梯度照常$",
        "^outside the range, but min keeps the unclipped term, which pulls it back: the gradient "
        "flows$",
    ),
    "white == 0": (r"^Â\[i\] = 0：两项都是 0，梯度为 0$", r"^Â\[i\] = 0: both terms are 0, and so is the"
                   " gradient$"),
    "low <= ratio <= high": (
        "^比率在裁剪区间内：两项相同，梯度照常$",
        "^the ratio is inside the range: both are equal, the gradient flows$",
    ),
    "abs(v - V) <= eps": (
        "^critic 的新预测 v 对固定目标 R 的误差；在裁剪区间内$",
        "^error of the critic's new prediction v against the fixed R; inside the range$",
    ),
    "abs(v - V) > eps and abs(v - R) >= abs(edge - R)": (
        "^v 在区间外，但未裁剪的误差更大：梯度照常$",
        "^v is outside the range, but the plain error is larger: the gradient flows$",
    ),
    "abs(edge - R) > abs(v - R)": (
        "^✂ 裁剪后的误差更大：这一项梯度为 0$",
        "^✂ the clipped error is larger: this term's gradient is 0$",
    ),
    "kl == old - ref": (
        "单个样本可以为负，平均起来（真正的 KL）不为负；参考模型在这里起作用（或在 KL 损失里），从不进入比率 ρ$",
        "one sample may be negative, the average \\(the KL itself\\) is not; the reference acts here "
        "\\(or in a KL loss\\), never in the ratio ρ$",
    ),
    "kl >= 0": (
        "，不会是负的；参考模型在这里起作用（或在 KL 损失里），从不进入比率 ρ$",
        ", never negative; the reference acts here \\(or in a KL loss\\), never in the ratio ρ$",
    ),
}  # fmt: skip
"""Claim -> how a text may state it, in Chinese and in English."""

STARTS = {
    "zh": "未白化的优势[：，]|同一个数：|最后一个 token，",
    "en": "raw advantage, before whitening[:,]|the same number:|the last token,",
}
"""How a text on A begins."""
ALONE = {"zh": "这里没有整批", "en": "there is no batch here"}
"""What a text says of a response that was whitened alone."""

OPPOSITES = {
    "zh": [
        ("之前", "之后"), ("后面", "前面"), ("减去", "加上"), ("高于", "低于"), ("为正", "为负"),
        ("等于", "不等于"), ("不计入", "计入"), ("没有", "有"), ("不会", "会"), ("从不", "总是"),
        ("大于", "小于"), ("更可能", "更不可能"), ("越少", "越多"), ("为 0", "不为 0"), ("含", "不含"),
        ("不为负", "为负"), ("照常", "为 0"), ("相同", "不同"), ("全部", "都不"), ("无关", "有关"),
        ("最后", "最先"), ("区间内", "区间外"), ("更大", "更小"), ("未裁剪", "裁剪后"), ("过大", "过小"), ("就是", "不是"), ("都是 0", "都不是 0"),
    ],
    "en": [
        ("before", "after"), ("later", "earlier"), ("less", "plus"), ("above", "below"),
        ("positive", "negative"), ("equals", "differs from"), ("does not", "does"), ("no ", "a "),
        ("never", "always"), ("more likely", "less likely"), ("the less", "the more"),
        ("included", "left out"), ("is not", "is"), ("flows", "is 0"), ("the same", "different"),
        ("cancel", "stay"), ("last", "first"), ("unclipped", "clipped"), ("nothing", "much"),
        ("wins", "loses"), ("inside", "outside"), ("larger", "smaller"), ("plus", "less"), ("only", "not even"), ("do not", "do"),
    ],
}  # fmt: skip


def claiming() -> Iterator[tuple[str, str, str]]:
    """Claim, language and text of every text that makes one."""
    tables = [definition_texts.CREDIT, definition_texts.OBSERVED, definition_texts.ONE_STEP]
    tables += [definition_texts.CLIP, definition_texts.KL, definition_texts.VALUE]
    for table in tables:
        for words in table.values():
            if words.claim:
                yield words.claim, "zh", words.zh
                yield words.claim, "en", words.en
    for entry in texts()["expert"].values():
        if "claim" in entry:
            yield entry["claim"], "zh", entry["zh"]
            yield entry["claim"], "en", entry["en"]


def states(claim: str, lang: str, text: str) -> bool:
    """Whether the text says what it claims."""
    zh, en = SAYS[claim]
    starts = re.match(STARTS[lang], text) is not None or not claim.startswith(("A ==", "gamma"))
    is_alone = re.search(ALONE[lang], text) is not None or not re.search("这一条|own tokens", text)
    return starts and is_alone and re.search(zh if lang == "zh" else en, text) is not None


@pytest.mark.parametrize(("claim", "lang", "text"), sorted(set(claiming())))
def test_a_text_says_what_it_claims(claim: str, lang: str, text: str) -> None:
    assert states(claim, lang, text)


def reversals() -> Iterator[tuple[str, str, str, str]]:
    for claim, lang, text in sorted(set(claiming())):
        for one, other in OPPOSITES[lang]:
            if one in text:
                yield claim, lang, text, text.replace(one, other, 1)


def test_a_reversed_text_is_caught() -> None:
    tried = list(reversals())
    missed = [
        (text, changed) for claim, lang, text, changed in tried if states(claim, lang, changed)
    ]
    assert missed == []
    assert len(tried) > 100
    assert {claim for claim, *_ in tried} == SAYS.keys()
