"""Problems that reasoning-gym makes, scored by its own scorers. The held-out ones are the same for every seed, and never trained on."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from telescope.errors import TelescopeError
from telescope.tasks import last_match

_HELD_OUT, _TRAINING = 1_000_000_007, 1  # seeds of the problems; one problem's is this plus its number
HELD_OUT = 500
"""Problems held out where the config does not say how many."""


def rows(task: str, options: Mapping[str, Any], size: int, held_out: int, instruction: str | None) -> tuple[list[Any], list[Any]]:
    """(training, held-out) rows: chat messages, and the problem itself as `entry`. No problem is there twice, and none in both."""
    evaluation = _problems(task, options, held_out, _HELD_OUT, without=set())
    if len(evaluation) < held_out:
        raise TelescopeError(
            f"data.task = {task!r} with these data.options has only {len(evaluation)} different problems: "
            f"too few to hold {held_out} out; change the options or eval.prompts"
        )
    training = _problems(task, options, size, _TRAINING, without={entry["question"] for entry in evaluation})
    if not training:
        raise TelescopeError(f"data.task = {task!r} has no problem left to train on besides the {held_out} held out: see data.options")
    return [_row(e, task, instruction) for e in training], [_row(e, task, instruction) for e in evaluation]


def scorer(pattern: str | None) -> Callable[..., list[float]]:
    """A reward function: what reasoning-gym's scorer gives for the answer in each response."""

    def gym_score(completions: Sequence[str], entry: Sequence[dict[str, Any]], gym_task: Sequence[str]) -> list[float]:
        answers = [answer_of(text, pattern) for text in completions]
        return [float(_dataset(task).score_answer(answer, e)) for answer, e, task in zip(answers, entry, gym_task, strict=True)]

    return gym_score


def answer_of(text: str, pattern: str | None) -> str | None:
    """The pattern's last match; without a pattern what <answer> tags hold, or else the whole text."""
    if pattern is not None:
        return last_match(pattern, text)
    _datasets()
    from reasoning_gym.utils import extract_answer

    return extract_answer(text) or text.strip()


def _problems(task: str, options: Mapping[str, Any], count: int, seed: int, without: set[str]) -> list[dict[str, Any]]:
    """Up to `count` problems that differ from each other and from `without`; it stops looking after 4 · count."""
    found: dict[str, dict[str, Any]] = {}
    for entry in _make(task, {**options, "size": 4 * count, "seed": seed}):
        if entry["question"] not in without:
            found.setdefault(entry["question"], entry)
        if len(found) == count:
            break
    return list(found.values())


def _row(entry: dict[str, Any], task: str, instruction: str | None) -> dict[str, Any]:
    system = [{"role": "system", "content": instruction}] if instruction else []
    return {"prompt": [*system, {"role": "user", "content": entry["question"]}], "entry": entry, "gym_task": task}


@lru_cache
def _dataset(task: str) -> Any:
    """A data set of the kind, for its scorer."""
    return _make(task, {"size": 1})


def _make(task: str, options: Mapping[str, Any]) -> Any:
    known = _datasets()
    if task not in known:
        close = difflib.get_close_matches(task, known, 1)
        raise TelescopeError(f"data.task = {task!r}: reasoning-gym has no such task" + (f"; did you mean {close[0]!r}?" if close else ""))
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(task, **options)
    except (TypeError, ValueError, AssertionError) as error:
        names = ", ".join(name for name in known[task][1].__dataclass_fields__ if name not in ("seed", "size"))
        raise TelescopeError(f"data.options of {task!r}: {error}; it knows {names}") from None


def _datasets() -> dict[str, Any]:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise TelescopeError(f"data.task needs the extra `gym`: pip install 'telescope-rl[gym]' ({error})") from None
    return DATASETS
