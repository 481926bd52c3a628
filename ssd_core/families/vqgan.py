"""A VQGAN: pictures to codes and back, one code for a patch of 16x16 pixels or so. Always float32.

A convolutional encoder and decoder (Esser et al., "Taming Transformers", 2021): residual blocks with GroupNorm, one
self-attention in the middle and, where the spec says so, one after every block of the coarsest level; a factor of two
between levels. It fits any grid. Attribute names are those of the original files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SSDError

GROUPS = 32
"""Groups of every GroupNorm: all channel counts are multiples of it."""


@dataclass(frozen=True)
class VQGANSpec:
    """Sizes of the network.

    ``multipliers``: channels of each level, finest first, as multiples of ``base``. ``coarse_attention``: attention
    after every block of the coarsest level, not only in the middle. ``unit_codes``: codebook entries and features
    count by direction alone (L2-normalised, as in LlamaGen and Janus).
    """

    base: int
    multipliers: tuple[int, ...]
    blocks: int
    latent: int
    codes: int
    code_dim: int
    coarse_attention: bool
    unit_codes: bool

    def __post_init__(self) -> None:
        if self.base % GROUPS or not self.multipliers:
            raise SSDError(
                f"the pixel decoder has {self.base} channels on {len(self.multipliers)} levels, expected a multiple of "
                f"{GROUPS} and at least one level; the files are not those of a VQGAN"
            )

    @classmethod
    def of_shapes(
        cls, shape_of: Callable[[str], tuple[int, ...] | None], *, coarse_attention: bool, unit_codes: bool
    ) -> VQGANSpec:
        """Reads the sizes off a file; ``shape_of``: parameter name of `VQGAN` -> shape there, or None.

        Raises SSDError when a tensor is missing that every VQGAN has.
        """

        def need(name: str, dimensions: int) -> tuple[int, ...]:
            shape = shape_of(name)
            if shape is None or len(shape) != dimensions:
                raise SSDError(
                    f"no pixel decoder in these weights: got {'none' if shape is None else list(shape)} for {name}, "
                    f"expected {dimensions} dimensions; the files are incomplete or of another model"
                )
            return shape

        base = need("encoder.conv_in.weight", 4)[0]
        widths: list[int] = []
        blocks = 0
        while shape_of(f"encoder.down.{len(widths)}.block.0.conv1.weight") is not None:
            widths.append(need(f"encoder.down.{len(widths)}.block.0.conv1.weight", 4)[0])
        while shape_of(f"encoder.down.0.block.{blocks}.conv1.weight") is not None:
            blocks += 1
        codes, code_dim = need("codebook", 2)
        multipliers = tuple(width // max(1, base) for width in widths)
        latent = need("encoder.conv_out.weight", 4)[0]
        return cls(base, multipliers, blocks, latent, codes, code_dim, coarse_attention, unit_codes)

    @property
    def patch(self) -> int:
        """Pixels a side of the patch that one code stands for."""
        return int(2 ** (len(self.multipliers) - 1))

    @property
    def widths(self) -> list[int]:
        """Channels of each level, finest first."""
        return [self.base * multiplier for multiplier in self.multipliers]


class _Residual(nn.Module):
    """Two normalised 3x3 convolutions around a skip."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1 = _norm(inner)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2 = _norm(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(inner, outer, 1) if inner != outer else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        out: Tensor = y + (x if self.nin_shortcut is None else self.nin_shortcut(x))
        return out


class _Attention(nn.Module):
    """Self-attention with one head over all positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _norm(width)
        self.q = nn.Conv2d(width, width, 1)
        self.k = nn.Conv2d(width, width, 1)
        self.v = nn.Conv2d(width, width, 1)
        self.proj_out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = (layer(normed).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))  # [n, h * w, width]
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        out: Tensor = x + self.proj_out(y)
        return out


class _Middle(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.block_1 = _Residual(width, width)
        self.attn_1 = _Attention(width)
        self.block_2 = _Residual(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block_2(self.attn_1(self.block_1(x)))
        return out


class _Downsample(nn.Module):
    """Halves both sides; the zero padding is on the right and at the bottom only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.pad(x, (0, 1, 0, 1)))
        return out


