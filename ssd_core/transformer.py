"""A lean Llama-style decoder: embeddings in, pre-norm features out, keys and values in a static cache.

It knows neither tokens, images, heads nor CUDA graphs. Embeddings and the output head belong to the backbone
(``families/``); which slots are fed and what each query may see is told by a :class:`CacheWindow`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention_kernels import without_cudnn_attention
from .runner import NewTensor, new_tensor

Rotary = tuple[Tensor, Tensor]
"""Cosines and signed sines of ``rope_table``, for ``rotate``."""


@dataclass(frozen=True)
class DecoderSpec:
    """The shape of a decoder. Sizes are counts; ``norm_eps`` is RMSNorm's epsilon."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    qk_norm: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary embeddings, got {self.head_dim}")

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads


class KVCache:
    """Keys and values of every layer, written at any slot, never moved.

    ``keys`` and ``values`` are [layers, sequences, slots + 1, kv_heads, head_dim]. The last slot is scratch: padding
    queries write there and no mask ever shows it.
    """

    def __init__(
        self, spec: DecoderSpec, sequences: int, slots: int, dtype: torch.dtype, device: torch.device,
        tensor: NewTensor = new_tensor,
    ) -> None:  # fmt: skip
        shape = (spec.layers, sequences, slots + 1, spec.kv_heads, spec.head_dim)
        self.keys = tensor("keys", shape, dtype, device, scratch=2, repeatable=True)
        self.values = tensor("values", shape, dtype, device, scratch=2, repeatable=True)
        self.sequences = sequences
        self.slots = slots

    @property
    def scratch(self) -> int:
        """The slot that padding queries write to."""
        return self.slots

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores keys and values [sequences, q, kv_heads, head_dim] at flat rows [sequences * q]."""
        width = keys.shape[-2] * keys.shape[-1]
        self.keys[layer].view(-1, width).index_copy_(0, rows, keys.reshape(-1, width))
        self.values[layer].view(-1, width).index_copy_(0, rows, values.reshape(-1, width))


@dataclass(frozen=True)
class CacheWindow:
    """Where one forward writes and what it sees.

    ``rows``: int64 [sequences * q], flat indices ``sequence * (slots + 1) + slot``.
    ``length``: the first ``length`` slots take part in attention.
    ``mask``: [sequences or 1, 1, q, length], bool (True where a query may look) or numbers to add to the scores, or
    None when every query sees them all. Given as [.., group * q, length], once for each query head of a group, no
    layer has to repeat it.
    """

    rows: Tensor
    length: int
    mask: Tensor | None


def rope_table(positions: Tensor, head_dim: int, theta: float) -> Rotary:
    """Rotary tables in float32 for ``positions`` [..., axes].

    The ``head_dim / 2`` frequencies are split evenly over the axes, so one axis is plain Llama RoPE and two axes
    (row, column) turn half of the frequencies each. Returns [..., head_dim] each: every angle's cosine twice, and its
    sine first negative, then positive, as ``rotate`` multiplies them.
    """
    axes = positions.shape[-1]
    if head_dim % (2 * axes):
        raise ValueError(f"head_dim {head_dim} cannot be split over {axes} rope axes")
    part = head_dim // axes
    exponent = torch.arange(0, part, 2, dtype=torch.int64, device=positions.device).float() / part
    frequencies = 1.0 / (theta**exponent)  # [part / 2]
    angles = positions.float()[..., None] * frequencies  # [..., axes, part / 2]
    angles = angles.flatten(-2)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Turns ``x`` [sequences, q, heads, head_dim] by tables [q, head_dim] or [sequences, q, head_dim]."""
    cos, sin = (t.to(x.dtype).unsqueeze(-2) for t in rotary)
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


