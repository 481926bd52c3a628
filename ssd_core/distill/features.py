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


@torch.no_grad()
def feature_grid(backbone: Backbone, samples: Samples, unconditional: bool | Tensor) -> FeatureGrid:
    """Features under each picture's own prompt, or under the unconditional (empty negative) prompt.

    ``unconditional``: for all pictures, or bool [n] with a choice for each.
    """
    grid = samples.grid
    stream = backbone.stream(grid)
    count = len(samples.prompts)
    rows = backbone.prompt_rows(samples.prompts, "", grid, guided=True)
    pick = torch.arange(count) + count * torch.as_tensor(unconditional).cpu().long()  # [n], row of each picture
    tokens = stream.blank(count)
    tokens[:, stream.code_positions] = samples.tokens.flatten(1).cpu()
    tokens = tokens.to(backbone.device)
    embedded = backbone.embed(tokens)
    prompt = rows.embeddings[pick.to(rows.embeddings.device)]
    inputs = torch.cat((prompt, embedded[:, :-1]), dim=1)
    prompt_positions, stream_positions = (
        (t[pick.to(t.device)] if t.shape[0] > 1 else t).to(backbone.device)
        for t in (rows.positions, rows.stream_positions)
    )
    positions = torch.cat((prompt_positions, stream_positions[:, :-1]), dim=1)
    padding = torch.tensor(rows.padding)[pick].to(backbone.device)
    if bool(padding.any()):
        # Padding moves from the left to the right end, where causal attention hides it from every token.
        places = torch.arange(inputs.shape[1], device=backbone.device)
        source = (places + padding[:, None]).clamp(max=inputs.shape[1] - 1)  # [n, P + length - 1]
        inputs = inputs.gather(1, source[..., None].expand_as(inputs))
        positions = positions.expand(count, -1, -1)
        positions = positions.gather(1, source[..., None].expand_as(positions))
    rope = rope_table(positions, backbone.decoder.spec.head_dim, backbone.rope_theta)
    out = backbone.decoder(inputs, rope)  # [n, P + length - 1, hidden]
    at = stream.code_positions.to(backbone.device)
    first = rows.length - 1 - padding  # where the feature of stream position 0 lies
    where = (first[:, None] + at)[..., None].expand(-1, -1, backbone.hidden)
    shape = (count, *grid, backbone.hidden)
    return FeatureGrid(out.gather(1, where).view(shape), embedded[:, at].reshape(shape))
