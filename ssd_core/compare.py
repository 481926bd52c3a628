"""Plain decoding against other settings: the same seed, timed so that neither is favoured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from .auto import Auto
from .engine import OnProgress
from .errors import ShouldStop, SSDError, StopRequested
from .families.base import Backbone
from .generation import Generation, generate
from .report import RowsEvent
from .schedule import AR, Schedule

WARM_UP_FORWARDS = 8
OnLabelledRows = Callable[[str, RowsEvent], None]
"""Gets "plain" or "ssd" and the event."""


@dataclass(frozen=True)
class Comparison:
    """Both results and the seconds each took (medians where there were several runs)."""

    plain: Generation
    ssd: Generation
    plain_seconds: float
    ssd_seconds: float
    repeats: int

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.ssd_seconds

    @property
    def forwards_ratio(self) -> float:
        return self.plain.report.total_forwards / self.ssd.report.total_forwards

    @property
    def equal_tokens(self) -> float:
        """Share of codes that are the same in both pictures, 0..1."""
        return float((self.plain.tokens == self.ssd.tokens).double().mean())

    def to_dict(self) -> dict[str, Any]:
        """Plain figures, ready for JSON."""
        return {
            "ar": {"seconds": self.plain_seconds, "forwards": self.plain.report.total_forwards},
            "ssd": {
                "seconds": self.ssd_seconds,
                "forwards": self.ssd.report.total_forwards,
                "acceptance": self.ssd.report.acceptance,
            },
            "speedup": self.speedup,
            "forwards_ratio": self.forwards_ratio,
            "equal_tokens": self.equal_tokens,
        }


def compare(
    backbone: Backbone,
    prompt: str | list[str],
    *,
    schedule: Schedule | None = None,
    repeats: int = 1,
    note: Callable[[str], None] | None = None,
    on_rows: OnLabelledRows | None = None,
    on_result: Callable[[str, Generation], None] | None = None,
    on_progress: OnProgress | None = None,
    events_per_second: float = math.inf,
    should_stop: ShouldStop | None = None,
    **settings: Any,
) -> Comparison:
    """Draws with plain decoding and with ``schedule``, ``repeats`` times each.

    Both are warmed up untimed, then run in turn; who came second comes first the next time, and the median of each
    counts. ``settings`` are ``generate``'s. ``note`` gets a line before each run, ``on_result``
    "plain" or "ssd" and the result after it; ``on_progress`` is ``generate``'s, for the timed runs. Events cost plain
    decoding more, as it has one for every code: leave ``on_rows`` away or ``events_per_second`` low where seconds
    matter. Raises what ``generate`` raises, and SSDError for fewer than one of ``repeats``.
    """
    if repeats < 1:
        raise SSDError(f"repeats must be at least 1, got {repeats}")
    schedules: dict[str, Schedule] = {"plain": AR(), "ssd": schedule or Auto()}
    tell = note or (lambda text: None)
    tell("compare: warming up")
    for each in schedules.values():
        _warm_up(backbone, prompt, each, should_stop, settings)
    results: dict[str, Generation] = {}
    seconds: dict[str, list[float]] = {name: [] for name in schedules}
    for repeat in range(repeats):
        order = list(schedules) if repeat % 2 == 0 else list(schedules)[::-1]
        for place, name in enumerate(order, start=1):
            tell(f"compare: run {2 * repeat + place} of {2 * repeats} ({name})")
            results[name] = generate(
                backbone,
                prompt,
                schedule=schedules[name],
                on_rows=None if on_rows is None else _labelled(on_rows, name),
                on_progress=on_progress,
                events_per_second=events_per_second,
                should_stop=should_stop,
                **settings,
            )
            seconds[name].append(results[name].report.seconds["total"])
            if on_result is not None:
                on_result(name, results[name])
    return Comparison(results["plain"], results["ssd"], median(seconds["plain"]), median(seconds["ssd"]), repeats)


def _labelled(on_rows: OnLabelledRows, label: str) -> Callable[[RowsEvent], None]:
    def tell(event: RowsEvent) -> None:
        on_rows(label, event)

    return tell


def _warm_up(
    backbone: Backbone, prompt: str | list[str], schedule: Schedule, should_stop: ShouldStop | None, settings: Any
) -> None:
    """The first forwards of a process are slow (memory, threads, kernels picked): spend them untimed."""
    polls = 0
    asked_to_stop = False

    def enough() -> bool:
        nonlocal polls, asked_to_stop
        polls += 1
        asked_to_stop = should_stop is not None and should_stop()
        return asked_to_stop or polls > WARM_UP_FORWARDS

    try:
        generate(backbone, prompt, schedule=schedule, should_stop=enough, **settings)
    except StopRequested:
        if asked_to_stop:
            raise
