"""Fixed features of pictures for two-sample distances: what is in them, and what their surface is like."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .emoji_score.detector import Detector

KINDS = ("objects", "texture")
FILTERS = 64
PATCH = 8


@torch.no_grad()
def picture_features(detector: Detector, images: Tensor) -> dict[str, Tensor]:
    """Features float32 [n, width] of images float32 [n, H, W, 3] in 0..1, by kind.

    ``objects``: the detector's activations, averaged over the picture. ``texture``: mean size and spread of the
    answers of fixed random filters without a constant part, so that flat colours do not count, over patches of 8 pixels
    at every fourth pixel, so that seams between codes (8 pixels) do.
    """
    return {"objects": detector.pooled(images), "texture": _texture(images)}


def _texture(images: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    filters = torch.randn(FILTERS, 3, PATCH, PATCH, generator=generator)
    filters = F.normalize((filters - filters.mean((2, 3), keepdim=True)).flatten(1)).view_as(filters)
    answers = F.conv2d(images.permute(0, 3, 1, 2), filters, stride=PATCH // 2)
    return torch.cat([answers.abs().mean((2, 3)), answers.std((2, 3))], 1)
