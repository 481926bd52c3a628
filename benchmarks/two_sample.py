"""Are two sets of pictures drawn from one law? The energy distance, which is zero only for equal laws.

Energy distance (Székely and Rizzo 2013) is 2 E|X - Y| - E|X - X'| - E|Y - Y'|, a kernel MMD with the distance for a
kernel (Sejdinovic et al. 2013), without a bandwidth to choose. Pictures come in pairs (x_i, y_i) of one prompt and
independent seeds; as a U-statistic over pairs (Gretton et al. 2012) it is unbiased whatever the pairs share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .bootstrap import RESAMPLES, Estimate, Floats


@dataclass(frozen=True)
class TwoSample:
    """``distance``: energy distance as a share of 2 E|X - Y|: 0 for one law, 1 for two different points.

    ``p``: how often a distance this large comes up by chance when both sides have one law.
    """

    distance: Estimate
    p: float

    def __str__(self) -> str:
        return f"{self.distance.mean:.4f} [{self.distance.low:.4f}, {self.distance.high:.4f}] p={self.p:.3f}"


def energy_distance(x: Floats, y: Floats, resamples: int = RESAMPLES, seed: int = 0) -> TwoSample:
    """Compares ``x`` and ``y`` [n, features], where row i of both belongs to the same prompt, n >= 2.

    The null distribution swaps x_i and y_i at random, which multiplies the pairs' statistic by random signs. The
    interval resamples pairs; a pair drawn twice is never compared with itself.
    """
    count = len(x)
    across = distances(x, y)
    pairs = across + across.T - distances(x, x) - distances(y, y)  # [n, n], mean off the diagonal is the distance
    np.fill_diagonal(pairs, 0)
    np.fill_diagonal(across, 0)
    scale = 2 * across.sum()
    if scale == 0:
        return TwoSample(Estimate(0.0, 0.0, 0.0), 1.0)
    observed = float(pairs.sum() / scale)
    rng = np.random.default_rng(seed)
    signs = rng.integers(0, 2, (resamples, count)) * 2.0 - 1
    swapped = np.einsum("ri,ri->r", signs @ pairs, signs) / scale
    p = (1 + int((swapped >= observed - 1e-12).sum())) / (1 + resamples)
    drawn = rng.multinomial(count, np.full(count, 1 / count), resamples).astype(np.float64)
    drawn = drawn[drawn.max(1) < count]  # one pair alone, drawn n times, has nothing to be compared with
    again = np.einsum("ri,ri->r", drawn @ pairs, drawn) / (2 * np.einsum("ri,ri->r", drawn @ across, drawn))
    low, high = np.percentile(again, [2.5, 97.5])
    return TwoSample(Estimate(observed, float(low), float(high)), p)


def distances(x: Floats, y: Floats) -> Floats:
    """Euclidean distances [n, m] between rows."""
    squares = (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * x @ y.T
    roots: Floats = np.sqrt(np.clip(squares, 0, None))
    return roots
