"""Times a short span of a run of ``generate``, anywhere in the picture.

Kept rows of random codes put the front where the span is to be; ``should_stop``, which the engine asks before every
forward, is the stop watch. The device is waited for at both ends of the span and nowhere inside it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ssd_core import (
    AR,
    Backbone,
    Generation,
    Rolling,
    Rounds,
    Schedule,
    SpatialHeads,
    SSDError,
    StopRequested,
    generate,
)
from ssd_core.graphs import GraphsChoice
from ssd_core.state import DecodeState
from ssd_core.stream import Stream

from .gpu_budget import Clock
from .gpu_shapes import PROMPT


def wait(device: torch.device) -> None:
    """Until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Decoder:
    """A line of the table."""

    name: str
    schedule: Schedule
    graphs: GraphsChoice
    uses_heads: bool = True

    @property
    def block(self) -> tuple[int, int]:
        """(forwards, rows) of the smallest span that repeats itself; (1, 0) where every forward is alike."""
        schedule = self.schedule
        if not isinstance(schedule, Rounds):
            return 1, 0
        last = 1 if schedule.commit == "separate" else 0
        trailing = (schedule.rows_per_block - 1) * (schedule.incremental_rounds + last)
        if schedule.commit == "fused" and schedule.incremental_rounds == 0:
            trailing = 0
        return schedule.rounds + last + trailing, schedule.rows_per_block

    def run(self, backbone: Backbone, heads: SpatialHeads, grid: tuple[int, int], **options: Any) -> Generation:
        """One picture, or as much of it as ``should_stop`` allows."""
        used = heads if self.uses_heads else None
        return generate(
            backbone, PROMPT, heads=used, schedule=self.schedule, grid=grid, graphs=self.graphs, **options
        )  # fmt: skip


def decoders(paper: Rounds, window_rows: int) -> list[Decoder]:
    """Every line of a model's table, most important ones first."""
    fused = replace(paper, commit="fused")
    kinds: list[tuple[str, GraphsChoice]] = [("graphed", "auto"), ("eager", "off")]
    lines = []
    for kind, graphs in kinds:
        lines += [
            Decoder(f"AR, {kind}", AR(), graphs, uses_heads=False),
            Decoder(f"SSD as published, {kind}", paper, graphs),
            Decoder(f"SSD, fused commit, {kind}", fused, graphs),
            *(
                Decoder(f"SSD, rolling, {rows} row{'s' * (rows > 1)}, exact, {kind}", Rolling(window_rows=rows), graphs)
                for rows in (window_rows, 1)
            ),
        ]
    return lines


def forwards_of(schedule: Schedule, stream: Stream) -> int | None:
    """Forwards of a whole picture, played without a model; None where they depend on what is accepted."""
    if not isinstance(schedule, AR | Rounds):
        return None
    state = DecodeState(stream, 1, 1, 1, torch.float32, torch.device("cpu"))
    forwards = 1  # the prompt's own
    for step in schedule.steps(state):
        forwards += step.ends[0] > 1  # the first code comes from the prompt
        if step.prefix:
            state.accept(0, step.ends[0])
        elif step.final is not None:
            state.accept(0, step.final)
    return forwards


class StopWatch:
    """``should_stop`` and ``on_progress`` of one run: times up to ``steps`` steps after ``warm`` others."""

    def __init__(self, warm: int, steps: int, device: torch.device, clock: Clock = time.perf_counter) -> None:
        self._warm, self._steps, self._device, self._clock = warm, steps, device, clock
        self._running = False
        self._asked = 0
        self._start = 0.0
        self.step: float | None = None
        """Seconds a step, None before the span is over."""

    def on_progress(self, rows: tuple[int, ...]) -> None:
        """The kept rows are fed: what comes now are the decoder's own steps."""
        self._running = True

    def should_stop(self) -> bool:
        if not self._running:
            return False
        self._asked += 1
        if self._asked == self._warm + 1:
            wait(self._device)
            self._start = self._clock()
        if self._asked < self._warm + self._steps + 1:
            return False
        self._end(self._steps)
        return True

    def finish(self) -> None:
        """The picture ended: the last question was the one before its pixels."""
        steps = self._asked - 1 - self._warm
        if self.step is None and steps > 0:
            self._end(steps)

    def _end(self, steps: int) -> None:
        wait(self._device)
        self.step = (self._clock() - self._start) / steps


def time_span(
    decoder: Decoder, backbone: Backbone, heads: SpatialHeads, codes: Tensor, keep_rows: int, warm: int, steps: int,
    clock: Clock = time.perf_counter,
) -> float:  # fmt: skip
    """Seconds of one of ``steps`` steps behind ``keep_rows`` (at least 1) rows of ``codes`` int64 [1, rows, cols].

    The span ends with the picture. Raises SSDError when that leaves no step to time.
    """
    watch = StopWatch(warm, steps, backbone.device, clock)
    grid = (codes.shape[1], codes.shape[2])
    try:
        decoder.run(
            backbone, heads, grid, start=codes, keep_rows=keep_rows,
            should_stop=watch.should_stop, on_progress=watch.on_progress,
        )  # fmt: skip
        watch.finish()
    except StopRequested:
        pass
    if watch.step is None:
        raise SSDError(
            f"the picture ended within the {warm} steps of warming up {decoder.name} behind row {keep_rows}; "
            "measure further from the end"
        )
    return watch.step


def time_whole(
    decoder: Decoder, backbone: Backbone, heads: SpatialHeads, grid: tuple[int, int], seed: int = 0,
    clock: Clock = time.perf_counter,
) -> tuple[float, Generation]:  # fmt: skip
    """Seconds of a whole picture, prompt included, and the picture."""
    wait(backbone.device)
    start = clock()
    drawn = decoder.run(backbone, heads, grid, seed=seed)
    wait(backbone.device)
    return clock() - start, drawn
