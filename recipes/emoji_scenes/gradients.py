"""Two processes, one gradient: each takes micro-batches at its own pace and adds what it finds to a shared sum.

A machine whose cores are shared with other work slows a multi-threaded forward to its slowest thread. Here nobody
waits: the trainer updates the weights as soon as enough codes are in, and a helper may be one update behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

Grid = tuple[int, int]


class SharedGradients:
    """Sums of gradients and losses over codes, in memory that all processes share.

    Attributes:
        progress: Share of the plan that is done, told by the trainer.
        drawn: Number of the next micro-batch; it alone decides the micro-batch's scenes.
    """

    def __init__(self, model: nn.Module, drawn: int) -> None:
        model.share_memory()
        self._sums = torch.zeros(sum(p.numel() for p in model.parameters())).share_memory_()
        self._totals = torch.zeros(2, dtype=torch.float64).share_memory_()  # codes, loss
        context = mp.get_context("spawn")
        self._lock = context.Lock()
        self.progress = context.Value("d", 0.0)
        self.drawn = context.Value("q", drawn)

    @property
    def codes(self) -> int:
        """Codes whose gradients are in the sum."""
        return int(self._totals[0])

    def next_number(self) -> int:
        """Takes the number of a micro-batch."""
        with self.drawn.get_lock():
            self.drawn.value += 1
            return self.drawn.value - 1

    def add(self, model: nn.Module, losses: Tensor) -> None:
        """Back-propagates the losses of a micro-batch's codes [...] and adds the gradients to the sum."""
        total = losses.sum()
        flat = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(total, list(model.parameters()))])
        with self._lock:
            self._sums += flat
            self._totals += torch.tensor([losses.numel(), total.item()])

    def take(self, model: nn.Module) -> float:
        """Moves the mean gradient into the parameters' ``grad``, empties the sum and returns the mean loss."""
        with self._lock:
            codes, loss = self._totals.tolist()
            flat = self._sums / codes
            self._sums.zero_()
            self._totals.zero_()
        for parameter, part in zip(
            model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
        ):
            parameter.grad = part.view_as(parameter)
        return loss / codes


MicroLosses = Callable[[nn.Module, int, float], Tensor]
"""Losses of micro-batch ``number`` at ``progress`` under a model."""


def _help(model: nn.Module, shared: SharedGradients, make: Callable[[], MicroLosses]) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    losses = make()
    trainer = os.getppid()
    while os.getppid() == trainer:
        shared.add(model, losses(model, shared.next_number(), shared.progress.value))


def start_helpers(count: int, model: nn.Module, shared: SharedGradients, make: Callable[[], MicroLosses]) -> None:
    """Starts helper processes that add gradients until the trainer ends."""
    for _ in range(count):
        mp.get_context("spawn").Process(target=_help, args=(model, shared, make), daemon=True).start()
