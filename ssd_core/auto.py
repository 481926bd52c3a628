"""``Auto``: plain decoding's picture, with a window that follows what forwards cost here and how many drafts hold.

Windows only decide how many forwards a picture takes: with Gumbel coupling and tolerance 0 the codes are plain
decoding's whatever the window, so a clock may choose it. In half precision near-ties break that promise. A clock there
could give two pictures for one seed, so costs are assumed instead of measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .errors import SSDError
from .heads import HeadsSpec
from .pilot import Costs, Pilot
from .schedule import CouplingName, Step
from .state import DecodeState
from .stream import Stream

EXPECTED = 0.8
"""Share of drafts expected to hold where no heads file says better."""

_NARROW = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
_SLOPES = {"cpu": 0.05}
"""What one more token adds to a forward over one, where it must not be measured: the embedded model's on a CPU, ..."""
_SLOPE = 0.002
"""... and next to nothing on devices that wait for weights or launches."""


def clock_of(device_type: str) -> Callable[[], float]:
    """Seconds for the steps of a device. On a CPU this thread's own, which other programs do not lengthen.

    Not where other threads do a share of the work, nor on Windows, which counts those in steps of 16 ms, as long as a
    small model's forward.
    """
    alone = device_type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if alone and sys.platform != "win32" else time.perf_counter


@dataclass(frozen=True)
class Auto:
    """Exact mode that chooses its window itself, step by step, between one token and ``most_rows`` rows.

    It weighs the share of drafts that held lately against what its own steps took. Never does it spend more than a
    few per cent above plain decoding, however bad the drafts: then it falls back to plain steps and tries again now
    and then. ``expected``: the share of drafts expected to hold at first; None takes it from the heads file.
    ``whole_rows``: wide windows end with a row, which suits heads, whose fresh drafts are good; else they are so many
    tokens wide, which gives poor drafts more rounds. None is True with heads.
    """

    most_rows: int = 4
    expected: float | None = None
    whole_rows: bool | None = None
    coupling: CouplingName = field(default="gumbel", init=False)
    tolerance: float = field(default=0.0, init=False)
    name: str = field(default="auto", init=False)

    def __post_init__(self) -> None:
        if self.most_rows < 1:
            raise SSDError(f"most_rows must be at least 1, got {self.most_rows}")
        if self.expected is not None and not 0 <= self.expected <= 1:
            raise SSDError(f"expected must be a share from 0 to 1, got {self.expected}")

    def informed(self, heads: HeadsSpec | None) -> Auto:
        """The same with what was None filled in, for the ``heads`` that will draft or for drafts without any."""
        notes = heads.notes.get("acceptance") if heads is not None else None
        recorded = notes.get("vertical 1") if isinstance(notes, dict) else None
        known = isinstance(recorded, float) and 0 <= recorded <= 1
        expected = self.expected if self.expected is not None else recorded if known else EXPECTED
        whole_rows = heads is not None if self.whole_rows is None else self.whole_rows
        return replace(self, expected=expected, whole_rows=whole_rows)

    def window(self, stream: Stream) -> int:
        return min(self.most_rows * stream.stride, stream.length)

    def windows(self, stream: Stream) -> dict[int, int]:
        """The windows to choose from, usual width -> largest width in stream positions."""
        stride, most = stream.stride, self.window(stream)
        if not self.whole_rows:
            halves = [half * stride // 2 for half in range(2, 2 * self.most_rows + 1)]
            return {width: width for width in sorted({1, *_below(stride), *(min(width, most) for width in halves)})}
        ends = [row * stride for row in range(1, min(self.most_rows, stream.rows) + 1) if row * stride > 1]
        wide = {max(end - stride // 2, 2): end for end in ends}
        return {1: 1, **{width: width for width in _below(stride // 2)}, **wide}

    @staticmethod
    def _end(stream: Stream, front: int, width: int, most: int) -> int:
        """Where a window ends: so wide, or with the row that it reaches."""
        if width == most:
            return min(front + width, stream.length)
        return stream.row_end(stream.row_of(front) + most // stream.stride - 1)

    def steps(self, state: DecodeState) -> Iterator[Step]:
        stream = state.stream
        expected = EXPECTED if self.expected is None else self.expected
        done = _codes_done(state)
        clock = clock_of(state.device.type)
        windows = self.windows(stream)
        pilot = Pilot(stream.codes - done, windows, expected, _costs(state, widths_of(stream, windows)))
        while not state.finished:
            width = pilot.choose()
            unsettled, begin = state.runner.unsettled, clock()
            ends = [self._end(stream, front, width, windows[width]) for front in state.front]
            yield Step(ends, draft=width > 1, prefix=True)
            seconds, before, done = clock() - begin, done, _codes_done(state)
            found = state.outcome
            lasting = seconds if state.runner.unsettled == unsettled else None  # no capture tells what steps cost
            pilot.learn(found.fed, lasting, done - before, found.held, found.failed)
        state.choices = choices(pilot, state.features.dtype)


def _below(width: int) -> list[int]:
    return [narrow for narrow in _NARROW if narrow < width]


def widths_of(stream: Stream, windows: dict[int, int]) -> list[int]:
    """At which widths costs are kept: those of the windows and some between."""
    return sorted({*_below(stream.stride), *windows, *windows.values()})


def _codes_done(state: DecodeState) -> int:
    """Final codes of the image that is furthest behind: plain decoding's steps are as many."""
    return min(state.stream.codes_before(front) for front in state.front)


def _costs(state: DecodeState, widths: list[int]) -> Costs:
    if state.features.dtype in (torch.float32, torch.float64):
        return Costs(widths)
    return Costs(widths, _SLOPES.get(state.device.type, _SLOPE))


def choices(pilot: Pilot, dtype: torch.dtype) -> dict[str, Any]:
    """What was chosen and why, ready for JSON: ``windows`` counts steps by usual width; ``costs`` in plain steps."""
    steps, main = pilot.used.total(), max(pilot.used, key=lambda width: (pilot.used[width], width))
    checked = pilot.held + pilot.failed
    costs = {str(width): round(pilot.costs.of(width) / pilot.costs.of(1), 3) for width in sorted(pilot.used)}
    return {
        "windows": {str(width): pilot.used[width] for width in sorted(pilot.used)},
        "costs": costs,
        "measured": pilot.costs.measured,
        "held": pilot.held / checked if checked else None,
        "tries": pilot.tries,
        "why": _why(pilot, main, steps, costs, dtype),
    }


def _why(pilot: Pilot, main: int, steps: int, costs: dict[str, float], dtype: torch.dtype) -> str:
    checked = pilot.held + pilot.failed
    held = f"{pilot.held / checked:.0%} of the drafts held" if checked else "no draft was checked"
    if main == 1:
        text = f"plain steps, {pilot.used[1]} of {steps}: {held}"
        others = [width for width in pilot.used if width > 1]
        if others:
            text += f", and a forward over {min(others)} tokens costs {costs[str(min(others))]:.2f} plain ones"
        if pilot.tries:
            text += f"; tried again {pilot.tries} times"
    else:
        text = (
            f"windows of {main} tokens, {pilot.used[main]} of {steps} steps (others {_range(pilot, main)}): "
            f"{held}, and a forward over {main} costs {costs[str(main)]:.2f} plain ones"
        )
    if not pilot.costs.measured:
        kind = str(dtype).removeprefix("torch.")
        text += f"; costs assumed, for a clock must not choose where codes could depend on it ({kind})"
    return text


def _range(pilot: Pilot, main: int) -> str:
    others = [width for width in pilot.used if width != main]
    return f"{min(others)} to {max(others)}" if others else "none"
