"""Problems that reasoning-gym makes, scored by its own scorers.

The held-out ones are the same in every run, and never trained on.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from telescope.data.loader import last_match
from telescope.errors import TelescopeError, pip_install

HELD_OUT = 500
"""Problems held out; half of all problems, if a task has fewer."""
# Seeds of the two sets; reasoning-gym adds a problem's number to them.
_HELD_OUT_SEED = 1_000_000_007
_TRAINING_SEED = 1

Entry = dict[str, Any]
"""A problem of reasoning-gym: question, answer, metadata."""


def rows(
    task: str, options: Mapping[str, Any], size: int, instruction: str | None
) -> tuple[list[Any], list[Any]]:
    """(training, held-out) rows: chat messages, and the problem itself as `entry`.

    No problem is there twice, and none in both.
    """
    evaluation = _problems(task, options, HELD_OUT, _HELD_OUT_SEED, without=set())
    if len(evaluation) < HELD_OUT:
        evaluation = evaluation[: len(evaluation) // 2]
    held_out = {entry["question"] for entry in evaluation}
    training = _problems(task, options, size, _TRAINING_SEED, without=held_out)
    if not training or not evaluation:
        raise TelescopeError(
            f"data.task = {task!r} with these data.options has a single problem: "
            "too few to train on one and hold one out"
        )
    training_rows = [_row(entry, instruction) for entry in training]
    evaluation_rows = [_row(entry, instruction) for entry in evaluation]
    return training_rows, evaluation_rows


def scorer(
    task: str, options: Mapping[str, Any], pattern: str | None, *, partial_credit: bool = True
) -> Callable[..., list[float]]:
    """A reward function: reasoning-gym's score of each response's answer; 0 if it is unreadable.

    Without `partial_credit` a score below 1 counts as 0.
    """
    dataset = make(task, {**options, "size": 1, "seed": _TRAINING_SEED})

    def gym_score(last_turns: Sequence[str], entry: Sequence[Entry]) -> list[float]:
        answers = [answer_of(text, pattern) for text in last_turns]
        return [score(answer, problem) for answer, problem in zip(answers, entry, strict=True)]

    def score(answer: str | None, problem: Entry) -> float:
        try:
            points = float(dataset.score_answer(answer, problem))
        except Exception:  # some scorers raise on what is not an answer
            return 0.0
        return points if partial_credit or points >= 1 else 0.0

    return gym_score


def answer_of(text: str, pattern: str | None) -> str | None:
    """The pattern's last match; without a pattern what <answer> tags hold, else the whole text."""
    if pattern is not None:
        return last_match(pattern, text)
    _datasets()
    from reasoning_gym.utils import extract_answer

    tagged: str | None = extract_answer(text)
    return tagged or text.strip()


def make(task: str, options: Mapping[str, Any]) -> Any:
    """reasoning-gym's data set. The error says what is wrong with the task or its options."""
    known = _datasets()
    if task not in known:
        close = difflib.get_close_matches(task, known, 1)
        suggestion = f"; did you mean {close[0]!r}?" if close else ""
        raise TelescopeError(f"data.task = {task!r}: reasoning-gym has no such task{suggestion}")
    import reasoning_gym

    try:
        dataset = reasoning_gym.create_dataset(task, **options)
        dataset[0]
    except Exception as error:
        fields = known[task][1].__dataclass_fields__
        names = ", ".join(name for name in fields if name not in ("seed", "size"))
        raise TelescopeError(f"data.options of {task!r}: {error}; it knows {names}") from None
    return dataset


def _problems(
    task: str, options: Mapping[str, Any], count: int, seed: int, without: set[str]
) -> list[Entry]:
    """Up to `count` problems that differ from each other and from `without`.

    At most 4 · count problems are looked at.
    """
    found: dict[str, Entry] = {}
    for entry in make(task, {**options, "size": 4 * count, "seed": seed}):
        if entry["question"] not in without:
            found.setdefault(entry["question"], entry)
        if len(found) == count:
            break
    return list(found.values())


def _row(entry: Entry, instruction: str | None) -> dict[str, Any]:
    messages = [{"role": "user", "content": entry["question"]}]
    if instruction:
        messages.insert(0, {"role": "system", "content": instruction})
    return {"prompt": messages, "entry": entry}


def _datasets() -> dict[str, Any]:
    """reasoning-gym's tasks by name."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise TelescopeError(
            f"data.task needs the extra `gym`: {pip_install('gym')} ({error})"
        ) from None
    datasets: dict[str, Any] = DATASETS
    return datasets
