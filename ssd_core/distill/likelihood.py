"""Target distributions of whole pictures, and how likely a picture's tokens are under plain decoding's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..families.base import Backbone
from ..sampling import Sampling, guide, truncate
from .features import feature_grid
from .samples import Samples

_VALUES_AT_ONCE = 2**24
"""Logits worked on at a time: 64 MB in float32 a copy, whatever the picture's size."""
_LEAST_LOG = -20.72  # log(1e-9)


def log_distribution(backbone: Backbone, features: Tensor, sampling: Sampling) -> Tensor:
    """Features [guidance_rows, n, hidden] -> log-probabilities [n, codes] after guidance and truncation."""
    guided = guide(backbone.logits(features), sampling.guidance, sampling.guidance_rows)[0]
    return truncate(guided, sampling).log_softmax(-1)


def chunks(total: int, backbone: Backbone, sampling: Sampling) -> list[slice]:
    """Cuts ``total`` positions into pieces whose logits fit into memory."""
    size = max(1, _VALUES_AT_ONCE // (backbone.codes * sampling.guidance_rows))
    return [slice(start, start + size) for start in range(0, total, size)]


def guidance_sides(sampling: Sampling) -> tuple[bool, ...]:
    """Which rows guidance mixes, as ``feature_grid`` calls them: conditional, then unconditional."""
    return (False, True) if sampling.guidance_rows == 2 else (False,)


@torch.inference_mode()
def negative_log_likelihood(backbone: Backbone, tokens: Tensor, prompts: Sequence[str], sampling: Sampling) -> Tensor:
    """Mean -log p per token, float32 [n], for codes [n, rows, cols] under the target distribution of ``sampling``.

    A token that truncation excludes counts as p = 1e-9.
    """
    found = []
    for picture, prompt in zip(tokens, prompts, strict=True):
        one = Samples(picture[None], [prompt])
        features = torch.stack([feature_grid(backbone, one, side).features for side in guidance_sides(sampling)])
        features, codes = features.flatten(1, 3), picture.flatten().to(features.device)
        chosen = [
            log_distribution(backbone, features[:, part], sampling).gather(-1, codes[part, None])[:, 0]
            for part in chunks(len(codes), backbone, sampling)
        ]
        found.append(-torch.cat(chosen).float().clamp(min=_LEAST_LOG).mean())
    return torch.stack(found).cpu()
