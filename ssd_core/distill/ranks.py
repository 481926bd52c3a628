"""Several processes that train together: torch.distributed as ``torchrun`` sets it up, or one process alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import SSDError


@dataclass(frozen=True)
class Ranks:
    """This process is number ``rank`` of ``world``, and number ``local`` on its machine."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @classmethod
    def from_environment(cls) -> Ranks:
        """What ``torchrun`` has written into RANK, WORLD_SIZE and LOCAL_RANK; one process without it."""
        try:
            rank, world, local = (
                int(os.environ.get(name, default))
                for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
            )
        except ValueError as error:
            raise SSDError(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers ({error}); use torchrun") from error
        if not 0 <= rank < world or local < 0:
            raise SSDError(f"got RANK {rank} of WORLD_SIZE {world}, LOCAL_RANK {local}; start with torchrun")
        return cls(rank, world, local)

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """``cuda`` becomes this process's own GPU; other names stay."""
        return f"cuda:{self.local}" if name == "cuda" and self.world > 1 else name

    @contextmanager
    def joined(self, device_type: str) -> Iterator[Ranks]:
        """Connects the processes for the length of the block (NCCL on CUDA devices, else gloo)."""
        if self.world == 1 or dist.is_initialized():
            yield self
            return
        dist.init_process_group("nccl" if device_type == "cuda" else "gloo", rank=self.rank, world_size=self.world)
        try:
            yield self
        finally:
            dist.destroy_process_group()

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its sum over the processes, in place."""
        if self.world > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by the first process's, in place."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor.data, 0)

    def agree(self, values: Sequence[float], device: torch.device) -> list[float]:
        """The first process's ``values``, in every process."""
        if self.world == 1:
            return list(values)
        shared = torch.tensor(values, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        dist.broadcast(shared, 0)
        return [float(value) for value in shared]
