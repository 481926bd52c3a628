"""How wide the next window should be: by what forwards cost, how many drafts hold, and what may be lost at most.

Plain numbers only: widths in stream positions, costs in any unit, codes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

_MARGIN = 0.06
"""A run may cost this share more than plain decoding of the codes it has, ..."""
_ADVANCE = 0.02
"""... and this share of the whole picture's plain cost, which pays for the first tries."""
_GOOD_ENOUGH = 0.95
"""The widest window whose expected speed is within this of the best: refining drafts ahead has a value of its own."""
_BELIEVED = 3
"""Times a width must have been fed before it is believed to cost more than its neighbours suggest."""
_GROWTH = 4
"""A window is at most this many times as wide as what was measured before."""
_MEMORY = 60
"""About how many of the latest drafts decide what share of them is expected to hold."""
_PRIOR = 8
"""How many drafts the expectation before the first check counts for."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 8, 64
"""Plain steps between two tries whether drafts hold again; the pause doubles with each try that fails."""
_MOST_SHARE = 0.999


class Costs:
    """What a forward costs by its width, from the run's own steps.

    Times on a busy machine are disturbed upwards only, so an estimate falls fast and rises slowly, and a width fed
    once or twice is not ruled out by one slow step. ``slope``: costs are assumed instead, 1 + slope * (width - 1).
    """

    def __init__(self, slope: float | None = None) -> None:
        self.slope = slope
        self._seconds: dict[int, float] = {}
        self._times: Counter[int] = Counter()

    def add(self, width: int, seconds: float) -> None:
        """Takes note of a step that fed ``width`` tokens. What no clock can have measured is left out."""
        if self.slope is not None or width < 1 or not 0 < seconds < math.inf:
            return
        self._times[width] += 1
        old = self._seconds.get(width, seconds)
        self._seconds[width] = old + (seconds - old) * (0.5 if seconds < old else 0.05)

    @property
    def widest(self) -> float:
        """The widest window that may come next: a wide step before costs are known could be dear."""
        return math.inf if self.slope is not None else max(self._seconds, default=0) * _GROWTH or 1

    def of(self, width: int) -> float:
        """The cost of a forward over ``width`` tokens, above 0; between and beyond known widths a straight line."""
        if self.slope is not None:
            return 1 + self.slope * (width - 1)
        known = self._rising()
        if len(known) < 2:
            return known[0][1] if known else 1.0
        believed = [point for point in known if self._times[point[0]] >= _BELIEVED]
        cost = _on_line(known, width)
        return cost if len(believed) < 2 else min(cost, _on_line(believed, width))

    def _rising(self) -> list[tuple[int, float]]:
        """Known widths and costs; a wider forward that was cheaper bounds the narrower ones."""
        known: list[tuple[int, float]] = []
        bound = math.inf
        for width, cost in sorted(self._seconds.items(), reverse=True):
            bound = min(bound, cost)
            known.append((width, bound))
        return known[::-1]


def _on_line(points: Sequence[tuple[int, float]], width: int) -> float:
    """The cost at ``width``: between two of at least two rising points, or on the line through the outermost."""
    (left, low), (right, high) = points[0], points[-1]
    for one, other in pairwise(points):
        if one[0] <= width <= other[0]:
            (left, low), (right, high) = one, other
    cost = low + (high - low) * (width - left) / (right - left)
    return max(cost, low * min(1.0, width / left))  # no cheaper than its share of a wider forward


class Pilot:
    """Chooses the windows of one run.

    ``codes``: how many are to be drawn; ``widths``: the windows to choose from, rising from 1; ``expected``: share of
    drafts expected to hold before any was checked. Drafts are taken to hold independently, so a window of w is worth
    (1 - s^w) / (1 - s) codes. Whatever the estimates say, a window wider than 1 is only chosen if the run would stay
    within plain decoding's cost and a few per cent even were all its drafts to fail.
    """

    def __init__(self, codes: int, widths: Sequence[int], expected: float, costs: Costs) -> None:
        self.costs = costs
        self.used: Counter[int] = Counter()
        self.tries = 0
        self.held = 0
        self.failed = 0
        self._codes = codes
        self._widths = widths
        self._weight = float(_PRIOR)
        self._holding = expected * _PRIOR
        self._spent = 0.0
        self._plain = 0.0
        self._idle = 0
        self._pause = _SHORTEST_PAUSE

    @property
    def share(self) -> float:
        """Share of drafts that is expected to hold now."""
        return min(self._holding / self._weight, _MOST_SHARE)

    def gain(self, width: int) -> float:
        """Codes that a window is expected to make final: the drafts that hold and the code behind them."""
        return (1 - self.share**width) / (1 - self.share)

    def choose(self) -> int:
        """The next window; 1 is a step of plain decoding."""
        speeds = {width: self.gain(width) / self.costs.of(width) for width in self._widths if self._affordable(width)}
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

    def _affordable(self, width: int) -> bool:
        if width == 1:
            return True
        step = self.costs.of(1)
        limit = (1 + _MARGIN) * (self._plain + step) + _ADVANCE * self._codes * step
        return width <= self.costs.widest and self._spent + self.costs.of(width) <= limit

    def learn(self, fed: int, seconds: float, drawn: int, held: int, failed: int) -> None:
        """What a step did: tokens fed, time, codes that every image got, drafts that held and drafts that failed."""
        self.costs.add(fed, seconds)
        if fed:  # the first code comes from the prompt's own forward, in plain decoding too
            self._spent += self.costs.of(fed)
            self._plain += self.costs.of(1) * drawn
        self.held += held
        self.failed += failed
        keep = (1 - 1 / _MEMORY) ** (held + failed)
        self._holding = self._holding * keep + held
        self._weight = self._weight * keep + held + failed
