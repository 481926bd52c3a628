"""The tokenizer of the embedded model: pictures to 8x8-patch codes and back (VQ, one codebook).

The encoder looks at one patch at a time, so a patch has the same code wherever it stands and whatever is around
it. The decoder is a small convolutional net without normalisation; it sees about five patches in each direction
and fits any grid.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PATCH = 8
"""Pixels a side of the patch that one code stands for."""


class _Residual(nn.Module):
    """Two 3x3 convolutions around a skip; the second starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(F.relu(self.first(F.relu(x))))
        return out


class EmojiPixels(nn.Module):
    """Patchwise vector-quantising tokenizer.

    Args:
        codes: Number of codebook entries V.
        code_dim: Width of a codebook entry.
        encoder_width: Hidden width of the patch encoder.
        decoder_widths: Channels of the decoder at 1/8, 1/4 and 1/2 of the picture's side.
    """

    def __init__(
        self,
        codes: int = 512,
        code_dim: int = 16,
        encoder_width: int = 256,
        decoder_widths: tuple[int, int, int] = (160, 80, 32),
    ) -> None:
        super().__init__()
        wide, middle, narrow = decoder_widths
        self.register_buffer("codebook", torch.randn(codes, code_dim))
        self.codebook: Tensor
        self.encoder = nn.Sequential(
            nn.Linear(3 * PATCH * PATCH, encoder_width),
            nn.GELU(),
            nn.Linear(encoder_width, encoder_width),
            nn.GELU(),
            nn.Linear(encoder_width, code_dim),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(code_dim, wide, 3, padding=1),
            _Residual(wide),
            _Residual(wide),
            nn.ReLU(),
            nn.Conv2d(wide, middle * 4, 1),
            nn.PixelShuffle(2),
            _Residual(middle),
            nn.ReLU(),
            nn.Conv2d(middle, narrow * 4, 1),
            nn.PixelShuffle(2),
            _Residual(narrow),
            nn.ReLU(),
            nn.Conv2d(narrow, 12, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def patch_features(self, images: Tensor) -> Tensor:
        """Encodes every patch by itself.

        Args:
            images: float [B, H, W, 3] in 0..1, H and W multiples of 8.

        Returns:
            float [B, H/8, W/8, code_dim], before quantisation.
        """
        if images.ndim != 4 or images.shape[3] != 3 or images.shape[1] % PATCH or images.shape[2] % PATCH:
            raise ValueError(
                f"got images of shape {tuple(images.shape)}, expected [B, H, W, 3] with H and W multiples of {PATCH}"
            )
        batch, height, width, _ = images.shape
        patches = images.reshape(batch, height // PATCH, PATCH, width // PATCH, PATCH, 3).transpose(2, 3)
        features: Tensor = self.encoder(patches.flatten(3) * 2 - 1)  # [B, rows, cols, code_dim]
        return features

    def nearest(self, features: Tensor) -> Tensor:
        """Index of the nearest codebook entry: float [..., code_dim] -> int64 [...]."""
        flat = features.reshape(-1, features.shape[-1])
        squares = self.codebook.square().sum(1)
        distances = squares - 2 * flat @ self.codebook.t()  # [N, V], up to a constant of each row
        return distances.argmin(1).view(features.shape[:-1])

    def pixels(self, features: Tensor) -> Tensor:
        """Decodes quantised features: float [B, rows, cols, code_dim] -> float [B, rows*8, cols*8, 3], not clamped."""
        grid = features.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        decoded: Tensor = self.decoder(grid)
        return (decoded.permute(0, 2, 3, 1) + 1) / 2

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Pictures to codes.

        Args:
            images: float32 [B, H, W, 3] in 0..1, H and W multiples of 8.

        Returns:
            int64 [B, H/8, W/8].
        """
        return self.nearest(self.patch_features(images))

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes to pictures.

        Args:
            codes: int64 [B, rows, cols], each in 0..V-1.

        Returns:
            float32 [B, rows*8, cols*8, 3] in 0..1.
        """
        if codes.ndim != 3:
            raise ValueError(f"got codes of shape {tuple(codes.shape)}, expected [B, rows, cols]")
        return self.pixels(self.codebook[codes]).clamp(0, 1).float()
