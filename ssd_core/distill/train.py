"""Training of spatial heads on true features (paper section 3.2), all heads at once and independently.

Loss: smooth L1 between predicted and true pre-norm feature, each channel divided by its standard deviation, plus an
optional KL term between the true and the drafted distribution through the backbone's own output head. The spread of a
channel says nothing about its weight in the output head; the KL term does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..families.base import Backbone
from ..heads import Direction, SpatialHeads
from .features import FeatureGrid, feature_grid
from .samples import Samples


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    The learning-rate schedule spans ``steps`` optimizer steps or, where that is None, ``minutes`` of wall clock.
    ``unconditional``: share of batches under the unconditional prompt. ``horizontal_rows``: share of the rows that
    horizontal heads learn from.
    """

    minutes: float = 20.0
    steps: int | None = None
    batch: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: int = 20
    kl_weight: float = 1.0
    unconditional: float = 0.3
    horizontal_rows: float = 0.34
    seed: int = 0


def shifted(grid: FeatureGrid, direction: Direction, offset: int, neighbours: int) -> tuple[Tensor, Tensor, Tensor]:
    """Head inputs (features, embeddings) and the true feature they should predict, [n, rows', cols', ...].

    At the left and right edge a missing neighbour is replaced by the cell itself, as in decoding.
    """
    features, embeddings = grid.features, grid.embeddings
    if direction == "horizontal":
        return features[:, :, :-offset], embeddings[:, :, :-offset], features[:, :, offset:]
    sources = features[:, :-offset], embeddings[:, :-offset]
    if neighbours:
        sources = beside(sources[0]), beside(sources[1])
    return *sources, features[:, offset:]


def beside(x: Tensor) -> Tensor:
    """[n, rows, cols, hidden] -> [n, rows, cols, 3 * hidden]: left, own and right cell; edges repeat the own cell."""
    left = torch.cat((x[:, :, :1], x[:, :, :-1]), dim=2)
    right = torch.cat((x[:, :, 1:], x[:, :, -1:]), dim=2)
    return torch.cat((left, x, right), dim=-1)


def train_heads(
    backbone: Backbone,
    heads: SpatialHeads,
    shards: list[Samples],
    settings: TrainSettings,
    on_step: Callable[[int, float, dict[str, float]], None] | None = None,
) -> None:
    """Trains ``heads`` in place until the schedule ends. ``on_step(step, seconds, losses by head)``."""
    generator = torch.Generator().manual_seed(settings.seed)
    largest = max(shards, key=lambda shard: len(shard.prompts))
    some = Samples(largest.tokens[:32], largest.prompts[:32])
    scale = feature_grid(backbone, some, False).features.flatten(0, 2).std(0) + 1e-6
    optimizer = torch.optim.AdamW(
        heads.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay
    )
    started, step = time.perf_counter(), 0
    while True:
        elapsed = time.perf_counter() - started
        progress = step / settings.steps if settings.steps else elapsed / (60 * settings.minutes)
        if progress >= 1:
            return
        rate = settings.learning_rate * min(1.0, (step + 1) / settings.warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        batch = _draw(shards, settings, generator)
        unconditional = float(torch.rand((), generator=generator)) < settings.unconditional
        with torch.no_grad():
            grid = feature_grid(backbone, batch, unconditional)
            grid = FeatureGrid(grid.features.clone(), grid.embeddings.clone())  # out of inference mode
        losses = _losses(backbone, heads, grid, scale.clone(), settings, generator)
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        optimizer.step()
        step += 1
        if on_step is not None:
            on_step(step, elapsed, {name: loss.item() for name, loss in losses.items()})


def _draw(shards: list[Samples], settings: TrainSettings, generator: torch.Generator) -> Samples:
    """A random batch of pictures of one grid; a shard is chosen in proportion to its pictures."""
    weights = torch.tensor([float(len(s.prompts)) for s in shards])
    shard = shards[int(torch.multinomial(weights, 1, generator=generator))]
    chosen = torch.randperm(len(shard.prompts), generator=generator)[: settings.batch]
    return Samples(shard.tokens[chosen], [shard.prompts[i] for i in chosen.tolist()])


def _losses(
    backbone: Backbone,
    heads: SpatialHeads,
    grid: FeatureGrid,
    scale: Tensor,
    settings: TrainSettings,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    losses: dict[str, Tensor] = {}
    rows = grid.features.shape[1]
    count = max(1, round(rows * settings.horizontal_rows))
    some = torch.randperm(rows, generator=generator)[:count]
    with torch.no_grad():
        target = backbone.logits(grid.features).log_softmax(-1)
    for direction in ("horizontal", "vertical"):
        horizontal = direction == "horizontal"
        part = FeatureGrid(grid.features[:, some], grid.embeddings[:, some]) if horizontal else grid
        logs = target[:, some] if horizontal else target
        for offset in heads.offsets(direction):
            features, embeddings, truth = shifted(part, direction, offset, heads.spec.neighbours)
            log_p = logs[:, :, offset:] if horizontal else logs[:, offset:]
            predicted = heads.head(direction, offset)(features, embeddings)
            loss = F.smooth_l1_loss(predicted / scale, truth / scale)
            if settings.kl_weight:
                log_q = backbone.logits(predicted).log_softmax(-1)
                loss = loss + settings.kl_weight * (log_p.exp() * (log_p - log_q)).sum(-1).mean()
            losses[f"{direction}.{offset}"] = loss
    return losses


@torch.inference_mode()
def expected_acceptance(
    backbone: Backbone, heads: SpatialHeads, shards: list[Samples], guidance: float
) -> dict[str, float]:
    """Sum over codes of min(p, q) on held-out pictures, by head: the chance that a maximal coupling accepts.

    p and q are the guided distributions at temperature 1 without truncation.
    """
    sums: dict[str, list[float]] = {}
    for shard in shards:
        grids = [feature_grid(backbone, shard, unconditional) for unconditional in (False, True)]
        logits = [backbone.logits(g.features) for g in grids]
        p = (logits[1] + guidance * (logits[0] - logits[1])).softmax(-1)
        for direction in ("horizontal", "vertical"):
            for offset in heads.offsets(direction):
                drafts = []
                for grid in grids:
                    features, embeddings, _ = shifted(grid, direction, offset, heads.spec.neighbours)
                    drafts.append(backbone.logits(heads.head(direction, offset)(features, embeddings)))
                q = (drafts[1] + guidance * (drafts[0] - drafts[1])).softmax(-1)
                truth = p[:, :, offset:] if direction == "horizontal" else p[:, offset:]
                overlap = torch.minimum(truth, q).sum(-1).mean()
                sums.setdefault(f"{direction}.{offset}", []).append(float(overlap))
    return {name: sum(values) / len(values) for name, values in sums.items()}
