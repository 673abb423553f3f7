"""Problems that reasoning-gym makes, scored by its own scorers. The held-out ones are the same in every run, and never trained on."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from telescope.data.loader import last_match
from telescope.errors import TelescopeError

_HELD_OUT, _TRAINING = (
    1_000_000_007,
    1,
)  # seeds of the problems; one problem's is this plus its number
HELD_OUT = 500
"""Problems held out; of a task that has not so many, half of what it has."""


def rows(
    task: str, options: Mapping[str, Any], size: int, instruction: str | None
) -> tuple[list[Any], list[Any]]:
    """(training, held-out) rows: chat messages, and the problem itself as `entry`. No problem is there twice, and none in both."""
    evaluation = _problems(task, options, HELD_OUT, _HELD_OUT, without=set())
    if len(evaluation) < HELD_OUT:
        evaluation = evaluation[: len(evaluation) // 2]
    training = _problems(
        task, options, size, _TRAINING, without={entry["question"] for entry in evaluation}
    )
    if not training or not evaluation:
        raise TelescopeError(
            f"data.task = {task!r} with these data.options has a single problem: too few to train on one and hold one out"
        )
    return [_row(entry, instruction) for entry in training], [
        _row(entry, instruction) for entry in evaluation
    ]


def scorer(
    task: str, options: Mapping[str, Any], pattern: str | None
) -> Callable[..., list[float]]:
    """A reward function: what reasoning-gym's scorer gives for the answer in each response, and 0 where it cannot read it."""
    dataset = make(task, {**options, "size": 1, "seed": _TRAINING})

    def gym_score(last_turns: Sequence[str], entry: Sequence[dict[str, Any]]) -> list[float]:
        return [
            score(answer_of(text, pattern), e) for text, e in zip(last_turns, entry, strict=True)
        ]

    def score(answer: str | None, entry: dict[str, Any]) -> float:
        try:
            return float(dataset.score_answer(answer, entry))
        except Exception:  # some of them raise on what is no answer at all
            return 0.0

    return gym_score


def answer_of(text: str, pattern: str | None) -> str | None:
    """The pattern's last match; without a pattern what <answer> tags hold, or else the whole text."""
    if pattern is not None:
        return last_match(pattern, text)
    _datasets()
    from reasoning_gym.utils import extract_answer

    return extract_answer(text) or text.strip()


def make(task: str, options: Mapping[str, Any]) -> Any:
    """reasoning-gym's data set, or an error that says what is wrong with the task or its options."""
    known = _datasets()
    if task not in known:
        close = difflib.get_close_matches(task, known, 1)
        raise TelescopeError(
            f"data.task = {task!r}: reasoning-gym has no such task"
            + (f"; did you mean {close[0]!r}?" if close else "")
        )
    import reasoning_gym

    try:
        dataset = reasoning_gym.create_dataset(task, **options)
        dataset[0]
    except Exception as error:
        names = ", ".join(
            name for name in known[task][1].__dataclass_fields__ if name not in ("seed", "size")
        )
        raise TelescopeError(f"data.options of {task!r}: {error}; it knows {names}") from None
    return dataset


def _problems(
    task: str, options: Mapping[str, Any], count: int, seed: int, without: set[str]
) -> list[dict[str, Any]]:
    """Up to `count` problems that differ from each other and from `without`; it stops looking after 4 · count."""
    found: dict[str, dict[str, Any]] = {}
    for entry in make(task, {**options, "size": 4 * count, "seed": seed}):
        if entry["question"] not in without:
            found.setdefault(entry["question"], entry)
        if len(found) == count:
            break
    return list(found.values())


def _row(entry: dict[str, Any], instruction: str | None) -> dict[str, Any]:
    system = [{"role": "system", "content": instruction}] if instruction else []
    return {"prompt": [*system, {"role": "user", "content": entry["question"]}], "entry": entry}


def _datasets() -> dict[str, Any]:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise TelescopeError(
            f"data.task needs the extra `gym`: pip install -e '.[gym]' ({error})"
        ) from None
    return DATASETS
