"""An audit in sentences and tables, in Chinese and English.

Every sentence states numbers of the summary; none judges what the numbers do not say.
"""

from __future__ import annotations

from collections.abc import Sequence

from telescope.audit.findings import Audit, Errors, Post, Signs, Summary, summarise
from telescope.explain.text import both_ends, fold, pad, visible
from telescope.explain.words import Lang

WIDTH = 80
PROMPTS = 5
"""Prompts that the table lists."""

_NAMES = {
    "zh": {"values": "V", "baselines": "基线"},
    "en": {"values": "V", "baselines": "the baseline"},
}
_LABEL = 34
"""Cells of a table's first column."""
_CELL = 9
_PLACES = {
    "zh": {"start": "开头三分之一", "middle": "中间三分之一", "end": "末尾三分之一"},
    "en": {"start": "first third", "middle": "middle third", "end": "last third"},
}
_CREDITS = {"advantages": "A", "whitened": "Â", "deltas": "δ"}


def report(audit: Audit, lang: Lang, width: int = WIDTH) -> str:
    """The whole audit for a terminal."""
    summary = summarise(audit)
    blocks = [[_title(audit, lang)], _method(audit, lang)]
    if summary.overall is not None:
        blocks.append(_verdict(audit, summary, lang))
        blocks.append(_calibration(audit, summary, lang))
        blocks.append(_by_place(audit, summary, lang))
        blocks.append(_by_prompt(audit, summary, lang))
    elif audit.estimate is None:
        blocks.append([_say(lang, *_NOTHING_PREDICTED)])
    blocks.append(signs(summary.signs, lang))
    blocks.append([_speed(audit, lang)])
    return "\n\n".join("\n".join(fold(line, width) for line in lines) for lines in blocks if lines)


_NOTHING_PREDICTED = (
    "这个估计法没有 critic，也没有基线：没有预测可以核对，只核对 A 的符号。",
    "This estimator has neither a critic nor a baseline: there is no prediction to check, only the "
    "signs of A.",
)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _say(lang: Lang, zh: str, en: str) -> str:
    return zh if lang == "zh" else en


def number(x: float, *, sign: bool = False) -> str:
    """A number with two decimals, without a minus before 0.00."""
    text = f"{abs(x):.2f}"
    if text == "0.00":
        return text
    return ("−" if x < 0 else "+" if sign else "") + text


# ---- what was done ----


def _title(audit: Audit, lang: Lang) -> str:
    zh = {"values": "critic 对不对", "baselines": "组基线对不对", None: "优势的符号对不对"}
    en = {
        "values": "is the critic right",
        "baselines": "are the baselines right",
        None: "are the signs of the advantages right",
    }
    return _say(
        lang,
        f"{audit.run} 第 {audit.step} 步的核查：{zh[audit.estimate]}？",
        f"Audit of {audit.run}, step {audit.step}: {en[audit.estimate]}?",
    )


def _method(audit: Audit, lang: Lang) -> list[str]:
    name = _NAMES[lang].get(audit.estimate or "", "")
    lines = [_policy(audit, lang)]
    lines.append(
        _say(
            lang,
            f"从 {audit.states} 个状态各续写 {audit.continuations} 条，用这次训练自己的奖励打分。",
            f"It wrote {audit.continuations} continuations from each of {audit.states} states. The "
            "run's own reward scored them.",
        )
    )
    if audit.estimate is not None:
        lines.append(
            _say(
                lang,
                f"{name} 估计的是从这里到结尾的奖励之和 {_return(audit)}，下面叫「结果」。",
                f"{_capital(name)} estimates the sum of rewards from here to the end, "
                f"{_return(audit)}. It is called the outcome below.",
            )
        )
    return lines


def _policy(audit: Audit, lang: Lang) -> str:
    if audit.checkpoint == audit.needed:
        return _say(
            lang,
            f"策略是{_weights(audit.checkpoint, lang)}，第 {audit.step} 步的回答就是它写的。",
            f"The policy is {_weights(audit.checkpoint, lang)}: it wrote the responses of step "
            f"{audit.step}.",
        )
    return _say(
        lang,
        f"注意：第 {audit.step} 步的回答是{_weights(audit.needed, lang)}写的，它不在磁盘上。"
        f"续写的是最近的{_weights(audit.checkpoint, lang)}，所以误差里也有两个策略的差别。",
        f"Note: {_weights(audit.needed, lang)} wrote the responses of step {audit.step}, and it "
        "is not on disk. The continuations are by the nearest, "
        f"{_weights(audit.checkpoint, lang)}, so the errors contain the difference between the "
        "two policies.",
    )


