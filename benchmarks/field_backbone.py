"""A synthetic backbone with flat distributions on grids as large as Lumina-mGPT's and Emu3's, and its exact law.

A code depends on codes around it through bilinear forms: logits(c) = sum over places k of e(code at k)^T M_k e(c), with
random unit embeddings e and M_k part identity (pictures are smooth), part rotation (but not constant). Places are two
codes to the left and two rows above, out to some columns on both sides with falling weight, so that a code hangs on
what comes later in the row above, as in pictures. ``strength`` scales all: 10 is nearly noise, and at 20 one changed
code changes most of those that look at it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ssd_core import AR, Backbone, Sampling, SpatialHeads, generate
from ssd_core.families.base import PromptRows
from ssd_core.heads import Direction, HeadsSpec
from ssd_core.stream import Stream
from ssd_core.transformer import CacheWindow, DecoderSpec, KVCache, Rotary

CODES, WIDTH = 512, 16
FALL = 3.0
"""Columns over which the weight of a place above falls to 1/e; places reach four times as far."""
HORIZONTAL, VERTICAL = (1, 2, 3, 4, 5), (1, 2, 3)


class FieldDecoder(nn.Module):
    """The feature of a stream position: the sum of its neighbours' embeddings through their matrices.

    It reads them from the key cache, where a transformer would keep what it needs to look at.
    """

    def __init__(self, cols: int, matrices: dict[tuple[int, int], Tensor]) -> None:
        super().__init__()
        self.spec = DecoderSpec(WIDTH, 1, 1, 1, WIDTH, WIDTH, 1e-6)
        self._cols = cols
        up, right = zip(*matrices, strict=True)
        self.up, self.right = torch.tensor(up), torch.tensor(right)
        self.matrices = nn.Parameter(torch.stack(list(matrices.values())), requires_grad=False)  # [places, from, to]

    def forward(
        self, x: Tensor, rotary: Rotary, cache: KVCache | None = None, window: CacheWindow | None = None
    ) -> Tensor:
        assert cache is not None
        assert window is not None
        cache.write(0, window.rows, x[:, :, None], x[:, :, None])
        sequences, width, _ = x.shape
        positions = window.rows.view(sequences, width) % (cache.slots + 1)  # slot 0 is the prompt's only token
        row, column = positions // self._cols, positions % self._cols
        rows, columns = row[..., None] - self.up, column[..., None] + self.right  # [sequences, width, places]
        inside = (rows >= 0) & (columns >= 0) & (columns < self._cols)
        slots = (rows * self._cols + columns + 1).clamp(0, cache.slots)
        kept = cache.keys[0, :, :, 0][torch.arange(sequences)[:, None, None], slots]
        return torch.einsum("swpi,pij->swj", kept * inside[..., None], self.matrices)

    def first_nonfinite(self, x: Tensor, rotary: Rotary, cache: KVCache, window: CacheWindow) -> str | None:
        return None


class FieldBackbone(Backbone):
    """One grid, no prompt, no pixels to speak of."""

    def __init__(self, rows: int, cols: int, strength: float, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.name = self.fingerprint = f"field-{strength:g}"
        self.codes, self.grids, self.patch, self.rope_theta = CODES, ((rows, cols),), 1, 100.0
        self.default_sampling = Sampling()
        matrices = {}
        for place, weight in _weights().items():
            turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator)).Q
            matrices[place] = strength * weight * math.sqrt(0.5) * (torch.eye(WIDTH) + turn)
        self.decoder = FieldDecoder(cols, matrices)  # type: ignore[assignment]
        book = torch.randn(CODES, WIDTH, generator=generator)
        self.book = nn.Parameter(nn.functional.normalize(book, dim=-1), requires_grad=False)

    def stream(self, grid: tuple[int, int]) -> Stream:
        return Stream(*self.check_grid(grid), None)

    def prompt_rows(self, prompts: Sequence[str], negative: str, grid: tuple[int, int], guided: bool) -> PromptRows:
        count = len(prompts) * (1 + guided)
        places = torch.arange(1.0 + grid[0] * grid[1])[None, :, None]
        return PromptRows(torch.zeros(count, 1, WIDTH), [0] * count, places[:, :1], places[:, 1:])

    def embed(self, tokens: Tensor) -> Tensor:
        return self.book[tokens]

    def logits(self, features: Tensor) -> Tensor:
        return features @ self.book.T

    def decode_pixels(self, codes: Tensor) -> Tensor:
        return (codes.float() / self.codes)[..., None].expand(-1, -1, -1, 3)

    def encode_pixels(self, images: Tensor) -> Tensor:
        return (images[..., 0] * self.codes).round().long()

    def true_features(self, codes: Tensor) -> Tensor:
        """Features [rows, cols, hidden] of a picture's codes [rows, cols], by shifting the whole picture."""
        values = self.book[codes]
        rows, cols, _ = values.shape
        found = torch.zeros_like(values)
        own: FieldDecoder = self.decoder  # type: ignore[assignment]
        for up, right, matrix in zip(own.up.tolist(), own.right.tolist(), own.matrices, strict=True):
            ys, xs = torch.arange(rows)[:, None] - up, torch.arange(cols)[None] + right
            inside = (ys >= 0) & (xs >= 0) & (xs < cols)
            found += (values[ys.clamp(min=0), xs.clamp(0, cols - 1)] * inside[..., None]) @ matrix
        return found

    def law(self, codes: Tensor) -> Tensor:
        """Log-probabilities [rows, cols, codes] of every cell given the cells before it."""
        return self.logits(self.true_features(codes)).log_softmax(-1)


