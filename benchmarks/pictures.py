"""The pictures of the README, drawn by the product.

Run: ``python -m benchmarks.pictures``. Writes ``docs/images/first-picture.png`` (six prompts, seeds 0 to 5, not picked)
and ``docs/images/contact-sheet.jpg`` (108 prompts of the fixed evaluation set, in order), all in exact mode.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from recipes.emoji_scenes.sheet import save_sheet
from ssd_core import Backbone, SpatialHeads, generate, load_backbone, load_heads

from .emoji_score import draw_specs

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
FIRST = (
    "a rocket at night", "an apple on a beach", "two dogs on a blue background",
    "a star on a yellow background", "a tree on grass", "a red heart",
)  # fmt: skip


def draw(backbone: Backbone, heads: SpatialHeads, prompts: list[str], batch: int) -> list[NDArray[np.uint8]]:
    """Pictures uint8 [h, w, 3] of the prompts in exact mode; picture i has seed i."""
    pictures: list[NDArray[np.uint8]] = []
    for start in range(0, len(prompts), batch):
        drawn = generate(backbone, prompts[start : start + batch], heads=heads, seed=start)
        pictures += list((drawn.images * 255).round().byte().numpy())
    return pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=108, help="prompts of the contact sheet; 0 leaves it out")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    backbone = load_backbone()
    heads = load_heads(backbone)
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_sheet(FOLDER / "first-picture.png", draw(backbone, heads, list(FIRST), len(FIRST)), FIRST, len(FIRST))
    if options.count:
        captions = [spec.caption for spec in draw_specs(options.count)]
        sheet = FOLDER / "contact-sheet.png"
        save_sheet(sheet, draw(backbone, heads, captions, 27), captions, 12)
        with Image.open(sheet) as page:
            page.convert("RGB").resize((page.width // 2, page.height // 2)).save(sheet.with_suffix(".jpg"), quality=88)
        sheet.unlink()


if __name__ == "__main__":
    main()
