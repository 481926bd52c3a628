"""Is a replay as good as the step itself? Both start from the same tensors, and what they leave is compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Of the largest number. The kernels are the same ones and so, as a rule, are the bits: this is about wrong ones."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class RunTensor:
    """A tensor that steps read and write; ``scratch`` and ``repeatable`` as in ``runner.NewTensor``.

    A repeatable one is laid out like keys: [layers, sequences, slots + 1, ...], and what a step writes is whole slots.
    """

    tensor: Tensor
    scratch: int | None
    repeatable: bool

    @property
    def sound(self) -> Tensor:
        """All of it but the scratch."""
        if self.scratch is None:
            return self.tensor
        return self.tensor.narrow(self.scratch, 0, self.tensor.shape[self.scratch] - 1)

    def digest(self) -> Tensor:
        """A sum over the bits of each entry, of keys [layers, sequences, slots + 1, ...]: int64 [sequences, slots].

        Layer by layer, for torch sums after it has made a copy in int64, up to eight times as large.
        """
        sound = self.sound
        digest = torch.zeros(sound.shape[1:3], dtype=torch.int64, device=sound.device)
        for layer in sound.view(_BITS[sound.element_size()]):
            digest += layer.flatten(2).sum(-1, dtype=torch.int64)
        return digest


class StepCheck:
    """One comparison. In this order: make it, carry the step out, ``rewind``, replay, ``problem``.

    Small tensors are copied. Keys and values are too large for that: the entries that the step wrote are found by
    their digests, overwritten before the replay, and must come back; all others must stay as they are.
    """

    def __init__(self, tensors: Mapping[str, RunTensor]) -> None:
        self._small = {name: each for name, each in tensors.items() if not each.repeatable}
        self._large = {name: each for name, each in tensors.items() if each.repeatable}
        self._before = {name: each.tensor.clone() for name, each in self._small.items()}
        self._digests = {name: each.digest() for name, each in self._large.items()}
        self._after: dict[str, Tensor] = {}
        self._written: dict[str, tuple[Tensor, Tensor, Tensor]] = {}  # sequences, slots, what is there

    def rewind(self) -> None:
        """Takes note of what the step left and puts everything back to where it was before."""
        after = {name: each.tensor.clone() for name, each in self._small.items()}
        for name, each in self._large.items():
            digest = each.digest()
            sequences, slots = (digest != self._digests[name]).nonzero().unbind(1)
            self._written[name] = sequences, slots, each.tensor[:, sequences, slots]
            self._digests[name] = digest
        for name, each in self._small.items():
            each.tensor.copy_(self._before[name])
        for name, (sequences, slots, _) in self._written.items():
            self._large[name].tensor[:, sequences, slots] = math.nan
        self._after = after

    def problem(self) -> str | None:
        """What the replay did otherwise than the step, or None."""
        for name, each in self._small.items():
            expected = RunTensor(self._after[name], each.scratch, each.repeatable)
            if difference := _difference(each.sound, expected.sound):
                return f"{name} {difference}"
        for name, (sequences, slots, rows) in self._written.items():
            if difference := _difference(self._large[name].tensor[:, sequences, slots], rows):
                return f"{name} {difference}"
            if self._damaged(name):
                return f"{name} changed where the step writes nothing"
        return None

    def restore(self) -> bool:
        """Leaves what the step left. False where the replay spoiled keys or values that nobody has a copy of."""
        for name, each in self._small.items():
            each.tensor.copy_(self._after[name])
        for name, (sequences, slots, rows) in self._written.items():
            self._large[name].tensor[:, sequences, slots] = rows
        return not any(self._damaged(name) for name in self._large)

    def _damaged(self, name: str) -> bool:
        changed = self._large[name].digest() != self._digests[name]
        sequences, slots, _ = self._written[name]
        changed[sequences, slots] = False
        return bool(changed.any())


def _difference(got: Tensor, expected: Tensor) -> str | None:
    if got.numel() == 0 or torch.equal(got, expected):
        return None
    if not expected.is_floating_point():
        return f"has {int((got != expected).sum())} other entries"
    tolerance = _TOLERANCE[expected.dtype]
    finite = expected.masked_fill(~expected.isfinite(), 0)
    scale = float(finite.abs().max())
    if torch.allclose(got, expected, rtol=0, atol=tolerance * scale, equal_nan=True):
        return None
    largest = float((got - expected).abs().nan_to_num(math.inf).max())
    return f"differs by {largest:.3g}, of {scale:.3g}"
