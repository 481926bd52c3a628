"""Plots with Pillow alone: axes, ticks, labels, a legend, drawn at twice the size and scaled down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from PIL import Image, ImageDraw, ImageFont

COLOURS = (
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22",
)  # fmt: skip
INK, PALE = "#222222", "#dddddd"
_SCALE = 2

Point = tuple[float, float]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Line:
    """Points in order, joined by a line, with ``labels`` beside them. ``dashed`` lines (references) have no marks."""

    name: str
    points: Sequence[Point]
    labels: Sequence[str] = ()
    dashed: bool = False


@dataclass(frozen=True)
class Bar:
    """A mean with its interval, on a line of its own."""

    name: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Axis:
    """``label`` beside an axis; ``log`` scale; ends, or None to fit the data (``low`` 0 is common)."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None

    def fitted(self, values: Sequence[float]) -> Axis:
        """With ends: those given, else the data's with a little air."""
        low, high = min(values), max(values)
        if self.log:
            air = (high / low) ** 0.06 if high > low else 2.0
            low, high = low / air, high * air
        else:
            air = (high - low) * 0.06 or max(abs(high), 1.0) * 0.1
            low, high = low - air, high + air
        return Axis(
            self.label, self.log, low if self.low is None else self.low, high if self.high is None else self.high
        )

    def share(self, value: float) -> float:
        """Where a value lies between the ends, 0..1; values beyond are drawn at the edge."""
        low, high = self._ends
        share = math.log(value / low) / math.log(high / low) if self.log else (value - low) / (high - low)
        return min(max(share, 0.0), 1.0)

    @property
    def ticks(self) -> list[float]:
        """Round numbers between the ends."""
        low, high = self._ends
        if self.log:
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            span = high / low
            steps = (1, 1.5, 2, 3, 4, 5, 7) if span < 10 else (1, 2, 5) if span < 1000 else (1,)
            marks = [m * 10.0**power for power in powers for m in steps]
        else:
            step = _round_step((high - low) / 5)
            first = math.ceil(low / step - 1e-9)
            marks = [round(step * (first + i), 10) for i in range(int((high - low) / step) + 2)]
        return [mark for mark in marks if low * (1 - 1e-9) - 1e-12 <= mark <= high * (1 + 1e-9) + 1e-12]

    @property
    def _ends(self) -> tuple[float, float]:
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high


@dataclass(frozen=True)
class Chart:
    """One panel: lines or marks over two axes."""

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = field(default_factory=tuple)