class _Upsample(nn.Module):
    """Doubles both sides."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return out


class _Level(nn.Module):
    """Residual blocks at one resolution, each with an attention behind it or none, then the way to the next level."""

    def __init__(self, inner: int, outer: int, blocks: int, attention: bool) -> None:
        super().__init__()
        self.block = nn.ModuleList(_Residual(inner if i == 0 else outer, outer) for i in range(blocks))
        self.attn = nn.ModuleList(_Attention(outer) for _ in range(blocks if attention else 0))
        self.downsample: _Downsample | None = None
        self.upsample: _Upsample | None = None

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.block):
            x = block(x)
            if len(self.attn):
                x = self.attn[index](x)
        for resize in (self.downsample, self.upsample):
            x = x if resize is None else resize(x)
        return x


class _Encoder(nn.Module):
    def __init__(self, spec: VQGANSpec) -> None:
        super().__init__()
        widths, last = spec.widths, len(spec.widths) - 1
        self.conv_in = nn.Conv2d(3, spec.base, 3, padding=1)
        self.down = nn.ModuleList()
        for index, width in enumerate(widths):
            inner = widths[index - 1] if index else spec.base
            level = _Level(inner, width, spec.blocks, spec.coarse_attention and index == last)
            if index < last:
                level.downsample = _Downsample(width)
            self.down.append(level)
        self.mid = _Middle(widths[-1])
        self.norm_out = _norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], spec.latent, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        out: Tensor = self.conv_out(F.silu(self.norm_out(self.mid(x))))
        return out


class _Decoder(nn.Module):
    """``up`` is stored finest level first and run in reverse."""

    def __init__(self, spec: VQGANSpec) -> None:
        super().__init__()
        widths, last = spec.widths, len(spec.widths) - 1
        self.conv_in = nn.Conv2d(spec.latent, widths[-1], 3, padding=1)
        self.mid = _Middle(widths[-1])
        self.up = nn.ModuleList()
        for index, width in enumerate(widths):
            inner = widths[min(index + 1, last)]
            level = _Level(inner, width, spec.blocks + 1, spec.coarse_attention and index == last)
            if index:
                level.upsample = _Upsample(width)
            self.up.append(level)
        self.norm_out = _norm(widths[0])
        self.conv_out = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid(self.conv_in(x))
        for level in reversed(self.up):
            x = level(x)
        out: Tensor = self.conv_out(F.silu(self.norm_out(x)))
        return out


class VQGAN(nn.Module):
    """Encoder, codebook [codes, code_dim] and decoder."""

    def __init__(self, spec: VQGANSpec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = _Encoder(spec)
        self.quant_conv = nn.Conv2d(spec.latent, spec.code_dim, 1)
        self.codebook = nn.Parameter(torch.zeros(spec.codes, spec.code_dim))
        self.post_quant_conv = nn.Conv2d(spec.code_dim, spec.latent, 1)
        self.decoder = _Decoder(spec)

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Images float32 [batch, height, width, 3] in 0..1 -> codes int64 [batch, height / patch, width / patch].

        Raises SSDError unless both sides are multiples of ``spec.patch``.
        """
        patch = self.spec.patch
        if images.ndim != 4 or images.shape[3] != 3 or images.shape[1] % patch or images.shape[2] % patch:
            raise SSDError(
                f"got images of shape {list(images.shape)}, expected [batch, height, width, 3] with height and width "
                f"multiples of {patch}; crop or scale them first"
            )
        book = self._directions(self.codebook)
        squares = book.square().sum(1)
        codes = []
        for image in images:  # one by one: the peak memory is that of one picture
            picture = image.permute(2, 0, 1)[None].to(self.codebook)
            features = self.quant_conv(self.encoder(picture * 2 - 1))[0].permute(1, 2, 0)  # [rows, cols, code_dim]
            codes.append((squares - 2 * self._directions(features) @ book.t()).argmin(-1))
        return torch.stack(codes)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [batch, rows, cols] -> images float32 [batch, rows * patch, cols * patch, 3] in 0..1."""
        images = []
        for grid in codes:
            quantised = self._directions(self.codebook[grid]).permute(2, 0, 1)[None]  # [1, code_dim, rows, cols]
            images.append((self.decoder(self.post_quant_conv(quantised)).clamp(-1, 1) + 1) / 2)
        return torch.cat(images).permute(0, 2, 3, 1)

    def _directions(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1) if self.spec.unit_codes else vectors


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(GROUPS, width, eps=1e-6)
