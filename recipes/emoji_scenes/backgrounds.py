"""Backgrounds at any grid: plain colours, and five places built so that their tokens are predictable.

Gradients depend only on the relative row; grass and sand are a small fixed pattern of tiles; clouds, stars,
bubbles and daisies are sparse, fixed pictures that sit on whole cells.
"""

from __future__ import annotations

import random
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .sprites import CELL
from .words import PLAIN_BACKGROUNDS

Floats = NDArray[np.float32]
Cells = tuple[int, int, int, int]
"""Row, column, height and width in cells."""

_SKY = ((95, 170, 240), (190, 225, 250))
_NIGHT = ((14, 16, 52), (58, 46, 112))
_WATER = ((70, 195, 215), (12, 72, 140))
_GRASS, _SAND, _SEA = (96, 178, 76), (238, 208, 150), (50, 140, 205)


def horizon(background: str, rows: int) -> int:
    """First row of cells that is ground, or 0 where sprites may float anywhere."""
    return rows * 3 // 8 if background in ("grass", "beach") else 0


def draw_background(background: str, rows: int, cols: int, taken: list[Cells], rng: random.Random) -> Floats:
    """Draws a background.

    Args:
        background: One of ``words.BACKGROUNDS``.
        rows: Height in cells.
        cols: Width in cells.
        taken: Cells that sprites will cover; decorations keep off them.
        rng: Chooses where decorations go.

    Returns:
        float32 [rows * 8, cols * 8, 3], 0..255, a fresh array.
    """
    canvas = _base(background, rows, cols).copy()
    free = np.ones((rows, cols), bool)
    for row, col, height, width in taken:
        free[row : row + height, col : col + width] = False
    if background == "sky":
        _scatter(canvas, free, _clouds(), rng, rng.randint(1, 3), rows)
    elif background == "night":
        _scatter(canvas, free, _stars(), rng, rows * cols // 40, rows)
    elif background == "underwater":
        _scatter(canvas, free, _bubbles(), rng, rows * cols // 60, rows)
    elif background == "grass":
        free[: horizon(background, rows) + 1] = False
        _scatter(canvas, free, _daisies(), rng, rows * cols // 80, rows)
    return canvas


def _scatter(
    canvas: Floats, free: NDArray[np.bool_], stamps: list[Floats], rng: random.Random, count: int, rows: int
) -> None:
    """Lays ``count`` stamps (colour and alpha, float32 [h, w, 4]) on free cells, each cell used once."""
    cols = free.shape[1]
    for _ in range(count):
        stamp = rng.choice(stamps)
        height, width = stamp.shape[0] // CELL, stamp.shape[1] // CELL
        row, col = rng.randint(0, rows - height), rng.randint(0, cols - width)
        if not free[row : row + height, col : col + width].all():
            continue
        free[row : row + height, col : col + width] = False
        view = canvas[row * CELL : (row + height) * CELL, col * CELL : (col + width) * CELL]
        view += stamp[..., 3:] * (stamp[..., :3] - view)


@lru_cache(maxsize=256)
def _base(background: str, rows: int, cols: int) -> Floats:
    """The background without decorations, float32 [rows * 8, cols * 8, 3]."""
    canvas = np.empty((rows * CELL, cols * CELL, 3), np.float32)
    if background in PLAIN_BACKGROUNDS:
        canvas[:] = PLAIN_BACKGROUNDS[background]
    elif background == "night":
        canvas[:] = _gradient(_NIGHT, rows)
    elif background == "underwater":
        canvas[:] = _gradient(_WATER, rows)
    elif background == "sky":
        canvas[:] = _gradient(_SKY, rows)
    else:
        first = horizon(background, rows)
        canvas[: first * CELL] = _gradient(_SKY, first)
        if background == "beach":
            canvas[(first - 2) * CELL : first * CELL] = _SEA
        ground = _tiled(_GRASS if background == "grass" else _SAND, 34 if background == "grass" else 12, cols)
        canvas[first * CELL :] = np.tile(ground, ((rows - first + 1) // 2, 1, 1))[: (rows - first) * CELL]
    return canvas


def _gradient(ends: tuple[tuple[int, int, int], tuple[int, int, int]], rows: int) -> Floats:
    """Vertical blend from the first colour to the second, float32 [rows * 8, 1, 3]."""
    along = ((np.arange(rows * CELL, dtype=np.float32) + 0.5) / (rows * CELL))[:, None, None]
    return np.float32(ends[0]) * (1 - along) + np.float32(ends[1]) * along


def _tiled(colour: tuple[int, int, int], strength: float, cols: int) -> Floats:
    """Two rows of cells that repeat every four columns, float32 [16, cols * 8, 3]."""
    noise = np.random.RandomState(5).rand(2 * CELL, 4 * CELL // 2).astype(np.float32)
    blurred = (noise + np.roll(noise, 1, 0) + np.roll(noise, 2, 0)) / 3
    tile = np.repeat(blurred, 2, axis=1)[..., None] - 0.5
    tile = np.float32(colour) + tile * np.float32((strength, strength * 0.9, strength * 0.7)) * 1.6
    return np.tile(tile, (1, (cols + 3) // 4, 1))[:, : cols * CELL]


def _grid(height: int, width: int) -> tuple[Floats, Floats]:
    ys, xs = np.mgrid[: height * CELL, : width * CELL].astype(np.float32) + 0.5
    return ys, xs


@lru_cache(maxsize=1)
def _clouds() -> list[Floats]:
    """Two clouds of 2 x 5 and 2 x 4 cells."""
    puffs = {
        5: ((9.5, 11, 7, 8), (7.5, 20, 7, 10), (10, 29, 5.5, 8)),
        4: ((10, 10, 5.5, 8), (8, 18, 7, 9), (11, 23, 4.5, 7)),
    }
    clouds = []
    for width, parts in puffs.items():
        ys, xs = _grid(2, width)
        alpha = np.zeros_like(ys)
        for y, x, tall, wide in parts:
            outside = ((xs - x) / wide) ** 2 + ((ys - y) / tall) ** 2 - 1
            alpha = np.maximum(alpha, 1 / (1 + np.exp((outside * 8).clip(-30, 30))))
        clouds.append(_stamp((252, 253, 255), alpha))
    return clouds


@lru_cache(maxsize=1)
def _stars() -> list[Floats]:
    """Two stars of one cell."""
    ys, xs = _grid(1, 1)
    squares = (xs - 4) ** 2 + (ys - 4) ** 2
    return [_stamp((255, 250, 225), np.exp(-squares / radius)) for radius in (2.0, 6.0)]


@lru_cache(maxsize=1)
def _bubbles() -> list[Floats]:
    """One bubble of one cell."""
    ys, xs = _grid(1, 1)
    distance = np.sqrt((xs - 4) ** 2 + (ys - 4) ** 2)
    return [_stamp((225, 248, 255), np.exp(-(((distance - 2.4) / 0.9) ** 2)) * 0.85)]


@lru_cache(maxsize=1)
def _daisies() -> list[Floats]:
    """One flower of one cell: white petals around a yellow centre."""
    ys, xs = _grid(1, 1)
    distance = np.sqrt((xs - 4) ** 2 + (ys - 4) ** 2)
    daisy = _stamp((255, 255, 250), 1 / (1 + np.exp((distance - 3.0) * 3)))
    daisy[distance < 1.3, :3] = (250, 205, 60)
    return [daisy]


def _stamp(colour: tuple[int, int, int], alpha: Floats) -> Floats:
    return np.concatenate([np.broadcast_to(np.float32(colour), (*alpha.shape, 3)), alpha[..., None]], -1)