def _weights(number: int, lang: Lang) -> str:
    if number == 0:
        return _say(lang, "训练前的模型", "the model before training")
    return _say(lang, f" checkpoint {number}", f"checkpoint {number}")


def _return(audit: Audit) -> str:
    """What a return is made of, e.g. Σ γᵏ·(score − 0.05·KL) with γ = 0.99."""
    gamma = audit.settings["gamma"]
    beta = audit.settings["kl_coef"]
    reward = f"score − {beta:g}·KL" if beta else "score"
    if gamma == 1:
        return f"Σ ({reward})" if beta else "Σ score"
    return f"Σ {gamma:g}ᵏ·({reward})"


def _speed(audit: Audit, lang: Lang) -> str:
    rate = audit.states / max(audit.seconds, 1e-9)
    return _say(
        lang,
        f"{audit.seconds:.1f} 秒，每秒 {rate:.1f} 个状态（{audit.device}）。",
        f"{audit.seconds:.1f} s, {rate:.1f} states per second ({audit.device}).",
    )


# ---- what came out ----


def _verdict(audit: Audit, summary: Summary, lang: Lang) -> list[str]:
    overall = summary.overall
    assert overall is not None
    name = _NAMES[lang][audit.estimate or "values"]
    lines = [_bias(overall, name, lang)]
    lines.append(
        _say(
            lang,
            f"除去采样噪声，{name} 通常差 {number(overall.typical_error)}。"
            f"{overall.count} 个状态里有 {summary.outside} 个的 {name} 在 95% 区间之外。",
            f"Without sampling noise {name} is typically off by "
            f"{number(overall.typical_error)}. It lies outside the 95 % interval at "
            f"{summary.outside} of {overall.count} states.",
        )
    )
    if summary.slope is None or summary.intercept is None:
        lines.append(
            _say(
                lang,
                f"{name} 处处相同，分不出好坏状态：没有斜率，也没有排序。",
                f"{_capital(name)} is the same everywhere, so it cannot tell states apart: "
                "there is no slope and no ranking.",
            )
        )
        return lines
    short = name.removeprefix("the ")
    fit = f"{number(summary.intercept)} + {number(summary.slope)}·{short}".replace("+ −", "− ")
    lines.append(
        _say(
            lang,
            f"最小二乘：结果 = {fit}（完全校准是 0 + 1·{short}）。",
            f"Least squares: outcome = {fit} (perfect calibration is 0 + 1·{short}).",
        )
    )
    if summary.rank_correlation is not None:
        explained = ""
        if summary.explained is not None:
            share = number(summary.explained)
            explained = _say(
                lang,
                f"解释方差 {share}。",
                f" Explained variance: {share}.",
            )
        rank = number(summary.rank_correlation)
        lines.append(
            _say(
                lang,
                f"{name} 与结果的秩相关（Spearman）：{rank}。{explained}",
                f"Rank correlation (Spearman) of {name} and outcome: {rank}.{explained}",
            )
        )
    return lines


def _bias(overall: Errors, name: str, lang: Lang) -> str:
    off = number(abs(overall.mean_error))
    predicted = number(overall.predicted)
    outcome = number(overall.outcome)
    if off == "0.00":
        return _say(
            lang,
            f"平均：{name} {predicted}，结果 {outcome}，没有偏差。",
            f"On average {name} is {predicted} and the outcome {outcome}: no bias.",
        )
    is_high = overall.mean_error > 0
    return _say(
        lang,
        f"平均：{name} {predicted}，结果 {outcome}，{name} 偏{'高' if is_high else '低'} {off}。",
        f"On average {name} is {predicted} and the outcome {outcome}: {name} is too "
        f"{'high' if is_high else 'low'} by {off}.",
    )


def _calibration(audit: Audit, summary: Summary, lang: Lang) -> list[str]:
    title = _say(lang, "校准（按预测分组）", "calibration, by prediction")
    rows = [(str(place), errors) for place, errors in enumerate(summary.bins, 1)]
    return _table(title, rows, audit, lang)


def _by_place(audit: Audit, summary: Summary, lang: Lang) -> list[str]:
    title = _say(lang, "按位置", "by position")
    rows = [(_PLACES[lang][place], errors) for place, errors in summary.places.items()]
    return _table(title, rows, audit, lang)


def _by_prompt(audit: Audit, summary: Summary, lang: Lang) -> list[str]:
    count = len(summary.prompts)
    shown = summary.prompts[:PROMPTS]
    title = _say(
        lang, f"按提示（共 {count} 个，误差大的在前）", f"by prompt ({count}, worst first)"
    )
    rows = []
    for prompt, errors in shown:
        text = visible(audit.prompts.get(prompt, str(prompt)), spaces=False)
        rows.append((both_ends(text, _LABEL - 3), errors))
    return _table(title, rows, audit, lang)


