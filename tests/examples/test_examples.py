"""The scripts in examples/ run as a user runs them."""

from __future__ import annotations

import base64
import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from telescope import ledger
from telescope.explain.trace import Tracer
from tests import ROOT

EXAMPLES = ROOT / "examples"


def run_example(name: str, *arguments: str | Path, folder: Path) -> str:
    """What a script prints when it runs in `folder`."""
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder)}
    environment = {**os.environ, **own}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which own_reward.py has run, and what it printed.

    Eight steps: the learning rate warms up over the first five, and after four the mean of 64
    responses has moved by no more than chance.
    """
    folder = tmp_path_factory.mktemp("own_reward")
    return folder, run_example("own_reward.py", "8", folder=folder)


def test_own_reward_raises_the_mean_reward(trained: tuple[Path, str]) -> None:
    first, last = re.findall(r"(\d\.\d\d) in the", trained[1])
    assert float(last) > float(first) + 0.15  # 0.22 and 0.48


def test_read_ledger_prints_the_ten_tokens_with_the_most_credit(trained: tuple[Path, str]) -> None:
    printed = run_example("read_ledger.py", "runs/doubt", folder=trained[0])
    sizes = [abs(float(x)) for x in re.findall(r"^([+-]\d\.\d{3}) ", printed, re.MULTILINE)]
    assert len(sizes) == 10
    assert sizes == sorted(sizes, reverse=True)


def test_explain_numbers_computes_what_follows(tmp_path: Path) -> None:
    printed = run_example("explain_numbers.py", folder=tmp_path)
    assert "= 0.4" in printed  # δ of the last token: 1 + 0 − 0.6
    assert "= 0.58" in printed  # A of the second: 0.2 + 0.95 · 0.4
    assert "0.651" in printed  # A of the first: 0.1 + 0.95 · 0.58


def test_explain_numbers_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLES / "explain_numbers.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_own_estimator_trains_and_is_explained_in_both_languages(tmp_path: Path) -> None:
    printed = run_example("own_estimator.py", "2", folder=tmp_path)
    assert re.search(r"A₁ = fade\^\(T−1−i\)·o = 0\.8\^\d·\S+ = \S+ +✓ recorded", printed)
    assert re.search(r"A₁ = fade\^\(T−1−i\)·o = 0\.8\^\d·\S+ = \S+ +✓ 记录值", printed)
    assert "fade" in (tmp_path / "runs" / "fading" / "config.toml").read_text("utf-8")
    report = (tmp_path / "runs" / "fading" / "report.html").read_text("utf-8")
    packed = re.search(r'id="data"[^>]*>([^<]+)<', report)
    assert packed is not None
    assert b"fading" in gzip.decompress(base64.b64decode(packed[1]))


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    missing = [path.name for path in EXAMPLES.glob("*.py") if path.name not in listed]
    assert missing == []


def test_a_hand_written_loop_learns_and_its_record_agrees(tmp_path: Path) -> None:
    printed = run_example("record_your_own_loop.py", folder=tmp_path)
    assert float(re.search(r"mean score ([\d.]+)", printed)[1]) > 0.9  # type: ignore[index]
    for step in (1, 60):
        first = ledger.samples(tmp_path / "runs" / "hand-written", step)[0]
        tracer = Tracer(first)
        found = [tracer.verdicts(i) for i in range(len(first))]
        assert all(set(each) == {"advantage", "return", "whitened"} for each in found)
        assert all(ok for each in found for ok in each.values())
