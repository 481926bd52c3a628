"""A clock and lines of a table that need no time: for tests of the GPU benchmark."""

from __future__ import annotations

from benchmarks.gpu_lines import Line


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fake_line(name: str, step: float, clock: Clock, log: list[str], block: tuple[int, int] = (1, 0)) -> Line:
    def time(keep_rows: int, warm: int, steps: int) -> float:
        log.append(name)
        clock.now += (warm + steps) * step
        return step

    return Line(name, 100, False, block, rows=40, time=time)
