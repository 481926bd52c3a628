"""How many bytes of tensors are alive at the worst moment of some work: counted exactly, on any machine."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Within the block ``peak`` grows to the most bytes that tensors made in it held at once, on this thread.

    What an operation allocates and frees inside itself (scratch of attention and matrix products) is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._bytes: dict[int, int] = {}  # 0 for a storage that was there before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._meet((args, kwargs), made=False)
        found = func(*args, **kwargs)
        self._meet(found, made=True)
        return found

    def _meet(self, tree: Any, made: bool) -> None:
        """Counts the storages in ``tree`` that were not met yet: those given to an operation are older than the block,
        those that come out of it are new."""
        for tensor in tree_leaves(tree):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._bytes:
                continue
            self._bytes[key] = storage.nbytes() if made else 0
            self.now += self._bytes[key]
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._bytes.pop(key)
