"""How many bytes a run needs: weights, keys and values, and what it works with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .families.base import Backbone

PROMPT_TOKENS = 256
"""An ample prompt."""

_WINDOW_ROWS = 4
_LOGIT_COPIES = 6  # logits of a window in float32 while guidance, noise and truncation work on them
_BYTES_PER_PIXEL = 2048  # 128 channels in float32 at full size, four tensors at a time: a VQGAN decoder's last stage


@dataclass(frozen=True)
class Memory:
    """Bytes. ``working``: features, logits, pixels and, once more, the window's buffers of captured CUDA graphs; it
    is an upper estimate, the others are exact (``cache`` for a prompt of 256 tokens)."""

    weights: int
    cache: int
    working: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.working


def memory_of(
    backbone: Backbone,
    dtype: torch.dtype,
    grid: tuple[int, int],
    batch: int,
    guidance_rows: int,
    window: int | None = None,
) -> Memory:
    """What ``batch`` pictures of ``grid`` need in ``dtype``; the backbone may be on the meta device, in bfloat16.

    ``window``: stream positions of one forward (``Schedule.window``); four rows if it is not known.
    """
    spec, size = backbone.decoder.spec, dtype.itemsize
    cols = grid[1]
    sequences, slots = batch * guidance_rows, backbone.stream(grid).length + PROMPT_TOKENS
    own = backbone.dtype
    tensors: Iterable[Tensor] = [*backbone.parameters(), *backbone.buffers()]
    # What is not in the decoder's dtype (pixels in float32, counters) keeps its own.
    weights = sum(t.numel() * (size if t.dtype == own else t.dtype.itemsize) for t in tensors)
    cache = 2 * spec.layers * spec.kv_heads * spec.head_dim * sequences * slots * size
    window = sequences * (window or _WINDOW_ROWS * cols)
    widest = 2 * spec.intermediate + (spec.heads + 2 * spec.kv_heads) * spec.head_dim + 4 * spec.hidden
    logits = window * backbone.codes * 4 * _LOGIT_COPIES
    features = sequences * slots * spec.hidden * size
    working = features + 2 * window * widest * size + logits + pixel_bytes(backbone, grid)
    return Memory(weights, cache, working)


def pixel_bytes(backbone: Backbone, grid: tuple[int, int]) -> int:
    """What decoding or encoding the pixels of one picture needs."""
    rows, cols = grid
    return int(rows * cols * backbone.patch**2 * _BYTES_PER_PIXEL)
