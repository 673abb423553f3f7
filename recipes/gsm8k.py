"""GSM8K: a reward, and the data files it reads, in the columns of verl's preprocessing.

The questions are https://github.com/openai/grade-school-math, grade_school_math/data/{train,test}.jsonl: 7473 and 1319 of them.

    python recipes/gsm8k.py train.jsonl data/gsm8k/train.parquet
    python recipes/gsm8k.py test.jsonl data/gsm8k/test.parquet
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
ANSWER = re.compile(r"#### (-?[0-9.,]+)")
TAIL = 300
"""Characters at the end of a response in which its answer is looked for, as in verl."""


def gsm8k(completions: Sequence[str], ground_truth: Sequence[str], **_: Any) -> list[float]:
    """1 for a response whose last `#### number` is the right one, as text and without its commas; otherwise 0."""
    return [
        float(answer_of(text[-TAIL:]) == truth)
        for text, truth in zip(completions, ground_truth, strict=True)
    ]


def answer_of(text: str) -> str | None:
    """What follows the last `#### `, if that is a number: `#### 1,234` is 1234; `####5`, `#### $5` and `5` are none."""
    found = ANSWER.findall(text)
    return found[-1].replace(",", "") if found else None


def row(question: str, answer: str, index: int, split: str) -> dict[str, Any]:
    """One question as verl writes it. The reward reads `reward_model.ground_truth`, the rest is for those who look."""
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


def convert(source: Path, target: Path) -> int:
    """jsonl with `question` and `answer` → parquet; the number of rows."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    lines = [json.loads(line) for line in source.read_text("utf-8").splitlines() if line.strip()]
    rows = [
        row(line["question"], line["answer"], index, source.stem)
        for index, line in enumerate(lines)
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), target)
    return len(rows)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python recipes/gsm8k.py train.jsonl data/gsm8k/train.parquet")
    print(f"{convert(Path(sys.argv[1]), Path(sys.argv[2]))} questions: {sys.argv[2]}")
