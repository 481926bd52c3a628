"""Means with bootstrap intervals (Efron 1979, percentile method)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 4000


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def numbers(self) -> list[float]:
        return [round(value, 5) for value in (self.mean, self.low, self.high)]


def estimate(values: Floats, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The mean of independent ``values`` [n] with its interval.

    For a paired comparison give the differences: what both sides share (prompt, seed) then drops out, and the interval
    is far narrower than the two sides' own.
    """
    rng = np.random.default_rng(seed)
    means = np.array([values[rng.integers(0, len(values), len(values))].mean() for _ in range(resamples)])
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(values.mean()), float(low), float(high))
