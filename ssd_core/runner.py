"""Who carries out a run's steps on the device.

A step is a pure function on tensors of fixed shapes. It reads its index numbers, the weights and the run's own tensors,
writes the run's own tensors, returns nothing and never waits for the device: what the host must know goes into
``Board.status`` and is fetched once a step. :class:`Eager` simply calls it, in shapes without padding. Other runners
may keep what a step did and do it again for the same key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

StepFunction = Callable[[Tensor], None]
"""Gets the step's numbers, int64 [n], on the device."""


class NewTensor(Protocol):
    """Makes a tensor of zeros that lives as long as the run."""

    def __call__(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device,
        scratch: int | None = None, repeatable: bool = False,
    ) -> Tensor:  # fmt: skip
        """``scratch``: along this dimension the last entry is scratch, where steps may leave anything.
        ``repeatable``: a step that is carried out twice leaves there what it left the first time.
        """


def new_tensor(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device,
    scratch: int | None = None, repeatable: bool = False,
) -> Tensor:  # fmt: skip
    """The plain :class:`NewTensor`: zeros of nobody's but the caller's."""
    return torch.zeros(shape, dtype=dtype, device=device)


class Runner(ABC):
    """Serves one run at a time.

    ``exact``: shapes follow the work. Otherwise they come in few sizes, filled up with scratch, and whatever decides a
    shape or is read by a step besides its numbers must come from :meth:`tensor` or :meth:`keep`.
    """

    exact: bool

    @property
    @abstractmethod
    def unsettled(self) -> int:
        """How many steps so far took another time than steps of their key will take from then on."""

    @abstractmethod
    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device,
        scratch: int | None = None, repeatable: bool = False,
    ) -> Tensor:  # fmt: skip
        """Zeros for this run, each name once a run (``NewTensor``)."""

    @abstractmethod
    def keep(self, name: str, value: Tensor) -> Tensor:
        """``value`` where this run's steps may read it."""

    @abstractmethod
    def widen(self, count: int, row: int) -> int:
        """To how many entries a step with ``count`` of them is filled up; ``row`` entries are a row of the picture."""

    @abstractmethod
    def slots(self, count: int) -> int:
        """How many cache slots to make where ``count`` are needed."""

    @abstractmethod
    def reach(self, length: int, slots: int) -> int:
        """How many cache slots attention runs over where the first ``length`` of ``slots`` are in play."""

    @abstractmethod
    def warm(self, steps: Sequence[tuple[Hashable, StepFunction, list[int]]]) -> None:
        """Tells the widest steps to come, with numbers that touch scratch only."""

    @abstractmethod
    def run(self, key: Hashable, step: StepFunction, numbers: list[int], once: bool = False) -> None:
        """Carries out ``step`` on ``numbers``. Equal keys promise equal work on equally many numbers; what is done
        ``once`` is not worth keeping."""


class Eager(Runner):
    """Calls each step as it comes."""

    exact = True
    unsettled = 0

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device,
        scratch: int | None = None, repeatable: bool = False,
    ) -> Tensor:  # fmt: skip
        return new_tensor(name, shape, dtype, device)

    def keep(self, name: str, value: Tensor) -> Tensor:
        return value

    def widen(self, count: int, row: int) -> int:
        return count

    def slots(self, count: int) -> int:
        return count

    def reach(self, length: int, slots: int) -> int:
        return length

    def warm(self, steps: Sequence[tuple[Hashable, StepFunction, list[int]]]) -> None:
        pass

    def run(self, key: Hashable, step: StepFunction, numbers: list[int], once: bool = False) -> None:
        step(_on(self._device, numbers))


def _on(device: torch.device, numbers: list[int]) -> Tensor:
    """Numbers for a device, which the host does not wait for."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=torch.int64, device=device)
    # PyTorch keeps pinned memory from being used again until the copy is done.
    return torch.tensor(numbers, dtype=torch.int64, pin_memory=True).to(device, non_blocking=True)
