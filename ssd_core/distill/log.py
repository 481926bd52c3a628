"""The record of a training run: a CSV table that grows step by step, and a plot of it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from ..errors import SSDError
from ..writing import write
from .acceptance import HeadsMeasured
from .train import StepInfo

LOG_FILE = "log.csv"
PLOT_FILE = "log.png"
_FIRST = ("step", "seconds", "learning_rate")
_KINDS = ("loss", "acceptance", "held-out loss")
_COLOURS = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
)
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 112, 24, 22

Curves = dict[str, list[tuple[float, float]]]
"""(step, value) pairs by column: ``loss vertical 1``, ``acceptance vertical 1`` ..."""


class TrainLog:
    """Writes ``log.csv``: step, seconds, learning rate and, for each head, three columns such as ``loss vertical 1``,
    ``acceptance vertical 1`` and ``held-out loss vertical 1``.

    Losses in every row, the others where they were measured (see ``HeadsMeasured``). Rows after ``steps``, from a run
    that was killed after its last saved state, are dropped first.
    """

    def __init__(self, folder: Path, heads: Sequence[str], steps: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / LOG_FILE
        self._heads = list(heads)
        header = [*_FIRST, *(f"{kind} {name}" for kind in _KINDS for name in heads)]
        kept: list[list[str]] = []
        if steps and self.path.is_file():
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.reader(file))
            kept = [row for row in rows[1:] if len(row) == len(header) and row[0].isdigit() and int(row[0]) <= steps]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *kept])
        write(self.path, text.getvalue().encode())

    def add(self, info: StepInfo) -> None:
        """Appends a step."""
        measured = info.measured or HeadsMeasured({}, {})
        figures = [
            _short(values.get(name))
            for values in (info.losses, measured.acceptance, measured.losses)
            for name in self._heads
        ]
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(
                [info.step, f"{info.seconds:.1f}", f"{info.learning_rate:.3e}", *figures]
            )


def read_log(log: Path) -> Curves:
    """The columns of a log. Raises SSDError when the file is no such log."""
    try:
        with log.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
            names = [name for name in (rows[0] if rows else ()) if name not in _FIRST]
        return {name: [(float(row["step"]), float(row[name])) for row in rows if row[name]] for name in names}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SSDError(f"cannot plot {log} ({error!r}); expected the log.csv of a training run") from error


def thinned(points: Curves, most: int = 80) -> Curves:
    """At most ``most`` points of each curve, evenly spread, with the first and the last one; four digits are kept."""
    found: Curves = {}
    for name, line in points.items():
        count = min(most, len(line))
        chosen = [line[round(i * (len(line) - 1) / max(1, count - 1))] for i in range(count)]
        found[name] = [(x, float(f"{y:.4g}")) for x, y in chosen]
    return found


def plot(points: Curves, size: tuple[int, int] = (900, 560)) -> Image.Image:
    """Draws a log, or the ``history`` in a heads file's notes.

    Losses above (logarithmic), acceptance on held-out pictures below. Each head has its colour. The axes are
    empty without points.
    """
    width, height = size
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    last = max((x for line in points.values() for x, _ in line), default=0.0) or 1.0
    losses = {name[5:]: [(x, y) for x, y in line if y > 0] for name, line in points.items() if name.startswith("loss ")}
    shares = {name[11:]: line for name, line in points.items() if name.startswith("acceptance ")}
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(losses)}
    values = [y for line in losses.values() for _, y in line]
    low, high = (min(values), max(values)) if values else (0.1, 1.0)
    span = (math.log10(low) - 0.05, math.log10(high) + 0.05)
    logs = {name: [(x, math.log10(y)) for x, y in line] for name, line in losses.items()}
    middle = height // 2
    ticks = [
        v for e in range(-6, 7) for v in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if span[0] <= math.log10(v) <= span[1]
    ]
    marks = [(math.log10(v), f"{v:g}") for v in ticks]
    _panel(draw, (0, 0, width, middle), "loss", logs, span, last, marks, colours)
    marks = [(v / 5, f"{v / 5:g}") for v in range(6)]
    _panel(draw, (0, middle, width, height), "acceptance, held-out pictures", shares, (0.0, 1.0), last, marks, colours)
    return image


def _panel(
    draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int], title: str, lines: dict[str, list[tuple[float, float]]],
    span: tuple[float, float], last: float, marks: list[tuple[float, str]], colours: dict[str, str],
) -> None:  # fmt: skip
    """One diagram: axes with marks, a line for each head, its last value beside the name."""
    left, top, right, bottom = box[0] + _LEFT, box[1] + _TOP, box[2] - _RIGHT, box[3] - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * x / last, bottom - (bottom - top) * (y - span[0]) / (span[1] - span[0])

    draw.text((left, box[1] + 6), title, fill="black")
    for value, text in marks:
        y = at(0, value)[1]
        draw.line((left, y, right, y), fill="#e4e4e4")
        draw.text((left - 6, y), text, fill="#555555", anchor="rm")
    draw.rectangle((left, top, right, bottom), outline="#999999")
    draw.text((left, bottom + 5), "0", fill="#555555")
    draw.text((right, bottom + 5), f"step {last:g}", fill="#555555", anchor="ra")
    for number, (name, line) in enumerate(lines.items()):
        corners = [at(x, y) for x, y in line]
        if len(corners) > 1:
            draw.line(corners, fill=colours[name], width=2)
        for x, y in corners[-1:]:
            draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=colours[name])
        draw.text((right + 8, top + 15 * number), name, fill=colours[name])


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"


def save_plot(folder: Path) -> Path:
    """Draws the log of a run's folder into ``log.png`` beside it."""
    data = io.BytesIO()
    plot(read_log(folder / LOG_FILE)).save(data, format="PNG")
    return write(folder / PLOT_FILE, data.getvalue())
