"""What a head must predict, and how far off it is (paper section 3.2).

Loss: smooth L1 between predicted and true pre-norm feature, each channel divided by its standard deviation, plus an
optional KL term between the true and the drafted distribution through the backbone's own output head. The spread of a
channel says nothing about its weight in the output head; the KL term does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..families.base import Backbone
from ..heads import Direction, SpatialHead, SpatialHeads
from .features import FeatureGrid

DIRECTIONS: tuple[Direction, ...] = ("horizontal", "vertical")


def head_name(direction: Direction, offset: int) -> str:
    """The name of a head in losses, logs and notes, such as ``vertical 1``."""
    return f"{direction} {offset}"


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
        log_q = backbone.logits(predicted[:, kl_rows].to(truth.dtype)).float().log_softmax(-1)
        loss = loss + kl_weight * (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return loss
