"""Step 2: trains the tokenizer (``ssd_core.families.emoji_pixels``) on fresh scenes.

Run: ``python -m recipes.emoji_scenes.tokenizer --minutes 11``. The encoder and decoder first learn without
quantisation; then the codebook starts from k-means over the encoder's features and follows them by moving
averages, and entries that fall out of use are put where the encoder's features are. The result is rounded to
float16 once, so the codes that the model learns are the ones the shipped file gives.

``--refine`` goes on with the decoder alone: codes stay what they are, so a token model may already be in training.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from ssd_core.families.emoji_pixels import EmojiPixels

from .paths import ASSETS, CACHE, LOGS, TOKENIZER_CHECKPOINT
from .scene import SceneSource
from .sheet import save_sheet

SHAPE: dict[str, Any] = {"codes": 512, "code_dim": 16, "encoder_width": 256, "decoder_widths": (160, 80, 32)}
"""The tokenizer's sizes, as the shipped ``config.json`` states them."""
GRID = 16
BATCH = 16
WARM_UP_SHARE = 0.15
"""Share of the time before quantisation starts."""
SPRITE_WEIGHT = 3.0
AVERAGE = 0.98


def draw_batch(source: SceneSource, count: int, rows: int = GRID, cols: int = GRID) -> tuple[Tensor, Tensor]:
    """Fresh scenes: pictures float32 [B, H, W, 3] in 0..1, and sprite cells bool [B, rows, cols]."""
    scenes = [source.draw(rows, cols) for _ in range(count)]
    images = torch.from_numpy(np.stack([scene.image for scene in scenes])).float() / 255
    return images, torch.from_numpy(np.stack([scene.sprite_mask() for scene in scenes]))


class MovingCodebook:
    """Keeps a model's codebook at the running mean of the features that choose each entry."""

    def __init__(self, model: EmojiPixels, features: Tensor) -> None:
        """Starts from ten rounds of k-means over ``features`` [N, code_dim]."""
        self._model = model
        entries = len(model.codebook)
        centres = features[torch.randperm(len(features))[:entries]]
        for _ in range(10):
            model.codebook.copy_(centres)
            counts, sums = self._totals(features, model.nearest(features))
            strays = features[torch.randint(len(features), (entries,))]
            centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], strays)
        model.codebook.copy_(centres)
        self.counts = torch.ones(entries)
        self._sums = centres.clone()

    def _totals(self, features: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        entries, width = self._model.codebook.shape
        counts = torch.zeros(entries).index_add_(0, chosen, torch.ones(len(chosen)))
        return counts, torch.zeros(entries, width).index_add_(0, chosen, features)

    @torch.no_grad()
    def update(self, features: Tensor, chosen: Tensor) -> None:
        """Moves the entries after a step that quantised ``features`` [N, code_dim] to ``chosen`` [N]."""
        counts, sums = self._totals(features, chosen)
        self.counts.mul_(AVERAGE).add_(counts, alpha=1 - AVERAGE)
        self._sums.mul_(AVERAGE).add_(sums, alpha=1 - AVERAGE)
        self._model.codebook.copy_(self._sums / self.counts.clamp(min=1e-3)[:, None])
        dead = (self.counts < 0.02).nonzero()[:, 0]
        if len(dead):
            distance = (features - self._model.codebook[chosen]).square().sum(1)
            fresh = features[torch.multinomial(distance + 1e-9, len(dead), replacement=True)]
            self._model.codebook[dead] = fresh
            self._sums[dead] = fresh * 0.2
            self.counts[dead] = 0.2


def reconstruction_loss(made: Tensor, wanted: Tensor, sprites: Tensor) -> Tensor:
    """Sprite-weighted absolute, squared and gradient error of pictures in 0..1."""
    weight = 1 + (SPRITE_WEIGHT - 1) * sprites.float()
    weight = (weight / weight.mean()).repeat_interleave(8, 1).repeat_interleave(8, 2)[..., None]  # [B, H, W, 1]
    error = 2 * (made - wanted)
    down, across = error[:, 1:] - error[:, :-1], error[:, :, 1:] - error[:, :, :-1]
    edges = (down.abs() * weight[:, 1:]).mean() + (across.abs() * weight[:, :, 1:]).mean()
    return ((error.abs() + error.square()) * weight).mean() + 0.7 * edges


def train(minutes: float) -> EmojiPixels:
    """Trains from scratch for ``minutes`` and returns the model, rounded to float16."""
    torch.manual_seed(0)
    source = SceneSource(11)
    model = EmojiPixels(**SHAPE).to(memory_format=torch.channels_last)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=1e-4)
    codebook: MovingCodebook | None = None
    started, step = time.monotonic(), 0
    log: list[tuple[int, float, float, int]] = []
    while (elapsed := (time.monotonic() - started) / (60 * minutes)) < 1:
        if codebook is None and elapsed >= WARM_UP_SHARE:
            with torch.no_grad():
                pool = [model.patch_features(draw_batch(source, BATCH)[0]).flatten(0, 2) for _ in range(12)]
            codebook = MovingCodebook(model, torch.cat(pool))
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1, (step + 1) / 40) * (1 - elapsed) ** 0.8 + 1e-5
        images, sprites = draw_batch(source, BATCH)
        features = model.patch_features(images)
        loss = features.square().mean() * 1e-3  # keeps the scale in bounds before there are entries to commit to
        used = features
        if codebook is not None:
            flat = features.detach().flatten(0, 2)
            chosen = model.nearest(flat)
            entries = model.codebook[chosen].view_as(features)
            loss = 0.25 * F.mse_loss(features, entries)
            used = features + (entries - features).detach()
            codebook.update(flat, chosen)
        made = model.pixels(used)
        loss = loss + reconstruction_loss(made, images, sprites)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            decibel = -10 * math.log10(F.mse_loss(made.detach(), images).item())
            alive = 0 if codebook is None else int((codebook.counts > 0.1).sum())
            log.append((step, round(time.monotonic() - started, 1), round(decibel, 2), alive))
            print(*log[-1], f"loss {loss.item():.4f}", flush=True)
    with (LOGS / "tokenizer.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("step", "seconds", "train_db", "codes_alive"), *log])
    return round_to_half(model).eval().requires_grad_(False)


def refine(model: EmojiPixels, minutes: float) -> EmojiPixels:
    """Trains the decoder for ``minutes`` more with encoder and codebook fixed; returns it rounded to float16."""
    torch.manual_seed(1)
    source = SceneSource(12)
    decoder = model.decoder.train().requires_grad_(True)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=1e-4)
    started, step = time.monotonic(), 0
    while (elapsed := (time.monotonic() - started) / (60 * minutes)) < 1:
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, (step + 1) / 40) * (1 - elapsed) ** 0.8 + 1e-5
        images, sprites = draw_batch(source, BATCH // 2)
        loss = reconstruction_loss(model.pixels(model.codebook[model.encode(images)]), images, sprites)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"refine {step} {time.monotonic() - started:.0f}s loss {loss.item():.4f}", flush=True)
    return round_to_half(model).eval().requires_grad_(False)


