"""What a forward over K tokens costs beside one over a single token: the price of verification (paper figures 3, 4).

A decoder pays when it accepts more tokens a forward than such a forward costs in single-token steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ssd_core import Backbone

from .gpu_span import wait
from .plain_steps import Forwards

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
    """Times the engine's own forwards in the middle of a picture: keys and values before the window are there already.

    All widths are timed in turn, ``cycles`` times over; the fastest counts, because a forward of some milliseconds is
    either disturbed by other work or not. Widths that do not fit the picture are left out.
    """
    length, device = backbone.stream(grid).length, backbone.device
    forwards = Forwards(backbone, prompt, grid, graphed=device.type == "cuda")
    fitting = {width: forwards.forward((length - width) // 2, width) for width in widths if width <= length}
    seconds: dict[int, list[tuple[float, float]]] = {width: [] for width in fitting}
    for _ in range(cycles):
        for width, forward in fitting.items():
            begin = _now(device)
            forward.feed()
            middle = _now(device)
            backbone.logits(forward.features)
            end = _now(device)
            seconds[width].append((end - begin, end - middle))
    return [
        ForwardCost(width, min(whole for whole, _ in taken), min(logits for _, logits in taken))
        for width, taken in seconds.items()
    ]


def _now(device: torch.device) -> float:
    wait(device)
    return time.perf_counter()
