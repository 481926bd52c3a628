"""Captured steps on a real GPU and the GPU benchmark's own checks there, with toy models: `pytest -m gpu`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from benchmarks.gpu_allocators import BACKENDS, check_allocators
from benchmarks.gpu_budget import Allowance
from benchmarks.gpu_checks import check_moves, check_strictly
from benchmarks.gpu_parts import measure_parts, own_bandwidth
from benchmarks.gpu_shapes import PROMPT, TOY, random_backbone, random_heads
from ssd_core import Generation, HorizontalMTP, Jacobi, Rolling, Rounds, generate
from ssd_core.capture import CudaCapture
from ssd_core.graphs import graphs_of
from ssd_core.sampling import running_sum
from ssd_core.schedule import Schedule

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda", 0)


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
    figures = measure_parts(shape, backbone, heads, bandwidth, Allowance(time.perf_counter() + 30))
    assert_passed(figures["checks"])
    assert all(part["graphed_ms"] > 0 for part in figures["widths"].values())
    assert all(told["masked"]["math"]["eager_ms"] > 0 for told in figures["attention"].values())
    assert None not in figures["memory"].values()


def test_moved_weights_are_captured_anew() -> None:
    assert_passed(check_moves(TOY["janus"], CUDA, torch.float32)["checks"])


def test_both_allocators() -> None:
    result = check_allocators("janus", CUDA, toy=True, seconds=240)
    assert {told["backend"] for told in result["allocators"].values()} == set(BACKENDS)
    assert_passed(result["checks"])


def draw(backbone: Any, heads: Any, schedule: Schedule, graphs: Any = "auto", **options: Any) -> Generation:
    return generate(
        backbone, PROMPT, heads=heads, schedule=schedule, grid=TOY["janus"].check_grid, graphs=graphs, **options
    )  # fmt: skip


@pytest.mark.parametrize(
    "schedule", [Rolling(2, tolerance=4.0), Rolling(3, coupling="maximal"), Rounds(1), Jacobi(7), HorizontalMTP(3, 2)]
)
def test_other_decoders_replay_what_they_do(schedule: Schedule) -> None:
    """In double precision, where no rounding turns a near-tie over; batches too, and new seeds on the same graphs."""
    shape = TOY["janus"]
    backbone, heads = random_backbone(shape, CUDA, torch.float64), random_heads(shape, CUDA, torch.float64)
    for batch, seed in ((1, 0), (1, 1), (2, 2), (2, 3), (1, 4)):
        plain = draw(backbone, heads, schedule, "off", batch=batch, seed=seed)
        graphed = draw(backbone, heads, schedule, batch=batch, seed=seed)
        assert not graphed.report.graphs.startswith("off"), graphed.report.graphs
        assert torch.equal(plain.tokens, graphed.tokens)


def test_threads_on_a_gpu() -> None:
    shape = TOY["janus"]
    backbone, heads = random_backbone(shape, CUDA, torch.float64), random_heads(shape, CUDA, torch.float64)
    plain = [draw(backbone, heads, Rounds(1), "off", seed=seed).tokens for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda seed: draw(backbone, heads, Rounds(1), seed=seed), range(6)))
    assert all(torch.equal(a, b.tokens) for a, b in zip(plain, together, strict=True))
    assert not all(result.report.graphs.startswith("off") for result in together)


def allocated() -> int:
    """Bytes that tensors have. Without the matrix library's workspaces, which stay with a stream once it was used."""
    torch.cuda.synchronize(CUDA)
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated(CUDA)


def test_release_gives_the_memory_back() -> None:
    shape = TOY["janus"]
    backbone, heads = random_backbone(shape, CUDA, torch.float32), random_heads(shape, CUDA, torch.float32)
    draw(backbone, heads, Rolling(2), "off")
    before = allocated()
    for _ in range(2):
        draw(backbone, heads, Rolling(2))
    assert graphs_of(backbone).count > 2
    assert torch.cuda.memory_allocated(CUDA) > before
    graphs_of(backbone).release()
    assert allocated() <= before + 2**20
    assert not draw(backbone, heads, Rolling(2)).report.graphs.startswith("off")


def test_the_other_allocator_survives_failed_captures_and_gives_memory_back() -> None:
    """In a process of its own: ComfyUI's default allocator, where freeing in an invalid capture may end the process."""
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    environment["PYTORCH_ALLOC_CONF"] = environment["PYTORCH_CUDA_ALLOC_CONF"]
    names = "test_a_failed_capture_disturbs_nobody or test_release_gives_the_memory_back"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-k", names, __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "2 passed" in done.stdout


def test_a_row_has_the_same_sums_alone_and_with_others_and_every_time() -> None:
    generator = torch.Generator(CUDA).manual_seed(0)
    weights = torch.rand(2, 32768, generator=generator, device=CUDA) ** 8
    weights = weights.masked_fill(torch.rand(weights.shape, generator=generator, device=CUDA) < 0.9, 0)
    together = running_sum(weights)
    for _ in range(50):
        alone = running_sum(weights[:1])
        assert torch.equal(alone, together[:1])
    assert bool((together.diff(dim=-1) >= 0).all())
    assert bool((together.diff(dim=-1)[weights[:, 1:] == 0] == 0).all())  # no code of weight 0 can be drawn


def test_a_failed_capture_disturbs_nobody() -> None:
    """Neither random numbers that others draw, nor the captures to come."""
    backend = CudaCapture(CUDA)
    numbers, total = backend.buffer(2), torch.zeros(2, dtype=torch.int64, device=CUDA)
    with pytest.raises(RuntimeError):
        backend.capture(lambda numbers: print(numbers.sum().item()), numbers)
    assert torch.randn(3, device=CUDA).isfinite().all()

    def step(numbers: torch.Tensor) -> None:
        total.add_(numbers)

    backend.aside(step, numbers)
    replay = backend.capture(step, numbers)
    for values in ([1, 2], [10, 20]):
        backend.fill(numbers, values)
        replay()
    assert total.tolist() == [11, 22]
