"""Preloading: reads the model's files and starts the GPU while Python imports torch."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from telescope.config import Config

_BLOCK = 2**22


@contextmanager
def preload(config: Config) -> Iterator[None]:
    """Warms up the disk cache and the GPU in background threads while the `with` block imports.

    Nobody waits for these threads, and their errors are ignored: whoever needs a file or the GPU
    later gets the same error with a better message. Garbage collection is off meanwhile, because
    imports create no garbage.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        if config.backend == "local":
            _in_background(lambda: _read_weights(Path(config.model.path).expanduser()))
            import torch  # noqa: F401 -- torch must be imported in the main thread

            if config.device != "cpu":
                _in_background(lambda: _start_gpu(config.device))
        yield
    finally:
        if was_enabled:
            gc.enable()


def _in_background(work: Callable[[], None]) -> None:
    def run() -> None:
        with suppress(Exception):
            work()

    threading.Thread(target=run, daemon=True).start()


def _read_weights(folder: Path) -> None:
    """Reads the weight files once, so that the operating system caches them."""
    buffer = bytearray(_BLOCK)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _start_gpu(device: str) -> None:
    """Creates the CUDA context, and loads the matrix library with one small product."""
    import torch

    if torch.cuda.is_available():
        place = "cuda" if device == "auto" else device
        x = torch.ones(16, 16, dtype=torch.bfloat16, device=place)
        torch.mm(x, x)
