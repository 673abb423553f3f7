"""What the terms of estimators and losses mean, in Chinese and English, for experts and children.

A key is the name of a term, or `term:state`, or `term:variant`. The more particular key wins.
"""

from __future__ import annotations

from collections.abc import Mapping

from telescope.algorithms.definitions.base import Words

CREDIT: Mapping[str, Words] = {
    "advantage_sum": Words(
        zh="从这里到结尾每一步的 δ，隔 k 步乘 (γλ)ᵏ",
        en="every δ from here to the end; k steps ahead it counts (γλ)ᵏ",
        kid_zh="后来的好事，前面的词也有一份功劳。",
        kid_en="Earlier words get a share of the good things that come later.",
        kid_formula_zh="功劳 = 这一步的惊喜 + 后面的惊喜（越远打折越多）",
        kid_formula_en=(
            "credit = this surprise + later surprises (the farther, the less they count)"
        ),
    ),
    "advantage_sum:cut": Words(
        kid_zh="回答被截断了：真正得到的之外，结尾用了一次猜测。",
        kid_en="The answer was cut off: besides what really came there is one guess, at the end.",
        kid_formula_zh=(
            "功劳 = 后来真正得到的小分 + 没写完的那部分预测员的猜测（都是越远打折越多） "
            "− 写之前的猜测"
        ),
        kid_formula_en=(
            "credit = the marks that really came + the forecaster's guess for what was cut "
            "off (the farther, the less they count) − guess before"
        ),
    ),
    "advantage": Words(
        zh="同一个数，用下一个 token 的数倒推",
        en="the same number from the next token's, backwards",
        kid_zh="从后往前算，得到同一个数。",
        kid_en="Worked out from the end backwards: the same number.",
        kid_formula_zh="功劳 = 这一步的惊喜 + 折扣 × 远处再打的折 × 下一个词的功劳",
        kid_formula_en=(
            "credit = this surprise + discount × extra discount × the next word's credit"
        ),
    ),
    "advantage:last": Words(
        zh="最后一个 token，之后没有 δ 了：A 就是 δ",
        en="the last token, no δ follows: A is δ",
        kid_zh="这是最后一个词，后面没有惊喜了。",
        kid_en="This is the last word: no surprise follows.",
        kid_formula_zh="功劳 = 这一步的惊喜",
        kid_formula_en="credit = this surprise",
    ),
    "return": Words(
        zh="与 V 同下标，含 r；只有 λ=1 才等于实际奖励之和",
        en="same index as V, r included; the observed sum only at λ=1",
        kid_zh="下次在同样的地方，预测员应该猜这个数。",
        kid_en="Next time, at the same place, the forecaster should guess this.",
        kid_formula_zh="预测员的目标 = 功劳 + 写之前的猜测",
        kid_formula_en="the forecaster's target = credit + guess before",
    ),
}
"""A sum of later δ."""

OBSERVED: Mapping[str, Words] = {
    **CREDIT,
    "advantage_sum": Words(
        zh="实际得到的折扣奖励之和（截断时加 V_end），减去写之前的预期",
        en=(
            "the discounted rewards that really came (plus V_end where cut off), less what "
            "was expected before"
        ),
        kid_zh="不用猜的，只看真正得到的。",
        kid_en="No guessing: only what really came.",
        kid_formula_zh="功劳 = 后来真正得到的小分（越远打折越多）之和 − 写之前的猜测",
        kid_formula_en=(
            "credit = the marks that really came (the farther, the less they count) − guess before"
        ),
    ),
    "advantage": Words(
        zh="同一个数，用下一个 token 的数倒推",
        en="the same number from the next token's, backwards",
        kid_zh="从后往前算，得到同一个数。",
        kid_en="Worked out from the end backwards: the same number.",
        kid_formula_zh="功劳 = 小分 + 折扣 × 之后真正得到的 − 写之前的猜测",
        kid_formula_en="credit = mark + discount × what really came after − guess before",
    ),
    "return": Words(
        zh="critic 的目标：实际得到的折扣奖励之和（截断时加 V_end），与 V 同下标，含 r",
        en=(
            "the critic's target: the observed discounted sum (plus V_end where cut off); "
            "same index as V, r included"
        ),
        kid_zh="下次在同样的地方，预测员应该猜这个数。",
        kid_en="Next time, at the same place, the forecaster should guess this.",
        kid_formula_zh="预测员的目标 = 功劳 + 写之前的猜测",
        kid_formula_en="the forecaster's target = credit + guess before",
        whole=True,
    ),
}
"""Rewards that really came, less V."""

