"""Renders scenes: where the sprites go, and the picture, at any grid of 8-pixel cells."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .backgrounds import draw_background, horizon
from .captions import SceneSpec, draw_spec
from .sprites import CELL, load_sprites

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
    """Chooses one size for the scene and a box for each object.

    The picture is split into bands of slots, one object a slot, so sprites never overlap; objects side by side
    stand at nearly the same height and objects above one another at nearly the same column, so that every
    relation is plain to see.
    """
    size = _draw_size(len(spec.things), min(rows, cols), rng)
    bands = _bands(spec, rng)
    if bands == (3,) and cols < 3 * size:
        bands = (2, 1)
    boxes: list[Box] = []
    first_row = 0
    if len(bands) == 1:
        first_row = max(0, min(horizon(spec.background, rows) - size // 2, rows - size))
    height = (rows - first_row) // len(bands)
    shared_col = rng.randint(0, cols - size)
    for index, count in enumerate(bands):
        top = first_row + index * height
        base = rng.randint(top, top + height - size)
        for slot in range(count):
            left, right = slot * cols // count, (slot + 1) * cols // count
            row = _clamp(base + rng.randint(-1, 1), top, top + height - size) if count > 1 else base
            if count > 1:
                col = rng.randint(left, right - size)
            elif len(bands) > 1:
                col = _clamp(shared_col + rng.randint(-1, 1), 0, cols - size)
            else:
                col = shared_col
            boxes.append(Box(row, col, size))
    return tuple(boxes[::-1] if spec.relation in ("right of", "below") else boxes)


def _bands(spec: SceneSpec, rng: random.Random) -> tuple[int, ...]:
    """How many objects each horizontal band holds, from the top."""
    if spec.relation:
        return (2,) if spec.relation in ("left of", "right of") else (1, 1)
    layouts: dict[int, list[tuple[int, ...]]] = {1: [(1,)], 2: [(2,), (2,), (1, 1)], 3: [(3,), (2, 1)], 4: [(2, 2)]}
    return rng.choice(layouts[len(spec.things)])


def _draw_size(count: int, side: int, rng: random.Random) -> int:
    """Sprite side in cells for ``count`` objects in a picture whose shorter side has ``side`` cells."""
    if side < 24:
        return rng.choice({1: (8, 12), 2: (6, 8), 3: (6,), 4: (6, 8)}[count])
    if side < 32:
        return rng.choice({1: (8, 12), 2: (8, 8, 12), 3: (6, 8), 4: (8,)}[count])
    return rng.choice({1: (12,), 2: (8, 12), 3: (8,), 4: (8, 12)}[count])


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))
