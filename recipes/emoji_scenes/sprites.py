"""The sprites: every object in two sizes and, for some, four colours, each rendered exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .fetch import picture_path
from .words import COLOURS, NATURAL_COLOUR, OBJECTS

CELL = 8
"""Pixels a side of a token cell."""

SMALL, LARGE = 8, 12
"""Sprite sides in cells (64 and 96 pixels): several objects in a picture are small, a single one is large."""

Floats = NDArray[np.float32]

_HUE = {"red": 0.985, "yellow": 0.145, "green": 0.36, "blue": 0.6}
_WHOLLY_COLOURED = ("heart", "star", "balloon")


@dataclass(frozen=True)
class Sprite:
    """A picture ready to lay over a background.

    Attributes:
        colour: Premultiplied colour, float32 [side, side, 3], 0..255.
        see_through: 1 - alpha, float32 [side, side, 1].
    """

    colour: Floats
    see_through: Floats


def load_sprites() -> dict[tuple[str, str | None, int], Sprite]:
    """All sprites by (object, colour, size in cells); colour is None for objects of one look."""
    return dict(_sprites())


@lru_cache(maxsize=1)
def _sprites() -> dict[tuple[str, str | None, int], Sprite]:
    sprites = {}
    for name in OBJECTS:
        picture = _squared(np.asarray(Image.open(picture_path(name)).convert("RGBA"), np.float32) / 255)
        for colour in COLOURS if name in NATURAL_COLOUR else (None,):
            recoloured = picture if colour in (None, NATURAL_COLOUR.get(name)) else _recolour(picture, name, colour)
            for size in (SMALL, LARGE):
                sprites[name, colour, size] = _resized(recoloured, size * CELL)
    return sprites


def _squared(picture: Floats) -> Floats:
    """Crops to what is visible and pads to a square, float32 [n, n, 4] in 0..1."""
    ys, xs = np.where(picture[..., 3] > 0.1)
    cropped = picture[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    height, width = cropped.shape[:2]
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    return np.pad(cropped, ((top, side - height - top), (left, side - width - left), (0, 0)))


def _resized(picture: Floats, side: int) -> Sprite:
    """Scales to ``side`` pixels with a clear border of one pixel."""
    inner = side - 2
    premultiplied = picture.copy()
    premultiplied[..., :3] *= picture[..., 3:]
    method = Image.Resampling.BOX if picture.shape[0] > 2 * inner else Image.Resampling.LANCZOS
    planes = [np.asarray(Image.fromarray(premultiplied[..., k]).resize((inner, inner), method)) for k in range(4)]
    scaled = np.pad(np.stack(planes, -1).clip(0, 1), ((1, 1), (1, 1), (0, 0)))
    return Sprite((scaled[..., :3] * 255).astype(np.float32), (1 - scaled[..., 3:]).astype(np.float32))


def _recolour(picture: Floats, name: str, colour: str) -> Floats:
    """Turns the hues around the object's natural colour to ``colour``, keeping shading."""
    hue, saturation, value = _to_hsv(picture[..., :3])
    offset = (hue - _HUE[NATURAL_COLOUR[name]] + 0.5) % 1 - 0.5
    turned = saturation > 0.15 if name in _WHOLLY_COLOURED else (np.abs(offset) < 0.13) & (saturation > 0.25)
    if name == "balloon":
        turned &= np.abs(offset) < 0.2  # the string stays as it is
    if colour == "yellow":  # yellow reads as yellow only when bright and with little change of hue
        new_hue = _HUE[colour] + offset.clip(-0.03, 0.03)
        value = np.where(turned, value * 0.25 + 0.75 * np.maximum(value, 0.95), value)
        saturation = np.where(turned, np.minimum(saturation, 0.8), saturation)
    else:
        new_hue = _HUE[colour] + offset * 0.6
        if NATURAL_COLOUR[name] == "yellow":
            value = np.where(turned, value * 0.88, value)
    painted = picture.copy()
    painted[..., :3] = np.where(turned[..., None], _to_rgb(new_hue % 1, saturation, value), picture[..., :3])
    return painted


def _to_hsv(rgb: Floats) -> tuple[Floats, Floats, Floats]:
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    value = rgb.max(-1)
    chroma = value - rgb.min(-1)
    safe = np.where(chroma > 1e-6, chroma, 1)
    sector = np.where(
        value == red,
        ((green - blue) / safe) % 6,
        np.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    hue = np.where(chroma > 1e-6, sector / 6, 0)
    return hue, np.where(value > 0, chroma / np.maximum(value, 1e-6), 0), value


def _to_rgb(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    sector = np.floor(hue * 6).astype(int) % 6
    part = hue * 6 - np.floor(hue * 6)
    low = value * (1 - saturation)
    falling = value * (1 - part * saturation)
    rising = value * (1 - (1 - part) * saturation)
    red = np.choose(sector, [value, falling, low, low, rising, value])
    green = np.choose(sector, [rising, value, value, falling, low, low])
    blue = np.choose(sector, [low, low, rising, value, value, falling])
    return np.stack([red, green, blue], -1)
