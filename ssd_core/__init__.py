"""Spatial speculative decoding of autoregressive image models: a self-contained decoder.

>>> backbone = load_backbone()
>>> heads = load_heads(backbone)
>>> result = generate(backbone, "a cat on grass", heads=heads, seed=1)
"""

from .auto import Auto
from .errors import SSDError, StopRequested
from .families import load_backbone
from .families.base import Backbone
from .generate import Generation, generate
from .heads import SpatialHeads
from .load import load_heads
from .report import Report, RowsEvent
from .sampling import Sampling
from .schedule import AR, HorizontalMTP, Jacobi, Rolling, Rounds, Schedule
from .version import __version__

__all__ = [
    "AR",
    "Auto",
    "Backbone",
    "Generation",
    "HorizontalMTP",
    "Jacobi",
    "Report",
    "Rolling",
    "Rounds",
    "RowsEvent",
    "SSDError",
    "Sampling",
    "Schedule",
    "SpatialHeads",
    "StopRequested",
    "__version__",
    "generate",
    "load_backbone",
    "load_heads",
]
