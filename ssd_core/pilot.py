"""How wide the next window should be: by what forwards cost, how many drafts hold, and what may be lost at most.

Plain numbers only: widths in stream positions, costs in any unit, codes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from operator import mul

_MARGIN = 0.06
"""A run may cost this share more than plain decoding of the codes it has, ..."""
_ADVANCE = 0.02
"""... and this share of the whole picture's plain cost, which pays for the first tries."""
_GOOD_ENOUGH = 0.95
"""The widest window whose expected speed is within this of the best: refining drafts ahead has a value of its own."""
_BELIEVED = 3
"""Times a width must have been fed before it is believed to cost more than its neighbours suggest."""
_MEMORY = 16
"""About how many of the latest windows decide what share of drafts is expected to hold."""
_PRIOR = 3
"""How many windows the expectation before the first check counts for."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 8, 64
"""Plain steps between two tries whether drafts hold again; the pause doubles with each try that fails."""


class Costs:
    """What a forward costs by its width, from the run's own steps; the unit does not matter.

    Times on a busy machine are disturbed upwards only, so an estimate falls fast and rises slowly, and a width fed
    once or twice is not ruled out by one slow step. ``widths``: those to know, rising from 1; others count as the next
    wider one. ``slope``: costs are assumed instead, 1 + slope * (width - 1). ``table``: an estimate for each width.
    """

    def __init__(self, widths: Sequence[int], slope: float | None = None) -> None:
        self.widths = widths
        self.measured = slope is None
        self.table = [1 + (slope or 0.0) * (width - 1) for width in widths]
        self._seconds = [math.inf] * len(widths)
        self._times = [0] * len(widths)

    def index(self, width: int) -> int:
        """Which of ``widths`` a forward over ``width`` tokens counts as."""
        return min(bisect_left(self.widths, width), len(self.widths) - 1)

    def of(self, width: int) -> float:
        """The estimate for one of ``widths``."""
        return self.table[self.index(width)]

    def at_most(self, width: int) -> float:
        """The most it may cost. Never measured: as many narrower forwards do the same work."""
        at = self.index(width)
        below = at
        while below and not self._times[below] and self.measured:
            below -= 1
        if below == at:  # as slow as it was, even where that is not believed yet
            return self._seconds[at] if self._times[at] else self.table[at]
        return max(self.table[at], self.table[below] * self.widths[at] / self.widths[below])

    def add(self, width: int, seconds: float) -> None:
        """Takes note of a step that fed ``width`` tokens. What no clock can have measured is left out."""
        if not self.measured or width < 1 or not 0 < seconds < math.inf:
            return
        at = self.index(width)
        old = self._seconds[at] if self._times[at] else seconds
        self._seconds[at] = old + (seconds - old) * (0.5 if seconds < old else 0.05)
        self._times[at] += 1
        self._estimate()

    def _estimate(self) -> None:
        points: list[tuple[int, float]] = []
        believed: list[tuple[int, float]] = []
        bound = math.inf
        for at in range(len(self.widths) - 1, -1, -1):
            if self._times[at]:  # a wider forward that was cheaper bounds the narrower ones
                bound = min(bound, self._seconds[at])
                points.insert(0, (self.widths[at], bound))
                if self._times[at] >= _BELIEVED:
                    believed.insert(0, (self.widths[at], bound))
        self.table = _on_lines(self.widths, points)
        if len(believed) > 1:
            self.table = list(map(min, self.table, _on_lines(self.widths, believed)))


def _on_lines(widths: Sequence[int], points: Sequence[tuple[int, float]]) -> list[float]:
    """Costs at ``widths``: on straight lines between rising points, and on the line through the outermost beyond."""
    if len(points) == 1:
        return [points[0][1]] * len(widths)
    costs, segment = [], 0
    (first, least), (last, most) = points[0], points[-1]
    outer = (most - least) / (last - first)
    for width in widths:
        if width < first:
            costs.append(max(least + outer * (width - first), least * width / first))
        elif width > last:
            costs.append(most + outer * (width - last))
        else:
            while points[segment + 1][0] < width:
                segment += 1
            (left, low), (right, high) = points[segment], points[segment + 1]
            costs.append(low + (high - low) * (width - left) / (right - left))
    return costs


class Odds:
    """How likely drafts hold, by their distance from the front: those checked before hold more often than fresh ones.

    Distances are taken together in bands that double in width; the latest windows count most.
    """

    def __init__(self, widest: int, expected: float) -> None:
        bands = (widest - 1).bit_length() + 1
        self._held = [expected * _PRIOR] * bands
        self._tried = [float(_PRIOR)] * bands

    def learn(self, held: int, failed: bool) -> None:
        """One image's window: how many drafts stand from the front on, and whether the next one was wrong."""
        for band in range(len(self._held)):
            begin, end = (1 << band) // 2, 1 << band  # distances begin .. end - 1
            tried = min(held + failed, end) - begin
            if tried <= 0:
                return
            keep = 1 - 1 / _MEMORY
            self._held[band] = self._held[band] * keep + (min(held, end) - begin) / (end - begin)
            self._tried[band] = self._tried[band] * keep + tried / (end - begin)

    def gains(self, widest: int) -> list[float]:
        """Codes that windows of 1 .. ``widest`` are expected to make final: drafts that hold and the code behind."""
        gains, reached = [1.0], 1.0
        for distance in range(widest - 1):
            band = distance.bit_length()
            reached *= self._held[band] / self._tried[band]
            gains.append(gains[-1] + reached)
        return gains


