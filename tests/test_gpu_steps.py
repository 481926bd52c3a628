"""Steps outside of a run: the forwards that benchmarks time are the engine's, attention by backend, graphs' memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_fakes import Clock

from benchmarks import gpu_attention
from benchmarks.gpu_attention import LIBRARY, PRODUCTS, attention_backends, by_products
from benchmarks.gpu_budget import Allowance
from benchmarks.gpu_forward import forward_widths
from benchmarks.gpu_parts import graph_bytes
from benchmarks.gpu_shapes import PROMPT, TOY, random_backbone, random_heads
from benchmarks.gpu_span import Decoder
from benchmarks.plain_steps import Forwards, PlainReplays
from ssd_core import AR, SSDError
from ssd_core.graphs import Graphs, graphs_of, hang
from ssd_core.transformer import rope_table

CPU = torch.device("cpu")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("name", list(TOY))
@pytest.mark.parametrize("graphed", [False, True])
@torch.inference_mode()
def test_forwards_give_what_one_pass_over_all_tokens_gives(name: str, graphed: bool) -> None:
    """Keys and values of the prompt and of the first half are there, whatever the shapes; again and again."""
    shape = TOY[name]
    backbone = random_backbone(shape, CPU, torch.float64)
    forwards = Forwards(backbone, PROMPT, shape.grid, graphed)
    tokens = forwards._state.tokens[0]
    assert len(set(tokens.tolist())) > 10
    rows = backbone.prompt_rows([PROMPT], "", shape.grid, guided=True)
    row = rows.padding.index(0)  # of Emu3's two prompts the unconditional one is the longer
    places = [positions.expand(2, -1, -1)[row] for positions in (rows.positions, rows.stream_positions)]
    positions = torch.cat(places)[None]
    x = torch.cat((rows.embeddings[row], backbone.embed(tokens)))[None]
    cos, sin = rope_table(positions, backbone.decoder.spec.head_dim, backbone.rope_theta)
    expected = backbone.decoder(x, (cos.double(), sin.double()))[0, rows.length :]
    for start, width in ((0, 5), (20, 1), (24, 8), (7, 30)):
        forward = forwards.forward(start, width)
        for _ in range(2):
            forward.feed()
            assert forward.features.shape == (2, width, backbone.hidden)
            assert (forward.features[row] - expected[start : start + width]).abs().max() < 1e-9
            forward.features.zero_()


def test_forwards_are_timed_with_what_a_run_with_graphs_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the backbone's dtype throughout, so that no layer casts or repeats anything, aligned, masked at one token."""
    shape = TOY["emu3"]
    backbone = random_backbone(shape, CPU, torch.bfloat16)
    spec, seen = backbone.decoder.spec, []
    forward = backbone.decoder.forward

    def spying(x: torch.Tensor, rotary: Any, cache: Any = None, window: Any = None) -> torch.Tensor:
        seen.append((x.shape[1], rotary, window))
        return forward(x, rotary, cache, window)

    monkeypatch.setattr(backbone.decoder, "forward", spying)
    figures = forward_widths(backbone, shape.grid, 1e9, Allowance(0))
    assert list(figures) == ["K = 1", "1 row", "2 rows", "240"]
    timed = {width: (rotary, window) for width, rotary, window in seen[2:]}  # the prompt, the first half
    for part in figures.values():
        rotary, window = timed[part["fed"]]
        assert {t.dtype for t in (*rotary, window.mask)} == {torch.bfloat16}
        assert window.mask.shape[2:] == (spec.group * part["fed"], part["kv"])
        assert set(window.mask.float().unique().tolist()) == {0.0, -torch.inf}
        assert part["kv"] % 64 == 0


