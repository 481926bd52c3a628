"""Correctness on the device: graphed equals eager, exact mode against plain decoding, weights that moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ssd_core import AR, Backbone, Rolling, Schedule, SpatialHeads
from ssd_core.capture import CaptureBackend, Replay
from ssd_core.graphs import Graphs, GraphsChoice, graphs_of, hang
from ssd_core.runner import StepFunction

from .gpu_budget import Allowance
from .gpu_shapes import Shape, random_backbone, random_heads
from .gpu_span import Decoder, wait

SMALL_LAYERS = 2
"""Layers of the float32 models: rounding is no excuse there, and a few layers are as good a proof as thirty."""

_MOVED_LAYERS = 4

Checks = dict[str, dict[str, Any]]
"""What was checked -> {passed, detail}."""


def small_decoders(shape: Shape) -> dict[str, Decoder]:
    """Plain, published, and exact rolling, each eager and graphed."""
    schedules: dict[str, Schedule] = {"AR": AR(), "SSD": shape.paper, "exact": Rolling(window_rows=2)}
    kinds: dict[str, GraphsChoice] = {"eager": "off", "graphed": "auto"}
    return {
        f"{name}, {kind}": Decoder(f"{name}, {kind}", schedule, graphs, uses_heads=name != "AR")
        for name, schedule in schedules.items()
        for kind, graphs in kinds.items()
    }


def draw_small(
    shape: Shape, backbone: Backbone, heads: SpatialHeads, seed: int, allowed: Allowance | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Codes of one small picture by every decoder, and what the reports say of graphs; ends when time does."""
    codes, graphs = {}, {}
    for name, decoder in small_decoders(shape).items():
        if allowed is not None and not allowed.left:
            break
        drawn = decoder.run(backbone, heads, shape.check_grid, seed=seed)
        codes[name] = drawn.tokens
        if name.endswith("graphed"):
            graphs[name] = drawn.report.graphs
    return codes, graphs


def shares(codes: dict[str, Tensor]) -> dict[str, float]:
    """Share of equal codes: each graphed decoder with its eager self, exact mode with plain decoding."""
    pairs = [(name, name.replace("graphed", "eager")) for name in codes if name.endswith("graphed")]
    pairs += [(f"exact, {kind}", f"AR, {kind}") for kind in ("eager", "graphed") if f"exact, {kind}" in codes]
    return {f"{a} = {b}": float((codes[a] == codes[b]).double().mean()) for a, b in pairs if a in codes and b in codes}


def graphs_ran(texts: dict[str, str], device: torch.device) -> Checks:
    """On a GPU every graphed run must have used graphs; elsewhere none may."""
    wanted = device.type == "cuda"
    return {
        f"graphs {'used' if wanted else 'left alone'}: {name}": {
            "passed": text.startswith("off") != wanted, "detail": text,
        }
        for name, text in texts.items()
    }  # fmt: skip


def check_model(
    shape: Shape, build: Callable[[], tuple[Backbone, SpatialHeads]], device: torch.device, allowed: Allowance
) -> dict[str, Any]:
    """Small pictures by two layers of the model in float32, where every share must be 1; then by what ``build`` makes,
    in its own dtype, where shares are reported and not judged: half precision turns near-ties over, except those on
    the very same shapes."""
    strict = check_strictly(shape, device)
    backbone, heads = build()
    codes, texts = draw_small(shape, backbone, heads, 0, allowed)
    checks = graphs_ran(texts, device)
    if device.type == "cuda" and allowed.left:
        checks |= check_static(shape, backbone, heads, codes)
    missing = {}
    if left := [name for name in small_decoders(shape) if name not in codes]:
        missing["small pictures"] = f"no time was left for {', '.join(left)}"
    return {
        "shares": shares(codes),
        "shares_float32": strict["shares_float32"],
        "graphs": texts,
        "checks": {**checks, **strict["checks"]},
        "missing": missing,
    }


class PlainReplays(CaptureBackend):
    """Does a step again where others replay its graph: the plain path on a graphed run's own shapes and tensors."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def buffer(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int64, device=self.device)

    def fill(self, buffer: Tensor, numbers: list[int]) -> None:
        buffer.copy_(torch.tensor(numbers, dtype=torch.int64))

    def aside(self, step: StepFunction, numbers: Tensor) -> None:
        step(numbers)

    def capture(self, step: StepFunction, numbers: Tensor) -> Replay:
        return lambda: step(numbers)

    def wait(self) -> None:
        wait(self.device)


def check_static(shape: Shape, backbone: Backbone, heads: SpatialHeads, codes: dict[str, Tensor]) -> Checks:
    """Graphed pictures ``codes`` against plain ones on the same shapes: equal in any dtype, as the kernels are."""
    graphed = graphs_of(backbone)
    hang(backbone, Graphs(PlainReplays(backbone.device)))
    checks: Checks = {}
    try:
        for name, decoder in small_decoders(shape).items():
            if decoder.graphs == "auto" and name in codes:
                drawn = decoder.run(backbone, heads, shape.check_grid, seed=0)
                share = float((drawn.tokens == codes[name]).double().mean())
                checks[f"{name} = eager on static shapes"] = {"passed": share == 1, "detail": f"{share:.4f}"}
    finally:
        hang(backbone, graphed)
    return checks


def check_strictly(shape: Shape, device: torch.device) -> dict[str, Any]:
    """Two layers in float32: graphed, eager and exact mode give the same picture."""
    small = shape.with_layers(SMALL_LAYERS)
    backbone = random_backbone(small, device, torch.float32)
    heads = random_heads(small, device, torch.float32)
    codes, texts = draw_small(small, backbone, heads, seed=0)
    found = shares(codes)
    judged = {f"float32: {pair}": {"passed": share == 1, "detail": f"{share:.4f}"} for pair, share in found.items()}
    return {"shares_float32": found, "checks": {**graphs_ran(texts, device), **judged}}


def check_moves(shape: Shape, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Draws, moves every weight off the device and back to another address, spoils the old places, draws again.

    A replay that still read the old addresses would meet NaN. The codes must be those of before.
    """
    small = shape.with_layers(min(_MOVED_LAYERS, shape.llama.decoder.layers))
    backbone, heads = random_backbone(small, device, dtype), random_heads(small, device, dtype)
    decoder = Decoder("SSD", shape.paper, "auto")

    def draw() -> tuple[Tensor, str]:
        drawn = decoder.run(backbone, heads, shape.check_grid)
        return drawn.tokens, drawn.report.graphs

    checks: Checks = {}
    texts = {}
    before, texts["before"] = draw()
    moves: dict[str, Callable[[], int]] = {
        "backbone": lambda: move(backbone, device),
        "heads": lambda: move(heads, device),
        "both": lambda: move(backbone, device) + move(heads, device),
    }
    for name, go in moves.items():
        moved = go()
        after, texts[f"after {name} moved"] = draw()
        share = float((after == before).double().mean())
        checks[f"equal after {name} moved"] = {"passed": share == 1, "detail": f"{share:.4f}, {moved} tensors moved"}
    return {"checks": checks | graphs_ran(texts, device), "graphs": texts}


def move(module: nn.Module, device: torch.device) -> int:
    """Moves every parameter to the CPU and back, never to its old address; returns how many moved."""
    moved = 0
    for parameter in module.parameters():
        old = parameter.data
        parameter.data = old.to("cpu", copy=True).to(device, copy=True)
        moved += parameter.data_ptr() != old.data_ptr()
        old.fill_(torch.nan)
    return moved