ONE_STEP: Mapping[str, Words] = {
    **CREDIT,
    "advantage": Words(
        zh="TD(0)：只看一步，后面的意外不计入",
        en="TD(0): one step only, later surprises do not count",
        kid_zh="这次只看一步，不等后面。",
        kid_en="Here only one step counts; nothing later is waited for.",
        kid_formula_zh="功劳 = 这一步的惊喜",
        kid_formula_en="credit = this surprise",
    ),
    "return": Words(
        zh="critic 的目标：一步 TD 目标 r + γ·V_n，与 V 同下标，含 r",
        en="the critic's target: the one-step TD target r + γ·V_n; same index as V, r included",
        kid_zh="下次在同样的地方，预测员应该猜这个数。",
        kid_en="Next time, at the same place, the forecaster should guess this.",
        kid_formula_zh="预测员的目标 = 功劳 + 写之前的猜测",
        kid_formula_en="the forecaster's target = credit + guess before",
        whole=True,
    ),
}
"""One δ."""

COMPARED: Mapping[str, Words] = {
    **CREDIT,
    "advantage:baseline": Words(
        zh="没有 critic：结果减去基线 b（同组的均值等），不同 token 通常相同",
        en=(
            "no critic: the outcome less the baseline b (the group's mean, …), usually the "
            "same on every token"
        ),
        kid_zh="没有预测员：和同一道题的其他回答比。",
        kid_en="No forecaster here: it is compared with other answers to the same question.",
        kid_formula_zh="功劳 = 这条回答得到的分 − 比较的标准（有时再除以大家的一般差距）",
        kid_formula_en=(
            "credit = what this answer earned − what it is compared with (sometimes divided "
            "by the usual spread)"
        ),
    ),
    "advantage:parts": Words(
        zh="得分的每个部分先在同组内标准化，再加权相加；各部分的 μ、σ 没有记录，这里只显示、不核对",
        en=(
            "each part of the score is standardised within its group, then weighed and "
            "added; their μ and σ are not recorded: shown, not checked"
        ),
        kid_zh="这里只显示结果。",
        kid_en="Only the result is shown here.",
        kid_formula_zh="功劳 = 每个方面和同题其他回答比，再加起来",
        kid_formula_en="credit = each side compared with the other answers, then added up",
    ),
}
"""The outcome compared with a baseline."""

SHARED: Mapping[str, Words] = {
    **CREDIT,
    "advantage:share": Words(
        zh="没有 critic：整条回答的结果按权重 w 分给每个 token，各份之和等于结果",
        en=(
            "no critic: the outcome divided over the tokens by the weights w; the shares add "
            "up to it"
        ),
        kid_zh="把整条回答的分切开，每个词一份。",
        kid_en="The answer's score is cut up, one share for each word.",
        kid_formula_zh="功劳 = 这个词的那一份 × 整条回答得到的分",
        kid_formula_en="credit = this word's share × what the whole answer earned",
    ),
}
"""The outcome divided over the tokens."""

SIDE_BY_SIDE: Mapping[str, Words] = {
    "td0": Words(
        kid_formula_zh="只看一步 = 小分 + 折扣 × 写完后的猜测 − 写之前的猜测",
        kid_formula_en="one step = mark + discount × guess after − guess before",
    ),
    "n_step": Words(
        kid_formula_zh=(
            "看两步 = 小分 + 下一个小分（打一次折）+ 那时的猜测（打两次折）− 写之前的猜测"
        ),
        kid_formula_en=(
            "two steps = mark + the next mark (discounted once) + the guess then (discounted "
            "twice) − guess before"
        ),
    ),
    "gae": Words(
        kid_formula_zh="折中 = 这一步的惊喜 + 后面的惊喜（越远打折越多）",
        kid_formula_en="in between = this surprise + later ones (the farther, the less)",
    ),
    "monte_carlo": Words(
        kid_formula_zh="等到最后 = 真正得到的小分（越远打折越多）之和 − 写之前的猜测",
        kid_formula_en=(
            "to the end = the marks that really came (the farther, the less they count) − "
            "guess before"
        ),
    ),
    "monte_carlo:cut": Words(
        kid_formula_zh=(
            "等到最后 = 真正得到的小分 + 没写完的那部分预测员的猜测（都是越远打折越多） "
            "− 写之前的猜测"
        ),
        kid_formula_en=(
            "to the end = the marks that really came + the forecaster's guess for what was "
            "cut off (the farther, the less they count) − guess before"
        ),
    ),
}
"""Other estimates of the same advantage."""