class RMSNorm(nn.Module):
    """x / rms(x) * weight; half precision is normalised in float32 and rounded before the weight, as Llama does."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        shape = self.weight.shape
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, shape, self.weight, self.eps)
        return self.weight * F.rms_norm(x.float(), shape, eps=self.eps).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped key/value heads."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.qkv = nn.Linear(spec.hidden, (spec.heads + 2 * spec.kv_heads) * spec.head_dim, bias=False)
        self.out = nn.Linear(spec.heads * spec.head_dim, spec.hidden, bias=False)
        if spec.qk_norm:
            self.q_norm = HeadNorm(spec.heads, spec.head_dim)
            self.k_norm = HeadNorm(spec.kv_heads, spec.head_dim)

    def forward(
        self, x: Tensor, rotary: Rotary, layer: int, cache: KVCache | None, window: CacheWindow | None
    ) -> Tensor:
        spec = self.spec
        n, q, _ = x.shape
        qkv = self.qkv(x).view(n, q, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        if spec.qk_norm:
            queries, keys, values = torch.split(qkv, [spec.heads, spec.kv_heads, spec.kv_heads], dim=2)
            turned = torch.cat((self.q_norm(queries), self.k_norm(keys)), dim=2)
        else:
            turned, values = torch.split(qkv, [spec.heads + spec.kv_heads, spec.kv_heads], dim=2)
        queries, keys = torch.split(rotate(turned, rotary), [spec.heads, spec.kv_heads], dim=2)
        if cache is None or window is None:
            y = F.scaled_dot_product_attention(
                queries.transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                is_causal=True,
                enable_gqa=spec.group > 1,
            ).transpose(1, 2)  # [n, q, heads, head_dim]
        else:
            cache.write(layer, window.rows, keys, values)
            y = self._attend(queries, cache.keys[layer], cache.values[layer], window)
        out: Tensor = self.out(y.reshape(n, q, -1))
        return out

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, window: CacheWindow) -> Tensor:
        """Attention over the cache. A group of query heads is laid out as extra queries, so nothing is repeated."""
        spec = self.spec
        n, q = queries.shape[:2]
        grouped = queries.view(n, q, spec.kv_heads, spec.group, spec.head_dim).permute(0, 2, 3, 1, 4)
        grouped = grouped.reshape(n, spec.kv_heads, spec.group * q, spec.head_dim)
        mask = window.mask
        if mask is not None and mask.shape[2] != spec.group * q:
            mask = mask.repeat(1, 1, spec.group, 1)
        y = F.scaled_dot_product_attention(
            grouped,
            keys[:, : window.length].transpose(1, 2),
            values[:, : window.length].transpose(1, 2),
            attn_mask=mask,
        )
        return y.view(n, spec.kv_heads, spec.group, q, spec.head_dim).permute(0, 3, 1, 2, 4)


class HeadNorm(nn.Module):
    """LayerNorm over each head's channels with weights of its own (Chameleon's query/key norm, eps 1e-5)."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, head_dim))
        self.bias = nn.Parameter(torch.zeros(heads, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight + self.bias


class MLP(nn.Module):
    """SwiGLU with gate and up in one matrix."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.gate_up = nn.Linear(spec.hidden, 2 * spec.intermediate, bias=False)
        self.down = nn.Linear(spec.intermediate, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class Layer(nn.Module):
    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(spec.hidden, spec.norm_eps)
        self.attention = Attention(spec)
        self.mlp_norm = RMSNorm(spec.hidden, spec.norm_eps)
        self.mlp = MLP(spec)

    def forward(
        self, x: Tensor, rotary: Rotary, layer: int, cache: KVCache | None, window: CacheWindow | None
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, layer, cache, window)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Decoder(nn.Module):
    """The decoder stack without embeddings, final norm and output head."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))

    def forward(
        self, x: Tensor, rotary: Rotary, cache: KVCache | None = None, window: CacheWindow | None = None
    ) -> Tensor:
        """Maps embeddings [sequences, q, hidden] to features of the same shape, *before* the final norm.

        With ``cache`` and ``window`` the queries' keys and values are stored first and then attended to; without
        them it is plain causal attention over the q positions (training).
        """
        with without_cudnn_attention(x.device):
            for index, layer in enumerate(self.layers):
                x = layer(x, rotary, index, cache, window)
        return x

    def first_nonfinite(self, x: Tensor, rotary: Rotary, cache: KVCache, window: CacheWindow) -> str | None:
        """Names the first place where NaN or infinity appears when ``x`` is fed, or None; used to word an error."""
        if not bool(torch.isfinite(x).all()):
            return "the input embeddings"
        for index, layer in enumerate(self.layers):
            x = layer(x, rotary, index, cache, window)
            if not bool(torch.isfinite(x).all()):
                return f"decoder layer {index} of {len(self.layers)}"
        return None
