"""Chi-square of counts against exact probabilities, with cells pooled until each expects enough."""

from __future__ import annotations

import math

import numpy as np


def chi_square_tail(counts: np.ndarray, law: np.ndarray, least: float = 5.0) -> float:
    """Probability of a chi-square at least this large if ``counts`` were drawn from ``law`` (both flat)."""
    counts, expected = np.asarray(counts, float).ravel(), np.asarray(law, float).ravel() * np.sum(counts)
    if counts[expected == 0].sum() > 0:
        return 0.0  # something impossible was drawn
    order = np.argsort(expected)
    small = np.cumsum(expected[order]) < least
    rare = order[: int(small.sum()) + 1] if small.any() else order[:0]
    rare = np.union1d(rare, order[expected[order] < least])
    rest = np.setdiff1d(order, rare)
    observed, wanted = counts[rest], expected[rest]
    if len(rare) and expected[rare].sum() > 0:
        observed = np.append(observed, counts[rare].sum())
        wanted = np.append(wanted, expected[rare].sum())
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    return _tail(statistic, len(wanted) - 1)


def _tail(statistic: float, freedom: int) -> float:
    """Upper tail of chi-square: Wilson and Hilferty's normal approximation, good to a few per cent of the tail."""
    if freedom == 0:
        return 1.0
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))
