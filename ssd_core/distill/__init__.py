"""Self-distillation: heads learn to predict the frozen backbone's features, above all on pictures it drew.

>>> heads = make_heads(backbone, starter_prompts(backbone), Path("heads.safetensors"), work=Path("work"), minutes=15)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import on_demand

if TYPE_CHECKING:
    from .prompts import read_prompts, starter_prompts
    from .session import Distilled, make_heads
    from .settings import TrainSettings
    from .train import StepInfo

__all__ = ["Distilled", "StepInfo", "TrainSettings", "make_heads", "read_prompts", "starter_prompts"]

__getattr__ = on_demand(
    __name__,
    {
        "prompts": ("read_prompts", "starter_prompts"),
        "session": ("Distilled", "make_heads"),
        "settings": ("TrainSettings",),
        "train": ("StepInfo",),
    },
)
