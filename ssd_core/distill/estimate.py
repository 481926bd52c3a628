"""What a run will need, before it starts: time and disk for drawing, memory for training."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ..errors import ShouldStop, StopRequested
from ..families.base import Backbone
from ..generation import generate
from ..heads import Direction, SpatialHeads
from ..memory import PROMPT_TOKENS
from ..report import RowsEvent
from ..sampling import Sampling
from ..schedule import AR, Schedule
from .losses import ANY_GRID, each_head
from .samples import token_dtype
from .session import Wanted

GIB = 2**30
SMALL_CARD = 24 * GIB
RESERVE = 1.0 * GIB
"""What the CUDA context and torch's allocator keep."""
_TRAIN_BYTES = 16  # weight, gradient and AdamW's two moments in float32
_PROBE_SECONDS = 2.0
_WARM_UP_FORWARDS = 4
_BYTES_A_PICTURE = 200  # prompt and header of a shard

USEFUL: tuple[tuple[Direction, int], ...] = (
    ("vertical", 1), ("horizontal", 1), ("vertical", 2), ("horizontal", 2), ("vertical", 3), ("horizontal", 3),
    ("horizontal", 4), ("horizontal", 5), ("vertical", 4), ("vertical", 5),
)  # fmt: skip
"""Which heads to train first where memory does not hold all of them."""


@dataclass(frozen=True)
class DrawEstimate:
    """``seconds`` for all pictures at the speed of a short trial, ``bytes`` on disk."""

    seconds: float
    bytes: int


def estimate_drawing(
    backbone: Backbone, prompts: Sequence[str], *, grid: tuple[int, int], batch: int, sampling: Sampling,
    schedule: Schedule | None = None, heads: SpatialHeads | None = None, should_stop: ShouldStop | None = None,
) -> DrawEstimate:  # fmt: skip
    """Draws the first batch for some two seconds, throws it away and extrapolates.

    Raises StopRequested when ``should_stop`` said so.
    """
    started = measured = 0.0
    first = latest = forwards = 0
    asked = False

    def watch(event: RowsEvent) -> None:
        nonlocal latest, forwards, started, first
        latest, forwards = sum(event.accepted), event.forwards
        if not started and forwards > _WARM_UP_FORWARDS:
            started, first = time.perf_counter(), latest

    def enough() -> bool:
        nonlocal asked
        asked = should_stop is not None and should_stop()
        return asked or (started > 0 and latest > first and time.perf_counter() - started > _PROBE_SECONDS)

    chunk = list(prompts[:batch])
    begun = time.perf_counter()
    try:
        generate(
            backbone, chunk, schedule=schedule or AR(), heads=heads if schedule is not None else None,
            sampling=sampling, grid=grid, on_rows=watch, should_stop=enough,
        )  # fmt: skip
    except StopRequested:
        if asked:
            raise
    measured = time.perf_counter() - (started or begun)
    codes = grid[0] * grid[1]
    per_code = measured / max(1, latest - first)  # seconds for one code of one picture
    size = codes * token_dtype(backbone)(0).itemsize
    return DrawEstimate(per_code * codes * len(prompts), len(prompts) * (size + _BYTES_A_PICTURE))


@dataclass(frozen=True)
class TrainMemory:
    """Bytes. ``weights`` of the backbone; ``heads`` with gradients and AdamW's moments; ``activations``: what one
    forward of the backbone, one head's forward and backward, and AdamW's step work with, an upper estimate."""

    weights: int
    heads: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.heads + self.activations


def training_memory(
    backbone: Backbone, wanted: Wanted, grids: Iterable[tuple[int, int]], micro_batch: int, kl_positions: int
) -> TrainMemory:
    """What training needs on the backbone's device, in its dtype; the backbone may be on the meta device.

    ``kl_positions``: 0 without the KL term.
    """
    spec, size = backbone.decoder.spec, backbone.dtype.itemsize
    hidden = backbone.hidden
    weights = sum(t.numel() * t.dtype.itemsize for t in [*backbone.parameters(), *backbone.buffers()])
    with torch.device("meta"):
        heads = SpatialHeads(wanted.spec(backbone))
    largest = max(p.numel() for p in heads.parameters())
    one_head = max(sum(p.numel() for p in heads.head(*name).parameters()) for name in each_head(heads, ANY_GRID))
    length = PROMPT_TOKENS + max(backbone.stream(grid).length for grid in grids)
    tokens = micro_batch * length
    widest = 2 * spec.intermediate + (spec.heads + 2 * spec.kv_heads) * spec.head_dim + 4 * spec.hidden
    features = 3 * tokens * hidden * size  # features, embeddings, the decoder's own copy
    sources = 1 + 2 * wanted.neighbours if wanted.vertical else 1
    # In float32: inputs as they come and joined; mix, norm, gate and up, product, output; the backward pass's own.
    head = tokens * (4 * sources + 14) * hidden * 4
    # Autocast's copy of the head in bfloat16, and a gradient in both types before it is added to the others.
    head += 2 * one_head + 6 * largest
    logits = min(kl_positions, tokens) * backbone.codes * 4 * 5
    step = 8 * largest  # AdamW goes from tensor to tensor and needs two more of its size
    working = features + max(2 * tokens * widest * size, head + logits, step)
    return TrainMemory(weights, _TRAIN_BYTES * sum(p.numel() for p in heads.parameters()), working)


def fitting(
    backbone: Backbone, wanted: Wanted, grids: Sequence[tuple[int, int]], kl_positions: int, limit: float = SMALL_CARD
) -> Wanted | None:
    """As many of the wanted heads as fit into ``limit`` bytes with one picture a forward, the most useful first.

    None when not even one head fits.
    """
    best = None
    for count in range(1, len(USEFUL) + 1):
        chosen = [
            (way, offset) for way, offset in USEFUL
            if offset in (wanted.horizontal if way == "horizontal" else wanted.vertical)
        ][:count]  # fmt: skip
        some = Wanted(
            tuple(sorted(offset for way, offset in chosen if way == "horizontal")),
            tuple(sorted(offset for way, offset in chosen if way == "vertical")),
            wanted.neighbours,
        )
        if training_memory(backbone, some, grids, 1, kl_positions).total + RESERVE <= limit:
            best = some
    return best


def in_words(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"
