"""What a forward over K tokens costs beside one over a single token: the price of verification (paper figures 3, 4).

A decoder pays when it accepts more tokens a forward than such a forward costs in single-token steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ssd_core import Backbone
from ssd_core.transformer import CacheWindow, KVCache, rope_table

WIDTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 576)


@dataclass(frozen=True)
class ForwardCost:
    """Seconds of the fastest forward over ``width`` stream tokens with their logits, and of the fastest logits."""

    width: int
    seconds: float
    logits_seconds: float


@torch.inference_mode()
def forward_costs(
    backbone: Backbone, prompt: str, grid: tuple[int, int], widths: Sequence[int] = WIDTHS, cycles: int = 15
) -> list[ForwardCost]:
    """Times guided forwards in the middle of a picture: keys and values before the window are there already.

    All widths are timed in turn, ``cycles`` times over; the fastest counts, because a forward of some milliseconds is
    either disturbed by other work or not. Widths that do not fit the picture are left out.
    """
    stream, sampling, device = backbone.stream(grid), backbone.default_sampling, backbone.device
    rows = backbone.prompt_rows([prompt], "", grid, sampling.guidance_rows == 2)
    spec, sequences = backbone.decoder.spec, sampling.guidance_rows
    cache = KVCache(spec, sequences, rows.length + stream.length, backbone.dtype, device)
    cos, sin = rope_table(rows.stream_positions.to(device), spec.head_dim, backbone.rope_theta)
    fitting = [width for width in widths if width <= stream.length]
    seconds: dict[int, list[tuple[float, float]]] = {width: [] for width in fitting}
    for _ in range(cycles):
        for width in fitting:
            start = (stream.length - width) // 2
            embeddings = backbone.embed(torch.zeros(sequences, width, dtype=torch.int64, device=device))
            slots = torch.arange(start, start + width, device=device)[None] + rows.length
            length = rows.length + start + width
            base = torch.arange(sequences, device=device)[:, None] * (cache.slots + 1)
            mask = None if width == 1 else (torch.arange(length, device=device) <= slots[..., None])[:, None]
            window = CacheWindow((base + slots).reshape(-1), length, mask)
            rope = cos[:, start : start + width], sin[:, start : start + width]
            begin = _now(device)
            features = backbone.decoder(embeddings, rope, cache, window)
            middle = _now(device)
            backbone.logits(features)
            end = _now(device)
            seconds[width].append((end - begin, end - middle))
    return [
        ForwardCost(width, min(whole for whole, _ in taken), min(logits for _, logits in taken))
        for width, taken in seconds.items()
    ]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