CLIP: Mapping[str, Words] = {
    "clip": Words(
        kid_formula_zh=(
            "学习分 = 「变化倍数 × 比一比的功劳」与「限制住的倍数 × 比一比的功劳」中小的那个"
        ),
        kid_formula_en=(
            "lesson = the smaller (min) of change × compared credit and limited change × "
            "compared credit"
        ),
    ),
    "clip:floor": Words(
        kid_formula_zh=(
            "学习分 = 「变化倍数 × 比一比的功劳」与「限制住的倍数 × 比一比的功劳」"
            "中小的那个（min），但不低于最后那个数（max）"
        ),
        kid_formula_en=(
            "lesson = the smaller (min) of change × compared credit and limited change × "
            "compared credit, but not below the last number (max)"
        ),
    ),
    "clip:inside": Words(
        zh="比率在裁剪区间内：两项相同，梯度照常",
        en="the ratio is inside the range: both are equal, the gradient flows",
        kid_zh="变化不大，照常学。",
        kid_en="The change is small: it learns as usual.",
    ),
    "clip:kept": Words(
        zh="比率在区间外，但 min 取了未裁剪的一项：梯度照常",
        en="outside the range, but min keeps the unclipped term: the gradient flows",
        kid_zh="变化很大，但方向是错的，要继续改回来。",
        kid_en="The change is big but in the wrong direction: it keeps learning to undo it.",
    ),
    "clip:clipped": Words(
        zh="✂ 取了裁剪后的一项，它与参数无关：梯度为 0",
        en="✂ the clipped term wins, and it does not depend on the weights: gradient 0",
        kid_zh="✂ 已经改得够多了，这个词这次不再学。",
        kid_en="✂ It has changed enough: this word teaches nothing more this time.",
    ),
    "clip:dual": Words(
        zh="✂✂ A<0 且比率过大，被 dual clip 封顶：梯度为 0",
        en="✂✂ A<0 and the ratio exploded; the dual clip bounds it: gradient 0",
        kid_zh="✂✂ 变化大得离谱，封顶，不再学。",
        kid_en="✂✂ The change is absurdly big: capped, nothing more to learn.",
    ),
    "clip:unused": Words(
        zh="本次训练用的是不裁剪的目标函数；这一项只作对照",
        en="this run uses the unclipped objective; shown for comparison only",
        kid_zh="这次训练没有用这个限制，只是对照。",
        kid_en="This training does not use the limit; shown to compare.",
    ),
    "surrogate": Words(
        zh="TRPO 的代理目标项：不裁剪（约束是另外的 KL 上限）",
        en="the TRPO surrogate's term: no clipping (its limit on KL is separate)",
        kid_zh="另一种办法（TRPO）用它，再另外限制总变化。",
        kid_en="Another method (TRPO) uses it and limits the total change separately.",
        kid_formula_zh="不设限的学习分 = 变化倍数 × 比一比的功劳",
        kid_formula_en="lesson without a limit = change × compared credit",
    ),
}
"""PPO's clip beside the plain surrogate."""

UNUSED_CLIP: Mapping[str, Words] = {
    **CLIP,
    **{f"clip:{state}": CLIP["clip:unused"] for state in ("inside", "kept", "clipped", "dual")},
}
"""PPO's clip in a run that does not use it."""

OBJECTIVE: Mapping[str, Words] = {
    "objective": Words(
        zh="本次训练所用损失的这一项（目标函数，损失是它的相反数）",
        en="this run's own loss for the token (the objective; the loss is its negative)",
        kid_zh="分越高，这个词以后越常写。",
        kid_en="The higher it is, the more often this word will be written.",
        kid_formula_zh="学习分 = 这次训练自己的规矩，由变化倍数和比一比的功劳算出",
        kid_formula_en="lesson = this training's own rule, from the change and the compared credit",
    ),
}
"""Any other policy loss."""

