"""What training needs: the estimate against bytes that were counted, and against the three big models' sizes."""

from __future__ import annotations

import pytest
import torch
from toys import ToyBackbone

from benchmarks.gpu_shapes import FULL, empty_backbone
from benchmarks.live_bytes import LiveBytes
from ssd_core import load_backbone
from ssd_core.cli import distill, main
from ssd_core.distill import TrainSettings, estimate
from ssd_core.distill.estimate import GIB, SMALL_CARD, USEFUL, fitting, in_words, training_memory
from ssd_core.distill.samples import Samples
from ssd_core.distill.session import Wanted
from ssd_core.distill.train import train_heads
from ssd_core.heads import SpatialHeads

PAPER = Wanted((1, 2, 3, 4, 5), (1, 2, 3, 4, 5))


def test_training_memory_counts_every_byte_that_stays() -> None:
    """Weights and optimizer are exact; what fits a small card really does by the same count, and grows with it."""
    backbone = load_backbone(device="meta", dtype="bfloat16")
    wanted = Wanted((1, 2), (1,), 1)
    need = training_memory(backbone, wanted, [(24, 24)], 2, 0)
    heads = SpatialHeads(wanted.spec(backbone))
    assert need.heads == 16 * sum(p.numel() for p in heads.parameters())
    assert need.weights == sum(p.numel() * p.element_size() for p in [*backbone.parameters(), *backbone.buffers()])
    bigger = training_memory(backbone, wanted, [(24, 24), (32, 32)], 2, 2048)
    assert bigger.activations > training_memory(backbone, wanted, [(24, 24)], 2, 2048).activations > need.activations
    every = Wanted((1, 2, 3, 4, 5), (1, 2, 3, 4, 5))
    assert fitting(backbone, every, [(24, 24)], 0) == every
    assert fitting(backbone, every, [(24, 24)], 0, limit=GIB) is None
    limit = training_memory(backbone, Wanted((1,), (1,)), [(24, 24)], 1, 0).total + GIB
    assert fitting(backbone, every, [(24, 24)], 0, limit) == Wanted((1,), (1,))
    assert sorted(USEFUL) == sorted((way, n) for way in ("horizontal", "vertical") for n in range(1, 6))


@pytest.mark.parametrize(("dtype", "neighbours"), [(torch.float32, 0), (torch.bfloat16, 1)])
@pytest.mark.parametrize(
    ("grid", "micro_batch", "kl_weight"), [((2, 3), 1, 0.0), ((12, 12), 1, 1.0), ((12, 12), 4, 0.0)]
)
def test_training_needs_no_more_than_the_estimate(
    dtype: torch.dtype, neighbours: int, grid: tuple[int, int], micro_batch: int, kl_weight: float, monkeypatch
) -> None:
    """Two steps, every tensor counted: never above the estimate and not far below it, whatever weighs most."""
    monkeypatch.setattr(estimate, "PROMPT_TOKENS", 6)
    backbone = ToyBackbone(*grid, codes=300, hidden=192, dtype=dtype)
    wanted = Wanted((1, 2), (1,), neighbours)
    heads = SpatialHeads.new(wanted.spec(backbone), 0)
    pictures = [Samples(torch.zeros(4, *grid, dtype=torch.int64), ["ab"] * 4)]
    settings = TrainSettings(
        steps=2, batch=4, micro_batch=micro_batch, kl_weight=kl_weight, autocast=dtype == torch.bfloat16
    )
    need = training_memory(backbone, wanted, [grid], micro_batch, settings.kl_positions if kl_weight else 0)
    own = [*backbone.parameters(), *backbone.buffers(), *heads.parameters()]
    with LiveBytes() as live:
        train_heads(backbone, heads, pictures, settings)
    peak = live.peak + sum(p.nbytes for p in own)
    assert peak <= need.total
    assert need.total < 1.6 * peak


@pytest.mark.parametrize(("name", "weights", "small"), [("janus", 13.2, 4), ("lumina", 13.6, 4), ("emu3", 15.7, 2)])
def test_seven_billion_weights_and_a_card_of_24_gb(name: str, weights: float, small: int) -> None:
    """The published sizes in bfloat16: the paper's ten heads take 134M weights each, of which some fit a small card."""
    backbone = empty_backbone(FULL[name]).to(torch.bfloat16)
    grids = [FULL[name].grid]
    need = training_memory(backbone, PAPER, grids, 1, 0)
    assert need.weights / 1e9 == pytest.approx(weights, abs=0.1)
    assert need.heads / 1e9 == pytest.approx(10 * 0.1342 * 16, rel=0.01)
    assert 0.5 < need.activations / 1e9 < 6
    assert SMALL_CARD < need.total < 48 * GIB
    some = fitting(backbone, PAPER, grids, 0)
    assert some is not None
    assert 1 in some.vertical
    assert len(some.horizontal) + len(some.vertical) == small
    fits = training_memory(backbone, some, grids, 1, 0).total
    assert fits + GIB <= SMALL_CARD < fits + GIB + 16 * 0.1342e9  # not one head more


def test_train_says_what_fits_a_small_card(monkeypatch, capsys) -> None:
    """The printed options, given to `train`, are the ones that fit."""
    backbone = empty_backbone(FULL["janus"]).to(torch.bfloat16)
    backbone.fingerprint = "none"
    pictures = [Samples(torch.zeros(1, 24, 24, dtype=torch.int64), [""])]
    monkeypatch.setattr(distill, "load_backbone", lambda *_, **__: backbone)
    monkeypatch.setattr(distill, "_read", lambda *_: pictures)
    command = ["distill", "train", "samples", "-o", "heads.safetensors", "--estimate"]
    assert main(command) == 0
    memory, small = capsys.readouterr().out.splitlines()
    assert memory.startswith("memory: 13.18 GB weights + 21.48 GB heads and optimizer + at most 0.")
    options = small.removeprefix("for 24 GB: ").partition(";")[0]
    assert options == "--horizontal 1 2 --vertical 1 2 --micro-batch 1"
    assert main([*command, *options.split()]) == 0
    assert "24 GB" not in capsys.readouterr().out


def test_durations_in_words() -> None:
    assert [in_words(s) for s in (0.2, 89, 600, 5 * 3600, 10**6)] == ["1 s", "89 s", "10 min", "5.0 h", "11.6 days"]
