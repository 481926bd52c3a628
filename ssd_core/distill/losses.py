"""What a head must predict, and how far off it is (paper section 3.2).

Loss: smooth L1 between predicted and true pre-norm feature, each channel divided by its standard deviation, plus an
optional KL term between the true and the drafted distribution through the backbone's own output head. The spread of a
channel says nothing about its weight in the output head; the KL term does.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import SSDError
from ..families.base import Backbone
from ..heads import Direction, SpatialHead, SpatialHeads
from .features import FeatureGrid

ANY_GRID = (10**9, 10**9)
"""Large enough for every head."""
DIRECTIONS: tuple[Direction, ...] = ("horizontal", "vertical")


def head_name(direction: Direction, offset: int) -> str:
    """The name of a head in losses, logs and notes, such as ``vertical 1``."""
    return f"{direction} {offset}"


def check_reach(heads: SpatialHeads, grids: Iterable[tuple[int, int]]) -> None:
    """Raises SSDError when a head has nothing to predict in any of the grids."""
    sizes = sorted(set(grids))
    reached = {name for grid in sizes for name in each_head(heads, grid)}
    lost = [head_name(*name) for name in each_head(heads, ANY_GRID) if name not in reached]
    if lost:
        texts = ", ".join(f"{rows}x{cols}" for rows, cols in sizes)
        raise SSDError(f"pictures of {texts} codes are too small for {', '.join(lost)}; leave these heads out")


def each_head(heads: SpatialHeads, grid: tuple[int, int]) -> list[tuple[Direction, int]]:
    """The heads that have something to predict in a grid of that size."""
    rows, cols = grid
    reach = {"horizontal": cols, "vertical": rows}
    return [(way, offset) for way in DIRECTIONS for offset in heads.offsets(way) if offset < reach[way]]


def shifted(grid: FeatureGrid, direction: Direction, offset: int, neighbours: int) -> tuple[Tensor, Tensor, Tensor]:
    """Head inputs (features, embeddings) and the true feature they should predict, [n, rows', cols', ...].

    At the left and right edge a missing neighbour is replaced by the cell itself, as in decoding.
    """
    features, embeddings = grid.features, grid.embeddings
    if direction == "horizontal":
        return features[:, :, :-offset], embeddings[:, :, :-offset], features[:, :, offset:]
    sources = features[:, :-offset], embeddings[:, :-offset]
    if neighbours:
        sources = beside(sources[0]), beside(sources[1])
    return *sources, features[:, offset:]


def beside(x: Tensor) -> Tensor:
    """[n, rows, cols, hidden] -> [n, rows, cols, 3 * hidden]: left, own and right cell; edges repeat the own cell."""
    left = torch.cat((x[:, :, :1], x[:, :, :-1]), dim=2)
    right = torch.cat((x[:, :, 1:], x[:, :, -1:]), dim=2)
    return torch.cat((left, x, right), dim=-1)


def feature_loss(predicted: Tensor, truth: Tensor, scale: Tensor) -> Tensor:
    """Smooth L1 between features [..., hidden], channel by channel, in units of the channels' spread ``scale``."""
    return F.smooth_l1_loss(predicted / scale, truth / scale, reduction="none")


def head_loss(
    backbone: Backbone,
    head: SpatialHead,
    inputs: tuple[Tensor, Tensor, Tensor],
    scale: Tensor,
    kl_weight: float,
    kl_rows: Tensor,
    autocast: bool,
) -> Tensor:
    """The loss of one head, a float32 number. ``inputs`` are ``shifted``'s, ``scale`` [hidden] the channels' spread.

    The KL term is taken over ``kl_rows`` of the predicted rows, whose logits are what costs memory.
    ``autocast`` computes the head in bfloat16; its weights stay as they are.
    """
    features, embeddings, truth = inputs
    dtype = head.mix.weight.dtype
    with torch.autocast(features.device.type, torch.bfloat16, enabled=autocast):
        predicted: Tensor = head(features.to(dtype), embeddings.to(dtype))
    loss = feature_loss(predicted.to(dtype), truth.to(dtype), scale).mean()
    if kl_weight:
        with torch.no_grad():
            log_p = backbone.logits(truth[:, kl_rows]).float().log_softmax(-1)
        log_q = _logits(backbone, predicted[:, kl_rows].to(dtype), truth.dtype).log_softmax(-1)
        loss = loss + kl_weight * (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return loss


def _logits(backbone: Backbone, predicted: Tensor, dtype: torch.dtype) -> Tensor:
    """Logits of predicted features [..., hidden] in float32, through an output head in ``dtype``.

    In float16 the gradient of a mean over thousands of positions would be rounded to zero on its way through the output
    head; there it travels as the gradient of their sum.
    """
    factor = float(predicted.shape[:-1].numel()) if dtype == torch.float16 else 1.0
    if factor > 1 and predicted.requires_grad:
        predicted = predicted.clone()
        predicted.register_hook(lambda gradient: gradient / factor)  # type: ignore[no-untyped-call]
    logits = backbone.logits(predicted.to(dtype)).float()
    if factor > 1 and logits.requires_grad:
        logits.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]
    return logits
