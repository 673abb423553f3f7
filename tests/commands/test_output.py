"""Where the output goes: a full disk is one line, a closed stream no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.viewer.fake import fake_run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("> /dev/full", 2, "telescope: cannot write the output: the disk is full\n"),
        (">&-", 0, ""),
    ],
)
@pytest.mark.parametrize("command", ["explain", "compare"])
def test_output_that_goes_nowhere_is_no_traceback(
    command: str, where: str, code: int, said: str, tmp_path: Path
):
    run = fake_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"step": 1, "reward/score_mean": 0.5}\n')
    line = f"{sys.executable} -m telescope --lang en {command} {run} {where}"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (code, said)
