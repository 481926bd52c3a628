"""Correctness on the device: graphed equals eager, exact mode against plain decoding, weights that moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ssd_core import AR, Backbone, Rolling, Schedule, SpatialHeads, StopRequested
from ssd_core.graphs import Graphs, GraphsChoice, graphs_of, hang

from .gpu_budget import Allowance
from .gpu_shapes import Shape, random_backbone, random_heads
from .gpu_span import Decoder
from .plain_steps import PlainReplays

SMALL_LAYERS = 2
"""Layers of the float32 models: rounding is no excuse there, and a few layers are as good a proof as thirty."""

_MOVED_LAYERS = 4

Checks = dict[str, dict[str, Any]]
"""What was checked -> {passed, detail}."""


def small_decoders(shape: Shape) -> dict[str, Decoder]:
    """Published, plain, and exact rolling, each eager and graphed; the first count most should time run out."""
    schedules: dict[str, Schedule] = {"SSD": shape.paper, "AR": AR(), "exact": Rolling(window_rows=2)}
    kinds: dict[str, GraphsChoice] = {"eager": "off", "graphed": "auto"}
    return {
        f"{name}, {kind}": Decoder(f"{name}, {kind}", schedule, graphs, uses_heads=name != "AR")
        for name, schedule in schedules.items()
        for kind, graphs in kinds.items()
    }


@dataclass
class Small:
    """Small pictures: codes by decoder, what reports say of graphs, and the decoders there was no time for."""

    codes: dict[str, Tensor] = field(default_factory=dict)
    graphs: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def draw_small(
    shape: Shape, backbone: Backbone, heads: SpatialHeads, seed: int, names: Iterable[str], allowed: Allowance | None
) -> Small:
    """One small picture by each of the named decoders; the one that is being drawn when time ends is given up."""
    small, all_decoders = Small(), small_decoders(shape)
    for name in names:
        try:
            drawn = all_decoders[name].run(
                backbone, heads, shape.check_grid, seed=seed,
                should_stop=None if allowed is None else lambda: not allowed.left,
            )  # fmt: skip
        except StopRequested:
            small.missing.append(name)
            continue
        small.codes[name] = drawn.tokens
        if name.endswith("graphed"):
            small.graphs[name] = drawn.report.graphs
    return small


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
    small = draw_small(shape, backbone, heads, 0, small_decoders(shape), allowed.part(0.6))
    checks = graphs_ran(small.graphs, device)
    missing = {}
    if small.missing:
        missing["small pictures"] = f"no time was left for {', '.join(small.missing)}"
    if device.type == "cuda":
        static, left = check_static(shape, backbone, heads, small.codes, allowed)
        checks |= static
        if left:
            missing["eager on static shapes"] = f"no time was left for {', '.join(left)}"
    return {
        "shares": shares(small.codes),
        "shares_float32": strict["shares_float32"],
        "graphs": small.graphs,
        "checks": {**checks, **strict["checks"]},
        "missing": missing,
    }


def check_static(
    shape: Shape, backbone: Backbone, heads: SpatialHeads, codes: dict[str, Tensor], allowed: Allowance | None
) -> tuple[Checks, list[str]]:
    """Graphed pictures among ``codes`` against plain ones on the same shapes: equal in any dtype, as the kernels are.

    Also tells the decoders that time did not suffice for.
    """
    names = [name for name in codes if name.endswith("graphed")]
    graphed = graphs_of(backbone)
    hang(backbone, Graphs(PlainReplays(backbone.device)))
    try:
        plain = draw_small(shape, backbone, heads, 0, names, allowed)
    finally:
        hang(backbone, graphed)
    equal = {name: float((plain.codes[name] == codes[name]).double().mean()) for name in plain.codes}
    return {
        f"{name} = eager on static shapes": {"passed": share == 1, "detail": f"{share:.4f}"}
        for name, share in equal.items()
    }, plain.missing


def check_strictly(shape: Shape, device: torch.device) -> dict[str, Any]:
    """Two layers in float32: graphed, eager and exact mode give the same picture.

    The published decoder, which draws by sums of probabilities where the others take a largest number, is judged on the
    same shapes alone: the last digit of another shape's logits decides one of its thousands of draws now and then.
    """
    small = shape.with_layers(SMALL_LAYERS)
    backbone = random_backbone(small, device, torch.float32)
    heads = random_heads(small, device, torch.float32)
    drawn = draw_small(small, backbone, heads, 0, small_decoders(small), None)
    found = shares(drawn.codes)
    static: Checks = {}
    if device.type == "cuda":
        static, _ = check_static(small, backbone, heads, drawn.codes, None)
    judged = {
        pair: {"passed": share == 1, "detail": f"{share:.4f}"}
        for pair, share in found.items()
        if not pair.startswith("SSD")
    }
    named = {f"float32: {name}": result for name, result in {**static, **judged}.items()}
    return {"shares_float32": found, "checks": {**graphs_ran(drawn.graphs, device), **named}}


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
