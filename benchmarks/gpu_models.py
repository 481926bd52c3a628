"""Makes the models as they are needed, keeps one at a time, and fits it into the device's memory."""

from __future__ import annotations

import gc

import torch

from ssd_core import Backbone, SpatialHeads
from ssd_core.memory import memory_of

from .gpu_budget import layers_for_memory
from .gpu_shapes import Shape, empty_backbone, heads_spec, random_backbone, random_heads
from .gpu_span import wait

_GRAPHS = 2 << 30
"""Bytes left for the private pools of CUDA graphs."""


class Models:
    """``build`` gives a model and its heads; the one before is let go, with whatever the library keeps for it."""

    def __init__(
        self, shapes: dict[str, Shape], device: torch.device, dtype: torch.dtype, most_layers: int | None
    ) -> None:
        self.shapes, self.device, self.dtype = shapes, device, dtype
        self._most_layers = most_layers
        self._planned: dict[str, int] = {}
        self._held: tuple[tuple[str, int], Backbone, SpatialHeads] | None = None

    def build(self, name: str, layers: int) -> tuple[Backbone, SpatialHeads]:
        """The model with that many decoder layers."""
        if self._held is None or self._held[0] != (name, layers):
            self.free()
            shape = self.shapes[name].with_layers(layers)
            backbone = random_backbone(shape, self.device, self.dtype)
            heads = random_heads(shape, self.device, self.dtype)
            wait(self.device)
            self._held = ((name, layers), backbone, heads)
        return self._held[1], self._held[2]

    def free(self) -> None:
        """Lets the model go."""
        self._held = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def layers(self, name: str) -> int:
        """How many layers fit: all of them, where memory suffices. Raises SSDError when not even two do."""
        if name not in self._planned:
            shape = self.shapes[name]
            full = shape.llama.decoder.layers
            if self.device.type == "cuda":
                self.free()
                free, _ = torch.cuda.mem_get_info(self.device)
                full = layers_for_memory(free, *needs(shape, self.dtype), full)
            self._planned[name] = min(full, self._most_layers or full)
        return self._planned[name]

    def reduce(self, name: str) -> None:
        """After the device ran out of memory: half the layers from now on."""
        self._planned[name] = max(2, self.layers(name) // 2)
        self.free()


def needs(shape: Shape, dtype: torch.dtype) -> tuple[int, int]:
    """(fixed bytes, bytes a layer) of a run and of transformers' loop beside it, whose cache comes on top."""

    def total(layers: int) -> int:
        backbone = empty_backbone(shape.with_layers(layers))
        memory = memory_of(backbone, dtype, shape.grid, 1, 2, window=shape.paper.rows_per_block * shape.grid[1] * 4)
        return memory.total + memory.cache

    with torch.device("meta"):
        heads = SpatialHeads(heads_spec(shape))
    per_layer = total(2) - total(1)
    return total(1) - per_layer + _GRAPHS + sum(p.numel() for p in heads.parameters()) * dtype.itemsize, per_layer
