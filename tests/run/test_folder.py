"""The lock of a run's folder."""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path

from telescope.config import Config
from telescope.run.folder import create_folder, locked


def test_a_page_that_looks_at_the_lock_does_not_stop_a_start(tmp_path: Path) -> None:
    config = Config.builtin(name="looked-at", dir=str(tmp_path))
    create_folder(config)
    looking = threading.Event()

    def look() -> None:
        with (config.run_dir / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            looking.set()
            time.sleep(0.15)

    page = threading.Thread(target=look)
    page.start()
    looking.wait()
    with locked(config):
        page.join()
