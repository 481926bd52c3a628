"""How likely a picture's tokens are under plain decoding's own distribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_core import Backbone, Sampling
from ssd_core.distill.features import feature_grid
from ssd_core.distill.samples import Samples
from ssd_core.sampling import guide, truncate


@torch.inference_mode()
def negative_log_likelihood(backbone: Backbone, tokens: Tensor, prompts: Sequence[str], sampling: Sampling) -> Tensor:
    """Mean -log p per token, float32 [n], for codes [n, rows, cols] under the target distribution of ``sampling``.

    A token that truncation excludes counts as p = 1e-9.
    """
    samples = Samples(tokens, list(prompts))
    sides = (False, True) if sampling.guidance_rows == 2 else (False,)
    logits = torch.stack([backbone.logits(feature_grid(backbone, samples, side).features) for side in sides])
    guided = guide(logits.flatten(1, 3), sampling.guidance, sampling.guidance_rows)
    log_p = truncate(guided, sampling).log_softmax(-1).view(*tokens.shape, -1)
    chosen = log_p.gather(-1, tokens[..., None])[..., 0].clamp(min=-20.72)
    return -chosen.flatten(1).mean(1)
