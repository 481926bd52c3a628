"""Cut windows: fewer fed tokens, the same law. Tokens and laws are proven in test_exact and test_lossless."""

from __future__ import annotations

import math

import pytest
import torch
from toys import OracleDrafter, ToyBackbone, draw, run_engine, toy_heads

from ssd_core import AR, Rolling, Sampling, SSDError

HARD = 0.6


def test_a_cut_window_feeds_less() -> None:
    """With poor drafts a higher floor feeds fewer tokens for a few more forwards, and the picture stays AR's."""
    backbone = ToyBackbone(8, 8)
    heads = toy_heads(backbone)
    want = draw(backbone, AR(), seed=3).tokens
    reports = []
    for survival in (0.0, 0.2, HARD):
        got = draw(backbone, Rolling(4, survival=survival), heads=heads, seed=3)
        assert torch.equal(got.tokens, want)
        reports.append(got.report)
    fed = [report.fed_tokens for report in reports]
    forwards = [report.total_forwards for report in reports]
    assert fed[0] > fed[1] > fed[2]
    assert forwards[0] <= forwards[1] <= forwards[2] < backbone.stream((8, 8)).codes
    assert fed[2] < fed[0] / 2


def test_trusted_drafts_are_not_cut() -> None:
    """True features under greedy decoding hold with certainty: the window widens as the run learns so."""
    backbone = ToyBackbone(6, 6, dtype=torch.float64)
    prompts, greedy = ["abc"], Sampling(temperature=0.0)
    _, full = run_engine(backbone, OracleDrafter(backbone, prompts), Rolling(3), prompts, greedy)
    _, cut = run_engine(backbone, OracleDrafter(backbone, prompts), Rolling(3, survival=0.05), prompts, greedy)
    assert cut.acceptance == full.acceptance == 1.0
    assert cut.total_forwards <= full.total_forwards + 2


def test_a_floor_near_one_is_almost_plain_decoding() -> None:
    backbone = ToyBackbone(4, 5)
    got = draw(backbone, Rolling(survival=0.999999), heads=toy_heads(backbone))
    assert torch.equal(got.tokens, draw(backbone, AR()).tokens)
    assert got.report.fed_tokens < 2 * backbone.stream((4, 5)).length + 6


@pytest.mark.parametrize("survival", [-0.1, 1.0, math.nan])
def test_impossible_floors_are_refused(survival: float) -> None:
    with pytest.raises(SSDError, match="survival must be"):
        Rolling(survival=survival)
