"""A Ray cluster that Telescope starts takes only processes that know its token."""

from __future__ import annotations

import os
import sys

import pytest

from telescope.errors import TelescopeError
from telescope.scale.cluster import _require_token, _start_ray


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


class FakeRay:
    """Takes the place of Ray: `init` fails with these errors, one after the other."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.starts = 0

    def init(self, **settings: object) -> None:
        self.starts += 1
        if self.errors:
            raise self.errors.pop(0)

    def shutdown(self) -> None:
        pass


LATE = Exception("The current node timed out during startup. This could happen because\nof load")


def test_a_node_that_starts_too_slowly_gets_a_second_chance(monkeypatch: pytest.MonkeyPatch):
    ray = FakeRay(LATE)
    monkeypatch.setitem(sys.modules, "ray", ray)
    _start_ray(None, 2)
    assert ray.starts == 2


def test_a_cluster_that_does_not_start_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay(LATE, LATE))
    with pytest.raises(TelescopeError, match="cannot start a Ray cluster on this machine") as told:
        _start_ray(None, 2)
    assert "\n" not in str(told.value)
    monkeypatch.setitem(sys.modules, "ray", FakeRay(ConnectionError("refused")))
    with pytest.raises(TelescopeError, match="cannot join the Ray cluster at host:1: refused"):
        _start_ray("host:1", 2)
