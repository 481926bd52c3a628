"""One model's table: every line timed in short spans near the start, in the middle and near the end of its picture.

The lines take turns, so all meet the same clocks and the same heat. A line's time per forward is the mean over the
picture of the medians at the three places (attention grows linearly, so the middle counts twice); times of whole
pictures follow from it and from the number of forwards, and are measured too where time allows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ssd_core import Backbone, Rounds, SpatialHeads, SSDError

from .gpu_budget import Allowance, Clock, blocks_in, extrapolate, layer_counts, layers_for_time
from .gpu_shapes import PROMPT, Shape
from .gpu_span import Decoder, decoders, forwards_of, time_span, time_whole
from .gpu_transformers import LOOPS, time_loop, twin

REPEATS, _PLANNED_REPEATS = 3, 2
_SETTLING = 2
"""Spans that do not count before those that do, with graphs: a step is captured the second time it comes up."""
SPAN_STEPS = 20
_WARM_STEPS, _WINDOW_ROWS = 4, 3
_WHOLE_SHARE = 0.3  # of a section's time is kept for whole pictures
PLACES = ("start", "middle", "end")
_PLACE_WEIGHTS = (0.25, 0.5, 0.25)

Save = Callable[[dict[str, Any]], None]
Build = Callable[[int], tuple[Backbone, SpatialHeads]]


@dataclass
class Line:
    """``time(keep_rows, warm, steps)``: seconds a step. ``block``: (steps, rows) of the smallest span, see Decoder.

    ``steps``: of a whole picture, None where they depend on what is accepted; ``at_most``: rounds may be skipped.
    """

    name: str
    steps: int | None
    at_most: bool
    block: tuple[int, int]
    rows: int
    time: Callable[[int, int, int], float]
    decoder: Decoder | None = None
    samples: list[list[float]] = field(default_factory=lambda: [[] for _ in PLACES])
    blocks: int = 1

    @property
    def settling(self) -> int:
        return _SETTLING if self.decoder is not None and self.decoder.graphs == "auto" else 0

    @property
    def warm(self) -> int:
        return max(_WARM_STEPS // self.block[0], 1) * self.block[0]

    @property
    def span(self) -> int:
        return self.blocks * self.block[0]


def places(rows: int, needed: int) -> tuple[int, int, int]:
    """Kept rows near the start, in the middle and near the end, with ``needed`` rows left to draw."""
    last = max(1, rows - needed)
    return 1, min(rows // 2, last), last


def lines_of(shape: Shape, backbone: Backbone, heads: SpatialHeads, reasons: dict[str, str]) -> list[Line]:
    """Ours and transformers'; ``reasons`` gets why a line is missing."""
    stream = backbone.stream(shape.grid)
    generator = torch.Generator(backbone.device).manual_seed(1)
    codes = torch.randint(backbone.codes, (1, *shape.grid), generator=generator, device=backbone.device)
    lines = []
    for decoder in decoders(shape.paper, _WINDOW_ROWS):

        def ours(keep_rows: int, warm: int, steps: int, decoder: Decoder = decoder) -> float:
            return time_span(decoder, backbone, heads, codes, keep_rows, warm, steps)

        schedule = decoder.schedule
        fused = isinstance(schedule, Rounds) and schedule.commit == "fused"
        forwards = forwards_of(schedule, stream)
        lines.append(Line(decoder.name, forwards, fused, decoder.block, shape.grid[0], ours, decoder))
    try:
        model = twin(shape, backbone)
    except SSDError as error:
        reasons["transformers"] = str(error)
        return lines
    rows = backbone.prompt_rows([PROMPT], "", shape.grid, guided=True)
    kind, batched = LOOPS[shape.name]
    for one_batch in dict.fromkeys((batched, True)):

        def theirs(keep_rows: int, warm: int, steps: int, one_batch: bool = one_batch) -> float:
            length, whole = (rows.length + tokens for tokens in (keep_rows * stream.stride, stream.length))
            return time_loop(shape, backbone, model, kind, one_batch, length, whole, warm, steps)

        how = "both rows in one batch" if one_batch else "as generate: two forwards"
        name = f"transformers, {kind} cache, {how}"
        lines.append(Line(name, stream.length, False, (1, 0), shape.grid[0], theirs))
    return lines


