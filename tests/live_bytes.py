"""How many bytes of tensors are alive at the worst moment of some work: counted exactly, on any machine."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Within the block ``peak`` grows to the most bytes that new tensors held at once; ``known`` ones do not count."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known or key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._alive.pop(key)
