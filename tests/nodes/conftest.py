"""The extension loaded as a package of another name, beside a stand-in for ComfyUI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from nodes_fakes import BUILT_IN, FakeComfy, pack_of


@pytest.fixture
def comfy(tmp_path: Path) -> FakeComfy:
    """What the stand-in tells and was told."""
    for name in ("models/ar_backbones", "models/ssd_heads", "input", "output"):
        (tmp_path / name).mkdir(parents=True)
    return FakeComfy(tmp_path)


@pytest.fixture
def pack(repository: Path, comfy: FakeComfy) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of `nodes` by its name there."""
    with pack_of(repository, comfy.modules()) as load:
        yield load


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    """A node of a queued graph."""
    return {"class_type": kind, "inputs": inputs}


@pytest.fixture
def graph(pack):
    """A whole graph with changes: ``graph(sampler={...}, heads={...})`` -> the sampler's or another node."""
    pack("host.folders").register()
    queued = pack("host.graph").QueuedNode

    def build(at="sampler", **changes):
        prompt = {
            "backbone": node("SSDLoadBackbone", backbone=BUILT_IN, precision="auto"),
            "heads": node("SSDLoadHeads", backbone=["backbone", 0], heads="built in"),
            "sampler": node(
                "SSDSampler", backbone=["backbone", 0], heads=["heads", 0], positive="a cat", negative="", seed=0,
                cfg=-1.0, temperature=-1.0, top_k=-1, top_p=-1.0, grid="auto", batch_size=1, keep_rows=0,
            ),
        }  # fmt: skip
        for name, values in changes.items():
            kind, inputs = values if isinstance(values, tuple) else ("SSDLoadBackbone", values)
            prompt.setdefault(name, node(kind))["inputs"].update(inputs)
        return queued(prompt, at)

    return build


@pytest.fixture
def heads_of(pack, comfy):
    """Writes a heads file trained for something."""
    heads = pack("core").core("heads")

    def write(name, **spec):
        made = heads.SpatialHeads(heads.HeadsSpec(horizontal=(1,), vertical=(1,), **spec))
        heads.save_heads(made, comfy.base / "models" / "ssd_heads" / name)

    return write