def plan_spans(
    lines: list[Line], seconds: float, cols: int, reasons: dict[str, str], clock: Clock = time.perf_counter
) -> list[Line]:
    """Times one block of every line in the middle of the picture, and from that chooses how long its spans are.

    Returns the lines that ran; ``reasons`` gets why another did not. Running out of memory is passed on.
    """
    kept = []
    for line in lines:
        begun = clock()
        try:
            step = line.time(places(line.rows, rows_needed(line, cols))[1], line.warm, line.block[0])
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # another release of transformers, a graph that fails: the other lines still count
            reasons[line.name] = " ".join(f"{type(error).__name__}: {error}".split())
            continue
        around = max(0.0, clock() - begun - line.block[0] * step)  # prompt, kept rows, warm-up
        share = seconds / (len(PLACES) * sum(_PLANNED_REPEATS + each.settling for each in lines))
        wanted = max(1, SPAN_STEPS // line.block[0])
        most = max(1, _most_blocks(line, cols))
        line.blocks = blocks_in(share - around, line.block[0] * step, min(wanted, most))
        kept.append(line)
    return kept


def rows_needed(line: Line, cols: int) -> int:
    """Rows that warm-up and span may finish."""
    steps, rows = line.block
    total = line.warm + line.span
    return -(-total // steps) * rows if rows else -(-total // cols)


def _most_blocks(line: Line, cols: int) -> int:
    """Blocks that fit behind the first row."""
    steps, rows = line.block
    room = line.rows - 1
    return (room // rows if rows else room * cols) - line.warm // steps


def measure_spans(lines: list[Line], cols: int, allowed: Allowance, save: Callable[[], None]) -> None:
    """Fills the lines' samples in turn; the first round is always whole, later ones end when time does."""
    for repeat in range(REPEATS):
        for place in range(len(PLACES)):
            for turn in range(len(lines)):
                line = lines[(turn + repeat) % len(lines)]
                if repeat and not allowed.left:
                    return
                keep = places(line.rows, rows_needed(line, cols))[place]
                for _ in range(0 if repeat else line.settling):
                    line.time(keep, line.warm, line.span)
                line.samples[place].append(line.time(keep, line.warm, line.span))
        save()


def mean_over_picture(samples: list[list[float]]) -> float:
    """Seconds a step: the medians of the three places, the middle counting twice."""
    return sum(weight * statistics.median(s) for weight, s in zip(_PLACE_WEIGHTS, samples, strict=True))


def measure_speed(shape: Shape, build: Build, layers: int, allowed: Allowance, save: Save) -> dict[str, Any]:
    """Figures of every line of ``shape``'s table; ``build(layers)`` makes the model, ``layers`` fit into memory.

    Where all layers would take too long, fewer are measured, at two counts, and ``extrapolated`` says so.
    """
    layers = _affordable_layers(shape, build, layers, allowed)
    full = shape.llama.decoder.layers
    counts = layer_counts(layers, full)
    data: dict[str, Any] = {"layers": list(counts), "layers_full": full, "lines": {}, "missing": {}}
    by_layers: dict[str, dict[int, float]] = {}
    for number, count in enumerate(counts):
        part = allowed.part((1 - _WHOLE_SHARE) / (len(counts) - number))
        # In a function of its own: a model must be gone before the next one is made.
        _measure_layers(shape, build, count, data, by_layers, part, allowed, save)
    return data


def _measure_layers(
    shape: Shape, build: Build, count: int, data: dict[str, Any], by_layers: dict[str, dict[int, float]],
    for_spans: Allowance, allowed: Allowance, save: Save,
) -> None:  # fmt: skip
    """All lines with ``count`` layers, into ``data`` and ``by_layers`` (line -> layers -> seconds a step)."""
    counts, full, cols = tuple(data["layers"]), data["layers_full"], shape.grid[1]
    backbone, heads = build(count)
    reasons = data["missing"]
    lines = plan_spans(lines_of(shape, backbone, heads, reasons), for_spans.left, cols, reasons)

    def keep() -> None:
        for line in lines:
            if all(line.samples):
                by_layers.setdefault(line.name, {})[count] = mean_over_picture(line.samples)
                data["lines"][line.name] = _figures(line, by_layers[line.name], counts, full, cols)
        save(data)

    measure_spans(lines, cols, for_spans, keep)
    if counts == (full,):
        _measure_whole(shape, backbone, heads, lines, data, allowed, save)


def _affordable_layers(shape: Shape, build: Build, layers: int, allowed: Allowance) -> int:
    """Layers with which every line gets its shortest spans once, judged by one eager plain step."""
    backbone, heads = build(layers)
    lines = lines_of(shape, backbone, heads, {})
    plain = next(line for line in lines if line.decoder and line.decoder.name == "AR, eager")
    step = plain.time(places(plain.rows, 1)[1], plain.warm, _WARM_STEPS)
    steps = sum((line.warm + line.block[0]) * (len(PLACES) * (1 + line.settling) + 1) for line in lines)
    return layers_for_time(layers, step, steps, (1 - _WHOLE_SHARE) * allowed.left)


def _figures(line: Line, by_layers: dict[int, float], counts: tuple[int, ...], full: int, cols: int) -> dict[str, Any]:
    """A line as it goes into the file; milliseconds per step and seconds per picture at ``full`` layers."""
    complete = set(by_layers) == set(counts)
    step = extrapolate(by_layers, full) if complete else None
    marks = ["picture from spans"] if line.steps else []
    if counts != (full,):
        marks.append(f"layers from {min(counts)} and {max(counts)}")
    wanted = max(1, SPAN_STEPS // line.block[0])
    return {
        "forwards": line.steps,
        "at_most": line.at_most,
        "ms_per_forward": None if step is None else 1e3 * step,
        "picture_s": None if step is None or line.steps is None else step * line.steps,
        "extrapolated": marks,
        "span_steps": line.span,
        "shortened": line.blocks < wanted,
        "repeats": min(map(len, line.samples)),
        "keep_rows": list(places(line.rows, rows_needed(line, cols))),
        "ms": {place: [round(1e3 * s, 4) for s in own] for place, own in zip(PLACES, line.samples, strict=True)},
    }


def _measure_whole(
    shape: Shape, backbone: Backbone, heads: SpatialHeads, lines: list[Line], data: dict[str, Any],
    allowed: Allowance, save: Save,
) -> None:  # fmt: skip
    """Draws whole pictures with the lines whose time is known to suffice, the shortest first."""
    known = [line for line in lines if line.decoder and data["lines"][line.name]["picture_s"] is not None]
    for line in sorted(known, key=lambda line: float(data["lines"][line.name]["picture_s"])):
        figures = data["lines"][line.name]
        times: list[float] = []
        while line.decoder and len(times) < REPEATS and 1.3 * float(figures["picture_s"]) < allowed.left:
            seconds, drawn = time_whole(line.decoder, backbone, heads, shape.grid)
            times.append(seconds)
            figures |= {"whole_s": statistics.median(times), "whole_times": times, "graphs": drawn.report.graphs}
            figures["whole_forwards"] = drawn.report.total_forwards
        save(data)
