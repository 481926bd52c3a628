"""Step 3: trains the token model on fresh scenes.

Run: ``python -m recipes.emoji_scenes.train_ar --minutes 84``. One learning-rate schedule and one plan of grids cover
the whole budget; a run that was stopped goes on from its checkpoint when started again with the same options.
``--extend-from`` starts a new schedule from a finished run's checkpoint, or from a shipped ``model.safetensors`` (then
with fresh optimizers), on the grid mix of the last part.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from .batches import Batch, corrupt, draw_tokens, drop_captions
from .gradients import Grid, MicroLosses, SharedGradients, start_helpers
from .model import SceneModel, cross_entropy, rotary_of, stream_tokens
from .muon import Muon
from .paths import LOGS, MODEL_CHECKPOINT
from .scene import GRIDS
from .tokenizer import load_tokenizer

MATRIX_RATE = 0.02
OTHER_RATE = 3e-3
WARM_UP_STEPS = 60
HOLD = 0.62
"""Share of the plan at full learning rate; then it falls in a line to ``LAST_RATE``."""
LAST_RATE = 0.02
EMA = 0.99
CODES_A_STEP = 3072
CODES_A_MICRO_BATCH = 1536
CHECK_SECONDS = 240
SCENES_OF_EXPORTS = 10_000_000
"""Micro-batches that a run from exported weights leaves to the runs before it."""

ALL_GRIDS: dict[Grid, float] = {(24, 24): 0.58, (16, 16): 0.18, (32, 32): 0.08, (24, 32): 0.08, (32, 24): 0.08}
FIRST_PLAN: tuple[tuple[float, dict[Grid, float]], ...] = (
    (0.60, {(16, 16): 1.0}),
    (0.86, {(24, 24): 0.6, (16, 16): 0.4}),
    (1.01, ALL_GRIDS),
)
"""Grid mix up to each share of a run's time."""
EXTENSION_PLAN: tuple[tuple[float, dict[Grid, float]], ...] = ((1.01, ALL_GRIDS),)


def rate_scale(step: int, progress: float) -> float:
    """Learning-rate factor: warm-up by steps, hold, then a line down over the rest of the plan."""
    fall = 1.0 if progress < HOLD else LAST_RATE + (1 - LAST_RATE) * max(0.0, 1 - progress) / (1 - HOLD)
    return min(1.0, (step + 1) / WARM_UP_STEPS) * fall


def grid_at(progress: float, extension: bool, generator: torch.Generator) -> Grid:
    """Draws the grid of a micro-batch."""
    plan = EXTENSION_PLAN if extension else FIRST_PLAN
    mix = next(mix for until, mix in plan if progress < until)
    index = torch.multinomial(torch.tensor(list(mix.values())), 1, generator=generator).item()
    return list(mix)[int(index)]