def _table(title: str, rows: Sequence[tuple[str, Errors]], audit: Audit, lang: Lang) -> list[str]:
    name = _NAMES[lang][audit.estimate or "values"]
    heads = [
        _say(lang, "状态", "states"),
        name.removeprefix("the "),
        _say(lang, "结果", "outcome"),
        _say(lang, "偏差", "bias"),
        _say(lang, "通常差", "typical"),
    ]
    lines = [pad(title, _LABEL) + "".join(pad(head, _CELL, ">") for head in heads)]
    for label, errors in rows:
        cells = [
            str(errors.count),
            number(errors.predicted),
            number(errors.outcome),
            number(errors.mean_error, sign=True),
            number(errors.typical_error),
        ]
        lines.append(pad(f"  {label}", _LABEL) + "".join(pad(cell, _CELL, ">") for cell in cells))
    return lines


def signs(found: Signs, lang: Lang) -> list[str]:
    """How many tokens have credit of the wrong sign."""
    lines = [
        _say(
            lang,
            f"{found.tokens} 个 token 里，续写能判定 {found.decided} 个的优势是正是负"
            "（95% 区间不含 0）。",
            f"Of {found.tokens} tokens, continuations decide for {found.decided} whether their "
            "advantage is positive or negative (the 95 % interval excludes 0).",
        )
    ]
    if not found.decided:
        return lines
    parts = []
    for name, wrong in found.wrong.items():
        share = f"{100 * wrong / found.decided:.0f} %"
        parts.append(f"{_CREDITS[name]} {wrong} ({share})")
    listed = _say(lang, "，", ", ").join(parts)
    lines.append(
        _say(lang, f"其中符号记错的：{listed}。", f"Of those the wrong sign have: {listed}.")
    )
    for name, zero in found.zero.items():
        if zero:
            symbol = _CREDITS[name]
            zh = f"{symbol} 在其中 {zero} 个上是 0：不说是好是坏。"
            lines.append(_say(lang, zh, f"{symbol} is 0 at {zero} of them: it takes no side."))
    return lines


# ---- one token ----


def token_line(audit: Audit, sample: int, token: int, lang: Lang, *, kid: bool = False) -> str:
    """What the audit says about the state before a token; empty if it was not audited."""
    post = find_post(audit, sample, token)
    if post is None:
        return ""
    return _kid_line(audit, post, lang) if kid else _expert_line(audit, post, lang)


def find_post(audit: Audit, sample: int, token: int) -> Post | None:
    """The audited state before a token."""
    for post in audit.posts:
        if (post.sample, post.token) == (sample, token):
            return post
    return None


def _expert_line(audit: Audit, post: Post, lang: Lang) -> str:
    count = audit.continuations
    interval_zh = f"{number(post.low)} 到 {number(post.high)}"
    interval_en = f"{number(post.low)} to {number(post.high)}"
    zh = f"核查：从这里续写 {count} 条，平均得到 {number(post.mean)}（95% 区间 {interval_zh}）"
    en = (
        f"Audit: {count} continuations from here earned {number(post.mean)} on average "
        f"(95 % interval {interval_en})"
    )
    if audit.checkpoint != audit.needed:
        zh += "，由另一步的策略续写"
        en += ", by the policy of another step"
    if post.predicted is None:
        return _say(lang, f"{zh}。", f"{en}.")
    predicted = number(post.predicted)
    who_zh = {"values": "critic 说", "baselines": "基线是"}[audit.estimate or "values"]
    who_en = {"values": "the critic said", "baselines": "the baseline is"}[
        audit.estimate or "values"
    ]
    return _say(lang, f"{zh}；{who_zh} {predicted}。", f"{en}; {who_en} {predicted}.")


def _kid_line(audit: Audit, post: Post, lang: Lang) -> str:
    count = audit.continuations
    earned = points(post.mean)
    zh = f"我们让写手从这里重写 {count} 次，平均得 {earned} 分"
    en = f"We let the writer go on from here {count} times: {earned} points on average"
    if post.predicted is None or audit.estimate != "values":
        return _say(lang, f"{zh}。", f"{en}.")
    guess = points(post.predicted)
    return _say(lang, f"{zh}；预报员猜的是 {guess} 分。", f"{en}; the forecaster guessed {guess}.")


def points(x: float) -> str:
    """A score for a child: 1 is 100 points, as in the tour."""
    text = f"{abs(100 * x):.0f}"
    return text if text == "0" or x > 0 else f"−{text}"
