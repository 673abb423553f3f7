"""Ctrl-C at the start of a command: one line, exit code 130, and nothing goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CTRL_C = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)"
SWALLOWS = f"try:\n    {CTRL_C.replace(chr(10), '; ')}\nexcept BaseException:\n    pass"
CONVERTS = f"{SWALLOWS[:-4]}raise ImportError('half a module')"
DROPS = """
import os, signal
class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(1000))
def drop():
    Dropped()
"""


def run_train(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """`telescope train` in a process of its own, with `body` as what it does."""
    code = f"""
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
sys.path.insert(0, {str(folder)!r})
import telescope.commands
import telescope.commands.train as train
def run(arguments):
    {body}
    print("went on")
train.run = run
telescope.commands.main(["train"])
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", [CTRL_C, SWALLOWS, CONVERTS], ids=["plain", "caught", "other"])
def test_an_import_cannot_swallow_ctrl_c(tmp_path: Path, module: str):
    (tmp_path / "heavy.py").write_text(module)
    done = run_train(tmp_path, "import heavy")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "telescope: interrupted\n")


def test_a_destructor_cannot_swallow_ctrl_c(tmp_path: Path):
    (tmp_path / "drops.py").write_text(DROPS)
    done = run_train(tmp_path, "from drops import drop; drop()")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "telescope: interrupted\n")


def test_elsewhere_ctrl_c_ends_the_command_as_an_exception(tmp_path: Path):
    (tmp_path / "late.py").write_text("def press():\n    " + CTRL_C.replace("\n", "\n    "))
    done = run_train(tmp_path, "from late import press; press()")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("telescope: interrupted; if a checkpoint was written, --resume")
