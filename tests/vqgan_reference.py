"""Chameleon's VQGAN computed straight from the tensors of Meta's file, formula by formula. Written for tests only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def vqgan_shapes(
    base: int, multipliers: tuple[int, ...], blocks: int, latent: int, codes: int, code_dim: int
) -> Shapes:
    """Names and shapes of the tensors of ``vqgan.ckpt``, its loss aside."""
    shapes: Shapes = {"quantize.embedding.weight": (codes, code_dim)}
    widths = [base * m for m in multipliers]
    deepest, last = widths[-1], len(widths) - 1

    def conv(name: str, inner: int, outer: int, size: int = 3) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outer, inner, size, size), (outer,)

    def norm(name: str, width: int) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)

    def residual(name: str, inner: int, outer: int) -> None:
        norm(f"{name}.norm1", inner)
        conv(f"{name}.conv1", inner, outer)
        norm(f"{name}.norm2", outer)
        conv(f"{name}.conv2", outer, outer)
        if inner != outer:
            conv(f"{name}.nin_shortcut", inner, outer, 1)

    def middle(name: str) -> None:
        for block in ("block_1", "block_2"):
            residual(f"{name}.mid.{block}", deepest, deepest)
        norm(f"{name}.mid.attn_1.norm", deepest)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.mid.attn_1.{part}", deepest, deepest, 1)

    conv("encoder.conv_in", 3, base)
    width = base
    for level, outer in enumerate(widths):
        for block in range(blocks):
            residual(f"encoder.down.{level}.block.{block}", width, outer)
            width = outer
        if level < last:
            conv(f"encoder.down.{level}.downsample.conv", width, width)
    middle("encoder")
    norm("encoder.norm_out", deepest)
    conv("encoder.conv_out", deepest, latent)
    conv("quant_conv", latent, code_dim, 1)
    conv("post_quant_conv", code_dim, latent, 1)
    conv("decoder.conv_in", latent, deepest)
    middle("decoder")
    width = deepest
    for level in range(last, -1, -1):
        for block in range(blocks + 1):
            residual(f"decoder.up.{level}.block.{block}", width, widths[level])
            width = widths[level]
        if level:
            conv(f"decoder.up.{level}.upsample.conv", width, width)
    norm("decoder.norm_out", base)
    conv("decoder.conv_out", base, 3)
    return shapes


def random_vqgan(shapes: Shapes, seed: int = 5) -> State:
    """Weights that keep every layer's output near size 1; norms are not 1, and nothing is symmetric."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 4:
            state[name] = noise * (shape[1] * shape[2] * shape[3]) ** -0.5
        elif "norm" in name and name.endswith("weight"):
            state[name] = 1 + 0.25 * noise
        else:
            state[name] = noise if name.startswith("quantize") else 0.25 * noise
    return state


def decode(state: State, indices: Tensor) -> Tensor:
    """VQGAN indices [rows, cols] -> pixels [height, width, 3], not clamped, about -1..1."""
    x = state["quantize.embedding.weight"][indices].permute(2, 0, 1)[None]
    x = _conv(state, "post_quant_conv", x)
    x = _conv(state, "decoder.conv_in", x)
    x = _residual(state, "decoder.mid.block_1", x)
    x = _attention(state, "decoder.mid.attn_1", x)
    x = _residual(state, "decoder.mid.block_2", x)
    levels = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("decoder.up."))
    for level in range(levels - 1, -1, -1):
        block = 0
        while f"decoder.up.{level}.block.{block}.conv1.weight" in state:
            x = _residual(state, f"decoder.up.{level}.block.{block}", x)
            block += 1
        if level:
            x = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
            x = _conv(state, f"decoder.up.{level}.upsample.conv", x)
    x = _conv(state, "decoder.conv_out", _swish(_group_norm(state, "decoder.norm_out", x)))
    return x[0].permute(1, 2, 0)


def _conv(state: State, name: str, x: Tensor) -> Tensor:
    weight = state[f"{name}.weight"]
    return F.conv2d(x, weight, state[f"{name}.bias"], padding=weight.shape[-1] // 2)


def _group_norm(state: State, name: str, x: Tensor) -> Tensor:
    groups = x.reshape(32, -1)
    mean = groups.mean(1, keepdim=True)
    variance = (groups - mean).square().mean(1, keepdim=True)
    normed = ((groups - mean) / (variance + 1e-6).sqrt()).reshape(x.shape)
    return normed * state[f"{name}.weight"][:, None, None] + state[f"{name}.bias"][:, None, None]


def _swish(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _residual(state: State, name: str, x: Tensor) -> Tensor:
    y = _conv(state, f"{name}.conv1", _swish(_group_norm(state, f"{name}.norm1", x)))
    y = _conv(state, f"{name}.conv2", _swish(_group_norm(state, f"{name}.norm2", y)))
    return y + (_conv(state, f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in state else x)


def _attention(state: State, name: str, x: Tensor) -> Tensor:
    normed = _group_norm(state, f"{name}.norm", x)
    q, k, v = (_conv(state, f"{name}.{part}", normed)[0].flatten(1) for part in "qkv")  # [width, positions]
    weights = torch.softmax(q.T @ k / q.shape[0] ** 0.5, dim=1)
    return x + _conv(state, f"{name}.proj_out", (v @ weights.T).view(x.shape))
