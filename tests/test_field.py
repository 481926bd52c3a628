"""The synthetic field of ``benchmarks.field``: its fast law is the one that decoding draws from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from toys import make_engine

from benchmarks import field
from benchmarks.field_backbone import FieldBackbone, field_heads
from ssd_core import AR, Rolling, Rounds, generate
from ssd_core.distill.likelihood import log_distribution
from ssd_core.draft import NoDrafter
from ssd_core.sampling import Sampling


@pytest.fixture(scope="module")
def backbone() -> FieldBackbone:
    return FieldBackbone(7, 9, strength=15)


def test_law_is_the_one_that_decoding_draws_from(backbone: FieldBackbone) -> None:
    engine, _ = make_engine(backbone, NoDrafter(), AR(), seed=3)
    codes = engine.run(backbone.prompt_rows([""], "", (7, 9), False))
    decoded = log_distribution(backbone, engine.state.features[:, 0], Sampling()).view(7, 9, -1)
    assert torch.allclose(backbone.law(codes[0]), decoded, atol=1e-4)


def test_exact_mode_and_its_heads(backbone: FieldBackbone) -> None:
    """Fitted heads draft better than nothing, and never change exact mode's picture."""
    heads = field_heads(backbone)
    plain = generate(backbone, "", schedule=AR(), seed=5)
    fast = generate(backbone, "", heads=heads, schedule=Rolling(2), seed=5)
    assert torch.equal(fast.tokens, plain.tokens)
    assert fast.report.total_forwards < 50
    assert fast.report.acceptance_by_direction["vertical"] > 0.03  # by chance it would be 1 of 512


def test_the_gap_tells_true_draws_from_blind_ones() -> None:
    backbone = FieldBackbone(16, 16, strength=20)
    table = {"plain AR": AR(), "exact": Rolling(2), "blind": Rounds(1)}
    plain, exact, blind = field.measure(backbone, field_heads(backbone), table, seeds=2)
    assert plain["fewer"] == 1
    assert abs(plain["gap"]) < 1.5 * plain["gap_error"]
    assert exact["equal"] == 1
    assert exact["gap"] == pytest.approx(plain["gap"])
    assert blind["gap"] > 4 * blind["gap_error"]


def test_command_writes_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    field.main(["--grid", "4x5", "--strength", "10", "--seeds", "1", "--results", str(tmp_path)])
    (rows,) = json.loads((tmp_path / "field.json").read_text()).values()
    assert [row["decoder"] for row in rows] == list(field.schedules())
    assert (tmp_path / "field.md").read_text().count("\n") == len(rows) + 4
