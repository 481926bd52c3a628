"""What is to be reached, judged from the figures.

A schedule that fixes its forwards cannot be faster than plain decoding by more than plain decoding has forwards for
each of its own, since no forward takes less time than one over a single token. Some targets lie beyond that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .gpu_shapes import Shape
from .gpu_table import GRAPHED, Data, ratio, transformers_line

PAPER, FUSED = "SSD as published, graphed", "SSD, fused commit, graphed"


@dataclass(frozen=True)
class Target:
    """``got`` is to be ``wanted`` or more, or at most that where not ``at_least``.

    ``forwards``: plain decoding's and the schedule's, where the target is a ratio of their times.
    """

    what: str
    wanted: float
    got: float
    at_least: bool = True
    forwards: tuple[int, int] | None = None

    @property
    def reached(self) -> bool:
        return (self.got >= self.wanted) == self.at_least

    @property
    def ceiling(self) -> float | None:
        """The most that the forwards allow."""
        return None if self.forwards is None else self.forwards[0] / self.forwards[1]

    def text(self) -> str:
        """A line of the report."""
        judged = f"{self.what}: {self.got:.2f}, wanted {self.wanted:g}"
        if self.forwards is None or self.ceiling is None:
            return f"target {'reached' if self.reached else 'MISSED'}: {judged}"
        plain, own = self.forwards
        count = f"{plain} forwards over {own} give {self.ceiling:.1f} at most"
        if self.ceiling < self.wanted:
            return f"target OUT OF REACH of this schedule: {judged}; {count}"
        room = f"a forward may take {self.ceiling / self.wanted:.2f} of plain decoding's time"
        return f"target {'reached' if self.reached else 'MISSED'}: {judged}; {count}, {room}"


def targets(shape: Shape, speed: Data, parts: Data) -> list[Target]:
    """Every target that the figures can tell about; the main one for the published schedule and with fused commit."""
    lines: dict[str, Data] = speed.get("lines", {})
    found: list[Target] = []

    def judge(what: str, wanted: float, got: float | None, **more: Any) -> None:
        if got is not None:
            found.append(Target(what, wanted, got, **more))

    for name in (PAPER, FUSED):
        what = f"{shape.preset}: {name} × {GRAPHED}"
        forwards = (_forwards(lines[GRAPHED]), _forwards(lines[name])) if {GRAPHED, name} <= lines.keys() else None
        judge(what, shape.target, ratio(lines, GRAPHED, name), forwards=forwards)
    if shape.target_transformers:
        theirs = transformers_line(lines)
        for name in (PAPER, FUSED):
            judge(f"{name} × transformers' loop", shape.target_transformers, ratio(lines, theirs, name))
    for width, wanted in (("K = 1", 0.85), ("1 row", 0.70)):
        part = parts.get("widths", {}).get(width, {})
        judge(f"share of copy bandwidth, {width}", wanted, part["share"] if "graphed_ms" in part else None)
    draft = parts.get("drafting", {}).get("in_ar_steps", {}).get("graphed")
    judge("drafting a row, in AR steps, at most", 0.05, draft, at_least=False)
    return found


def _forwards(line: Data) -> int:
    """Counted in a whole picture, else what the schedule needs at most."""
    count: int = line.get("whole_forwards", line["forwards"])
    return count
