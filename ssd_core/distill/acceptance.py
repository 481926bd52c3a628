"""How well heads foresee features, and how often their drafts would be accepted: no decoding runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ShouldStop, StopRequested
from ..families.base import Backbone
from ..heads import SpatialHeads
from ..sampling import Sampling
from .features import FeatureGrid, feature_grid
from .likelihood import chunks, guidance_sides, log_distribution
from .losses import each_head, feature_loss, head_name, shifted
from .samples import Samples


@dataclass(frozen=True)
class HeadsMeasured:
    """By head, over all positions of the pictures that it can predict; heads that fit in no picture are left out.

    ``acceptance``: sum over codes of min(p, q), the chance that a maximal coupling accepts its draft (paper figure 1).
    ``losses``: mean smooth L1 of the features under the picture's own prompt, as in training but without its KL term.
    """

    acceptance: dict[str, float]
    losses: dict[str, float]


def expected_acceptance(
    backbone: Backbone, heads: SpatialHeads, samples: Iterable[Samples], sampling: Sampling | None = None
) -> dict[str, float]:
    """The acceptance of ``measure_heads``."""
    return measure_heads(backbone, heads, samples, torch.ones(backbone.hidden), sampling).acceptance


@torch.inference_mode()
def measure_heads(
    backbone: Backbone,
    heads: SpatialHeads,
    samples: Iterable[Samples],
    scale: Tensor,
    sampling: Sampling | None = None,
    should_stop: ShouldStop | None = None,
) -> HeadsMeasured:
    """How well heads foresee pictures; p and q are the target and the drafted distribution under ``sampling``.

    ``scale``: spread of each feature channel, [hidden], the unit of the losses. ``sampling``: by default the backbone's
    own. Raises StopRequested when ``should_stop``, asked before each picture, said so.
    """
    sampling = sampling or backbone.default_sampling
    sums: dict[str, tuple[float, float, int]] = {}
    dtype = next(heads.parameters()).dtype
    scale = scale.to(backbone.device)
    for shard in samples:
        for number in range(len(shard.prompts)):  # one at a time: memory does not grow with the shard
            if should_stop is not None and should_stop():
                raise StopRequested("measuring was stopped before its last picture")
            one = shard.pick([number])
            sides = [feature_grid(backbone, one, side) for side in guidance_sides(sampling)]
            grid = FeatureGrid(torch.cat([s.features for s in sides]), torch.cat([s.embeddings for s in sides]))
            for direction, offset in each_head(heads, one.grid):
                features, embeddings, truth = (
                    t.flatten(1, 2) for t in shifted(grid, direction, offset, heads.spec.neighbours)
                )
                overlap, loss, count = sums.get(head_name(direction, offset), (0.0, 0.0, 0))
                for part in chunks(truth.shape[1], backbone, sampling):
                    predicted = heads.head(direction, offset)(
                        features[:, part].to(dtype), embeddings[:, part].to(dtype)
                    )
                    q = log_distribution(backbone, predicted.to(truth.dtype), sampling).exp()
                    p = log_distribution(backbone, truth[:, part], sampling).exp()
                    overlap += float(torch.minimum(p, q).sum())
                    loss += float(feature_loss(predicted[0].float(), truth[0, part].float(), scale).mean(-1).sum())
                sums[head_name(direction, offset)] = overlap, loss, count + truth.shape[1]
    return HeadsMeasured(
        {name: overlap / count for name, (overlap, _, count) in sums.items()},
        {name: loss / count for name, (_, loss, count) in sums.items()},
    )
