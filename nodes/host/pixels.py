"""Pictures on their way in and out of a backbone's pixel encoder and decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from comfy.utils import common_upscale
from torch import Tensor

from ..core import core
from . import memory, models, stop
from .models import BackboneHandle


def decode(backbone: BackboneHandle, codes: Tensor) -> Tensor:
    """Codes int64 [batch, rows, cols] -> images float32 [batch, height, width, 3], picture by picture."""
    model = backbone.module
    _make_resident(backbone, (codes.shape[1], codes.shape[2]))
    pictures = []
    for index in range(len(codes)):
        stop.poll()
        one = codes[index : index + 1].to(model.device)
        pictures.append(memory.to_output(model.decode_pixels(one).clamp(0, 1)))
    stop.poll()
    return torch.cat(pictures)


def encode(backbone: BackboneHandle, images: Tensor, grid: tuple[int, int], fit: str) -> Any:
    """Images float32 [batch, any height, any width, 3 or 4] -> ``ARTokens`` of a grid, picture by picture."""
    model = backbone.module
    rows, cols = model.check_grid(grid)
    _make_resident(backbone, grid)
    tokens = []
    for index in range(len(images)):
        stop.poll()
        one = fitted(images[index : index + 1], rows * model.patch, cols * model.patch, fit)
        tokens.append(core("tokens").encode_image(model, one))
    stop.poll()
    return replace(tokens[0], codes=torch.cat([each.codes for each in tokens]))


def fitted(images: Tensor, height: int, width: int, fit: str) -> Tensor:
    """Images float32 [batch, any height, any width, 3 or 4] at one size, alpha dropped.

    ``crop`` keeps the proportions and cuts the longer side evenly, ``stretch`` cuts nothing.
    """
    colours = images[..., :3]
    if tuple(colours.shape[1:3]) == (height, width):
        return colours
    crop = "center" if fit == "crop" else "disabled"
    resized = common_upscale(colours.movedim(-1, 1), width, height, "lanczos", crop)
    return resized.movedim(1, -1).clamp(0, 1)


def from_picture(picture: Any) -> Tensor:
    """A PIL image -> float32 [1, height, width, 3]."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255)[None]


def _make_resident(backbone: BackboneHandle, grid: tuple[int, int]) -> None:
    models.make_resident(backbone, None, core("memory").pixel_bytes(backbone.module, grid))
