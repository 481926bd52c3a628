"""How many pictures heads need: acceptance for several data sizes, plain and neighbour-aware vertical heads.

Run: ``python -m benchmarks.heads_data --sizes 40 150 600 --steps 200``. The pictures are drawn once, the largest
number; each size trains on the first of them for the same number of steps, so a small size is seen more often, and is
measured on the same held-out pictures: other seeds, prompts from the same list. Of the states that were measured on
them the best counts. Everything is kept in the folder: a run that was stopped goes on where it was, also in the middle
of a training, and finished cells are not made again. The table is printed after every cell.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from ssd_core import load_backbone
from ssd_core.distill.losses import head_name
from ssd_core.distill.prompts import EMPTY_PROMPTS, plan_prompts, starter_prompts
from ssd_core.distill.samples import Samples, collect, read_samples
from ssd_core.distill.session import Wanted, train_file
from ssd_core.distill.settings import TrainSettings
from ssd_core.writing import write

HEADS = Wanted((1,), (1, 2, 3))
HELD_OUT_SEED = 900_000_000
BATCH = 8
DRAW_BATCH = 32
COLUMNS = [head_name("vertical", offset) for offset in HEADS.vertical] + [head_name("horizontal", 1)]


def table(cells: dict[str, dict[str, Any]]) -> str:
    """The finished cells as markdown."""
    titles = ["pictures", "times seen", "vertical heads", "KL term", *COLUMNS]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for cell in sorted(cells.values(), key=lambda cell: (cell["pictures"], cell["kl_weight"], cell["neighbours"])):
        kind = "neighbour-aware" if cell["neighbours"] else "plain"
        seen = cell["steps"] * cell["batch"] / cell["pictures"]
        figures = [f"{cell['acceptance'][name]:.3f}" for name in COLUMNS]
        row = [str(cell["pictures"]), f"{seen:.1f}", kind, f"{cell['kl_weight']:g}", *figures]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def first(shards: list[Samples], count: int) -> list[Samples]:
    """The first ``count`` pictures."""
    found = []
    for shard in shards:
        found.append(shard.pick(range(min(count, len(shard.prompts)))))
        count -= len(found[-1].prompts)
        if count == 0:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[40, 150, 600])
    parser.add_argument("--neighbours", type=int, nargs="+", choices=(0, 1), default=[0, 1])
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of each cell, 8 pictures each")
    parser.add_argument("--held-out", type=int, default=32)
    parser.add_argument("--grid", type=int, nargs=2, default=(16, 16))
    parser.add_argument("--kl", type=float, default=1.0, help="weight of the KL term, 0 as published")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("out/heads_data"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    backbone = load_backbone()
    prompts = starter_prompts(backbone)
    jobs = {"train": (max(options.sizes), 0), "held_out": (options.held_out, HELD_OUT_SEED)}
    for name, (count, seed) in jobs.items():
        planned = plan_prompts(prompts, count, seed, EMPTY_PROMPTS)
        started = time.perf_counter()
        collect(backbone, planned, options.folder / name, grid=tuple(options.grid), seed=seed, batch=DRAW_BATCH)
        print(f"{name}: {count} pictures, {time.perf_counter() - started:.0f} s of drawing", flush=True)
    drawn, held_out = (list(read_samples(options.folder / name, backbone.fingerprint)) for name in jobs)
    results = options.folder / "results.json"
    cells: dict[str, dict[str, Any]] = json.loads(results.read_text()) if results.exists() else {}
    settings = TrainSettings(steps=options.steps, batch=BATCH, learning_rate=1e-3, kl_weight=options.kl)
    for size in sorted(options.sizes):
        for neighbours in options.neighbours:
            key = f"{size}-{neighbours}-{options.steps}-{options.kl:g}-{options.grid[0]}x{options.grid[1]}"
            if key in cells:
                continue
            wanted = Wanted(HEADS.horizontal, HEADS.vertical, neighbours, licence="Apache-2.0", author="a benchmark")
            place = options.folder / key
            started = time.process_time()
            made = train_file(
                backbone, first(drawn, size), place / "heads.safetensors", wanted, settings, work=place / "training",
                held_out=held_out,
            )  # fmt: skip
            cells[key] = {
                "pictures": size,
                "neighbours": neighbours,
                "grid": list(options.grid),
                "steps": made.steps,
                "batch": BATCH,
                "kl_weight": options.kl,
                "held_out": options.held_out,
                "cpu_seconds": round(time.process_time() - started),
                "acceptance": made.acceptance,
            }
            write(results, (json.dumps(cells, indent=1) + "\n").encode())
            print(table(cells), flush=True)
    print(table(cells))


if __name__ == "__main__":
    main()
