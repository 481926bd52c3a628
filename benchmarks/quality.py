"""What a decoder costs in quality: prompt score and likelihood of its pictures, beside plain decoding's.

Run: ``python -m benchmarks.quality --count 128``. Every decoder draws the same prompts with the same seeds. The score
is the embedded model's objective one (``benchmarks.emoji_score``); likelihood is the mean of -log p per token under
plain decoding's distribution. Brackets are 95 % bootstrap intervals over pictures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.emoji_scenes.captions import SceneSpec
from recipes.emoji_scenes.sheet import save_sheet
from ssd_core import AR, Backbone, Rolling, Rounds, Schedule, SpatialHeads, generate, load_backbone, load_heads

from .emoji_score import detect, draw_specs, format_row, judge, load_detector, score
from .likelihood import negative_log_likelihood

DECODERS: dict[str, Schedule] = {
    "plain AR": AR(),
    "rolling, tolerance 1": Rolling(window_rows=1, tolerance=1.0),
    "rolling, tolerance 4": Rolling(window_rows=1, tolerance=4.0),
    "rolling, tolerance 10": Rolling(window_rows=1, tolerance=10.0),
    "rounds, fused, r=1": Rounds(rounds=1),
    "rounds, fused, r=2": Rounds(rounds=2),
    "rounds, fused, r=3": Rounds(rounds=3),
}
"""Exact mode is left out: its pictures are plain decoding's, token for token."""

Floats = NDArray[np.float64]


def interval(values: Floats, resamples: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the mean."""
    picks = np.random.default_rng(0).integers(0, len(values), (resamples, len(values)))
    low, high = np.percentile(values[picks].mean(1), [2.5, 97.5])
    return float(low), float(high)


def evaluate(
    backbone: Backbone,
    heads: SpatialHeads,
    schedule: Schedule,
    specs: list[SceneSpec],
    grid: tuple[int, int],
    batch: int,
    look: Callable[[torch.Tensor], None],
) -> dict[str, Any]:
    """Draws every prompt and returns the figures of one decoder; ``look`` gets the images [n, H, W, 3]."""
    images, nll, forwards = [], [], 0
    for start in range(0, len(specs), batch):
        captions = [spec.caption for spec in specs[start : start + batch]]
        drawn = generate(backbone, captions, heads=heads, schedule=schedule, seed=start, grid=grid)
        images.append(drawn.images)
        forwards += drawn.report.total_forwards
        nll += negative_log_likelihood(backbone, drawn.tokens, captions, backbone.default_sampling).tolist()
    pictures = torch.cat(images)
    look(pictures)
    detector = load_detector()
    outcomes = [judge(seen, spec) for seen, spec in zip(detect(detector, pictures), specs, strict=True)]
    return {
        "nll": _with_interval(np.array(nll)),
        "exact_set": _with_interval(np.array([float(o["exact set"]) for o in outcomes])),
        "all_asked": _with_interval(np.array([float(o["all asked"]) for o in outcomes])),
        "categories": format_row(score(pictures, specs, detector)),
        "forwards_per_batch": forwards / len(images),
    }


def _with_interval(values: Floats) -> list[float]:
    return [round(float(v), 4) for v in (values.mean(), *interval(values))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=128, help="prompts")
    parser.add_argument("--grid", default="24x24")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="only decoders whose name contains this text")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--sheets", type=Path, help="write a contact sheet of each decoder into this folder")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    backbone = load_backbone()
    heads = load_heads(backbone)
    rows, cols = (int(part) for part in options.grid.split("x"))
    specs = draw_specs(options.count)
    result: dict[str, Any] = {}
    for name, schedule in DECODERS.items():
        if options.only not in name:
            continue

        def look(images: torch.Tensor, name: str = name) -> None:
            if options.sheets:
                options.sheets.mkdir(parents=True, exist_ok=True)
                shown = list((images * 255).round().byte().numpy())
                file = options.sheets / (name.replace(" ", "_").replace(",", "") + ".png")
                save_sheet(file, shown, [spec.caption for spec in specs], 12)

        figures = evaluate(backbone, heads, schedule, specs, (rows, cols), options.batch, look)
        result[name] = figures
        brief = {key: figures[key] for key in ("nll", "exact_set", "all_asked")}
        print(name, json.dumps(brief), figures["categories"], sep="\n  ", flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
