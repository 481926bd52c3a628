"""Renders scenes: where the sprites go, and the picture, at any grid of 8-pixel cells."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .backgrounds import draw_background, horizon
from .captions import SceneSpec, draw_spec
from .sprites import CELL, LARGE, SMALL, load_sprites

GRIDS: tuple[tuple[int, int], ...] = ((24, 24), (16, 16), (32, 32), (24, 32), (32, 24))
"""Supported grids (rows, columns) in cells; the first is the main one."""


@dataclass(frozen=True)
class Box:
    """A sprite's place in cells: the top left corner and the side."""

    row: int
    col: int
    size: int

    @property
    def centre(self) -> tuple[float, float]:
        """Row and column of the middle, in cells."""
        return self.row + self.size / 2, self.col + self.size / 2


@dataclass(frozen=True)
class Scene:
    """A rendered scene: what it shows, where, and the picture as uint8 [rows * 8, cols * 8, 3]."""

    spec: SceneSpec
    boxes: tuple[Box, ...]
    image: NDArray[np.uint8]

    def sprite_mask(self) -> NDArray[np.bool_]:
        """Cells that belong to sprites, bool [rows, cols]."""
        mask = np.zeros((self.image.shape[0] // CELL, self.image.shape[1] // CELL), bool)
        for box in self.boxes:
            mask[box.row : box.row + box.size, box.col : box.col + box.size] = True
        return mask


class SceneSource:
    """An endless, seeded source of scenes."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._sprites = load_sprites()

    def draw(self, rows: int, cols: int, kind: str | None = None) -> Scene:
        """A fresh scene at the given grid."""
        return self.render(draw_spec(self._rng, kind), rows, cols)

    def render(self, spec: SceneSpec, rows: int, cols: int) -> Scene:
        """Places and draws the objects of ``spec``."""
        boxes = place(spec, rows, cols, self._rng)
        taken = [(box.row, box.col, box.size, box.size) for box in boxes]
        canvas = draw_background(spec.background, rows, cols, taken, self._rng)
        for thing, box in zip(spec.things, boxes, strict=True):
            sprite = self._sprites[thing.name, thing.colour, box.size]
            top, left, side = box.row * CELL, box.col * CELL, box.size * CELL
            view = canvas[top : top + side, left : left + side]
            view *= sprite.see_through
            view += sprite.colour
        return Scene(spec, boxes, np.rint(canvas.clip(0, 255)).astype(np.uint8))


def place(spec: SceneSpec, rows: int, cols: int, rng: random.Random) -> tuple[Box, ...]:
    """A box for each object, on even rows and columns; the caption decides layout and size, chance only shifts.

    The picture is split into bands of slots, one object a slot, from left to right and from the top. An object
    stands in the middle of its slot or two cells beside it, and a single band in the middle of the picture (of its
    ground, where it has one) or two cells higher. So sprites never overlap and every relation is plain to see.
    """
    size = LARGE if len(spec.things) == 1 else SMALL
    bands = _bands(spec, fits_three=cols >= 3 * size)
    first_row = 0
    if len(bands) == 1:
        first_row = max(0, min(horizon(spec.background, rows) - size // 2, rows - size))
    height = (rows - first_row) // len(bands)
    boxes: list[Box] = []
    for band, slots in enumerate(bands):
        top = first_row + band * height
        row = _even_middle(top, height, size) - (rng.choice((0, 2)) if height >= size + 4 else 0)
        for slot in range(slots):
            left, right = slot * cols // slots, (slot + 1) * cols // slots
            middle = _even_middle(left, right - left, size)
            shifts = [shift for shift in (-2, 0, 2) if left <= middle + shift <= right - size]
            boxes.append(Box(row, middle + (rng.choice(shifts) if shifts else 0), size))
    return tuple(boxes[::-1] if spec.relation in ("right of", "below") else boxes)


def _bands(spec: SceneSpec, fits_three: bool) -> tuple[int, ...]:
    """How many objects each horizontal band holds, from the top."""
    if spec.relation in ("above", "below"):
        return (1, 1)
    return {1: (1,), 2: (2,), 3: (3,) if fits_three else (2, 1), 4: (2, 2)}[len(spec.things)]


def _even_middle(start: int, length: int, size: int) -> int:
    """First cell of ``size`` cells in the middle of a stretch, rounded down to an even number."""
    return (start + (length - size) // 2) // 2 * 2
