"""One model's table: every line timed in short spans near the start, in the middle and near the end of its picture.

The lines take turns, so all meet the same clocks and the same heat. A line's time per forward is the mean over the
picture of the medians at the three places (attention grows linearly, so the middle counts twice); times of whole
pictures follow from it and from the number of forwards, and are measured too where time allows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ssd_core import Backbone, SpatialHeads

from .gpu_budget import Allowance, Clock, blocks_in, extrapolate, layer_counts, layers_for_time
from .gpu_lines import PLACES, Line, lines_of, most_blocks, places, rows_needed
from .gpu_shapes import Shape
from .gpu_span import time_whole

REPEATS, _PLANNED_REPEATS = 3, 2
SPAN_STEPS = 20
_WHOLE_SHARE = 0.3  # of a section's time is kept for whole pictures
_PLACE_WEIGHTS = (0.25, 0.5, 0.25)

Save = Callable[[dict[str, Any]], None]
Build = Callable[[int], tuple[Backbone, SpatialHeads]]


@contextmanager
def _noting(name: str, reasons: dict[str, str]) -> Iterator[list[str]]:
    """What fails inside is noted under ``name`` and in the list, and does not keep other lines from counting.

    That may be another release of transformers, or a graph that fails. Running out of memory is passed on.
    """
    noted: list[str] = []
    try:
        yield noted
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        noted.append(" ".join(f"{type(error).__name__}: {error}".split()))
        reasons[name] = noted[0]


def plan_spans(
    lines: list[Line], seconds: float, cols: int, reasons: dict[str, str], clock: Clock = time.perf_counter
) -> list[Line]:
    """Times one block of every line in the middle of the picture, and from that chooses how long its spans are.

    Returns the lines that ran; ``reasons`` gets why another did not. Running out of memory is passed on.
    """
    kept = []
    for line in lines:
        begun = clock()
        with _noting(line.name, reasons) as noted:
            step = line.time(places(line.rows, rows_needed(line, cols))[1], line.warm, line.block[0])
        if noted:
            continue
        around = max(0.0, clock() - begun - line.block[0] * step)  # prompt, kept rows, warm-up
        share = seconds / (len(PLACES) * sum(_PLANNED_REPEATS + each.settling for each in lines))
        wanted = max(1, SPAN_STEPS // line.block[0])
        most = max(1, most_blocks(line, cols))
        line.blocks = blocks_in(share - around, line.block[0] * step, min(wanted, most))
        kept.append(line)
    return kept


def measure_spans(
    lines: list[Line], cols: int, reasons: dict[str, str], allowed: Allowance, save: Callable[[], None]
) -> None:
    """Fills the lines' samples in turn; the first round is always whole, later ones end when time does.

    A line that fails keeps the samples it has and takes no more; ``reasons`` gets why.
    """
    failed: set[str] = set()
    for repeat in range(REPEATS):
        for place in range(len(PLACES)):
            for turn in range(len(lines)):
                line = lines[(turn + repeat) % len(lines)]
                if repeat and not allowed.left:
                    return
                if line.name in failed:
                    continue
                keep = places(line.rows, rows_needed(line, cols))[place]
                with _noting(line.name, reasons) as noted:
                    for _ in range(0 if repeat else line.settling):
                        line.time(keep, line.warm, line.span)
                    line.samples[place].append(line.time(keep, line.warm, line.span))
                if noted:
                    failed.add(line.name)
                    for samples in line.samples:  # whole rounds only
                        del samples[repeat:]
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

    measure_spans(lines, cols, reasons, for_spans, keep)
    if counts == (full,):
        _measure_whole(shape, backbone, heads, lines, data, allowed, save)


def _affordable_layers(shape: Shape, build: Build, layers: int, allowed: Allowance) -> int:
    """Layers with which every line gets its shortest spans once, judged by one eager plain span in the middle.

    Each span, those that settle and the planning one included, also feeds the prompt and the rows before it.
    """
    backbone, heads = build(layers)
    lines = lines_of(shape, backbone, heads, {})
    plain = next(line for line in lines if line.decoder and line.decoder.name == "AR, eager")
    plain.time(1, 0, 1)  # the device loads its kernels the first time
    begun = allowed.clock()
    step = plain.time(places(plain.rows, 1)[1], plain.warm, plain.warm)
    fill = max(0.0, allowed.clock() - begun - 2 * plain.warm * step)
    spans = [(line, len(PLACES) * (1 + line.settling) + 1) for line in lines]
    needed = sum(count * (fill + (line.warm + line.block[0]) * step) for line, count in spans)
    return layers_for_time(layers, needed, (1 - _WHOLE_SHARE) * allowed.left)


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
    lines = [line for line in lines if line.decoder and line.name in data["lines"]]
    known = [line for line in lines if data["lines"][line.name]["picture_s"] is not None]
    for line in sorted(known, key=lambda line: float(data["lines"][line.name]["picture_s"])):
        figures = data["lines"][line.name]
        times: list[float] = []
        with _noting(f"{line.name}, whole picture", data["missing"]):
            while line.decoder and len(times) < REPEATS and 1.3 * float(figures["picture_s"]) < allowed.left:
                seconds, drawn = time_whole(line.decoder, backbone, heads, shape.grid)
                times.append(seconds)
                figures |= {"whole_s": statistics.median(times), "whole_times": times, "graphs": drawn.report.graphs}
                figures["whole_forwards"] = drawn.report.total_forwards
        save(data)
