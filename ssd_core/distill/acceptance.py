"""How often the drafts of each head would be accepted, from features alone: no decoding runs."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..errors import ShouldStop, StopRequested
from ..families.base import Backbone
from ..heads import SpatialHeads
from ..sampling import Sampling
from .features import FeatureGrid, feature_grid
from .likelihood import chunks, guidance_sides, log_distribution
from .losses import each_head, head_name, shifted
from .samples import Samples


@torch.inference_mode()
def expected_acceptance(
    backbone: Backbone, heads: SpatialHeads, samples: Iterable[Samples], sampling: Sampling | None = None,
    should_stop: ShouldStop | None = None,
) -> dict[str, float]:  # fmt: skip
    """Sum over codes of min(p, q) by head: the chance that a maximal coupling accepts its draft (paper figure 1).

    The mean over all positions of the pictures that a head can predict; p and q are the target and the drafted
    distribution under ``sampling`` (by default the backbone's own). Heads that fit in no picture are left out.
    Raises StopRequested when ``should_stop``, asked before each picture, said so.
    """
    sampling = sampling or backbone.default_sampling
    sums: dict[str, tuple[float, int]] = {}
    dtype = next(heads.parameters()).dtype
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
                total, count = sums.get(head_name(direction, offset), (0.0, 0))
                for part in chunks(truth.shape[1], backbone, sampling):
                    predicted = heads.head(direction, offset)(
                        features[:, part].to(dtype), embeddings[:, part].to(dtype)
                    )
                    q = log_distribution(backbone, predicted.to(truth.dtype), sampling).exp()
                    p = log_distribution(backbone, truth[:, part], sampling).exp()
                    total += float(torch.minimum(p, q).sum())
                sums[head_name(direction, offset)] = total, count + truth.shape[1]
    return {name: total / count for name, (total, count) in sums.items()}
