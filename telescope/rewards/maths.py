"""math_verify as a reward: is an answer equal to the right one, as mathematics?"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError, pip_install
from telescope.rewards.terms import is_empty


class MathVerify:
    """1 if the last turn's answer equals the row's `answer` as mathematics, else 0.

    An answer that math_verify cannot read makes the row one without a score. It runs in a process
    of its own: a comparison that takes longer than `seconds` is ended and scores 0.
    """

    def __init__(self, *, seconds: int = 5) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise TelescopeError(
                f"the reward `math_verify` needs math-verify: {pip_install('rewards')}"
            )
        self.seconds = seconds
        self.trouble: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self._stop)

    def __call__(self, last_turns: Sequence[str], answer: Sequence[Any]) -> list[float | None]:
        return [self._one(text, right) for text, right in zip(last_turns, answer, strict=True)]

    def _one(self, text: str, right: Any) -> float | None:
        if is_empty(right):
            return None
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        question = json.dumps({"text": text, "answer": str(right), "seconds": self.seconds})
        reply = ""
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            # Reading and comparing have a limit each; the process may also be starting.
            if select.select([process.stdout], [], [], 3 * self.seconds + 60)[0]:
                reply = process.stdout.readline()
        except OSError:
            pass  # it has ended, e.g. for want of memory
        if not reply:
            self._stop()
            self.trouble.append("math_verify gave no answer in time; the response scores 0")
            return 0.0
        score: float | None = json.loads(reply)
        if score is None:
            self.trouble.append(f"math_verify cannot read the right answer {str(right)[:60]!r}")
        return score

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(  # noqa: S603 -- our own script
            [sys.executable, str(Path(__file__).with_name("maths_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):  # a question may wait in its buffer
                    pipe.close()
