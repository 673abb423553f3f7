"""Where the roles live: in this process, or in the workers of a Ray cluster. Same roles, same methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from telescope.backends.local import Roles
    from telescope.config import Config


def build_roles(config: Config, reward: Any = None) -> Roles:
    """The four roles of a run, where its config wants them."""
    if config.backend == "ray":
        from telescope.backends import ray

        return ray.build_roles(config, reward)
    from telescope.backends import local

    return local.build_roles(config, reward)