def _weights() -> dict[tuple[int, int], float]:
    """Place (rows up, columns to the right) -> weight; they sum to 1, half of it to the left."""
    reach = round(4 * FALL)
    above = {right: math.exp(-abs(right) / FALL) for right in range(-reach, reach + 1)}
    total = 2 * sum(above.values())
    weights = {(0, -1): 0.35, (0, -2): 0.15}
    for up, share in ((1, 0.75), (2, 0.25)):
        weights |= {(up, right): share * weight / total for right, weight in above.items()}
    return weights


def field_heads(backbone: FieldBackbone, pictures: int = 2) -> SpatialHeads:
    """Neighbour-aware heads by least squares on the backbone's own pictures: the linear part of a trained head."""
    heads = SpatialHeads.new(HeadsSpec(WIDTH, HORIZONTAL, VERTICAL, neighbours=1), seed=0)
    drawn = [generate(backbone, "", schedule=AR(), seed=10**6 + n).tokens[0] for n in range(pictures)]
    for direction in ("horizontal", "vertical"):
        for offset in heads.offsets(direction):
            x, y = zip(*(_pairs(backbone, codes, direction, offset) for codes in drawn), strict=True)
            inputs, wanted = torch.cat(x), torch.cat(y)
            ridge = 1e-2 * torch.eye(inputs.shape[1])
            solution = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ wanted)
            heads.head(direction, offset).mix.weight.data.copy_(solution.T)
    return heads.requires_grad_(False).eval()


def _pairs(backbone: FieldBackbone, codes: Tensor, direction: Direction, offset: int) -> tuple[Tensor, Tensor]:
    """What a head reads [n, sources * 2 * hidden] and the feature [n, hidden] that it shall predict."""
    features, embeddings = backbone.true_features(codes), backbone.book[codes]
    rows, cols, _ = features.shape
    down, right, reach = (offset, 0, 1) if direction == "vertical" else (0, offset, 0)
    ys, xs = torch.meshgrid(torch.arange(rows - down), torch.arange(cols - right), indexing="ij")
    beside = [xs + shift for shift in range(-reach, reach + 1)]
    beside = [torch.where((x >= 0) & (x < cols), x, xs) for x in beside]  # at an edge the source itself
    read = torch.cat([side[ys, x] for side in (features, embeddings) for x in beside], -1)
    return read.flatten(0, 1), features[ys + down, xs + right].flatten(0, 1)
