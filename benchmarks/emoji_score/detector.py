"""The detector: a small convolutional net that finds the centres of objects, their colours and the background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from recipes.emoji_scenes.words import BACKGROUNDS, COLOURS, OBJECTS

WEIGHTS = Path(__file__).resolve().parent / "detector.safetensors"
THRESHOLD = 0.4


@dataclass(frozen=True)
class Finding:
    """One object found: its name, row and column of the centre in 8-pixel cells, colour and confidence."""

    name: str
    row: float
    col: float
    colour: str
    confidence: float


@dataclass(frozen=True)
class Detection:
    """What a picture shows."""

    background: str
    objects: tuple[Finding, ...]


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            _block(width, width), nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.inner(x))


class Detector(nn.Module):
    """Heat map of object centres at one position per 8-pixel cell; works at any grid.

    ``forward`` maps float32 [B, H, W, 3] in 0..1 to logits: objects [B, 16, H/8, W/8], colours [B, 4, H/8, W/8],
    background [B, 11].
    """

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.PixelUnshuffle(4), _block(48, 40), _Residual(40))
        self.middle = nn.Sequential(_block(40, 80, 2), _Residual(80))
        self.coarse = nn.Sequential(_block(80, 112, 2), _Residual(112), _Residual(112))
        self.lateral = nn.Conv2d(112, 80, 1)
        self.merge = _Residual(80)
        self.objects = nn.Conv2d(80, len(OBJECTS), 1)
        self.colours = nn.Conv2d(80, len(COLOURS), 1)
        self.background = nn.Linear(112 + 80, len(BACKGROUNDS))
        nn.init.constant_(self.objects.bias, -4.0)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        middle, coarse = self._maps(images)
        merged = self.merge(middle + F.interpolate(self.lateral(coarse), scale_factor=2.0, mode="nearest"))
        return self.objects(merged), self.colours(merged), self.background(_pool(middle, coarse))

    def pooled(self, images: Tensor) -> Tensor:
        """Activations averaged over the picture, float32 [B, 192], for images as in ``forward``."""
        return _pool(*self._maps(images))

    def _maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = (images * 2 - 1).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        middle = self.middle(self.fine(x))
        return middle, self.coarse(middle)


def _pool(middle: Tensor, coarse: Tensor) -> Tensor:
    return torch.cat([coarse.mean((2, 3)), middle.mean((2, 3))], 1)


def load_detector(path: Path = WEIGHTS) -> Detector:
    """The trained detector, in evaluation mode."""
    detector = Detector()
    detector.load_state_dict(
        {name: value.float() if value.is_floating_point() else value for name, value in load_file(path).items()}
    )
    return detector.to(memory_format=torch.channels_last).eval().requires_grad_(False)


@torch.no_grad()
def detect(detector: Detector, images: Tensor | Sequence[NDArray[np.uint8]], batch: int = 32) -> list[Detection]:
    """Finds objects.

    Args:
        detector: A trained detector.
        images: float32 [B, H, W, 3] in 0..1, or uint8 pictures [H, W, 3] of one size; sides multiples of 16.
        batch: Pictures a forward.
    """
    if not isinstance(images, Tensor):
        images = torch.from_numpy(np.stack(list(images))).float() / 255
    found: list[Detection] = []
    for part in images.split(batch):
        objects, colours, background = detector(part)
        best, which = objects.sigmoid().max(1)  # [B, rows, cols]
        peaks = (F.max_pool2d(best[:, None], 5, 1, 2)[:, 0] == best) & (best > THRESHOLD)
        colour, place = colours.argmax(1), background.argmax(1)
        for k in range(len(part)):
            findings = tuple(
                Finding(
                    OBJECTS[int(which[k, row, col])],
                    row + 0.5,
                    col + 0.5,
                    COLOURS[int(colour[k, row, col])],
                    float(best[k, row, col]),
                )
                for row, col in peaks[k].nonzero().tolist()
            )
            found.append(Detection(BACKGROUNDS[int(place[k])], findings))
    return found
