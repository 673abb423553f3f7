"""The learner's questions (questions.toml), answered with the numbers of the sample at hand."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.explain.arithmetic import fill
from telescope.explain.example import RIGHT
from telescope.explain.facts import Facts, facts
from telescope.explain.sample import Sample
from telescope.explain.text import plain
from telescope.explain.words import Lang, Level, ui

EXAMPLE = RIGHT
"""Stands in where a sample lacks the columns that an answer needs; the answer says so."""

_STANDS_IN = {
    "zh": "（这条样本没有 {}；下面用内置例子「是的，等于2！」的数。）\n",
    "en": "(This sample has no {}; the numbers are of the built-in example «是的，等于2！».)\n",
}
_HISTOGRAM = {
    "zh": (
        "\n（这次训练的 critic 预测直方图：代替平方误差的是与 R 摊成的分布的交叉熵，也不裁剪。）"
    ),
    "en": (
        "\n(This run's critic predicts a histogram: cross-entropy with R spread out replaces the "
        "squared error, without a clip.)"
    ),
}
_HUBER = {
    "zh": (
        "\n（这次训练的 critic 用 Huber 损失 H：误差不超过 {huber} 时是 ½·误差²，"
        "超过后按直线增加，代替上面的平方。）"
    ),
    "en": (
        "\n(This run's critic has a Huber loss H: ½·error² up to an error of {huber}, a straight "
        "line beyond, in place of the square.)"
    ),
}
_OWN_LAM = {
    "expert_zh": (
        "\n（这次训练里 critic 的目标用自己的 λ={lam_R}，不是 A 的 λ={lam}："
        "目标是 V 加上按它算的优势。）"
    ),
    "expert_en": (
        "\n(In this run the critic's target has a λ of its own, {lam_R}, not A's {lam}: it is V "
        "plus the advantage of that λ.)"
    ),
    "kid_zh": (
        "\n（算目标时远处再打的折是 {lam_R}，算功劳时是 {lam}：目标里的功劳是按前一个另算的。）"
    ),
    "kid_en": (
        "\n(For the target the extra discount for far words is {lam_R}, for the credit {lam}: its "
        "credit is another one.)"
    ),
}


@functools.cache
def _questions() -> dict[int, dict[str, Any]]:
    texts = tomllib.loads(Path(__file__).with_name("questions.toml").read_text("utf-8"))
    return {int(number): entry for number, entry in texts.items()}


def titles(lang: Lang = "zh", level: Level = "expert") -> list[tuple[int, str]]:
    """Number and text of every question."""
    key = f"kid_title_{lang}" if level == "kid" else lang
    return [(number, entry[key]) for number, entry in _questions().items()]


def answer(
    number: int,
    sample: Sample,
    lang: Lang = "zh",
    level: Level = "expert",
    token: int | None = None,
    simulate: Callable[[], Facts] | None = None,
) -> str:
    """The answer to question `number` with this sample's numbers.

    An answer about one token takes `token`, or the first that the policy wrote. `simulate` draws
    many episodes and returns their numbers (telescope.run.simulation.facts, which needs torch);
    without it that part of an answer is left out.
    """
    entry = _questions().get(number)
    if entry is None:
        raise TelescopeError(f"no question {number}: there are 1 to {len(_questions())}")
    missing = _missing(entry, sample)
    used = EXAMPLE if missing else sample
    if missing:
        token = None
    elif token is not None and not _is_written(sample, token):
        raise TelescopeError(
            f"token {token} was not written by the policy, so no answer is about it: choose another"
        )
    said = _text(entry, used, lang, level)
    known = facts(used, lang, token)
    tried = entry.get(f"tried_{level}_{lang}")
    if simulate is not None and tried:
        known |= simulate()
        said = f"{said}\n{tried}"
    if level == "kid":
        known = _without_symbols(known)
    if "{four}" in said:
        known["four"] = _questions()[2][f"expert_{lang}"].format_map(known)
    text = said.format_map(known) + _remarks(said, used, known, lang, level)
    if missing:
        text = _STANDS_IN[lang].format(", ".join(missing)) + text
    return plain(text, ui("almost", lang, level)) if level == "kid" else text


def _missing(entry: dict[str, Any], sample: Sample) -> list[str]:
    """What the answer needs and the sample lacks. All questions are about a critic's values."""
    columns = fill(sample).columns if any(sample.mask) else {}
    missing = [name for name in entry["needs"] if name not in columns]
    estimator = sample.settings.estimator_definition
    if not estimator.needs.critic:
        missing.append(f"critic (estimator {estimator.name})")
    return missing


def _is_written(sample: Sample, token: int) -> bool:
    return 0 <= token < len(sample) and bool(sample.mask[token])


def _text(entry: dict[str, Any], sample: Sample, lang: Lang, level: Level) -> str:
    """The text of the answer; some have another one for runs that do not whiten."""
    key = f"{level}_{lang}"
    raw = entry.get(f"{key}_raw")
    text: str = raw if raw and not sample.settings.whiten else entry[key]
    return text


def _without_symbols(known: Facts) -> Facts:
    """For a child: no brackets and no λ=. A token's own text stays as it is."""
    return {
        name: text if "«" in text else re.sub(r"\[|\]|λ=", "", text) for name, text in known.items()
    }


def _remarks(said: str, sample: Sample, known: Facts, lang: Lang, level: Level) -> str:
    """What is different in this run from what the answer says."""
    out = ""
    is_squared = "½" in said or "{plain}" in said
    if is_squared and sample.settings.histogram:
        out += _HISTOGRAM[lang]
    if is_squared and sample.settings.huber_delta is not None:
        out += _HUBER[lang].format_map(known)
    names_target = re.search("{(R|Rs|target|four)}", said)
    if names_target and known.get("lam_R", known["lam"]) != known["lam"]:
        out += _OWN_LAM[f"{level}_{lang}"].format_map(known)
    return out
