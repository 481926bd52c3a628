"""Emu3's picture tokenizer (MoVQ, "Emu3VisionVQ"): pictures to codes and back, eight pixels a side for one code.

The published network works on clips of four frames; a single picture is a clip of four equal frames, and the picture
that comes back is the first of four. Its convolutions over time look at the past only, so the first frame never sees
the others: decoding computes that one frame alone, a quarter of the published work with the same result. Encoding
computes the equal frames once and repeats them before the (narrow) convolutions over time.

How far a code reaches: the decoder's convolutions carry it 24 code rows (published sizes), but GroupNorm (statistics
of the whole picture) and attention (all codes, at code resolution) connect everything. A part is thus never exact:
``decode`` takes any number of rows, a preview decodes the new rows with up to 24 rows of context above them, and the
finished picture is always decoded whole. At 90 columns every row so decoded, context too, takes about 0.17 TFLOP.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_NORM_EPS, _GROUPS, _BATCH_NORM_EPS = 1e-6, 32, 1e-5
_CHUNK = 2048  # positions compared with the whole codebook at once: 256 MiB with 32768 codes


@dataclass(frozen=True)
class MoVQSpec:
    """Sizes: ``channels`` at full resolution, ``multiplier`` of them at each halving, blocks for each resolution."""

    codes: int
    code_dim: int
    channels: int
    multiplier: tuple[int, ...]
    blocks: int
    attention_levels: tuple[int, ...]
    frames: int

    def __post_init__(self) -> None:
        if self.channels % _GROUPS:
            raise ValueError(f"channels must be a multiple of {_GROUPS}, got {self.channels}")
        if self.frames < 1 or self.frames & (self.frames - 1):
            raise ValueError(f"frames must be a power of two, got {self.frames}")

    @property
    def patch(self) -> int:
        """Pixels a side of the square that one code stands for."""
        return 1 << (len(self.multiplier) - 1)

    @property
    def time_steps(self) -> int:
        """Halvings of the number of frames."""
        return self.frames.bit_length() - 1

    def widths(self) -> list[int]:
        return [self.channels * factor for factor in self.multiplier]


class _PlainNorm(nn.GroupNorm):
    def __init__(self, width: int) -> None:
        super().__init__(_GROUPS, width, eps=_NORM_EPS)

    def forward(self, x: Tensor, codes: Tensor | None = None) -> Tensor:
        return super().forward(x)


class _SpatialNorm(nn.Module):
    """GroupNorm whose scale and shift come from the code vectors under each pixel."""

    def __init__(self, width: int, code_dim: int) -> None:
        super().__init__()
        self.norm_layer = nn.GroupNorm(_GROUPS, width, eps=_NORM_EPS)
        self.conv_y = nn.Conv2d(code_dim, width, 1)
        self.conv_b = nn.Conv2d(code_dim, width, 1)

    def forward(self, x: Tensor, codes: Tensor | None = None) -> Tensor:
        """``x`` [B, width, h, w], ``codes`` [B, code_dim, rows, cols]."""
        assert codes is not None
        scale, shift = (F.interpolate(conv(codes), size=x.shape[-2:]) for conv in (self.conv_y, self.conv_b))
        normed: Tensor = self.norm_layer(x)
        return normed * scale + shift


def _norm(width: int, code_dim: int | None) -> nn.Module:
    return _PlainNorm(width) if code_dim is None else _SpatialNorm(width, code_dim)


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, code_dim: int | None) -> None:
        super().__init__()
        self.norm1 = _norm(before, code_dim)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.norm2 = _norm(after, code_dim)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, codes: Tensor | None) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x, codes)))
        y = self.conv2(F.silu(self.norm2(y, codes)))
        out: Tensor = self.nin_shortcut(x) + y
        return out


class _Attention(nn.Module):
    """One head over all positions of the picture."""

    def __init__(self, width: int, code_dim: int | None) -> None:
        super().__init__()
        self.norm = _norm(width, code_dim)
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.proj_out = nn.Linear(width, width)

    def forward(self, x: Tensor, codes: Tensor | None) -> Tensor:
        flat = self.norm(x, codes).flatten(2).transpose(1, 2)[:, None]  # [B, 1, h * w, width]
        y = F.scaled_dot_product_attention(self.q(flat), self.k(flat), self.v(flat))
        y = self.proj_out(y)[:, 0].transpose(1, 2).unflatten(2, x.shape[-2:])
        out: Tensor = x + y
        return out


class _Level(nn.Module):
    """The blocks of one resolution and the step to the next one."""

    def __init__(
        self, before: int, after: int, blocks: int, attends: bool, code_dim: int | None, resample: nn.Module
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(_Residual(before if i == 0 else after, after, code_dim) for i in range(blocks))
        self.attn = nn.ModuleList(_Attention(after, code_dim) for _ in range(blocks if attends else 0))
        self.resample = resample

    def forward(self, x: Tensor, codes: Tensor | None) -> Tensor:
        for i, block in enumerate(self.block):
            x = block(x, codes)
            if self.attn:
                x = self.attn[i](x, codes)
        out: Tensor = self.resample(x)
        return out


class _Middle(nn.Module):
    def __init__(self, width: int, code_dim: int | None) -> None:
        super().__init__()
        self.block_1 = _Residual(width, width, code_dim)
        self.attn_1 = _Attention(width, code_dim)
        self.block_2 = _Residual(width, width, code_dim)

    def forward(self, x: Tensor, codes: Tensor | None) -> Tensor:
        out: Tensor = self.block_2(self.attn_1(self.block_1(x, codes), codes), codes)
        return out


class _Down(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.pad(x, (0, 1, 0, 1)))
        return out


class _Up(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.interpolate(x, scale_factor=2.0))
        return out


class _TimeConv(nn.Module):
    """A convolution over [B, channels, frames, h, w] that sees two frames of the past (before the first: zeros)."""

    def __init__(self, before: int, after: int, kernel: tuple[int, int, int], stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv3d(before, after, kernel, stride=(stride, 1, 1))
        self._side = kernel[1] // 2

    def forward(self, x: Tensor) -> Tensor:
        side = self._side
        out: Tensor = self.conv(F.pad(x, (side, side, side, side, 2, 0)))
        return out


class _TimeResample(nn.Module):
    """One step of time resampling; the class exists for its place in the weights' names (``conv.conv``)."""

    def __init__(self, width: int, kernel: tuple[int, int, int], stride: int) -> None:
        super().__init__()
        self.conv = _TimeConv(width, width, kernel, stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.silu(self.conv(x))
        return out


class _FrozenBatchNorm(nn.Module):
    """BatchNorm with the statistics of the file, whatever mode the module is in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.running_mean: Tensor
        self.running_var: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=_BATCH_NORM_EPS)


class _TimeResidual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = _FrozenBatchNorm(width)
        self.conv1 = _TimeConv(width, width, (3, 3, 3))
        self.norm2 = _FrozenBatchNorm(width)
        self.conv2 = _TimeConv(width, width, (3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        out: Tensor = x + self.conv2(F.silu(self.norm2(y)))
        return out


class _Encoder(nn.Module):
    def __init__(self, spec: MoVQSpec) -> None:
        super().__init__()
        self._frames = spec.frames
        widths = spec.widths()
        self.conv_in = nn.Conv2d(3, spec.channels, 3, padding=1)
        self.down = nn.ModuleList()
        for i, (before, after) in enumerate(zip([spec.channels, *widths], widths, strict=False)):
            step = _Down(after) if i < len(widths) - 1 else nn.Identity()
            self.down.append(_Level(before, after, spec.blocks, i in spec.attention_levels, None, step))
        self.mid = _Middle(widths[-1], None)
        self.norm_out = _PlainNorm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], spec.code_dim, 3, padding=1)
        self.time_conv = nn.ModuleList(_TimeResample(spec.code_dim, (4, 3, 3), 2) for _ in range(spec.time_steps))
        self.time_res_stack = nn.ModuleList(_TimeResidual(spec.code_dim) for _ in range(spec.blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [B, 3, H, W] in -1..1 -> [B, code_dim, 1, rows, cols]."""
        x = self.conv_in(x)
        for level in self.down:
            x = level(x, None)
        x = self.conv_out(F.silu(self.norm_out(self.mid(x, None))))
        x = x[:, :, None].repeat(1, 1, self._frames, 1, 1)
        for layer in [*self.time_conv, *self.time_res_stack]:
            x = layer(x)
        return x


class _Decoder(nn.Module):
    def __init__(self, spec: MoVQSpec) -> None:
        super().__init__()
        widths, code_dim = spec.widths(), spec.code_dim
        self.time_res_stack = nn.ModuleList(_TimeResidual(code_dim) for _ in range(spec.blocks))
        self.time_conv = nn.ModuleList(_TimeResample(code_dim, (3, 3, 3), 1) for _ in range(spec.time_steps))
        self.conv_in = nn.Conv2d(code_dim, widths[-1], 3, padding=1)
        self.mid = _Middle(widths[-1], code_dim)
        self.up = nn.ModuleList()
        for i, after in enumerate(widths):
            before = widths[min(i + 1, len(widths) - 1)]
            step = _Up(after) if i > 0 else nn.Identity()
            self.up.append(_Level(before, after, spec.blocks + 1, i in spec.attention_levels, code_dim, step))
        self.norm_out = _SpatialNorm(widths[0], code_dim)
        self.conv_out = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        """``x`` and code vectors ``codes`` [B, code_dim, 1, rows, cols] -> pictures [B, 3, H, W] in about -1..1."""
        both = torch.cat((x, codes))
        for layer in [*self.time_res_stack, *self.time_conv]:  # the first frame alone: see the top of this file
            both = layer(both)
        x, codes = both.squeeze(2).chunk(2)
        x = self.mid(self.conv_in(x), codes)
        for level in reversed(self.up):
            x = level(x, codes)
        out: Tensor = self.conv_out(F.silu(self.norm_out(x, codes)))
        return out


class Emu3Pixels(nn.Module):
    """The picture tokenizer, kept in float32. Parameter names follow the original repository's."""

    def __init__(self, spec: MoVQSpec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = _Encoder(spec)
        self.decoder = _Decoder(spec)
        self.codebook = nn.Parameter(torch.empty(spec.codes, spec.code_dim))
        self.quant_conv = _TimeConv(spec.code_dim, spec.code_dim, (3, 1, 1))
        self.post_quant_conv = _TimeConv(spec.code_dim, spec.code_dim, (3, 1, 1))

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, rows, cols] -> pictures float32 [B, 8 rows, 8 cols, 3] in 0..1.

        One picture after the other: at 720 pixels each layer of the last resolution holds half a gigabyte.
        """
        if codes.ndim != 3:
            raise ValueError(f"got codes of shape {tuple(codes.shape)}, expected [B, rows, cols]")
        pictures = []
        for picture in codes:
            vectors = self.codebook[picture].permute(2, 0, 1)[None, :, None]  # [1, code_dim, 1, rows, cols]
            pictures.append(self.decoder(self.post_quant_conv(vectors), vectors))
        return ((torch.cat(pictures).clamp(-1, 1) + 1) / 2).permute(0, 2, 3, 1).float()

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Pictures float32 [B, H, W, 3] in 0..1, H and W multiples of 8 -> codes int64 [B, H / 8, W / 8]."""
        patch = self.spec.patch
        if images.ndim != 4 or images.shape[3] != 3 or images.shape[1] % patch or images.shape[2] % patch:
            raise ValueError(
                f"got images of shape {tuple(images.shape)}, expected [B, H, W, 3] with H and W multiples of {patch}"
            )
        codes = []
        for image in images.permute(0, 3, 1, 2):
            features = self.quant_conv(self.encoder(image[None] * 2 - 1))[0, :, 0]  # [code_dim, rows, cols]
            codes.append(self._nearest(features.permute(1, 2, 0)))
        return torch.stack(codes)

    def _nearest(self, features: Tensor) -> Tensor:
        """The codebook entry next to each vector: [..., code_dim] -> int64 [...]."""
        flat = features.reshape(-1, features.shape[-1])
        squares = self.codebook.square().sum(1)
        found = []
        for start in range(0, len(flat), _CHUNK):
            part = flat[start : start + _CHUNK]
            distances = part.square().sum(1, keepdim=True) + squares - 2 * part @ self.codebook.t()
            found.append(distances.argmin(1))
        return torch.cat(found).view(features.shape[:-1])
