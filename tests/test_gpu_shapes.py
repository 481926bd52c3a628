"""The GPU benchmark's models: sizes, random weights, and transformers' classes on the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu_models import needs
from benchmarks.gpu_shapes import FULL, PROMPT, TOY, empty_backbone, heads_spec, random_backbone, random_heads
from benchmarks.gpu_span import decoders, forwards_of
from benchmarks.gpu_transformers import Loop, twin
from ssd_core import AR, Rolling, Rounds, SSDError
from ssd_core.heads import SpatialHeads
from ssd_core.transformer import rope_table

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "forwards", "plain"), [("janus", 80, 576), ("lumina", 281, 2304), ("emu3", 661, 8100)]
)
def test_forwards_of_the_full_shapes_are_the_papers(name: str, forwards: int, plain: int) -> None:
    shape = FULL[name]
    stream = empty_backbone(shape).stream(shape.grid)
    assert forwards_of(shape.paper, stream) == forwards
    assert forwards_of(AR(), stream) == plain
    assert forwards_of(Rolling(), stream) is None


@pytest.mark.parametrize("name", list(TOY))
def test_counted_forwards_are_those_of_a_run(name: str) -> None:
    """The played schedule counts what the engine does; fused rounds may be fewer, never more."""
    shape = TOY[name]
    backbone, heads = random_backbone(shape, CPU, torch.float32), random_heads(shape, CPU, torch.float32)
    for decoder in decoders(shape.paper, 3):
        counted = forwards_of(decoder.schedule, backbone.stream(shape.grid))
        if counted is None:
            continue
        ran = decoder.run(backbone, heads, shape.grid).report.total_forwards
        fused = isinstance(decoder.schedule, Rounds) and decoder.schedule.commit == "fused"
        assert ran <= counted if fused else ran == counted


@pytest.mark.parametrize(("name", "parameters"), [("janus", 6.59), ("lumina", 6.78), ("emu3", 7.87)])
def test_full_shapes_have_the_models_sizes(name: str, parameters: float) -> None:
    backbone = empty_backbone(FULL[name])
    assert sum(p.numel() for p in backbone.parameters()) / 1e9 == pytest.approx(parameters, abs=0.01)
    with torch.device("meta"):
        heads = SpatialHeads(heads_spec(FULL[name]))
    assert sum(p.numel() for p in heads.head("vertical", 1).parameters()) == pytest.approx(134e6, rel=0.01)
    assert heads.spec.horizontal == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("name", list(TOY))
def test_random_weights_are_repeatable_and_sane(name: str) -> None:
    """One seed, one model; finite, neither flat nor certain distributions."""
    shape = TOY[name]
    one, two, other = (random_backbone(shape, CPU, torch.float32, seed) for seed in (0, 0, 1))
    for (key, a), b, c in zip(one.named_parameters(), two.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        if a.dim() > 1 and "norm" not in key:
            assert not torch.equal(a, c)
    rows = one.prompt_rows([PROMPT], "", shape.grid, guided=True)
    rope = rope_table(rows.positions, one.decoder.spec.head_dim, one.rope_theta)
    logits = one.logits(one.decoder(rows.embeddings, rope)[:, -1])
    weights = logits.softmax(-1)
    assert 0.3 < float(logits.std()) < 3
    assert 1.5 / one.codes < float(weights.max()) < 0.5


def test_memory_plan_covers_weights_and_heads() -> None:
    shape = FULL["janus"]
    fixed, per_layer = needs(shape, torch.bfloat16)
    layers = shape.llama.decoder.layers
    own = 2 * sum(p.numel() for p in empty_backbone(shape).parameters())
    assert own < fixed + layers * per_layer < own + 8 * 2**30
    assert per_layer > 2 * sum(p.numel() for p in empty_backbone(shape).decoder.layers[0].parameters())


def twin_or_skip(name: str) -> tuple[Any, Any, Any]:
    shape = TOY[name]
    backbone = random_backbone(shape, CPU, torch.float32)
    pytest.importorskip("transformers")
    try:
        return shape, backbone, twin(shape, backbone)
    except SSDError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", list(TOY))
def test_transformers_twin_is_the_same_model(name: str) -> None:
    """Same features from the same weights, and not a byte of them copied."""
    _, backbone, model = twin_or_skip(name)
    spec = backbone.decoder.spec
    x = torch.randn(2, 9, spec.hidden, generator=torch.Generator().manual_seed(0))
    ours = backbone.norm(
        backbone.decoder(x, rope_table(torch.arange(9.0)[:, None], spec.head_dim, backbone.rope_theta))
    )
    assert (model(inputs_embeds=x)[0] - ours).abs().max() < 1e-5
    storages = {p.untyped_storage().data_ptr() for p in backbone.parameters()}
    assert {p.untyped_storage().data_ptr() for p in model.parameters()} <= storages


@pytest.mark.parametrize("name", list(TOY))
@torch.inference_mode()
def test_transformers_loops_agree(name: str) -> None:
    """Either cache, rows together or apart: the same codes."""
    shape, backbone, model = twin_or_skip(name)
    drawn = []
    for kind, batched in (("static", True), ("dynamic", True), ("dynamic", False)):
        loop = Loop(shape, backbone, model, kind, batched, length=30)
        loop.fill(12)
        drawn.append([int(loop.step()) for _ in range(8)])
    assert drawn[0] == drawn[1] == drawn[2]
    assert len(set(drawn[0])) > 1
