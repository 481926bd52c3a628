"""How to train: the numbers of a run, and which pictures each step sees.

Every random choice is a function of (seed, epoch or step) alone, so a run that is taken up at step s sees what the
uninterrupted one would have seen, on any number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import SSDError

_MOST_ROWS = 4096


@dataclass(frozen=True)
class TrainSettings:
    """Defaults are the paper's (section 3.2): 3 epochs, AdamW 0.9/0.95, weight decay 0.01, 1e-4 to 1e-5.

    The learning rate falls over ``steps`` optimizer steps or ``minutes`` of wall clock where one is given, else over
    ``epochs``; the first ``warmup`` steps rise to it. ``batch``: pictures a step, over all processes; ``micro_batch``:
    pictures of a forward, which changes memory and not the result. ``unconditional``: share of pictures seen under the
    unconditional prompt. ``horizontal_rows``: share of the rows that horizontal heads learn from in each step.
    ``kl_weight``: weight of the KL term, which is taken over at most about ``kl_positions`` positions of a forward.
    ``clip``: largest gradient norm of a head. ``autocast``: heads compute in bfloat16. ``checkpoint_minutes``: wall
    clock between saved states.
    """

    epochs: float = 3.0
    steps: int | None = None
    minutes: float | None = None
    batch: int = 8
    micro_batch: int = 8
    learning_rate: float = 1e-4
    last_learning_rate: float = 1e-5
    decay: Literal["cosine", "linear"] = "cosine"
    weight_decay: float = 0.01
    warmup: int = 20
    clip: float = 1.0
    unconditional: float = 0.1
    horizontal_rows: float = 1.0
    kl_weight: float = 0.0
    kl_positions: int = 2048
    autocast: bool = False
    checkpoint_minutes: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is not None and self.minutes is not None:
            raise SSDError("training ends after steps or after minutes, got both; give one of them")
        positive = {
            "epochs": self.epochs, "steps": self.steps, "minutes": self.minutes, "batch": self.batch,
            "micro_batch": self.micro_batch, "learning_rate": self.learning_rate, "clip": self.clip,
            "horizontal_rows": self.horizontal_rows, "kl_positions": self.kl_positions,
            "checkpoint_minutes": self.checkpoint_minutes,
        }  # fmt: skip
        for name, value in positive.items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise SSDError(f"{name} must be above 0, got {value}")
        at_least_zero = {
            "last_learning_rate": self.last_learning_rate, "weight_decay": self.weight_decay, "warmup": self.warmup,
            "kl_weight": self.kl_weight, "unconditional": self.unconditional,
        }  # fmt: skip
        for name, number in at_least_zero.items():
            if not (math.isfinite(number) and number >= 0):
                raise SSDError(f"{name} must be at least 0, got {number}")
        if self.unconditional > 1 or self.horizontal_rows > 1:
            raise SSDError("unconditional and horizontal_rows are shares, at most 1")
        if self.decay not in ("cosine", "linear"):
            raise SSDError(f"decay must be 'cosine' or 'linear', got {self.decay!r}")

    def last_step(self, pictures: int) -> int | None:
        """The number of steps, or None where the clock decides."""
        if self.minutes is not None:
            return None
        return self.steps or max(1, math.ceil(self.epochs * pictures / self.batch))

    def rate(self, step: int, progress: float) -> float:
        """The learning rate of step ``step`` (from 0) when a share ``progress`` of the run is over."""
        left = 0.5 * (1 + math.cos(math.pi * progress)) if self.decay == "cosine" else 1 - progress
        rate = self.last_learning_rate + (self.learning_rate - self.last_learning_rate) * left
        return rate * min(1.0, (step + 1) / self.warmup) if self.warmup else rate

    def step_choice(self, step: int, pictures: int) -> StepChoice:
        """What step ``step`` (from 0) sees of that many training pictures."""
        places = range(step * self.batch, (step + 1) * self.batch)
        orders = {place // pictures: _order(self.seed, place // pictures, pictures) for place in places}
        chosen = [orders[place // pictures][place % pictures] for place in places]
        generator = torch.Generator().manual_seed(_mixed(self.seed, step))
        dropped = torch.rand(self.batch, generator=generator) < self.unconditional
        return StepChoice(chosen, dropped, torch.rand(_MOST_ROWS, generator=generator))


@dataclass(frozen=True)
class StepChoice:
    """``pictures``: numbers of the step's pictures; ``unconditional``: bool [batch]; ``row_keys``: random [rows]."""

    pictures: Sequence[int]
    unconditional: Tensor
    row_keys: Tensor

    def rows(self, rows: int, count: float) -> Tensor:
        """About ``count`` of that many rows, at least one, at random, in rising order; int64."""
        return self.row_keys[:rows].argsort()[: max(1, round(count))].sort().values


def _order(seed: int, epoch: int, pictures: int) -> list[int]:
    """A new order of the pictures for each epoch."""
    generator = torch.Generator().manual_seed(_mixed(seed + 2**31, epoch))
    order: list[int] = torch.randperm(pictures, generator=generator).tolist()
    return order


def _mixed(seed: int, number: int) -> int:
    return (seed * 0x9E3779B97F4A7C15 + number) % 2**63
