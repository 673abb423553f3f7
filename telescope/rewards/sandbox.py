"""Runs untrusted Python programs: without network, with limits on everything they use."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError

_INTERPRETER = [sys.executable]
_JAIL = str(Path(__file__).with_name("jail.py"))
_START = 20.0  # seconds that starting the interpreter may take, on a busy machine


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: float = 5.0
    """For each case."""
    memory_mb: int = 256
    """For each of its processes."""
    files_mb: int = 16
    """All files together; they are gone afterwards."""
    processes: int = 4
    """With threads."""
    output_kb: int = 256
    allow_without_isolation: bool = False
    """Run also where the kernel offers no isolation: the program then has network and files."""


DEFAULT = Limits()


def run_program(
    program: str, cases: Sequence[dict[str, Any]], limits: Limits = DEFAULT
) -> list[str | None]:
    """What the program writes in each case; None where it took too long or wrote too much.

    A case is {"input": text for standard input}, or {"calls": [expressions]}, whose values come
    back as lines [number, value].
    """
    outputs = _run(program, cases, limits, isolated=True)
    if isinstance(outputs, str):
        if not limits.allow_without_isolation:
            raise TelescopeError(
                f"programs cannot be isolated from the network here ({outputs}), so none was run: "
                "allow unprivileged user namespaces, or set allow_without_isolation = true if you "
                "trust what the policy writes"
            )
        outputs = _run(program, cases, limits, isolated=False)
        assert not isinstance(outputs, str)
    return outputs


def _run(
    program: str, cases: Sequence[dict[str, Any]], limits: Limits, *, isolated: bool
) -> list[str | None] | str:
    """The outputs, or why there is no isolation."""
    root = tempfile.mkdtemp(prefix="telescope-sandbox-")
    job = {
        "program": program,
        "cases": list(cases),
        "root": root,
        "isolated": isolated,
        **asdict(limits),
    }
    process = subprocess.Popen(  # noqa: S603 -- our own script
        [*_INTERPRETER, "-I", "-S", "-B", _JAIL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    )
    try:
        seconds = _START + (limits.seconds + 0.1) * len(cases)
        answer, _ = process.communicate(json.dumps(job).encode(), timeout=seconds)
        report = json.loads(answer or b"{}")
    except (subprocess.TimeoutExpired, BrokenPipeError):
        report = {}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        shutil.rmtree(root, ignore_errors=True)
    if "refused" in report:
        return str(report["refused"])
    outputs: list[str | None] = report.get("outputs", [None] * len(cases))
    return outputs
