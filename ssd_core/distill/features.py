"""True features and embeddings of whole pictures, recomputed with the frozen backbone.

Nothing is stored on disk: one forward without a cache over prompt and stream gives every feature at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..families.base import Backbone
from ..transformer import rope_table
from .samples import Samples


@dataclass(frozen=True)
class FeatureGrid:
    """``features`` and ``embeddings``, both [n, rows, cols, hidden], of the code cells; features are pre-norm."""

    features: Tensor
    embeddings: Tensor


@torch.inference_mode()
def feature_grid(backbone: Backbone, samples: Samples, unconditional: bool) -> FeatureGrid:
    """Features under each picture's own prompt, or under the unconditional (empty negative) prompt."""
    grid = samples.grid
    stream = backbone.stream(grid)
    count = len(samples.prompts)
    rows = backbone.prompt_rows(samples.prompts, "", grid, guided=True)
    pick = slice(count, None) if unconditional else slice(0, count)
    if any(rows.padding[pick]):
        raise ValueError("feature_grid needs prompt rows without padding")
    tokens = stream.blank(count)
    tokens[:, stream.code_positions] = samples.tokens.flatten(1)
    tokens = tokens.to(backbone.device)
    embedded = backbone.embed(tokens)
    inputs = torch.cat((rows.embeddings[pick], embedded[:, :-1]), dim=1)
    prompt_positions, stream_positions = (
        t[pick] if t.shape[0] > 1 else t for t in (rows.positions, rows.stream_positions)
    )
    positions = torch.cat((prompt_positions, stream_positions[:, :-1]), dim=1).to(backbone.device)
    rope = rope_table(positions, backbone.decoder.spec.head_dim, backbone.rope_theta)
    out = backbone.decoder(inputs, rope)[:, rows.length - 1 :]  # [n, length, hidden]
    at = stream.code_positions.to(backbone.device)
    shape = (count, *grid, backbone.hidden)
    return FeatureGrid(out[:, at].reshape(shape), embedded[:, at].reshape(shape))