VALUE: Mapping[str, Words] = {
    "value_loss": Words(
        kid_formula_zh="预测员的扣分 = 一半 × (新猜测 − 目标)²，取限制前后较大（max）的",
        kid_formula_en=(
            "the forecaster's penalty = half × (new guess − target)², the larger (max) with "
            "and without its limit"
        ),
    ),
    "value_loss:huber": Words(
        kid_formula_zh=(
            "预测员的扣分 = H(新猜测 − 目标)，取限制前后较大（max）的；"
            "H 是差的平方的一半，差太大时改成按直线增加"
        ),
        kid_formula_en=(
            "the forecaster's penalty = H(new guess − target), the larger (max) with and "
            "without its limit; H is half the square, and a straight line where the "
            "difference is large"
        ),
    ),
    "value_loss:inside": Words(
        zh="critic 的新预测 v 对固定目标 R 的误差；在裁剪区间内",
        en="error of the critic's new prediction v against the fixed R; inside the range",
        kid_zh="猜得越准扣得越少。",
        kid_en="The better the guess, the smaller the penalty.",
    ),
    "value_loss:kept": Words(
        zh="v 在区间外，但未裁剪的误差更大：梯度照常",
        en="v is outside the range, but the plain error is larger: the gradient flows",
        kid_zh="新猜测变得太多了：少变一点反而离目标更近，要改回来。",
        kid_en=(
            "The guess moved too far: with a smaller step it would be nearer to the target, "
            "so it must come back."
        ),
    ),
    "value_loss:clipped": Words(
        zh="✂ 裁剪后的误差更大：这一项梯度为 0",
        en="✂ the clipped error is larger: this term's gradient is 0",
        kid_zh="✂ 新猜测已经变得够多了，这次不再改。",
        kid_en="✂ The guess has moved enough: no more change this time.",
    ),
    "value_loss:off": Words(
        zh="critic 的新预测 v 对固定目标 R 的误差；不裁剪",
        en="error of the critic's new prediction v against the fixed R; no clipping",
        kid_zh="猜得越准扣得越少。",
        kid_en="The better the guess, the smaller the penalty.",
    ),
    "value_loss:histogram": Words(
        zh=(
            "交叉熵：目标 R 摊成一个高斯分布 q，p 是 critic 预测的直方图（v 是它的均值）；"
            "v 等于 R 时也不为 0"
        ),
        en=(
            "cross-entropy of the critic's histogram p, whose mean is v, with the fixed R "
            "spread out as q; not 0 even where v is R"
        ),
        kid_zh="他不猜一个数，而是把注押在一排盒子上；目标也摊在相邻几个盒子里，所以总会扣一点。",
        kid_en=(
            "He bets on a row of boxes instead of one number; the target covers a few of "
            "them, so a little penalty always stays."
        ),
        kid_formula_zh="预测员的扣分 = 他给目标附近的盒子押了多少：押得越少，扣得越多",
        kid_formula_en=(
            "the forecaster's penalty = how little he bet on the boxes around the target"
        ),
    ),
}
"""The critic's error."""

KL: Mapping[str, Words] = {
    "kl": Words(
        zh="参考模型在这里起作用（或在 KL 损失里），从不进入比率 ρ",
        en="the reference acts here (or in a KL loss), never in the ratio ρ",
        kid_zh="把握用对数来记：0 是百分之百确定，越负越没把握。跑偏太多要扣一点分。",
        kid_en=(
            "Sureness is on a log scale: 0 is certain, more negative is less sure. Drifting "
            "far costs a little."
        ),
        kid_formula_zh="跑偏 = 写作者的把握 − 原来那个它的把握",
        kid_formula_en="drift = how sure the writer was − how sure its old self was",
    ),
    "kl:abs": Words(
        zh=(
            "KL 的估计，取差的绝对值，不会是负的；参考模型在这里起作用（或在 KL 损失里），"
            "从不进入比率 ρ"
        ),
        en=(
            "an estimate of the KL, the size of the difference, never negative; the "
            "reference acts here (or in a KL loss), never in the ratio ρ"
        ),
        kid_formula_zh="跑偏 = 写作者的把握和原来那个它的把握相差多少（不分正负）",
        kid_formula_en=(
            "drift = how far the writer's sureness was from its old self's (without a sign)"
        ),
        whole=True,
    ),
    "kl:k2": Words(
        zh="KL 的估计（k2），不会是负的；参考模型在这里起作用（或在 KL 损失里），从不进入比率 ρ",
        en=(
            "an estimate of the KL (k2), never negative; the reference acts here (or in a KL "
            "loss), never in the ratio ρ"
        ),
        kid_formula_zh="跑偏 = 一半 × (写作者的把握 − 原来那个它的把握)²",
        kid_formula_en="drift = half × (how sure the writer was − how sure its old self was)²",
        whole=True,
    ),
    "kl:k3": Words(
        zh="KL 的估计（k3），不会是负的；参考模型在这里起作用（或在 KL 损失里），从不进入比率 ρ",
        en=(
            "an estimate of the KL (k3), never negative; the reference acts here (or in a KL "
            "loss), never in the ratio ρ"
        ),
        kid_zh="e 是 2.718…，e^(…) 是它的若干次方。跑偏从不是负的，太多要扣一点分。",
        kid_en=(
            "e is 2.718…, and e^(…) a power of it. This drift is never negative; drifting "
            "far costs a little."
        ),
        kid_formula_zh=(
            "跑偏 = 由 d（写作者的把握 − 原来那个它的把握）算出的数，d 离 0 越远越大，最多 10"
        ),
        kid_formula_en=(
            "drift = a number made of d (how sure the writer was − how sure its old self "
            "was): larger the farther d is from 0, at most 10"
        ),
        whole=True,
    ),
}
"""Estimates of the KL divergence."""
