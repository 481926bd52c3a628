"""The parts of a step by themselves: copy bandwidth, the decoder at several widths, drafting a row.

Each part is timed eagerly and, on a GPU, as a CUDA graph of its own that is captured here: what the device needs when
nobody keeps it waiting, whatever the library's graphs make of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ssd_core import Backbone, SpatialHeads
from ssd_core.coupling import inverse_cdf
from ssd_core.sampling import guide, truncate
from ssd_core.stream import Stream

from .gpu_budget import Allowance
from .gpu_shapes import PROMPT, weight_bytes
from .gpu_span import wait
from .plain_steps import Forward, Forwards

_WARM, _LEAST, _MOST = 2, 3, 30


def median_seconds(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Median time of one call, from as many calls as fit into ``seconds`` (3 to 30), after two that do not count."""
    for _ in range(_WARM):
        work()
    wait(device)
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < _LEAST or (len(times) < _MOST and time.perf_counter() - begun < seconds):
        start = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def captured(work: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
    """(replay, output) of a CUDA graph of ``work``, whose inputs must stay where they are."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(_WARM):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    current = torch.cuda.stream(torch.cuda.current_stream(device))  # a capture that fails at its end stays on its own
    with current, torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        out = work()
    return graph.replay, out


def timed(work: Callable[[], Tensor], device: torch.device, seconds: float) -> dict[str, Any]:
    """Milliseconds eager and, on a GPU, replayed; ``same_bits`` tells whether both gave the same output.

    ``graph_failed`` says instead why the work cannot be captured.
    """
    figures: dict[str, Any] = {"eager_ms": 1e3 * median_seconds(work, device, seconds / 2)}
    if device.type != "cuda":
        return figures
    eager = work().clone()
    try:
        replay, out = captured(work, device)
    except RuntimeError as error:
        return {**figures, "graph_failed": " ".join(str(error).split())}
    figures["graphed_ms"] = 1e3 * median_seconds(replay, device, seconds / 2)
    figures["same_bits"] = bool(torch.equal(eager, out))
    return figures


def copy_bandwidth(device: torch.device, size: int, seconds: float) -> float:
    """Bytes read and written a second when ``size`` bytes are copied on the device."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / median_seconds(lambda: target.copy_(source), device, seconds)


def widths_of(stream: Stream) -> dict[str, int]:
    """Name -> fed tokens: one, a row, two rows, 240 (as many as the picture has, at most)."""
    most = stream.length - 1
    return {
        "K = 1": 1, "1 row": min(stream.stride, most), "2 rows": min(2 * stream.stride, most), "240": min(240, most)
    }  # fmt: skip


def start_of(stream: Stream, width: int) -> int:
    """Where ``width`` tokens begin that end with half the picture, or as soon after it as they can."""
    return max(0, stream.length // 2 - width)


@torch.inference_mode()
def forward_widths(backbone: Backbone, grid: tuple[int, int], bandwidth: float, allowed: Allowance) -> dict[str, Any]:
    """The engine's forward and the output head, behind half a picture, for each width of ``widths_of``.

    In the shapes of a run with graphs, eager too: ``fed`` tokens with those that fill them up, ``kv`` cache slots.
    ``share``: bytes of the weights and of the keys and values in play, over what a copy moves in the same time.
    """
    stream, spec, device = backbone.stream(grid), backbone.decoder.spec, backbone.device
    forwards = Forwards(backbone, PROMPT, grid, graphed=True)
    sequences, element = backbone.default_sampling.guidance_rows, backbone.dtype.itemsize
    head = sum(t.numel() * t.element_size() for t in _head_weights(backbone))
    results: dict[str, Any] = {}
    widths = widths_of(stream)
    for number, (name, width) in enumerate(widths.items()):
        forward = forwards.forward(start_of(stream, width), width)

        def work(forward: Forward = forward) -> Tensor:
            forward.feed()
            return backbone.logits(forward.features)

        figures = timed(work, device, allowed.part(1 / (len(widths) - number)).left)
        kept = 2 * spec.layers * spec.kv_heads * spec.head_dim * sequences * forward.shape.length * element
        size = weight_bytes(backbone.decoder) + head + kept
        best = figures.get("graphed_ms", figures["eager_ms"])
        results[name] = {
            "tokens": width, "fed": forward.shape.width, "kv": forward.shape.length, "bytes": size,
            "share": size / bandwidth / (best / 1e3), **figures,
        }  # fmt: skip
    return results


def _head_weights(backbone: Backbone) -> list[Tensor]:
    """The output head's own weights, whatever the family calls them."""
    return [t for name, t in backbone.named_parameters() if name.startswith("head")]


@torch.inference_mode()
def drafting(
    backbone: Backbone, heads: SpatialHeads, grid: tuple[int, int], step_ms: dict[str, float], allowed: Allowance
) -> dict[str, Any]:
    """One row by the first vertical head: head, norm, output head, guidance, truncation, one draw for each column.

    ``in_ar_steps``: over ``step_ms``, the forward at K = 1 of the same kind (eager, graphed).
    """
    stream, device, sampling = backbone.stream(grid), backbone.device, backbone.default_sampling
    generator = torch.Generator(device).manual_seed(3)
    shape = (sampling.guidance_rows, stream.cols, backbone.hidden)
    features = torch.randn(shape, generator=generator, device=device).to(backbone.dtype)
    tokens = torch.arange(stream.cols, device=device) % backbone.codes
    uniform = torch.rand(stream.cols, generator=generator, device=device)
    head = heads.head("vertical", heads.offsets("vertical")[0])

    def work() -> Tensor:
        embedding = backbone.embed(tokens).expand(shape)
        logits = backbone.logits(head(features, embedding))
        weights = truncate(guide(logits, sampling.guidance, sampling.guidance_rows)[0], sampling)
        return inverse_cdf(weights.softmax(-1), uniform)

    figures = timed(work, device, allowed.left)
    steps = {key.removesuffix("_ms"): figures[key] / step_ms[key] for key in step_ms if key in figures}
    return {"tokens": stream.cols, **figures, "in_ar_steps": steps}
