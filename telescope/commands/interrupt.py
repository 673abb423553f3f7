"""Ctrl-C ends a command at once, with one line, also while Python imports.

An import cannot be trusted with KeyboardInterrupt: some libraries catch it and go on, others turn
it into an ImportError, and Python itself drops it in a destructor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import Any

CODE = 130
"""Exit code of an interrupted command."""
_former_hook = sys.unraisablehook


def handle_interrupts() -> None:
    """From here on Ctrl-C is one line and exit code 130, unless somebody else handles it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, _interrupt)
            sys.unraisablehook = _not_dropped


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ends the process if an import is going on; else raises KeyboardInterrupt as usual."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _end()
        frame = frame.f_back
    raise KeyboardInterrupt


def _not_dropped(unraisable: Any) -> None:
    """Ends the process where Python would drop a KeyboardInterrupt, as in a destructor."""
    if unraisable.exc_type is KeyboardInterrupt:
        _end()
    _former_hook(unraisable)


def _end() -> None:
    """Ends the process without cleaning up. Imports nothing: an import may be half done."""
    language = sys.modules.get("telescope.commands.language")
    translate = getattr(language, "translate", str)
    os.write(2, f"telescope: {translate('interrupted')}\n".encode())
    os._exit(CODE)
