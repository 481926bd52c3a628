"""What every test runs under: a fixed number of threads, repeatable property tests, a tiny model on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from tiny_model import write_tiny_model

pytest_plugins = ["comfy_engine.fixtures", "bench_calls"]

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings tomli along
    import tomli as tomllib

# The tests' tensors are small: more threads would only wait for each other, and sums would depend on the machine.
torch.set_num_threads(int(os.environ.get("SSD_TEST_THREADS", "1")))

# The same examples on every machine, and no deadlines on a busy one.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return REPOSITORY


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    """The content of pyproject.toml."""
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with random weights and its heads (grids 6x6, 4x4, 4x6, 6x4; 12 codes)."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def emu3_folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny Emu3 model in both published layouts (emu3_checkpoints.Folders)."""
    from emu3_checkpoints import write_both  # imports transformers

    return write_both(tmp_path_factory.mktemp("emu3"))
