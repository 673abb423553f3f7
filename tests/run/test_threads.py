"""OpenMP's threads: they sleep on a busy machine, and are as many as the container has cores."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import telescope
from telescope import _openmp_settings, _set_up_openmp

IDLE = "0.00 0.01 0.05 1/300 12345"


@pytest.mark.parametrize(
    ("cores", "loadavg", "cpu_max", "settings"),
    [
        (2, IDLE, "max 100000", {}),
        (2, "9.00 9.00 9.00 1/300 7", "", {}),  # a run has just ended: nobody computes now
        (2, "0.00 0.00 0.00 2/300 7", "", {"OMP_WAIT_POLICY": "passive"}),
        (64, "0.00 0.00 0.00 9/300 7", "", {}),
        (64, "0.00 0.00 0.00 33/300 7", "", {"OMP_WAIT_POLICY": "passive"}),
        (64, IDLE, "250000 100000", {"OMP_NUM_THREADS": "2"}),
        (64, IDLE, "50000 100000", {"OMP_NUM_THREADS": "1"}),
        (2, IDLE, "400000 100000", {}),
        (2, "", "", {}),  # no Linux
    ],
)
def test_threads_follow_what_linux_says(
    cores: int, loadavg: str, cpu_max: str, settings: dict[str, str]
):
    assert _openmp_settings(cores, loadavg, cpu_max) == settings


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    wanted = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "2"}

    def settings(*_: Any) -> dict[str, str]:
        return wanted

    monkeypatch.setattr(telescope, "_openmp_settings", settings)
    for name in wanted:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_the_settings_reach_the_environment(busy: pytest.MonkeyPatch):
    _set_up_openmp()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_what_the_user_has_set_stays(busy: pytest.MonkeyPatch):
    busy.setenv("GOMP_SPINCOUNT", "5")
    busy.setenv("OMP_NUM_THREADS", "7")
    _set_up_openmp()
    assert "OMP_WAIT_POLICY" not in os.environ
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_the_policy_is_set_before_torch_starts_openmp():
    """libgomp shows what it has read when torch loads it."""
    code = "import os, telescope; os.environ['OMP_WAIT_POLICY'] = 'passive'; import torch"
    environment = {**os.environ, "OMP_DISPLAY_ENV": "verbose"}
    environment.pop("OMP_WAIT_POLICY", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    shown = done.stderr.decode()
    if "GOMP_SPINCOUNT" not in shown:
        pytest.skip("torch was built with another OpenMP runtime")
    assert "GOMP_SPINCOUNT = '0'" in shown
