"""A small cache: the last few results by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Recent(Generic[Made]):
    """Keeps the last few results by key. Each is made once, even if several threads ask.

    A failure is not kept: the next one who asks tries again.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._made: OrderedDict[Hashable, Made] = OrderedDict()
        self._making: dict[Hashable, Lock] = {}
        self._lock = Lock()

    def __call__(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The result of `make` for this key."""
        with self._lock:
            making = self._making.setdefault(key, Lock())
        try:
            with making:  # others may make other things meanwhile
                with self._lock:
                    if key in self._made:
                        self._made.move_to_end(key)
                        return self._made[key]
                made = make()
                with self._lock:
                    self._made[key] = made
                    while len(self._made) > self._keep:
                        self._made.popitem(last=False)
                return made
        finally:
            with self._lock:
                if not making.locked():
                    self._making.pop(key, None)
