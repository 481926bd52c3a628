"""Trains the detector on fresh scenes, on their tokenizer reconstructions and on disturbed reconstructions.

Run: ``python -m benchmarks.emoji_score.train --minutes 8``. Needs the recipe's pictures and tokenizer.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from recipes.emoji_scenes.model import CODES
from recipes.emoji_scenes.scene import Scene, SceneSource
from recipes.emoji_scenes.tokenizer import load_tokenizer
from recipes.emoji_scenes.words import BACKGROUNDS, COLOURS, OBJECTS
from ssd_core.families.emoji_pixels import EmojiPixels

from .detector import WEIGHTS, Detector
from .judge import draw_specs, format_row, score

BATCH = 24
GRIDS = ((16, 16), (24, 24))
RATE = 2.5e-3


def targets(scenes: list[Scene], rows: int, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the detector should say.

    Returns:
        Heat maps float32 [B, 16, rows, cols] with a peak of 1 at each centre; coloured centres int64
        [n, 4] as (scene, row, col, colour); backgrounds int64 [B].
    """
    heat = torch.zeros(len(scenes), len(OBJECTS), rows, cols)
    coloured: list[tuple[int, int, int, int]] = []
    ys, xs = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    for index, scene in enumerate(scenes):
        for thing, box in zip(scene.spec.things, scene.boxes, strict=True):
            row, col = (int(value) for value in box.centre)
            bump = torch.exp(-((ys - row) ** 2 + (xs - col) ** 2) / (2 * (box.size / 7) ** 2))
            plane = heat[index, OBJECTS.index(thing.name)]
            torch.maximum(plane, bump, out=plane)
            if thing.colour is not None:
                coloured.append((index, row, col, COLOURS.index(thing.colour)))
    backgrounds = torch.tensor([BACKGROUNDS.index(scene.spec.background) for scene in scenes])
    return heat, torch.tensor(coloured, dtype=torch.long).view(-1, 4), backgrounds


def centre_loss(logits: Tensor, heat: Tensor) -> Tensor:
    """CenterNet's focal loss over heat maps, per object."""
    chance = logits.sigmoid().clamp(1e-4, 1 - 1e-4)
    centres = heat.eq(1).float()
    hits = centres * (1 - chance) ** 2 * chance.log()
    misses = (1 - centres) * (1 - heat) ** 4 * chance**2 * (1 - chance).log()
    return -(hits + misses).sum() / centres.sum()


def disturbed(tokenizer: EmojiPixels, images: Tensor, noise: float) -> Tensor:
    """Pictures through the tokenizer, with a share of codes replaced at random."""
    codes = tokenizer.encode(images)
    hit = torch.rand(codes.shape) < noise
    return tokenizer.decode(torch.where(hit, torch.randint(0, CODES, codes.shape), codes))


def train(minutes: float, tokenizer: EmojiPixels) -> Detector:
    """Trains a detector from scratch."""
    torch.manual_seed(0)
    source = SceneSource(31)
    detector = Detector().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(detector.parameters(), lr=RATE, weight_decay=0.01)
    started, step = time.monotonic(), 0
    while (elapsed := (time.monotonic() - started) / (60 * minutes)) < 1:
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 40) * (1 - elapsed) + 1e-5
        rows, cols = GRIDS[step % 3 // 2]
        scenes = [source.draw(rows, cols) for _ in range(BATCH)]
        images = torch.from_numpy(np.stack([scene.image for scene in scenes])).float() / 255
        half = BATCH // 2
        images[:half] = disturbed(tokenizer, images[:half], 0.03 * (step % 2))
        heat, coloured, backgrounds = targets(scenes, rows, cols)
        objects, colours, background = detector(images)
        k, row, col, colour = coloured.unbind(1)
        loss = centre_loss(objects, heat) + 0.5 * F.cross_entropy(background, backgrounds)
        if len(coloured):
            loss = loss + 0.5 * F.cross_entropy(colours[k, :, row, col], colour)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), 5.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"{step} {time.monotonic() - started:.0f}s loss {loss.item():.3f}", flush=True)
    return detector.eval()


def evaluate(detector: Detector, tokenizer: EmojiPixels, count: int = 240) -> None:
    """Prints the score of real scenes and of their reconstructions: what a perfect model would get."""
    specs = draw_specs(count)
    for rows, cols in GRIDS:
        source = SceneSource(555)
        images = np.stack([source.render(spec, rows, cols).image for spec in specs])
        real = torch.from_numpy(images).float() / 255
        decoded = torch.cat([tokenizer.decode(tokenizer.encode(part)) for part in real.split(16)])
        for title, pictures in (("scenes", real), ("reconstructions", decoded)):
            print(f"{rows}x{cols} {title}: {format_row(score(pictures, specs, detector))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    tokenizer = load_tokenizer()
    detector = train(options.minutes, tokenizer)
    state = {
        name: value.half() if value.is_floating_point() else value for name, value in detector.state_dict().items()
    }
    save_file({name: value.contiguous() for name, value in state.items()}, WEIGHTS)
    WEIGHTS.chmod(0o644)  # safetensors writes files for their owner alone
    evaluate(detector, tokenizer)


if __name__ == "__main__":
    main()
