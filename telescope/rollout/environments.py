"""What answers the policy while it writes: the interface of an environment, a calculator, and search over a local corpus."""

from __future__ import annotations

import ast
import importlib.util
import operator
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from telescope.config import RolloutConfig
from telescope.data.files import read_rows
from telescope.errors import TelescopeError


class Environment(ABC):
    """Made once per process from the run's rollout settings; a row's own state is what `reset` returns.

    `step` is called by several threads at a time, for different rows. What it raises becomes a message in the transcript, as does
    an answer that takes longer than `rollout.tool_seconds`.
    """

    call_ends: Sequence[str] = ()
    """Texts that end a call: the policy's turn is over there. It also ends with EOS."""

    def __init__(self, config: RolloutConfig) -> None:
        self.config = config

    def reset(self, prompt: str, data: Mapping[str, Any]) -> Any:  # noqa: B027 -- a row without a state of its own needs none
        """The state of a row that begins: its prompt, and its other columns in the data."""

    @abstractmethod
    def step(self, state: Any, text: str) -> str | None:
        """The text to append to what the policy wrote in its turn, or none: the response is done."""

    def show(self, text: str) -> str:
        """How what a tool says stands in the transcript; the messages about failures too."""
        return f"<result>{text}</result>"


class Calculator(Environment):
    """<calc>37*48</calc> is answered by <result>1776</result>: + - * / and brackets, exact where the result is a whole number."""

    call_ends = ("</calc>",)

    def step(self, state: Any, text: str) -> str | None:
        called = re.search(r"<calc>(.*?)</calc>", text, re.DOTALL)
        return self.show(calculate(called[1])) if called else None


_OPERATIONS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}  # fmt: skip


def calculate(expression: str) -> str:
    """The value of an expression, as text. There is no power: a short one can take longer than anybody would wait."""
    if len(expression) > 200:
        raise ValueError("the expression is longer than 200 characters")

    def value(node: Any) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return Fraction(str(node.value))
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](value(node.operand))
        raise ValueError("only numbers, + - * / and brackets")

    try:
        result = value(ast.parse(expression.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError("not an expression") from None
    return str(result.numerator) if result.denominator == 1 else f"{float(result):.10g}"


class Search(Environment):
    """<search>query</search> is answered by the best passages of `rollout.corpus`, as Search-R1 does (Jin et al. 2025, 2503.09516).

    The corpus is a jsonl or parquet file with a `text` column, or a folder that bm25s saved with its corpus.
    """

    call_ends = ("</search>",)

    def __init__(self, config: RolloutConfig, passages: Sequence[str] | None = None) -> None:
        super().__init__(config)
        if importlib.util.find_spec("bm25s") is None:
            raise TelescopeError(
                "rollout.environment = 'search' needs bm25s: pip install -e '.[search]'"
            )
        import bm25s

        place = Path(config.corpus or "").expanduser()
        if passages is None and place.is_dir():
            self.index = bm25s.BM25.load(place, load_corpus=True, mmap=True)
            self.passages: Sequence[Any] = self.index.corpus
        else:
            self.passages = (
                [row["text"] for row in read_rows([str(place)], "text")]
                if passages is None
                else passages
            )
            self.index = bm25s.BM25()
            self.index.index(_terms(list(self.passages)), show_progress=False)
        self.places = np.arange(len(self.passages))

    def step(self, state: Any, text: str) -> str | None:
        asked = re.search(r"<search>(.*?)</search>", text, re.DOTALL)
        return self.show("\n".join(self.find(asked[1]))) if asked else None

    def find(self, query: str) -> list[str]:
        """The passages that fit best, those without a single word of the query left out."""
        count = min(self.config.passages, len(self.places))
        found, scores = self.index.retrieve(
            _terms([query]), corpus=self.places, k=count, show_progress=False
        )
        best = [
            self.passages[int(i)] for i, score in zip(found[0], scores[0], strict=True) if score > 0
        ]
        return [
            passage["text"] if isinstance(passage, dict) else str(passage) for passage in best
        ] or ["nothing found"]

    def show(self, text: str) -> str:
        return f"<information>{text}</information>"


def _terms(texts: list[str]) -> list[list[str]]:
    """Words in lower case; Chinese, which has no spaces, by characters."""
    return [re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+", text.lower()) for text in texts]


def exact_match(
    prompts: Sequence[str], last_turns: Sequence[str], answer: Sequence[Any], **_: Any
) -> list[float]:
    """1 if the <answer> in the policy's last turn is one of the right ones, but for case, punctuation and articles."""
    given = [re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL) for text in last_turns]
    right = [of if isinstance(of, list) else [of] for of in answer]
    return [
        float(bool(g) and _plain(g[-1]) in {_plain(str(r)) for r in some})
        for g, some in zip(given, right, strict=True)
    ]


def _plain(text: str) -> str:
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


ENVIRONMENTS: dict[str, type[Environment]] = {"calculator": Calculator, "search": Search}
