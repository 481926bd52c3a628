"""The lines of a model's speed table: who is timed, and where in the picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ssd_core import Backbone, Rounds, SpatialHeads, SSDError

from .gpu_shapes import PROMPT, Shape
from .gpu_span import Decoder, decoders, forwards_of, time_span
from .gpu_transformers import LOOPS, time_loop, twin

_SETTLING = 2
"""Spans that do not count before those that do, with graphs: a step is captured the second time it comes up."""
_WARM_STEPS, _WINDOW_ROWS = 4, 3
PLACES = ("start", "middle", "end")


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


def rows_needed(line: Line, cols: int) -> int:
    """Rows that warm-up and span may finish."""
    steps, rows = line.block
    total = line.warm + line.span
    return -(-total // steps) * rows if rows else -(-total // cols)


def most_blocks(line: Line, cols: int) -> int:
    """Blocks that fit behind the first row."""
    steps, rows = line.block
    room = line.rows - 1
    return (room // rows if rows else room * cols) - line.warm // steps
