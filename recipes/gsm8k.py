"""GSM8K: rewards, and the data files they read, in the columns of verl's preprocessing.

`gsm8k` is strict: the right number after `####`. `lenient` takes the last number of a response, and so separates arithmetic from form. `form` asks for any number after
`####`: a small part of the reward, until a model that does not write the form has found it.

The questions are https://github.com/openai/grade-school-math, grade_school_math/data/{train,test}.jsonl: 7473 and 1319 of them.

    python recipes/gsm8k.py train.jsonl data/gsm8k/train.parquet
    python recipes/gsm8k.py test.jsonl data/gsm8k/test.parquet

--held-out FILE moves 500 questions into a file of their own, by which settings can be chosen without the test set.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
ANSWER = re.compile(r"#### (-?[0-9.,]+)")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
HELD_OUT = 500
"""Questions that --held-out moves."""
TAIL = 300
"""Characters at the end of a response in which its answer is looked for, as in verl."""


def gsm8k(completions: Sequence[str], ground_truth: Sequence[str], **_: Any) -> list[float]:
    """1 for a response whose last `#### number` is the right one, as text and without its commas; otherwise 0."""
    return [
        float(answer_of(text[-TAIL:]) == truth)
        for text, truth in zip(completions, ground_truth, strict=True)
    ]


def lenient(completions: Sequence[str], ground_truth: Sequence[str], **_: Any) -> list[float]:
    """1 for a response whose last number, wherever it stands, is the right one, as a number; otherwise 0."""
    return [
        float(last_number(text) == last_number(truth))
        for text, truth in zip(completions, ground_truth, strict=True)
    ]


def form(completions: Sequence[str], **_: Any) -> list[float]:
    """1 for a response with a number after `####`, right or wrong; otherwise 0."""
    return [float(answer_of(text[-TAIL:]) is not None) for text in completions]


def last_number(text: str) -> float | None:
    """The last number in a text: `$1,234.50.` is 1234.5."""
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def answer_of(text: str) -> str | None:
    """What follows the last `#### `, if that is a number: `#### 1,234` is 1234; `####5`, `#### $5` and `5` are none."""
    found = ANSWER.findall(text)
    return found[-1].replace(",", "") if found else None


def row(question: str, answer: str, index: int, split: str) -> dict[str, Any]:
    """One question as verl writes it. The rewards read `reward_model.ground_truth`, the rest is for those who look."""
    truth = answer_of(answer)
    if truth is None:
        raise SystemExit(
            f"{split}, question {index}: its answer has no `#### number`: {answer[-60:]!r}"
        )
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }


def convert(source: Path, target: Path, *, held_out: Path | None = None) -> list[tuple[Path, int]]:
    """jsonl with `question` and `answer` → parquet; the files written, and the rows of each."""
    lines = [json.loads(line) for line in source.read_text("utf-8").splitlines() if line.strip()]
    rows = [
        row(line["question"], line["answer"], index, source.stem)
        for index, line in enumerate(lines)
    ]
    if held_out is None:
        return [(target, write(rows, target))]
    if len(rows) <= HELD_OUT:
        raise SystemExit(f"{source} has {len(rows)} questions: too few to hold out {HELD_OUT}")
    chosen = set(random.Random(19).sample(range(len(rows)), HELD_OUT))
    kept = [one for index, one in enumerate(rows) if index not in chosen]
    moved = [one for index, one in enumerate(rows) if index in chosen]
    return [(target, write(kept, target)), (held_out, write(moved, held_out))]


def write(rows: list[dict[str, Any]], target: Path) -> int:
    """Writes a parquet file; returns its number of rows."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    target.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), target)
    return len(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GSM8K's jsonl files to parquet.")
    parser.add_argument("source", type=Path, help="train.jsonl or test.jsonl")
    parser.add_argument("target", type=Path, help="the parquet file to write")
    parser.add_argument(
        "--held-out", type=Path, help=f"move {HELD_OUT} questions into this file, always the same"
    )
    options = parser.parse_args()
    files = convert(options.source, options.target, held_out=options.held_out)
    for path, count in files:
        print(f"{count} questions: {path}")
