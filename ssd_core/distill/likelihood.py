"""Target distributions of whole pictures, and how likely a picture's tokens are under plain decoding's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..families.base import Backbone
from ..sampling import Sampling, target_weights
from .features import feature_grid
from .samples import Samples

_VALUES_AT_ONCE = 2**24
"""Logits worked on at a time: 64 MB in float32 a copy, whatever the picture's size."""


def log_distribution(backbone: Backbone, features: Tensor, sampling: Sampling) -> Tensor:
    """Features [guidance_rows, n, hidden] -> log-probabilities [n, codes] after guidance and truncation."""
    return target_weights(backbone.logits(features), sampling)[0].log_softmax(-1)


def chunks(total: int, backbone: Backbone, sampling: Sampling) -> list[slice]:
    """Cuts ``total`` positions into pieces whose logits fit into memory."""
    size = max(1, _VALUES_AT_ONCE // (backbone.codes * sampling.guidance_rows))
    return [slice(start, start + size) for start in range(0, total, size)]


def guidance_sides(sampling: Sampling) -> tuple[bool, ...]:
    """Which rows guidance mixes, as ``feature_grid`` calls them: conditional, then unconditional."""
    return (False, True) if sampling.guidance_rows == 2 else (False,)


@dataclass(frozen=True)
class Likelihood:
    """What plain decoding thinks of pictures, float32 [n] each.

    ``nll``: mean -log p a code, where p is plain decoding's law before top-k and top-p (at temperature 1 where
    decoding is greedy), so that every code has one. ``excluded``: share of codes that top-k and top-p exclude there:
    plain decoding never draws them.
    """

    nll: Tensor
    excluded: Tensor


@torch.inference_mode()
def likelihood(backbone: Backbone, tokens: Tensor, prompts: Sequence[str], sampling: Sampling) -> Likelihood:
    """How likely codes int64 [n, rows, cols] are under plain decoding with ``sampling``, each given those before it."""
    whole = replace(sampling, temperature=1.0 if sampling.greedy else sampling.temperature, top_k=0, top_p=1.0)
    nll, excluded = [], []
    for picture, prompt in zip(tokens, prompts, strict=True):
        one = Samples(picture[None], [prompt])
        features = torch.stack([feature_grid(backbone, one, side).features for side in guidance_sides(sampling)])
        features, codes = features.flatten(1, 3), picture.flatten().to(features.device)
        logs, drawable = [], []
        for part in chunks(len(codes), backbone, sampling):
            logits = backbone.logits(features[:, part])
            at = codes[part, None]
            logs.append(target_weights(logits, whole)[0].log_softmax(-1).gather(-1, at))
            drawable.append(target_weights(logits, sampling)[0].gather(-1, at) > -math.inf)
        nll.append(-torch.cat(logs).float().mean())
        excluded.append(1 - torch.cat(drawable).float().mean())
    return Likelihood(torch.stack(nll).cpu(), torch.stack(excluded).cpu())
