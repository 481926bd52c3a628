"""The extension loaded as a package of another name, beside a stand-in for ComfyUI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from nodes_fakes import FakeComfy, pack_of


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
