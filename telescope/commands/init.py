"""telescope init: asks three questions, and writes a recipe, a reward and sample data."""

from __future__ import annotations

import glob
import json
import random
import sys
from pathlib import Path
from typing import Any

from telescope.commands.arguments import Parser
from telescope.commands.language import translate
from telescope.errors import TelescopeError

USAGE = "telescope init [DIR] [--model M] [--data FILE] [--algorithm ppo|grpo]"
QUESTIONS = {
    "model": ("Which model? A folder, a hub name, smollm2 (135M) or builtin (tiny)", "builtin"),
    "data": ("Which prompts? A .jsonl or .parquet file, or sample for made-up sums", "sample"),
    "algorithm": ("Which algorithm? ppo (with a critic) or grpo (without)", "ppo"),
}
"""Option -> its question and its default."""

_REWARD = '''"""The reward: plain Python. `telescope train recipe.toml --smoke` tries a change."""

import re


def correct(prompts, completions, answer, **columns):
    """1 if the last number of a response is the answer, else 0.

    `answer` and the rest of `columns` are the columns of the data, one entry per response.
    """
    scores = []
    for text, right in zip(completions, answer, strict=True):
        numbers = re.findall(r"-?\\d+", text)
        scores.append(float(bool(numbers) and numbers[-1] == str(right)))
    return scores
'''

_RECIPE = """\
# Made by `telescope init`. `telescope train --help` lists every setting.
name = "{name}"
steps = {steps}

[model]
path = {model}
{dtype}
[data]
files = [{files}]
{eval_files}
[reward]
functions = ["reward.py:correct"]

[rollout]
batch_size = {batch_size}
n = {n}                           # responses per prompt
max_response_tokens = {response_tokens}

[credit]
{credit}

[actor]
lr = {lr}
minibatches = 2
{kl_loss}"""


def run(arguments: list[str]) -> None:
    parser = Parser(
        USAGE,
        "Start a project in DIR: recipe.toml, reward.py and, unless you name a file of prompts, "
        "sample data. What is not given as an option is asked; without a terminal the default is "
        "taken. Existing files are never overwritten.",
    )
    parser.add_argument("dir", nargs="?", type=Path, default=Path(), metavar="DIR", help="folder")
    parser.add_argument("--model", help="folder, hub name, smollm2 or builtin (default builtin)")
    parser.add_argument("--data", metavar="FILE", help="your own prompts: .jsonl or .parquet")
    parser.add_argument("--algorithm", choices=["ppo", "grpo"], help="ppo or grpo (default ppo)")
    options = parser.parse_args(arguments)
    answers = {
        name: getattr(options, name) or _ask(name, question, default)
        for name, (question, default) in QUESTIONS.items()
    }
    files = project_files(options.dir.resolve().name or "my-run", **answers)
    taken = [name for name in files if (options.dir / name).exists()]
    if taken:
        raise TelescopeError(
            f"{options.dir / taken[0]} exists already, and nothing was written: name a new folder"
        )
    try:
        options.dir.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (options.dir / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise TelescopeError(f"cannot write {options.dir}: {error.strerror}") from None
    recipe = options.dir / "recipe.toml"
    print(f"{options.dir}: {', '.join(files)}")
    print(f"next: telescope train {recipe} --dry-run    what it would do")
    print(f"      telescope train {recipe} --smoke      two small steps")


def _ask(name: str, question: str, default: str) -> str:
    """The answer of a person at a terminal, else the default."""
    if not sys.stdin.isatty():
        return default
    while True:
        answer = input(f"{translate(question)} [{default}]: ").strip() or default
        if name != "algorithm" or answer in ("ppo", "grpo"):
            return answer


def project_files(name: str, model: str, data: str, algorithm: str) -> dict[str, str]:
    """File name -> content."""
    is_sample = data == "sample"
    if not is_sample and not glob.glob(data):
        raise TelescopeError(
            f"no data file {data}: give a .jsonl, .csv or .parquet file, or sample"
        )
    is_tiny = model == "builtin"
    is_grpo = algorithm == "grpo"
    files = ["train.jsonl"] if is_sample else [str(Path(data).absolute())]
    credit = ["kl_coef = 0.02                  # weight of the KL to the start model"]
    if is_grpo:
        credit = ['estimator = "grpo"', "kl_coef = 0.0                   # it is in the loss"]
    recipe = _RECIPE.format(
        name=name,
        steps=100,
        model=json.dumps(str(Path(model).absolute()) if Path(model).is_dir() else model),
        dtype=""
        if is_tiny
        else 'dtype = "bfloat16"              # the optimizer keeps float32 copies\n',
        files=", ".join(json.dumps(file) for file in files),
        eval_files='eval_files = ["eval.jsonl"]\n' if is_sample else "",
        batch_size=32 if is_grpo else 128,
        n=8 if is_grpo else 1,
        response_tokens=8 if is_tiny else 64 if is_sample else 512,
        credit="\n".join(credit),
        lr="2e-4" if is_tiny else "1e-6",
        kl_loss="kl_loss_coef = 0.02             # weight of the KL to the start model\n"
        if is_grpo
        else "",
    )
    written = {"recipe.toml": recipe, "reward.py": _REWARD}
    if is_sample:
        rows = _tiny_rows() if is_tiny else _sums()
        written["train.jsonl"] = _lines(rows[32:])
        written["eval.jsonl"] = _lines(rows[:32])
    return written


def _sums() -> list[dict[str, Any]]:
    """Additions as chat messages."""
    pairs = [(a, b) for a in range(10, 40) for b in range(10, 40, 3)]
    random.Random(0).shuffle(pairs)
    rows = []
    for a, b in pairs:
        question = f"What is {a} + {b}? Answer with the number alone."
        rows.append({"prompt": [{"role": "user", "content": question}], "answer": str(a + b)})
    return rows


def _tiny_rows() -> list[dict[str, Any]]:
    """Statements in the few words that the built-in model knows."""
    pairs = [(a, b) for a in range(10) for b in range(10 - a)]
    rows = [
        {"prompt": f"请问{a}+{b}={c}？", "answer": str(a + b)} for a, b in pairs for c in range(10)
    ]
    random.Random(0).shuffle(rows)
    return rows


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
