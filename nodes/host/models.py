"""What flows along AR_BACKBONE and SSD_HEADS links: weights in the care of ComfyUI's model manager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..core import core
from ..errors import NodeError
from . import folders, memory, stop
from .registry import SharedModels

BUILT_IN_BACKBONE = "emoji scenes (built in)"
BUILT_IN_HEADS = "built in"
NO_HEADS = "none (training-free)"

_MOST_FACTS = 4

_shared = SharedModels()
_facts: dict[str, Any] = {}


@dataclass(frozen=True, eq=False)
class BackboneHandle:
    """A loaded backbone. ``key`` tells which files, dtype and device; two handles with one key do not exist."""

    choice: str
    key: tuple[str, ...]
    patcher: Any = field(repr=False)

    @property
    def module(self) -> Any:
        """The ``ssd_core.Backbone``."""
        return self.patcher.model.module

    def __str__(self) -> str:
        return f"AR backbone {self.choice} ({', '.join(self.key[2:])})"


@dataclass(frozen=True, eq=False)
class HeadsHandle:
    """Loaded heads; ``backbone_key`` is the key of the backbone they were loaded for."""

    choice: str
    backbone_key: tuple[str, ...]
    patcher: Any = field(repr=False)

    @property
    def module(self) -> Any:
        """The ``ssd_core.SpatialHeads``."""
        return self.patcher.model.module

    def __str__(self) -> str:
        return f"SSD heads {self.choice}"


def backbone_source(choice: str) -> Path:
    """The folder of a choice of Load AR Backbone. Raises NodeError when it is missing."""
    if choice == BUILT_IN_BACKBONE:
        return Path(core("families.loaders").ASSETS)
    return folders.backbone_folder(choice)


def heads_source(choice: str) -> Path | None:
    """The file of a choice of Load SSD Heads; None for ``built in``. Raises NodeError when it is missing."""
    return None if choice == BUILT_IN_HEADS else folders.heads_file(choice)


def heads_path(backbone: BackboneHandle, choice: str) -> Path:
    """The file of a choice of heads for a backbone. Raises NodeError or SSDError when there is none."""
    found = core("load")
    return Path(found.heads_file(backbone.module, heads_source(choice) or found.BUILT_IN_HEADS))


def load_backbone(choice: str, precision: str) -> BackboneHandle:
    """Loads a choice of Load AR Backbone, or shares it with whoever has it already."""
    key = backbone_key(choice, precision)

    def make() -> BackboneHandle:
        stop.poll()
        with torch.inference_mode(False):  # weights made in inference mode could never be trained with
            backbone = core().load_backbone(
                backbone_source(choice),
                device=memory.offload_device(),
                dtype=memory.compute_dtype(precision),
                should_stop=stop.poll,
            )
        stop.poll()
        return BackboneHandle(choice, key, memory.patcher_of(backbone, _release(backbone)))

    return _shared.get(key, make)


def _release(backbone: Any) -> Callable[[], None]:
    """Gives the memory of a backbone's CUDA graphs back. ComfyUI's manager does not know of it."""
    return lambda: core("graphs").graphs_of(backbone).release()


def backbone_facts(choice: str) -> Any:
    """A choice's backbone without weights: sizes, words and fingerprint, to check a graph before it is queued."""
    source = backbone_source(choice)
    stamp = folders.stamp(source)
    if stamp not in _facts:
        if len(_facts) >= _MOST_FACTS:
            _facts.clear()
        _facts[stamp] = core().load_backbone(source, device="meta", dtype=torch.float32)
    return _facts[stamp]


def load_heads(backbone: BackboneHandle, choice: str) -> HeadsHandle | None:
    """Loads a choice of Load SSD Heads for a backbone, or shares it; None for ``none``."""
    if choice == NO_HEADS:
        return None
    file = heads_source(choice)
    key = ("heads", choice if file is None else folders.stamp(file), *backbone.key)

    def make() -> HeadsHandle:
        stop.poll()
        with torch.inference_mode(False):
            heads = core().load_heads(
                backbone.module, "built-in" if file is None else file,
                device=memory.offload_device(), should_stop=stop.poll,
            )  # fmt: skip
        return HeadsHandle(choice, backbone.key, memory.patcher_of(heads))

    return _shared.get(key, make)


def make_resident(backbone: BackboneHandle, heads: HeadsHandle | None, working_bytes: int) -> None:
    """Places everything a run needs with one request. Raises NodeError when the two do not belong together."""
    if heads is not None and heads.backbone_key != backbone.key:
        raise NodeError(
            f"the heads {heads.choice!r} were loaded for another backbone or precision than {backbone}; connect the "
            "same Load AR Backbone to Load SSD Heads and to this node"
        )
    patchers = [backbone.patcher] + ([] if heads is None else [heads.patcher])
    memory.make_resident(patchers, working_bytes)
    core("graphs").graphs_of(backbone.module).barred = memory.why_no_graphs(patchers)


def backbone_key(choice: str, precision: str) -> tuple[str, ...]:
    """Equal for choices that share one set of weights."""
    dtype = str(memory.compute_dtype(precision)).removeprefix("torch.")
    return ("backbone", folders.stamp(backbone_source(choice)), dtype, str(memory.compute_device()))