def round_to_half(model: EmojiPixels) -> EmojiPixels:
    """Rounds every weight to the nearest float16, in place, staying in float32."""
    for tensor in model.state_dict().values():
        tensor.copy_(tensor.half().float())
    return model


def load_tokenizer() -> EmojiPixels:
    """The trained tokenizer, frozen; without a checkpoint of one's own the shipped one, which has the same codes."""
    model = EmojiPixels(**SHAPE)
    if TOKENIZER_CHECKPOINT.exists():
        model.load_state_dict(torch.load(TOKENIZER_CHECKPOINT, weights_only=True))
    else:
        shipped = load_file(ASSETS / "pixels.safetensors")
        model.load_state_dict({name: tensor.float() for name, tensor in shipped.items()})
    return model.to(memory_format=torch.channels_last).eval().requires_grad_(False)


def evaluate(model: EmojiPixels) -> None:
    """Prints fidelity on unseen scenes and decoding time; writes a contact sheet to the cache."""
    source = SceneSource(999)
    images, sprites = draw_batch(source, 96, 24, 24)
    codes = model.encode(images)
    began = time.monotonic()
    made = torch.cat([model.decode(part) for part in codes.split(1)])
    per_image = (time.monotonic() - began) / len(codes)
    error = (made - images).square().mean(-1)  # [B, H, W]
    cells = F.avg_pool2d(error[:, None], 8)[:, 0]
    overall, inside = (-10 * torch.log10(cells.mean())).item(), (-10 * torch.log10(cells[sprites].mean())).item()
    print(f"fresh 24x24 scenes: {overall:.2f} dB, sprites {inside:.2f} dB, {len(codes.unique())} codes used")
    print(f"decoding one 24x24 grid: {1000 * per_image:.1f} ms")
    pairs = torch.stack([images, made], 1).flatten(0, 1)[:48]
    pictures = list((pairs * 255).round().byte().numpy())
    save_sheet(CACHE / "reconstructions.png", pictures, ["scene", "decoded"] * (len(pictures) // 2), 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=11.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--refine", action="store_true", help="train the decoder alone, from the checkpoint")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    CACHE.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(exist_ok=True)
    model = refine(load_tokenizer(), options.minutes) if options.refine else train(options.minutes)
    torch.save(model.state_dict(), TOKENIZER_CHECKPOINT)
    evaluate(model)


if __name__ == "__main__":
    main()
