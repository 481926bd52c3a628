"""Toys on the stand-in for CUDA graphs, and what two runs are compared by."""

from __future__ import annotations

from typing import Any

import torch
from graph_fakes import FakeCapture, allow
from toys import ToyBackbone, toy_heads

from ssd_core import (
    Generation,
)
from ssd_core.heads import SpatialHeads

FIGURES = ("forwards", "fed_tokens", "acceptance", "acceptance_by_round", "acceptance_by_direction")


def setup(**options: Any) -> tuple[ToyBackbone, SpatialHeads, FakeCapture]:
    """A toy on the stand-in; its captures may read weights and kept tensors, nothing else."""
    backbone = ToyBackbone(3, 6, **{"dtype": torch.float64, "layers": 1, **options})
    heads, fake = toy_heads(backbone), FakeCapture()
    allow(fake, backbone, heads)
    return backbone, heads, fake


def used(result: Generation) -> bool:
    return not result.report.graphs.startswith("off")


def same(a: Generation, b: Generation) -> bool:
    figures = all(getattr(a.report, name) == getattr(b.report, name) for name in FIGURES)
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.images, b.images) and figures
