"""PPO post-training in which every token's credit can be seen, recomputed and explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from telescope.config import Config
    from telescope.errors import TelescopeError
    from telescope.peers import record, watch
    from telescope.trainer import Trainer

__version__ = "0.1.0"
__all__ = ["Config", "TelescopeError", "Trainer", "record", "watch"]


def __getattr__(name: str) -> Any:
    """Imports on first use: `telescope --help` must not wait for torch."""
    import importlib

    homes = {
        "Config": "config",
        "TelescopeError": "errors",
        "Trainer": "trainer",
        "record": "peers",
        "watch": "peers",
    }
    if name not in homes:
        raise AttributeError(f"module 'telescope' has no attribute {name!r}")
    return getattr(importlib.import_module(f"telescope.{homes[name]}"), name)
