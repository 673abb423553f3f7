"""Environments: what answers the policy while it writes.

The interface, a calculator, and search over a local corpus.
"""

from __future__ import annotations

import ast
import operator
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from telescope.config import RolloutConfig
from telescope.data.files import read_rows


class Paid(NamedTuple):
    """What `step` may return instead of a text: the text, and a reward for the policy's turn.

    It is paid on the turn's last token, as the part `environment` of the score.
    """

    text: str | None
    reward: float


class Environment(ABC):
    """Answers the policy's turns. Made once per process, from the run's rollout settings.

    A row's own state is what `reset` returns. `step` is called by several threads at a time, for
    different rows. An exception becomes a message in the transcript, as does an answer that takes
    longer than `rollout.tool_seconds`.
    """

    call_ends: Sequence[str] = ()
    """Texts that end a call, and with it the policy's turn. A turn also ends with EOS."""

    tools: Sequence[Any] = ()
    """Tools that the chat template shows to the model: JSON schemas, or Python functions with type
    hints and a docstring that describes each argument (`Args:`)."""

    def __init__(self, config: RolloutConfig) -> None:
        self.config = config

    def reset(self, prompt: str, data: Mapping[str, Any]) -> Any:  # noqa: B027 -- optional
        """The state of a row that begins; `data` are its other columns. None by default."""

    @abstractmethod
    def step(self, state: Any, text: str) -> str | Paid | None:
        """The text to append to the policy's turn `text`, or None: the response is done.

        `Paid(text, reward)` also pays for the turn.
        """

    def report(self, state: Any) -> Any:  # noqa: B027 -- optional
        """What reward functions get of a row's last state, as `states`. None by default.

        With Ray it travels between processes.
        """

    def show(self, text: str) -> str:
        """How a tool's answer appears in the transcript; messages about failures too."""
        return f"<result>{text}</result>"


class Calculator(Environment):
    """Answers <calc>37*48</calc> with <result>1776</result>.

    Knows + - * / and brackets. An integer result is exact.
    """

    call_ends = ("</calc>",)

    def step(self, state: Any, text: str) -> str | None:
        called = re.search(r"<calc>(.*?)</calc>", text, re.DOTALL)
        return self.show(calculate(called[1])) if called else None


_OPERATIONS: dict[type, Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def calculate(expression: str) -> str:
    """The value of an expression, as text.

    There is no power operator: a short one can take hours.
    """
    if len(expression) > 200:
        raise ValueError("the expression is longer than 200 characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError:
        raise ValueError("not an expression") from None
    result = _value(tree.body)
    return str(result.numerator) if result.denominator == 1 else f"{float(result):.10g}"


def _value(node: Any) -> Fraction:
    """The exact value of a parsed expression."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    operation = _OPERATIONS.get(type(getattr(node, "op", None)))
    if operation and isinstance(node, ast.BinOp):
        return operation(_value(node.left), _value(node.right))
    if operation and isinstance(node, ast.UnaryOp):
        return operation(_value(node.operand))
    raise ValueError("only numbers, + - * / and brackets")


class Search(Environment):
    """Answers <search>query</search> with the best passages of `rollout.corpus`.

    As in Search-R1 (Jin et al. 2025, arXiv:2503.09516). The corpus is a jsonl or parquet file with
    a `text` column, or a folder that bm25s saved with its corpus.
    """

    call_ends = ("</search>",)

    def __init__(self, config: RolloutConfig, passages: Sequence[str] | None = None) -> None:
        super().__init__(config)
        import bm25s

        self.passages: Sequence[Any]
        corpus = Path(config.corpus or "").expanduser()
        if passages is None and corpus.is_dir():
            self.index = bm25s.BM25.load(corpus, load_corpus=True, mmap=True)
            self.passages = self.index.corpus
        else:
            if passages is None:
                passages = [row["text"] for row in read_rows([str(corpus)], "text")]
            self.passages = passages
            self.index = bm25s.BM25()
            self.index.index(_terms(list(passages)), show_progress=False)
        self.places = np.arange(len(self.passages))

    def step(self, state: Any, text: str) -> str | None:
        asked = re.search(r"<search>(.*?)</search>", text, re.DOTALL)
        return self.show("\n".join(self.find(asked[1]))) if asked else None

    def find(self, query: str) -> list[str]:
        """The best passages; those without a single word of the query are left out."""
        count = min(self.config.passages, len(self.places))
        found, scores = self.index.retrieve(
            _terms([query]), corpus=self.places, k=count, show_progress=False
        )
        texts = []
        for place, score in zip(found[0], scores[0], strict=True):
            if score > 0:
                passage = self.passages[int(place)]
                texts.append(passage["text"] if isinstance(passage, dict) else str(passage))
        return texts or ["nothing found"]

    def show(self, text: str) -> str:
        return f"<information>{text}</information>"


def _terms(texts: list[str]) -> list[list[str]]:
    """Words in lower case; Chinese, which has no spaces, by characters."""
    term = re.compile(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+")
    return [term.findall(text.lower()) for text in texts]


def exact_match(
    prompts: Sequence[str], last_turns: Sequence[str], answer: Sequence[Any], **_: Any
) -> list[float]:
    """1 if the <answer> in the policy's last turn is one of the right ones.

    Case, punctuation and articles do not count.
    """
    scores = []
    for text, expected in zip(last_turns, answer, strict=True):
        given = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
        right = expected if isinstance(expected, list) else [expected]
        right_texts = {_plain(str(one)) for one in right}
        scores.append(float(bool(given) and _plain(given[-1]) in right_texts))
    return scores


def _plain(text: str) -> str:
    bare = "".join(char for char in text.lower() if char not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


ENVIRONMENTS: dict[str, type[Environment]] = {"calculator": Calculator, "search": Search}
