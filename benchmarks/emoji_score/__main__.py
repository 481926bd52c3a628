"""Scores the shipped model with plain decoding, at one or several guidance scales.

Run: ``python -m benchmarks.emoji_score --count 128 --grid 24 24 --guidance 1.5 2 3``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from recipes.emoji_scenes.sheet import save_sheet
from ssd_core import AR, generate, load_backbone

from .detector import load_detector
from .judge import draw_specs, format_row, score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--grid", type=int, nargs=2, default=(24, 24))
    parser.add_argument("--guidance", type=float, nargs="+", default=[2.0])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sheet", type=Path, default=None, help="write a contact sheet of the first 48 pictures")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    backbone, detector = load_backbone(), load_detector()
    specs = draw_specs(options.count)
    grid = (options.grid[0], options.grid[1])
    for guidance in options.guidance:
        pictures = []
        for start in range(0, len(specs), options.batch):
            captions = [spec.caption for spec in specs[start : start + options.batch]]
            sampling = replace(backbone.default_sampling, guidance=guidance, temperature=options.temperature)
            pictures.append(
                generate(backbone, captions, schedule=AR(), sampling=sampling, seed=start, grid=grid).images
            )
        images = torch.cat(pictures)
        print(f"guidance {guidance:g}: {format_row(score(images, specs, detector))}", flush=True)
        if options.sheet is not None:
            shown = (images[:48] * 255).round().byte().numpy()
            save_sheet(options.sheet, list(shown), [spec.caption for spec in specs[:48]], 8)


if __name__ == "__main__":
    main()
