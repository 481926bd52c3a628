"""Step 7: spatial heads for the exported model, by self-distillation on pictures it draws itself.

Run: ``python -m recipes.emoji_scenes.heads --pictures 224 --scenes 2048 --minutes 15``. Drawing takes a while, so
rendered scenes are mixed in; features come from the frozen model in both cases. Pictures go to the cache as shards; a
run that was stopped while drawing goes on where it was. Training takes the time it is given, then
``heads.safetensors`` is written, the best of those that were measured on held-out pictures. A run that was stopped
while training goes on too; ``--restart`` begins anew. ``--start-from`` begins with another heads file: after a model
was trained further, its old heads are a better start than none.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch

from ssd_core import Backbone, load_backbone
from ssd_core.distill.evaluate import acceptance_table
from ssd_core.distill.log import LOG_FILE
from ssd_core.distill.samples import Samples, collect, read_samples
from ssd_core.distill.session import Wanted, train_file
from ssd_core.distill.settings import TrainSettings
from ssd_core.distill.train import StepInfo

from .captions import draw_spec
from .paths import ASSETS, CACHE, LOGS
from .scene import SceneSource

GRIDS: dict[tuple[int, int], float] = {(24, 24): 0.8, (16, 16): 0.11, (32, 32): 0.03, (24, 32): 0.03, (32, 24): 0.03}
"""Share of the rendered scenes of each grid."""
DRAWN_GRIDS: dict[tuple[int, int], float] = {(24, 24): 0.85, (16, 16): 0.15}
"""Share of the drawn pictures of each grid; the large grids are slow to draw one token at a time."""
EMPTY_PROMPTS = 0.1
DRAW_BATCH = 32
HELD_OUT = 64
"""Pictures of the main grid that training never sees."""


def draw_pictures(pictures: int, folder: Path) -> None:
    """Draws the training pictures of every grid, then the held-out ones."""
    backbone = load_backbone()
    plan = [
        (grid, max(DRAW_BATCH, round(pictures * share)), 1_000_000 * i)
        for i, (grid, share) in enumerate(DRAWN_GRIDS.items())
    ]
    jobs = [(grid, count, seed, folder / "train") for grid, count, seed in plan]
    jobs.append((next(iter(DRAWN_GRIDS)), HELD_OUT, 900_000_000, folder / "held_out"))
    for grid, count, seed, target in jobs:
        rng = random.Random(seed)
        prompts = ["" if rng.random() < EMPTY_PROMPTS else draw_spec(rng).caption for _ in range(count)]
        started = time.perf_counter()
        collect(backbone, prompts, target, grid=grid, seed=seed, batch=DRAW_BATCH)
        print(f"{grid[0]}x{grid[1]}: {count} pictures, {time.perf_counter() - started:.0f} s", flush=True)


def rendered_scenes(backbone: Backbone, scenes: int) -> list[Samples]:
    """Fresh scenes as tokens, in the same mix of grids."""
    shards = []
    for number, (grid, share) in enumerate(GRIDS.items()):
        source = SceneSource(700_000_000 + number)
        drawn = [source.draw(*grid) for _ in range(max(DRAW_BATCH, round(scenes * share)))]
        images = torch.from_numpy(np.stack([scene.image for scene in drawn])).float() / 255
        shards.append(Samples(backbone.encode_pixels(images), [scene.spec.caption for scene in drawn]))
    return shards


def train(
    folder: Path,
    scenes: int,
    minutes: float,
    neighbours: int,
    out: Path,
    start_from: Path | None = None,
    restart: bool = False,
) -> None:
    """Trains five horizontal and three vertical heads and writes them with their acceptance."""
    backbone = load_backbone()
    shards = list(read_samples(folder / "train", backbone.fingerprint))
    shards += rendered_scenes(backbone, scenes)
    held_out = list(read_samples(folder / "held_out", backbone.fingerprint))
    wanted = Wanted((1, 2, 3, 4, 5), (1, 2, 3), neighbours, licence="Apache-2.0", author="this project")
    settings = TrainSettings(
        minutes=minutes, learning_rate=1e-3, last_learning_rate=1e-5, kl_weight=1.0, kl_positions=10**9,
        unconditional=0.3, horizontal_rows=0.34,
    )  # fmt: skip

    def on_step(info: StepInfo) -> None:
        if info.step % 25 == 1 or info.measured is not None:
            figures = info.losses if info.measured is None else info.measured.acceptance
            print(info.step, f"{info.seconds:.0f}s", {name: round(v, 3) for name, v in figures.items()}, flush=True)

    work = folder / "training"
    result = train_file(
        backbone, shards, out, wanted, settings, work=work, held_out=held_out, start_from=start_from, restart=restart,
        on_step=on_step,
    )  # fmt: skip
    LOGS.mkdir(exist_ok=True)
    (LOGS / "heads.csv").write_bytes((work / LOG_FILE).read_bytes())
    print(f"expected acceptance on held-out pictures\n{acceptance_table(result.acceptance)}")
    print(f"{out.name}: {out.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=224)
    parser.add_argument("--scenes", type=int, default=2048)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--neighbours", type=int, choices=(0, 1), default=1)
    parser.add_argument("--folder", type=Path, default=CACHE / "samples")
    parser.add_argument("--out", type=Path, default=ASSETS / "heads.safetensors")
    parser.add_argument("--start-from", type=Path, help="heads file to begin with")
    parser.add_argument("--restart", action="store_true", help="forget a training that was stopped")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    draw_pictures(options.pictures, options.folder)
    train(
        options.folder,
        options.scenes,
        options.minutes,
        options.neighbours,
        options.out,
        options.start_from,
        options.restart,
    )


if __name__ == "__main__":
    main()