def charts_page(charts: Sequence[Chart], width: int = 620, height: int = 440, columns: int = 2) -> Image.Image:
    """Charts side by side, ``columns`` in a row."""
    columns = min(columns, len(charts))
    rows = math.ceil(len(charts) / columns)
    page = Image.new("RGB", (columns * width * _SCALE, rows * height * _SCALE), "white")
    for index, chart in enumerate(charts):
        tile = Image.new("RGB", (width * _SCALE, height * _SCALE), "white")
        _draw_chart(tile, chart)
        page.paste(tile, (index % columns * width * _SCALE, index // columns * height * _SCALE))
    return page.resize((columns * width, rows * height), Image.Resampling.LANCZOS)


@dataclass(frozen=True)
class Column:
    """One panel of ``intervals``: bars over an axis, with a line down the panel at ``reference``."""

    axis: Axis
    bars: Sequence[Bar]
    reference: float


def intervals(panels: Sequence[Column], names: int = 230, width: int = 300) -> Image.Image:
    """Means with intervals, panels side by side and a row for each name; the bars of all panels have one order."""
    bars = panels[0].bars
    line, top, bottom = 24, 20, 56
    height = top + bottom + line * len(bars)
    page = Image.new("RGB", ((names + width * len(panels)) * _SCALE, height * _SCALE), "white")
    draw, font = ImageDraw.Draw(page), _font(13)
    for row, bar in enumerate(bars):
        middle = (top + line * (row + 0.5)) * _SCALE
        draw.text(((names - 12) * _SCALE, middle), bar.name, INK, font, anchor="rm")
    for number, panel in enumerate(panels):
        axis = panel.axis.fitted([v for bar in panel.bars for v in (bar.low, bar.high)] + [panel.reference])
        left = (names + width * number) * _SCALE
        box = (left, top * _SCALE, left + (width - 28) * _SCALE, (height - bottom) * _SCALE)
        _draw_x(draw, axis, box)
        x = _x(axis, panel.reference, box)
        _dashed(draw, (x, box[1]), (x, box[3]), "#888888")
        for row, bar in enumerate(panel.bars):
            middle = (top + line * (row + 0.5)) * _SCALE
            low, mean, high = (_x(axis, value, box) for value in (bar.low, bar.mean, bar.high))
            draw.line((low, middle, high, middle), COLOURS[0], 2 * _SCALE)
            for end in (low, high):
                draw.line((end, middle - 4 * _SCALE, end, middle + 4 * _SCALE), COLOURS[0], _SCALE)
            _mark(draw, (mean, middle), COLOURS[0])
        draw.rectangle(box, outline=INK, width=_SCALE)
    return page.resize((page.width // _SCALE, page.height // _SCALE), Image.Resampling.LANCZOS)


def _draw_chart(tile: Image.Image, chart: Chart) -> None:
    draw = ImageDraw.Draw(tile)
    x = chart.x.fitted([p[0] for line in chart.lines for p in line.points])
    y = chart.y.fitted([p[1] for line in chart.lines for p in line.points])
    legend = [line.name for line in chart.lines]
    wide = max((draw.textlength(name, _font(12)) for name in legend), default=0) + 44 * _SCALE
    box = (78.0 * _SCALE, 40.0 * _SCALE, tile.width - wide, tile.height - 58.0 * _SCALE)
    draw.text((box[0], 12 * _SCALE), chart.title, INK, _font(15))
    _draw_x(draw, x, box)
    _draw_y(tile, draw, y, box)
    for number, line in enumerate(chart.lines):
        colour = "#888888" if line.dashed else COLOURS[number % len(COLOURS)]
        at = [(_x(x, px, box), box[3] - y.share(py) * (box[3] - box[1])) for px, py in line.points]
        if line.dashed:
            for start, end in pairwise(at):
                _dashed(draw, start, end, colour)
        else:
            if len(at) > 1:
                draw.line(at, colour, 2 * _SCALE, joint="curve")
            for point in at:
                _mark(draw, point, colour, number // len(COLOURS))
            for point, label in zip(at, line.labels, strict=False):
                draw.text((point[0] + 6 * _SCALE, point[1] - 6 * _SCALE), label, colour, _font(10), anchor="lm")
        height = box[1] + (number * 19 + 8) * _SCALE
        left = box[2] + 10 * _SCALE
        if line.dashed:
            _dashed(draw, (left, height), (left + 20 * _SCALE, height), colour)
        else:
            _mark(draw, (left + 10 * _SCALE, height), colour, number // len(COLOURS))
        draw.text((left + 26 * _SCALE, height), line.name, INK, _font(12), anchor="lm")
    draw.rectangle(box, outline=INK, width=_SCALE)


def _draw_x(draw: ImageDraw.ImageDraw, axis: Axis, box: Box) -> None:
    for mark in axis.ticks:
        x = _x(axis, mark, box)
        draw.line((x, box[1], x, box[3]), PALE, _SCALE)
        draw.text((x, box[3] + 6 * _SCALE), f"{mark:g}", INK, _font(12), anchor="mt")
    draw.text(((box[0] + box[2]) / 2, box[3] + 28 * _SCALE), axis.label, INK, _font(13), anchor="mt")


def _draw_y(tile: Image.Image, draw: ImageDraw.ImageDraw, axis: Axis, box: Box) -> None:
    for mark in axis.ticks:
        y = box[3] - axis.share(mark) * (box[3] - box[1])
        draw.line((box[0], y, box[2], y), PALE, _SCALE)
        draw.text((box[0] - 6 * _SCALE, y), f"{mark:g}", INK, _font(12), anchor="rm")
    size = int(draw.textlength(axis.label, _font(13))), 20 * _SCALE
    label = Image.new("RGB", size, "white")
    ImageDraw.Draw(label).text((0, 0), axis.label, INK, _font(13))
    turned = label.rotate(90, expand=True)
    tile.paste(turned, (8 * _SCALE, int((box[1] + box[3]) / 2 - turned.height / 2)))


def _x(axis: Axis, value: float, box: Box) -> float:
    return box[0] + axis.share(value) * (box[2] - box[0])


def _mark(draw: ImageDraw.ImageDraw, at: Point, colour: str, shape: int = 0) -> None:
    """A dot, or for the lines after the last colour a square."""
    r = 4 * _SCALE
    corners = (at[0] - r, at[1] - r, at[0] + r, at[1] + r)
    if shape:
        draw.rectangle(corners, colour)
    else:
        draw.ellipse(corners, colour)


def _dashed(draw: ImageDraw.ImageDraw, start: Point, end: Point, colour: str) -> None:
    length = math.dist(start, end)
    steps = max(1, int(length / (5 * _SCALE)))
    for step in range(0, steps, 2):
        a, b = step / steps, min((step + 1) / steps, 1.0)
        points = [tuple(s + (e - s) * t for s, e in zip(start, end, strict=True)) for t in (a, b)]
        draw.line((*points[0], *points[1]), colour, _SCALE)


def _round_step(raw: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * _SCALE)