class Pilot:
    """Chooses the windows of one run.

    ``codes``: how many are to be drawn; ``windows``: those to choose from, usual width -> largest width, rising from 1;
    ``expected``: share of drafts expected to hold before any was checked. The best window makes most codes final for
    its cost. Whatever the estimates say, a window wider than 1 is
    only chosen if the run would stay within plain decoding's cost and a few per cent even were all its drafts to fail.
    """

    def __init__(self, codes: int, windows: dict[int, int], expected: float, costs: Costs) -> None:
        self.costs = costs
        self._windows = windows
        self._widest = max(windows)
        self.used: Counter[int] = Counter()
        self.tries = 0
        self.held = 0
        self.failed = 0
        self._codes = codes
        self._drawn = 0
        self._fed = [0] * len(costs.widths)
        self._odds = Odds(self._widest, expected)
        self._idle = 0
        self._pause = _SHORTEST_PAUSE

    def choose(self) -> int:
        """The next window; 1 is a step of plain decoding."""
        gains, left = self._odds.gains(self._widest), self._left()
        speeds = {
            width: gains[width - 1] / self.costs.of(width)
            for width, most in self._windows.items()
            if width == 1 or (any(self._fed) and self.costs.at_most(most) <= left)
        }
        fine = _GOOD_ENOUGH * max(speeds.values())
        # Where plain decoding is as good as the rest, nothing is gained by drafting.
        width = 1 if speeds[1] >= fine else max(width for width, speed in speeds.items() if speed >= fine)
        if width > 1:
            self._pause, self._idle = _SHORTEST_PAUSE, 0
        elif len(speeds) > 1:
            self._idle += 1
            if self._idle > self._pause:
                self._pause, self._idle = min(2 * self._pause, _LONGEST_PAUSE), 0
                self.tries += 1
                width = sorted(speeds)[1]
        self.used[width] += 1
        return width

    def _left(self) -> float:
        """What the next step may cost and make one code final: so far is reckoned by the latest estimates."""
        step = self.costs.table[0]
        spent: float = sum(map(mul, self._fed, self.costs.table))
        return ((1 + _MARGIN) * (self._drawn + 1) + _ADVANCE * self._codes) * step - spent

    def learn(self, fed: int, seconds: float | None, drawn: int, held: Sequence[int], failed: Sequence[bool]) -> None:
        """What a step did: tokens fed, time (None: other than what such steps take), codes that every image got, and
        of each image the drafts that held and whether the next one failed.
        """
        if seconds is not None:
            self.costs.add(fed, seconds)
        if fed:  # the first code comes from the prompt's own forward, in plain decoding too
            self._fed[self.costs.index(fed)] += 1
            self._drawn += drawn
        self.held += sum(held)
        self.failed += sum(failed)
        for one, wrong in zip(held, failed, strict=True):
            self._odds.learn(one, wrong)
