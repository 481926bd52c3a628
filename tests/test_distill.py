"""Self-distillation: samples on disk, features recomputed as decoding computes them, and training that helps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from toys import ToyBackbone, make_engine, toy_heads

from ssd_core import AR, Sampling, SSDError, generate
from ssd_core.coupling import Coupling
from ssd_core.distill.acceptance import expected_acceptance
from ssd_core.distill.features import feature_grid
from ssd_core.distill.losses import shifted
from ssd_core.distill.samples import Samples, collect, read_samples
from ssd_core.distill.settings import TrainSettings
from ssd_core.distill.train import train_heads
from ssd_core.draft import HeadsDrafter, NoDrafter
from ssd_core.state import DecodeState

PROMPTS = ["ab", "c", "", "dea", "b"]


def test_collecting_goes_on_where_it_was(tmp_path: Path) -> None:
    """Whole shards are kept, a half-written one is not taken for a shard, the result is as if nothing had happened."""
    backbone = ToyBackbone(3, 4)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    collect(backbone, PROMPTS, whole, grid=(3, 4), seed=5, batch=2)
    collect(backbone, PROMPTS[:2], broken, grid=(3, 4), seed=5, batch=2)
    kept = next(broken.glob("*.safetensors"))
    stamp = kept.stat().st_mtime_ns
    (broken / "samples-3x4-00001.safetensors.partial").write_bytes(b"half")
    collect(backbone, PROMPTS, broken, grid=(3, 4), seed=5, batch=2)
    assert kept.stat().st_mtime_ns == stamp
    first, second = list(read_samples(whole, "toy-1")), list(read_samples(broken, "toy-1"))
    assert [s.prompts for s in first] == [s.prompts for s in second] == [["ab", "c"], ["", "dea"], ["b"]]
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(first, second, strict=True))
    single = generate(backbone, "dea", schedule=AR(), seed=5 + 3)
    assert torch.equal(single.tokens[0], first[1].tokens[1])


def test_samples_of_another_backbone_are_refused(tmp_path: Path) -> None:
    collect(ToyBackbone(3, 4), ["a"], tmp_path, grid=(3, 4), seed=0, batch=1)
    with pytest.raises(SSDError, match="collect again in an empty folder"):
        list(read_samples(tmp_path, "other"))
    with pytest.raises(SSDError, match="no sample shards"):
        list(read_samples(tmp_path / "nothing", "other"))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("end_of_line", "axes"), [(True, 2), (True, 1), (False, 1)])
def test_features_equal_those_of_decoding(end_of_line: bool, axes: int, padded: bool) -> None:
    """One forward without a cache gives the features that token-by-token decoding saw, both guidance rows.

    With prompts of different lengths too, where decoding masks the padding on the left.
    """
    backbone = ToyBackbone(3, 5, end_of_line=end_of_line, axes=axes, padded=padded, dtype=torch.float64)
    sampling = Sampling(guidance=2.0)
    engine, _ = make_engine(backbone, NoDrafter(), AR(), batch=2, sampling=sampling, seed=3)
    tokens = engine.run(backbone.prompt_rows(["ab", "c"], "", (3, 5), guided=True))
    at = engine.state.stream.code_positions
    for row, unconditional in enumerate((False, True)):
        grid = feature_grid(backbone, Samples(tokens, ["ab", "c"]), unconditional)
        seen = engine.state.features[row][:, at].view(2, 3, 5, -1)
        assert (grid.features - seen).abs().max() < 1e-9
        assert torch.equal(grid.embeddings, backbone.embed(tokens))
    mixed = feature_grid(backbone, Samples(tokens, ["ab", "c"]), torch.tensor([True, False]))
    for picture, row in ((0, 1), (1, 0)):
        seen = engine.state.features[row, picture, at].view(3, 5, -1)
        assert (mixed.features[picture] - seen).abs().max() < 1e-9


@pytest.mark.parametrize("neighbours", [0, 1])
def test_heads_read_in_training_what_they_read_in_decoding(neighbours: int) -> None:
    """The drafter feeds a vertical head exactly the inputs that training shifts into place, edges included."""
    backbone = ToyBackbone(3, 5, dtype=torch.float64)
    heads = toy_heads(backbone, neighbours=neighbours)
    engine, _ = make_engine(backbone, NoDrafter(), AR(), seed=3)
    tokens = engine.run(backbone.prompt_rows(["ab"], "", (3, 5), guided=False))
    grid = feature_grid(backbone, Samples(tokens, ["ab"]), unconditional=False)
    state = engine.state
    stride = state.stream.stride
    state.drafted, state.computed = [stride], [stride + 1]
    predicted: list[torch.Tensor] = []

    def target(features: torch.Tensor) -> torch.Tensor:
        predicted.append(features[0])
        return backbone.logits(features)[0]

    coupling: Coupling = engine._coupling
    coupling.prepare([2 * stride])
    with torch.inference_mode():
        HeadsDrafter(backbone, heads).extend(state, [2 * stride], coupling, target)
        features, embeddings, _ = shifted(grid, "vertical", 1, neighbours)
        expected = heads.head("vertical", 1)(features, embeddings)[0, 0]
    assert (torch.cat(predicted) - expected).abs().max() < 1e-9
    assert isinstance(state, DecodeState)


def test_training_raises_acceptance(tmp_path: Path) -> None:
    """Two hundred steps on a toy backbone: the held-out acceptance of vertical head 1 rises by a wide margin."""
    torch.manual_seed(0)
    backbone = ToyBackbone(4, 6, sharpness=1.0)
    collect(backbone, ["ab", "cd", "e", "fab"] * 8, tmp_path / "train", grid=(4, 6), seed=0, batch=16)
    collect(backbone, ["ba", "cd"] * 8, tmp_path / "test", grid=(4, 6), seed=900, batch=16)
    shards = list(read_samples(tmp_path / "train", "toy-1"))
    held_out = list(read_samples(tmp_path / "test", "toy-1"))
    heads = toy_heads(backbone).requires_grad_(True)
    before = expected_acceptance(backbone, heads, held_out, Sampling(guidance=2.0))
    steps: list[int] = []
    settings = TrainSettings(steps=200, learning_rate=1e-3, kl_weight=1.0, unconditional=0.3)
    train_heads(backbone, heads, shards, settings, lambda info: steps.append(info.step))
    after = expected_acceptance(backbone, heads, held_out, Sampling(guidance=2.0))
    assert steps == list(range(1, 201))
    assert after["vertical 1"] > before["vertical 1"] + 0.05
    assert all(0 <= value <= 1 for value in after.values())
