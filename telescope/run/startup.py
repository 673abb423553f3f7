"""What a start can do beside its imports: wait for the disk and the GPU."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from telescope.config import Config


@contextmanager
def starting(config: Config) -> Iterator[None]:
    """Around the imports. Reads the model's files and starts the GPU, each in a thread; nobody waits for them, and nobody is told if
    they fail: who needs a file or the GPU does the same again, in less time or with an error that says more. Garbage, of which
    imports leave none, is not looked for meanwhile."""
    collects = gc.isenabled()
    gc.disable()
    try:
        if config.backend == "local":
            _beside(lambda: _read(Path(config.model.path).expanduser()))
            import torch  # noqa: F401 -- in the main thread, as everybody does

            if config.device != "cpu":
                _beside(lambda: _start_gpu(config.device))
        yield
    finally:
        if collects:
            gc.enable()


def _beside(work: Callable[[], None]) -> None:
    def run() -> None:
        with suppress(Exception):
            work()

    threading.Thread(target=run, daemon=True).start()


def _read(folder: Path) -> None:
    """So that the system has the files in memory."""
    buffer = bytearray(2**22)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _start_gpu(device: str) -> None:
    """Its context, and a matrix product, which loads the library for that."""
    import torch

    if torch.cuda.is_available():
        x = torch.ones(16, 16, dtype=torch.bfloat16, device="cuda" if device == "auto" else device)
        torch.mm(x, x)
