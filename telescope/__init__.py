"""PPO post-training in which every token's credit can be seen, recomputed and explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from telescope.config import Config, load_config
    from telescope.errors import TelescopeError
    from telescope.peers import record, watch
    from telescope.run.callbacks import Callback, Event
    from telescope.run.evaluate import evaluate_run
    from telescope.run.export import export_run
    from telescope.trainer import Trainer

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Config",
    "Event",
    "TelescopeError",
    "Trainer",
    "evaluate_run",
    "export_run",
    "load_config",
    "record",
    "watch",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Imports on first use: `telescope --help` must not wait for torch."""
        import importlib

        homes = {
            "Callback": "run.callbacks",
            "Config": "config",
            "Event": "run.callbacks",
            "TelescopeError": "errors",
            "Trainer": "trainer",
            "evaluate_run": "run.evaluate",
            "export_run": "run.export",
            "load_config": "config",
            "record": "peers",
            "watch": "peers",
        }
        if name not in homes:
            raise AttributeError(f"module 'telescope' has no attribute {name!r}")
        return getattr(importlib.import_module(f"telescope.{homes[name]}"), name)

    def __dir__() -> list[str]:
        """Completion in a notebook lists what has not been imported yet, too."""
        return sorted({*globals(), *__all__})
