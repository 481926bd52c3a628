"""Contact sheets: many pictures with captions in one PNG, for looking at results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw


def save_sheet(path: str | Path, images: Sequence[NDArray[np.uint8]], captions: Sequence[str], columns: int) -> None:
    """Writes pictures (uint8 [h, w, 3], all of one size) in rows of ``columns``, each over its caption."""
    height, width = images[0].shape[:2]
    line = 12
    rows = (len(images) + columns - 1) // columns
    page = Image.new("RGB", (columns * (width + 2), rows * (height + line)), "white")
    draw = ImageDraw.Draw(page)
    for index, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = index % columns * (width + 2), index // columns * (height + line)
        page.paste(Image.fromarray(image), (left, top))
        draw.text((left, top + height), caption[: width // 5], fill="black")
    page.save(path)
