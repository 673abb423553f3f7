"""Preloading must not change what a start does."""

import gc
import threading

from telescope.config import load_config
from telescope.run.startup import preload


def start(*settings: tuple[str, str]) -> None:
    before = set(threading.enumerate())
    with preload(load_config(None, list(settings))):
        assert not gc.isenabled()
    assert gc.isenabled()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def test_missing_files_and_devices_are_ignored(tmp_path) -> None:
    start(
        ("model.path", str(tmp_path / "nowhere")),
        ("data.files", '["x.jsonl"]'),
        ("device", "cuda:99"),
    )


def test_weight_files_are_read(tmp_path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 5_000_000)
    start(("model.path", str(tmp_path)), ("data.files", '["x.jsonl"]'), ("device", "cpu"))


def test_with_ray_nothing_is_preloaded_here(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda self: 1 / 0)
    start(("backend", "ray"), ("model.path", str(tmp_path)), ("data.files", '["x.jsonl"]'))
