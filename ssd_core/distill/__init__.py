"""Self-distillation: heads learn to predict the frozen backbone's features, above all on pictures it drew.

>>> plan = plan_heads(backbone, starter_prompts(backbone), pictures=64)
>>> made = make_heads(backbone, plan, Path("heads.safetensors"), work=Path("work"), minutes=15)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import on_demand

if TYPE_CHECKING:
    from .make import make_heads
    from .plan import HeadsPlan, plan_heads
    from .prompts import read_prompts, starter_prompts
    from .session import Distilled
    from .settings import TrainSettings
    from .train import StepInfo

__all__ = [
    "Distilled",
    "HeadsPlan",
    "StepInfo",
    "TrainSettings",
    "make_heads",
    "plan_heads",
    "read_prompts",
    "starter_prompts",
]

__getattr__ = on_demand(
    __name__,
    {
        "make": ("make_heads",),
        "plan": ("HeadsPlan", "plan_heads"),
        "prompts": ("read_prompts", "starter_prompts"),
        "session": ("Distilled",),
        "settings": ("TrainSettings",),
        "train": ("StepInfo",),
    },
)
