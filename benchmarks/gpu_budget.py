"""Time and memory for the GPU benchmark: who may use how much, and what is cut when it does not suffice."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from ssd_core import SSDError

Clock = Callable[[], float]


class NoTimeError(SSDError):
    """A section cannot be done in the time that is left; ``--resume`` measures it."""


@dataclass(frozen=True)
class Allowance:
    """Time until ``deadline`` on ``clock``."""

    deadline: float
    clock: Clock = time.perf_counter

    @property
    def left(self) -> float:
        """Seconds, never negative."""
        return max(0.0, self.deadline - self.clock())

    def part(self, share: float) -> Allowance:
        """A ``share`` (0..1) of what is left now."""
        return Allowance(self.clock() + share * self.left, self.clock)


class Budget:
    """Splits ``seconds`` over sections by weight; what a section leaves over goes to all that follow.

    ``weights``: section -> share, in the order in which they run.
    """

    def __init__(self, seconds: float, weights: dict[str, float], clock: Clock = time.perf_counter) -> None:
        if not (math.isfinite(seconds) and seconds > 0):
            raise SSDError(f"the budget must be a number of seconds above 0, got {seconds}")
        self._weights = dict(weights)
        self._whole = Allowance(clock() + seconds, clock)

    @property
    def left(self) -> float:
        return self._whole.left

    def open(self, section: str) -> Allowance:
        """The section's part of what is left. A section that never opens leaves its part to the later ones too."""
        names = list(self._weights)
        ahead = names[names.index(section) :]
        share = self._weights[section] / sum(self._weights[name] for name in ahead)
        return self._whole.part(share)


def blocks_in(seconds: float, block_seconds: float, wanted: int) -> int:
    """How many blocks of steps fit into ``seconds``: at most ``wanted``, at least one."""
    if block_seconds <= 0:
        return wanted
    return max(1, min(wanted, int(seconds / block_seconds)))


def layers_for_memory(free: int, fixed: int, per_layer: int, full: int) -> int:
    """Decoder layers whose bytes fit into nine tenths of ``free``. Raises SSDError when not even two do."""
    layers = min(full, int((0.9 * free - fixed) // per_layer))
    if layers < 2:
        needed = (fixed + 2 * per_layer) / 0.9
        raise SSDError(
            f"got {free / 2**30:.1f} GiB of free device memory, expected at least {needed / 2**30:.1f} GiB for two "
            "layers; close other programs on the device or use a larger one"
        )
    return layers


def layers_for_time(layers: int, needed: float, seconds: float) -> int:
    """Decoder layers with which work fits into ``seconds`` that takes ``needed`` seconds with ``layers``.

    Fewer are measured at two counts (``layer_counts``), one and a half times as many in all: where that saves nothing,
    all of them it is.
    """
    if needed <= seconds:
        return layers
    fewer = max(2, int(layers * seconds / (1.5 * needed)))
    return fewer if 1.5 * fewer < layers else layers


def layer_counts(layers: int, full: int) -> tuple[int, ...]:
    """At which counts to measure: all layers, or two counts through which a line to ``full`` can be drawn."""
    return (layers,) if layers >= full or layers < 2 else (layers, layers // 2)


def extrapolate(by_layers: dict[int, float], full: int) -> float:
    """The value at ``full`` layers: measured there, or on the line through the two measured counts.

    The line never falls: where more layers took less time, that was noise. Raises SSDError when one other count is all
    there is.
    """
    if full in by_layers:
        return by_layers[full]
    if len(by_layers) != 2:
        raise SSDError(f"got measurements at {sorted(by_layers)} layers, expected {full} or two counts to draw a line")
    (few, low), (many, high) = sorted(by_layers.items())
    return high + max(0.0, high - low) * (full - many) / (many - few)
