"""A Ray cluster that Telescope starts takes only processes that know its token."""

from __future__ import annotations

import os
import sys

import pytest

from telescope.scale.cluster import _require_token


@pytest.fixture(autouse=True)
def before_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.delenv("RAY_AUTH_MODE")


def test_a_new_cluster_gets_a_secret_of_its_own():
    _require_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_a_mode_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    _require_token()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert os.environ["RAY_AUTH_TOKEN"] == ""
