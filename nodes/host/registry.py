"""One set of weights for everyone who asks for the same: a table that keeps nothing alive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class SharedModels:
    """Maps a key to a value as long as somebody else holds the value.

    The outputs of the loader nodes, which ComfyUI's cache keeps, are the only owners: when ComfyUI empties its cache
    (``POST /free``), the weights go with it.
    """

    def __init__(self) -> None:
        self._alive: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``key``, made if nobody has it; ``make`` runs once even if two threads ask."""
        with self._lock:
            value = self._alive.get(key)
            if value is None:
                value = make()
                self._alive[key] = value
            return value
