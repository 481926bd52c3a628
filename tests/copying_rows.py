"""A synthetic backbone that draws each row as a copy of the row above: what its vertical heads must learn is known."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from toys import PROMPT, ToyBackbone

from ssd_core.transformer import CacheWindow, DecoderSpec, KVCache, Rotary

SHARPNESS = 14.0


class _CopyDecoder(nn.Module):
    """The feature of a stream position is the embedding of the token one row above it; zeros in the first row."""

    def __init__(self, hidden: int, stride: int) -> None:
        super().__init__()
        self.spec = DecoderSpec(hidden, 1, 1, 1, hidden, hidden, 1e-6)
        self.back = stride - 1  # feeding token i - 1 gives feature i, which is token i - stride's embedding
        self.dtype_holder = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(
        self, x: Tensor, rotary: Rotary, cache: KVCache | None = None, window: CacheWindow | None = None
    ) -> Tensor:
        if cache is None or window is None:
            places = torch.arange(x.shape[1]) - self.back
            return torch.where((places >= PROMPT)[:, None], x[:, places.clamp(min=0)], 0.0)
        cache.write(0, window.rows, x[:, :, None], x[:, :, None])
        slots = window.rows % (cache.slots + 1) - self.back
        sources = torch.where(slots >= PROMPT, window.rows - self.back, 0)
        kept = cache.keys[0].view(-1, x.shape[-1])[sources]
        return torch.where((slots >= PROMPT)[:, None], kept, 0.0).view(x.shape)


class CopyingBackbone(ToyBackbone):
    """Orthogonal embeddings; logits are the feature's share of each. The first row is uniform noise."""

    def __init__(self, rows: int, cols: int, codes: int = 11) -> None:
        super().__init__(rows, cols, codes=codes, hidden=32, end_of_line=False)
        self.name, self.fingerprint = "copying rows", "copying-rows"
        basis = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(2))).Q
        self.embedding.weight.data[: codes + 3] = basis[: codes + 3]
        self.decoder = _CopyDecoder(32, cols)  # type: ignore[assignment]
        self.eval().requires_grad_(False)

    def logits(self, features: Tensor) -> Tensor:
        return SHARPNESS * features @ self.embedding.weight[: self.codes].T
