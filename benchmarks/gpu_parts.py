"""One model's section of parts: forward widths, drafting, attention by backend, and what memory goes where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from ssd_core import AR, Backbone, Schedule, SpatialHeads, SSDError, StopRequested
from ssd_core.graphs import graphs_of
from ssd_core.transformer import KVCache

from .gpu_attention import attention_backends
from .gpu_budget import Allowance
from .gpu_forward import copy_bandwidth, drafting, forward_widths
from .gpu_shapes import PROMPT, Shape, weight_bytes
from .gpu_span import Decoder, wait

_COPY_BYTES, _TOY_COPY_BYTES = 2 << 30, 16 << 20
_EAGER_STEPS = 10
"""Steps after which an eager run holds all the memory that it ever will."""


def own_bandwidth(device: torch.device, toy: bool, seconds: float) -> float:
    """Bytes read and written a second in a large copy on the device."""
    return copy_bandwidth(device, _TOY_COPY_BYTES if toy else _COPY_BYTES, seconds / 2)


def measure_parts(
    shape: Shape, backbone: Backbone, heads: SpatialHeads, bandwidth: float | None, allowed: Allowance
) -> dict[str, Any]:
    """Figures and the check that a graph of the decoder gives the eager bits. Raises SSDError without ``bandwidth``."""
    if bandwidth is None:
        raise SSDError("the copy bandwidth is not measured yet; run the section device first")
    widths = forward_widths(backbone, shape.grid, bandwidth, allowed.part(0.4))
    step = {key: widths["K = 1"][key] for key in ("eager_ms", "graphed_ms") if key in widths["K = 1"]}
    draft = drafting(backbone, heads, shape.grid, step, allowed.part(0.25))
    attention = attention_backends(backbone, shape.grid, allowed.part(0.5))
    checks = {
        f"graph alone gives the eager bits: {name}": {
            "passed": part.get("same_bits", False), "detail": part.get("graph_failed", "full size"),
        }
        for name, part in [*widths.items(), ("drafting a row", draft)]
        if backbone.device.type == "cuda"
    }  # fmt: skip
    return {
        "layers": backbone.decoder.spec.layers,
        "layers_full": shape.llama.decoder.layers,
        "bandwidth": bandwidth,
        "widths": widths,
        "drafting": draft,
        "attention": attention,
        "memory": _memory(shape, backbone, heads, allowed),
        "checks": checks,
    }


def _memory(shape: Shape, backbone: Backbone, heads: SpatialHeads, allowed: Allowance) -> dict[str, int | None]:
    """Bytes of weights, heads, keys and values, and of what the library's graphs hold on to (None off a GPU, and
    where time was too short)."""
    slots = backbone.prompt_rows([PROMPT], "", shape.grid, True).length + backbone.stream(shape.grid).length
    cache = KVCache(backbone.decoder.spec, 2, slots, backbone.dtype, torch.device("meta"))
    kept = cache.keys.numel() * cache.keys.element_size() * 2
    memory: dict[str, int | None] = {
        "weights": weight_bytes(backbone), "heads": weight_bytes(heads), "keys and values": kept
    }  # fmt: skip
    schedules: dict[str, Schedule] = {"AR": AR(), "SSD": shape.paper}
    for name, schedule in schedules.items():
        memory[f"graphs of {name}"] = None
        if backbone.device.type == "cuda":
            memory[f"graphs of {name}"] = graph_bytes(shape, backbone, heads, schedule, allowed, _reserved)
    return memory


def graph_bytes(
    shape: Shape, backbone: Backbone, heads: SpatialHeads, schedule: Schedule, allowed: Allowance,
    reserved: Callable[[torch.device], int],
) -> int | None:  # fmt: skip
    """How much more memory stays reserved after two small graphed pictures (the second captures what came up once in
    the first) than after the beginning of an eager one: graphs, and the keys, values and other tensors that are kept
    for them. None where time ended before the graphs were there."""
    asked = 0

    def enough() -> bool:
        nonlocal asked
        asked += 1
        return asked > _EAGER_STEPS

    kept = graphs_of(backbone)
    kept.release()
    with suppress(StopRequested):
        Decoder("", schedule, "off").run(backbone, heads, shape.check_grid, should_stop=enough)
    before = reserved(backbone.device)
    try:
        for _ in range(2):
            Decoder("", schedule, "auto").run(
                backbone, heads, shape.check_grid, should_stop=lambda: not allowed.left
            )  # fmt: skip
    except StopRequested:
        return None
    else:
        return reserved(backbone.device) - before
    finally:
        kept.release()


def _reserved(device: torch.device) -> int:
    """Bytes that PyTorch holds when it has given back what nobody uses."""
    wait(device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)