def test_attention_is_timed_by_backend_with_the_librarys_own_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer's; a backend that takes no masks says so and keeps its time without one."""
    shape = TOY["lumina"]
    backbone = random_backbone(shape, CPU, torch.float32)
    calls: list[tuple[str, list[Any]]] = []

    def timed(work: Any, device: Any, seconds: float) -> dict[str, Any]:
        attend = F.scaled_dot_product_attention
        masks: list[Any] = []

        def noting(*tensors: Any, attn_mask: Any) -> torch.Tensor:
            masks.append(attn_mask)
            return attend(*tensors, attn_mask=attn_mask)

        with monkeypatch.context() as patch:
            patch.setattr(F, "scaled_dot_product_attention", noting)
            work()
        calls.append(("", masks))
        return {"eager_ms": 1.0}

    monkeypatch.setattr(gpu_attention, "timed", timed)
    monkeypatch.setattr(gpu_attention, "_ON_CPU", ("flash", "cudnn", "math"))
    found = attention_backends(backbone, shape.grid, Allowance(0))
    assert list(found) == ["K = 1", "1 row"]
    for told in found.values():
        assert told["kv"] % 64 == 0
        for kind in ("masked", "unmasked"):
            assert list(told[kind]) == [LIBRARY, PRODUCTS, "flash", "cudnn", "math"]
            assert told[kind]["math"] == told[kind][LIBRARY] == {"eager_ms": 1.0}
            assert "No viable backend" in told[kind]["cudnn"]["failed"]  # torch for the CPU has none
    layers = backbone.decoder.spec.layers
    by_backend = [layers, 0, layers, layers]  # torch's choice, matrix products, flash, math
    assert [len(masks) for _, masks in calls] == by_backend * 4
    assert [masks[0] is None for _, masks in calls if masks] == [False, False, False, True, True, True] * 2


@pytest.mark.parametrize("masks", [0, 1, 2])
def test_attention_by_products_is_attention(masks: int) -> None:
    """On views of a cache, with a mask for all sequences or one for each."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(2, 3, 5, 8, generator=generator)
    keys, values = (torch.randn(2, 12, 3, 8, generator=generator)[:, :9].transpose(1, 2) for _ in range(2))
    mask = torch.where(torch.rand(max(masks, 1), 1, 5, 9, generator=generator) < 0.3, -torch.inf, 0.0)
    mask[..., 0] = 0
    mask = mask if masks else None
    expected = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    torch.testing.assert_close(by_products(queries, keys, values, attn_mask=mask), expected)


def test_attention_that_is_not_pytorchs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = random_backbone(TOY["janus"], CPU, torch.float32)
    monkeypatch.setattr(backbone.decoder, "forward", lambda x, *rest: x)
    with pytest.raises(SSDError, match="no scaled_dot_product_attention"):
        attention_backends(backbone, TOY["janus"].grid, Allowance(0))


def test_memory_of_graphs_takes_the_beginning_of_one_eager_picture(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten steps eagerly, two whole pictures with graphs, whose memory is given back; None when time ends."""
    shape = TOY["janus"]
    backbone, heads = random_backbone(shape, CPU, torch.float32), random_heads(shape, CPU, torch.float32)
    own = hang(backbone, Graphs(PlainReplays(CPU)))
    forwards: list[tuple[str, int]] = []
    run, forward = Decoder.run, backbone.decoder.forward

    def counting(self: Decoder, *arguments: Any, **options: Any) -> Any:
        forwards.append((self.graphs, 0))
        return run(self, *arguments, **options)

    def stepping(*arguments: Any) -> torch.Tensor:
        forwards[-1] = forwards[-1][0], forwards[-1][1] + 1
        clock.now += 1
        return forward(*arguments)

    monkeypatch.setattr(Decoder, "run", counting)
    monkeypatch.setattr(backbone.decoder, "forward", stepping)

    def reserved(device: torch.device) -> int:
        return 1000 + 10 * own.count

    allowed = Allowance(clock.now + 1000, clock)
    kept = graph_bytes(shape, backbone, heads, AR(), allowed, reserved)
    assert kept is not None
    assert kept >= 20
    assert [graphs for graphs, _ in forwards] == ["off", "auto", "auto"]
    assert forwards[0][1] == 9  # ten steps, of which the first draws from the prompt's forward
    assert min(forwards[1][1], forwards[2][1]) >= 16
    assert graphs_of(backbone) is own
    assert own.count == 0
    assert graph_bytes(shape, backbone, heads, AR(), Allowance(clock.now + 15, clock), reserved) is None
    assert own.count == 0
