"""`generate --compare`: the same seed by plain decoding and by SSD, timed so that neither is favoured.

Both are warmed up, then run in turn, whoever came second coming first the next time; the median of each counts. The
timed runs draw no progress, which would cost plain decoding more (it has an event for every token).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from ..errors import StopRequested
from ..generate import Generation
from ..schedule import AR, Schedule
from .arguments import GenerateOptions
from .draw import prepare_outputs, save
from .files import write
from .progress import ProgressBar
from .rows_gif import RowsRecorder
from .setup import Setup, load, schedule_of
from .summary import comparison_text

WARM_UP_FORWARDS = 8


@dataclass(frozen=True)
class Side:
    """One decoder's result and its median seconds."""

    result: Generation
    seconds: float

    @property
    def forwards(self) -> int:
        return self.result.report.total_forwards


@dataclass(frozen=True)
class Comparison:
    """Plain decoding against the chosen settings."""

    ar: Side
    ssd: Side

    @property
    def speedup(self) -> float:
        return self.ar.seconds / self.ssd.seconds

    @property
    def forwards_ratio(self) -> float:
        return self.ar.forwards / self.ssd.forwards

    @property
    def equal_tokens(self) -> float:
        """Share of codes that are the same in both pictures, 0..1."""
        return float((self.ar.result.tokens == self.ssd.result.tokens).double().mean())

    def to_dict(self) -> dict[str, object]:
        """The object that `--json` prints."""
        ar, ssd = self.ar, self.ssd
        return {
            "ar": {"seconds": ar.seconds, "forwards": ar.forwards},
            "ssd": {
                "seconds": ssd.seconds,
                "forwards": ssd.forwards,
                "acceptance": ssd.result.report.acceptance,
            },
            "speedup": self.speedup,
            "forwards_ratio": self.forwards_ratio,
            "equal_tokens": self.equal_tokens,
        }


def compare(options: GenerateOptions) -> None:
    """Draw with both decoders, write both pictures and print what SSD gained."""
    target = prepare_outputs(options)
    setup = load(options)
    with ProgressBar(options.progress) as bar:
        comparison = measure(setup, schedule_of(options), options.repeats, bar.note)
        gif = None
        if options.rows_gif is not None:
            bar.note("compare: drawing once more for the animation")
            recorder = RowsRecorder()
            setup.draw(schedule_of(options), recorder.on_rows)
            gif = recorder.gif_bytes(setup.backbone)
    files = save(setup, comparison.ssd.result, target) + save(setup, comparison.ar.result, target, mark="-ar")
    if options.rows_gif is not None and gif is not None:
        files.append(write(options.rows_gif, gif))
    if options.json:
        print(json.dumps(comparison.to_dict(), allow_nan=False))
    else:
        print(comparison_text(options.prompts, comparison.to_dict(), comparison.ssd.result, options.repeats, files))


def measure(setup: Setup, schedule: Schedule, repeats: int, note: Callable[[str], None]) -> Comparison:
    """`repeats` timed runs of each decoder, alternated. `note` gets a line of progress before each."""
    schedules: dict[str, Schedule] = {"ar": AR(), "ssd": schedule}
    note("compare: warming up")
    for each in schedules.values():
        _warm_up(setup, each)
    results: dict[str, Generation] = {}
    seconds: dict[str, list[float]] = {"ar": [], "ssd": []}
    for repeat in range(repeats):
        order = ("ar", "ssd") if repeat % 2 == 0 else ("ssd", "ar")
        for place, name in enumerate(order, start=1):
            note(f"compare: run {2 * repeat + place} of {2 * repeats} ({name})")
            results[name] = setup.draw(schedules[name])
            seconds[name].append(results[name].report.seconds["total"])
    return Comparison(*(Side(results[name], median(seconds[name])) for name in ("ar", "ssd")))


def _warm_up(setup: Setup, schedule: Schedule) -> None:
    """The first forwards of a process are slow (memory, threads, kernels picked): spend them untimed."""
    polls = 0

    def enough() -> bool:
        nonlocal polls
        polls += 1
        return polls > WARM_UP_FORWARDS

    try:
        setup.draw(schedule, should_stop=enough)
    except StopRequested:
        return