def make_losses(extension: bool) -> MicroLosses:
    """Loads what a process needs and returns its loss function; scenes depend on the micro-batch's number alone."""
    tokenizer = load_tokenizer()
    rotary = {grid: rotary_of(*grid) for grid in GRIDS}

    def losses(model: nn.Module, number: int, progress: float) -> Tensor:
        generator = torch.Generator().manual_seed(number)
        grid = grid_at(progress, extension, generator)
        count = max(2, CODES_A_MICRO_BATCH // (grid[0] * grid[1]))
        batch = draw_tokens(tokenizer, 1_000_000 + number, count, grid)
        fed = stream_tokens(drop_captions(batch.words, generator), corrupt(batch.codes, generator))
        return cross_entropy(model(fed, *grid, rotary[grid]), batch.codes)

    return losses


class Training:
    """Model, averaged weights and optimizers; everything a checkpoint holds."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = SceneModel()
        self.average = SceneModel().requires_grad_(False)
        self.average.load_state_dict(self.model.state_dict())
        matrices = {n: p for n, p in self.model.decoder.named_parameters() if p.dim() == 2}
        fused = {"qkv": 3, "gate_up": 2}
        self.muon = Muon(list(matrices.values()), [fused.get(name.split(".")[-2], 1) for name in matrices])
        chosen = {id(p) for p in matrices.values()}
        self.others = [p for p in self.model.parameters() if id(p) not in chosen]
        self.adam = torch.optim.AdamW(self.others, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0)
        self.step = 0
        self.seconds = 0.0
        self.drawn = 0

    def update(self, scale: float) -> None:
        """One optimizer step with the gradients that the parameters hold."""
        torch.nn.utils.clip_grad_norm_(self.others, 1.0)
        self.adam.param_groups[0]["lr"] = OTHER_RATE * scale
        self.adam.step()
        self.muon.step(MATRIX_RATE * scale)
        decay = min(EMA, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for kept, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
                kept.lerp_(new, 1 - decay)
        self.step += 1

    @torch.no_grad()
    def validation_losses(self, batch: Batch) -> tuple[float, float, float]:
        """The averaged weights' loss per code: all, sprite cells, background cells."""
        rows, cols = batch.codes.shape[1:]
        rotary = rotary_of(rows, cols)
        parts = []
        for words, codes in zip(batch.words.split(16), batch.codes.split(16), strict=True):
            parts.append(cross_entropy(self.average(stream_tokens(words, codes), rows, cols, rotary), codes))
        loss: Tensor = torch.cat(parts)
        return loss.mean().item(), loss[batch.sprites].mean().item(), loss[~batch.sprites].mean().item()

    def save(self, path: Path) -> None:
        """Writes everything needed to go on, whole or not at all."""
        state = {name: getattr(self, name).state_dict() for name in ("model", "average", "muon", "adam")}
        counters = {"step": self.step, "seconds": self.seconds, "drawn": self.drawn}
        torch.save({**state, **counters}, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Takes over a checkpoint."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        for name in ("model", "average", "muon", "adam"):
            getattr(self, name).load_state_dict(state[name])
        self.step, self.seconds, self.drawn = state["step"], state["seconds"], state["drawn"]

    def load_weights(self, path: Path) -> None:
        """Takes over exported weights only; scenes go on where no run has been."""
        weights = {name: tensor.float() for name, tensor in load_file(path).items()}
        self.model.load_state_dict(weights)
        self.average.load_state_dict(weights)
        self.drawn = SCENES_OF_EXPORTS


def train(minutes: float, checkpoint: Path, extend_from: Path | None, processes: int) -> None:
    """Trains until the plan of ``minutes`` is done, validating and saving every few minutes."""
    training = Training()
    if checkpoint.exists():
        training.load(checkpoint)
    elif extend_from is not None and extend_from.suffix == ".safetensors":
        training.load_weights(extend_from)
    elif extend_from is not None:
        training.load(extend_from)
        training.seconds = 0.0
    losses_of = partial(make_losses, extend_from is not None)
    tokenizer = load_tokenizer()
    held_out = {grid: draw_tokens(tokenizer, 777, count, grid) for grid, count in (((16, 16), 48), ((24, 24), 32))}
    print(f"{sum(p.numel() for p in training.model.parameters()) / 1e6:.2f} M parameters", flush=True)
    shared = SharedGradients(training.model, training.drawn)
    shared.progress.value = training.seconds / (60 * minutes)
    start_helpers(processes - 1, training.model, shared, losses_of)
    losses = losses_of()
    log = (LOGS / "model.csv").open("a", newline="")
    if log.tell() == 0:
        csv.writer(log).writerow(("step", "seconds", "rows", "cols", "all", "sprites", "background"))
    recent: list[float] = []
    codes, before, began = 0, training.seconds, time.monotonic()
    next_check = training.seconds + CHECK_SECONDS
    while (progress := training.seconds / (60 * minutes)) < 1:
        shared.progress.value = progress
        while shared.codes < CODES_A_STEP:
            shared.add(training.model, losses(training.model, shared.next_number(), progress))
        codes += shared.codes
        recent.append(shared.take(training.model))
        training.update(rate_scale(training.step, progress))
        training.seconds = before + time.monotonic() - began
        if training.step % 25 == 0:
            speed = codes / (time.monotonic() - began)
            loss = math.fsum(recent) / len(recent)
            print(f"{training.step} {training.seconds:.0f}s loss {loss:.3f} {speed:.0f} codes/s", flush=True)
            recent.clear()
        if training.seconds >= next_check or training.seconds >= 60 * minutes:
            next_check += CHECK_SECONDS
            for where, held in held_out.items():
                numbers = [round(x, 4) for x in training.validation_losses(held)]
                row = [training.step, round(training.seconds), *where, *numbers]
                csv.writer(log).writerow(row)
                print("validation step seconds rows cols all sprites background:", *row, flush=True)
            log.flush()
            training.drawn = shared.drawn.value
            training.save(checkpoint)
    log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=75.0)
    parser.add_argument("--processes", type=int, default=2, help="single-threaded processes that share the work")
    parser.add_argument("--checkpoint", type=Path, default=MODEL_CHECKPOINT)
    parser.add_argument("--extend-from", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    LOGS.mkdir(exist_ok=True)
    train(options.minutes, options.checkpoint, options.extend_from, options.processes)


if __name__ == "__main__":
    main()
