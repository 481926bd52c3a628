"""Spatial speculative decoding of autoregressive image models: a self-contained decoder.

>>> backbone = load_backbone()
>>> heads = load_heads(backbone)
>>> result = generate(backbone, "a cat on grass", heads=heads, seed=1)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .lazy import on_demand

if TYPE_CHECKING:
    from .auto import Auto
    from .errors import SSDError, StopRequested
    from .families.base import Backbone
    from .families.loaders import load_backbone
    from .generation import Generation, generate
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

# Next to nothing, but packages must be known before their modules where our parent's name has a dot.
for _part in ("families", "distill"):
    import_module(f".{_part}", __name__)

__getattr__ = on_demand(
    __name__,
    {
        "auto": ("Auto",),
        "errors": ("SSDError", "StopRequested"),
        "families.base": ("Backbone",),
        "families.loaders": ("load_backbone",),
        "generation": ("Generation", "generate"),
        "heads": ("SpatialHeads",),
        "load": ("load_heads",),
        "report": ("Report", "RowsEvent"),
        "sampling": ("Sampling",),
        "schedule": ("AR", "HorizontalMTP", "Jacobi", "Rolling", "Rounds", "Schedule"),
        "version": ("__version__",),
    },
)
