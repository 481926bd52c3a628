"""The GPU benchmark's own checks on a real GPU, with toy models: `pytest -m gpu`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu_allocators import BACKENDS, check_allocators
from benchmarks.gpu_budget import Allowance
from benchmarks.gpu_checks import check_moves, check_strictly
from benchmarks.gpu_parts import measure_parts, own_bandwidth
from benchmarks.gpu_shapes import TOY, random_backbone, random_heads

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")


def assert_passed(checks: dict[str, Any]) -> None:
    assert checks
    assert {name: check["detail"] for name, check in checks.items() if not check["passed"]} == {}


@pytest.mark.parametrize("name", list(TOY))
def test_graphed_equals_eager_in_float32(name: str) -> None:
    """Plain, published and exact decoding, and graphs were in use."""
    assert_passed(check_strictly(TOY[name], CUDA)["checks"])


@pytest.mark.parametrize("name", list(TOY))
def test_a_graph_of_the_forward_gives_the_eager_bits(name: str) -> None:
    shape = TOY[name]
    backbone, heads = random_backbone(shape, CUDA, torch.bfloat16), random_heads(shape, CUDA, torch.bfloat16)
    bandwidth = own_bandwidth(CUDA, toy=True, seconds=0.1)
    figures = measure_parts(shape, backbone, heads, bandwidth, Allowance(0))
    assert_passed(figures["checks"])
    assert all(part["graphed_ms"] > 0 for part in figures["widths"].values())


def test_moved_weights_are_captured_anew() -> None:
    assert_passed(check_moves(TOY["janus"], CUDA, torch.float32)["checks"])


def test_both_allocators() -> None:
    result = check_allocators("janus", CUDA, toy=True, seconds=240)
    assert {told["backend"] for told in result["allocators"].values()} == set(BACKENDS)
    assert_passed(result["checks"])
