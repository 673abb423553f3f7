"""A reward for programs: it runs them in the sandbox and compares what they give outside of it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from telescope.errors import TelescopeError
from telescope.rewards.jail import encoded
from telescope.rewards.sandbox import DEFAULT, Limits, run_program
from telescope.rewards.terms import is_empty

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


class Python:
    """Runs the Python program of a response on the tests of its row.

    The program is the last ``` block of the last turn, or all of it. `tests` is a list, or JSON of
    one. A test is a text `assert call == literal`, or {"input": …, "output": …}: what the program
    reads and prints. The expected values stay outside of the sandbox, so a program cannot claim to
    have passed: it has to give the right answer. A row without tests has no score.
    """

    def __init__(
        self,
        *,
        partial: bool = False,
        workers: int = 4,
        seconds: float = DEFAULT.seconds,
        memory_mb: int = DEFAULT.memory_mb,
        files_mb: int = DEFAULT.files_mb,
        processes: int = DEFAULT.processes,
        output_kb: int = DEFAULT.output_kb,
        allow_without_isolation: bool = False,
    ) -> None:
        self.partial = partial
        """Score the share of tests that pass; otherwise 1 if all do."""
        self.workers = workers
        """Programs that run at the same time."""
        self.limits = Limits(
            seconds, memory_mb, files_mb, processes, output_kb, allow_without_isolation
        )
        run_program("", [{"input": ""}], self.limits)  # refuses here, not in the first step

    def __call__(
        self, last_turns: Sequence[str], tests: Sequence[Any]
    ) -> tuple[list[float | None], dict[str, list[float | None]]]:
        with ThreadPoolExecutor(self.workers) as pool:
            shares = list(pool.map(self._share_passed, last_turns, tests))
        if self.partial:
            return shares, {}
        whole = [None if share is None else float(share == 1.0) for share in shares]
        return whole, {"tests_passed": shares}

    def _share_passed(self, text: str, tests: Any) -> float | None:
        if is_empty(tests):
            return None
        given = json.loads(tests) if isinstance(tests, str) else tests
        if given is None or not len(given):
            return None
        calls = [_call_and_value(test) for test in given if isinstance(test, str)]
        inputs = [test for test in given if not isinstance(test, str)]
        cases: list[dict[str, Any]] = [{"input": str(test["input"])} for test in inputs]
        if calls:
            cases.append({"calls": [call for call, _ in calls]})
        outputs = run_program(program_of(text), cases, self.limits)
        passed = 0
        for test, output in zip(inputs, outputs, strict=False):
            passed += output is not None and _lines(output) == _lines(str(test["output"]))
        if calls:
            values = _values(outputs[-1])
            for number, (_, right) in enumerate(calls):
                passed += number in values and values[number] == encoded(right)
        return passed / len(given)


def program_of(text: str) -> str:
    """The last ``` block of a response; without one the whole response."""
    blocks = _BLOCK.findall(text)
    return str(blocks[-1]) if blocks else text


def _call_and_value(test: str) -> tuple[str, Any]:
    """`assert f(2) == 4` as ("f(2)", 4); `assert f(2)` expects True, `assert not f(2)` False."""
    try:
        (statement,) = ast.parse(test.strip()).body
        assert isinstance(statement, ast.Assert)
        left = statement.test
        if isinstance(left, ast.Compare):
            (operation,) = left.ops
            assert isinstance(operation, ast.Eq | ast.Is)
            return ast.unparse(left.left), ast.literal_eval(left.comparators[0])
        if isinstance(left, ast.UnaryOp) and isinstance(left.op, ast.Not):
            return f"bool({ast.unparse(left.operand)})", False
        assert isinstance(left, ast.Call)
        return f"bool({ast.unparse(left)})", True
    except (SyntaxError, ValueError, AssertionError):
        raise TelescopeError(
            f"the test {test[:80]!r} cannot be checked outside of the program: "
            "write it as `assert call == literal`, or as {input, output}"
        ) from None


def _lines(text: str) -> list[str]:
    """Spaces at the ends of lines and empty lines at the end do not count."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _values(output: str | None) -> dict[int, Any]:
    """The value of each call that gave one.

    The lines are from the program. Whatever they say, they hold only data.
    """
    found: dict[int, Any] = {}
    for line in (output or "").splitlines():
        try:
            number, value = json.loads(line)
            found[int(number)] = value
        except (ValueError, TypeError, RecursionError):
            continue
    return found
