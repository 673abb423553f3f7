"""What `telescope ask` says around an answer, in Chinese and English."""

from __future__ import annotations

from telescope.explain.words import Lang

_TEXTS: dict[str, dict[Lang, str]] = {
    "no answer": {
        "zh": "这个问题没有现成的答案。最接近的三个：",
        "en": "There is no text that answers this. The three nearest questions:",
    },
    "choose": {
        "zh": "（输入 1、2 或 3，就回答那一个。）",
        "en": "(Type 1, 2 or 3 to have that one answered.)",
    },
    "no before": {
        "zh": "这是追问，但前面还没有问题。先问一个，例如：V_t 是写 token 之前还是之后的估值？",
        "en": "This is a follow-up, but no question came before it. Ask one first, for example: "
        "is V_t the estimate before or after the token?",
    },
    "changed": {
        "zh": "（{} 换成 {}，同一条回答重新计算。）",
        "en": "(With {} = {}, the same response recomputed.)",
    },
    "whiten off": {"zh": "（不白化，重新计算。）", "en": "(Without whitening, recomputed.)"},
    "whitened whole": {
        "zh": "（这一批的 {} 条回答都重新计算，μ、σ 取自它们全部。）",
        "en": "(All {} responses of the batch recomputed; μ and σ are over all of them.)",
    },
    "whitened part": {
        "zh": "（μ、σ 只取自这一步记录下来的 {} 条回答；训练时取自整批，没有都记录。）",
        "en": "(μ and σ are over the {} recorded responses of this step; training took the whole "
        "batch, which was not all recorded.)",
    },
    "whitened alone": {
        "zh": "（这里只有这一条回答，μ、σ 只取自它；训练时取自整批。）",
        "en": "(Only this response is here: μ and σ are its own; training takes the whole batch.)",
    },
    "whitened whole kid": {
        "zh": "（这一批的 {} 条回答都重新算过，大家的平均取自它们全部。）",
        "en": "(All {} answers were worked out again; everyone's average is over all of them.)",
    },
    "whitened part kid": {
        "zh": "（大家的平均只取自记下来的 {} 条回答。）",
        "en": "(Everyone's average is over the {} answers that were written down.)",
    },
    "whitened alone kid": {
        "zh": "（这里只有这一条回答，平均只取自它自己的词。）",
        "en": "(Only this answer is here: the average is over its own words.)",
    },
    "no setting": {
        "zh": "（估计器 {} 没有 {} 这个设置，所以没有变化。）",
        "en": "(The estimator {} has no setting {}, so nothing changes.)",
    },
    "moved token": {
        "zh": "（token {}「{}」：{}）",
        "en": "(Token {} «{}»:{})",
    },
    "moved": {"zh": "{} 从 {} 变成 {}。", "en": " {} was {} and is {}."},
    "too high": {"zh": "{} 不能取 {}：最大是 {}。", "en": "{} cannot be {}: at most {}."},
    "too low": {"zh": "{} 不能取 {}：最小是 {}。", "en": "{} cannot be {}: at least {}."},
    "not allowed": {"zh": "{} 不能取 {}。", "en": "{} cannot be {}."},
    "token": {
        "zh": "（第 {} 个 token，从 0 数：「{}」。）",
        "en": "(Token i = {}, counted from 0: «{}».)",
    },
    "word": {
        "zh": "（第 {} 个词「{}」，从 0 数。）",
        "en": "(Word {}, counted from 0: «{}».)",
    },
    "no token": {
        "zh": "这条回答的 token 是 0 到 {}，没有 {}。",
        "en": "This response has tokens 0 to {}; there is no {}.",
    },
    "not written": {
        "zh": "token {} 不是策略写的，没有这些数。换一个 token。",
        "en": "Token {} was not written by the policy and has no such numbers. Choose another.",
    },
    "example": {
        "zh": "以 token {}（从 0 数）「{}」为例：",
        "en": "Take token {} (counted from 0), «{}»:",
    },
    "related": {"zh": "相关的问题：{}", "en": "A related question: {}"},
    "why": {
        "zh": "原因在另一个问题里：{}",
        "en": "The reason is the subject of another question: {}",
    },
    "code": {
        "zh": "在代码里（`telescope explain --code` 显示这些行）：",
        "en": "In the code (`telescope explain --code` shows the lines):",
    },
    "no code": {
        "zh": "这个问题讲的是定义，没有对应的某一行代码。",
        "en": "This question is about a definition; no line of code computes it.",
    },
}


def say(key: str, lang: Lang, *values: object) -> str:
    return _TEXTS[key][lang].format(*values)
