"""Perfect drafts: every one is accepted, by every coupling, and a picture costs no more forwards than windows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from toys import OracleDrafter, ToyBackbone, constant_backbone, copying_heads, draw, run_engine

from ssd_core import AR, Rolling, Rounds, Sampling
from ssd_core.schedule import Schedule

DOUBLE = torch.float64
PROMPTS = ["ab", "gfedc"]
COUPLINGS = ["gumbel", "maximal"]


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(3.0, 0.7, 8, 0.9), Sampling(2.0, 0.0)], ids=str)
@pytest.mark.parametrize("kind", [{}, {"end_of_line": False, "padded": True}], ids=str)
def test_true_features_are_always_accepted(coupling: Any, sampling: Sampling, kind: dict[str, Any]) -> None:
    """Drafts from true features are never changed; a window of m rows then takes rows / m forwards and the prompt."""
    rows, cols = 5, 3
    backbone = ToyBackbone(rows, cols, dtype=DOUBLE, **kind)
    drafter = OracleDrafter(backbone, PROMPTS)
    stride = cols + (backbone.end_of_line is not None)
    for schedule, windows in (
        (Rolling(1, coupling=coupling), rows),
        (Rolling(2, coupling=coupling), math.ceil(rows / 2)),
        (Rolling(4, coupling=coupling), math.ceil(rows / 4)),
        (Rolling(9, coupling=coupling), 1),
        (Rolling(window_tokens=stride, coupling=coupling), rows),
    ):
        _, report = run_engine(backbone, drafter, schedule, PROMPTS, sampling, seed=3)
        assert report.acceptance == 1.0, schedule
        assert report.acceptance_by_direction == {"vertical": 1.0}
        assert report.forwards == {"prefill": 1, "verify": windows, "commit": 0}


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_published_rounds_keep_true_drafts(coupling: Any) -> None:
    """Every round leaves perfect drafts alone, and fused commit skips the rounds that cannot change anything."""
    backbone = ToyBackbone(4, 4, dtype=DOUBLE)
    drafter = OracleDrafter(backbone, PROMPTS)
    separate = Rounds(3, 2, 1, commit="separate", coupling=coupling)
    codes, report = run_engine(backbone, drafter, separate, PROMPTS, Sampling())
    assert report.acceptance == 1.0
    assert report.acceptance_by_round == [1.0] * 4
    again, fused = run_engine(backbone, drafter, Rounds(3, coupling=coupling), PROMPTS, Sampling())
    assert fused.acceptance == 1.0
    assert torch.equal(codes, again)
    assert fused.total_forwards == 1 + 1 + 3  # the prompt, the rest of the first row, the other rows


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_perfect_heads_are_always_accepted(coupling: Any, guidance: float) -> None:
    """Real spatial heads, exact on a backbone whose features are all equal: horizontal and vertical drafts all stay."""
    rows, cols = 4, 7
    backbone = constant_backbone(rows, cols, dtype=DOUBLE)
    heads = copying_heads(backbone)
    settings: list[tuple[Schedule, int]] = [
        # The prompt's forward gives one code; five drafts and the code behind them come with each first-row forward.
        (Rolling(1, coupling=coupling), 1 + 1 + (rows - 1)),
        (Rounds(2, coupling=coupling), 1 + 2 + (rows - 1)),
        (Rounds(2, commit="separate", coupling=coupling), 1 + 2 * 2 + 1 + 3 * (rows - 1)),
    ]
    for schedule, forwards in settings:
        got = draw(backbone, schedule, heads=heads, sampling=Sampling(guidance), batch=3)
        assert got.report.acceptance == 1.0
        assert got.report.acceptance_by_direction == {"horizontal": 1.0, "vertical": 1.0}
        assert got.report.total_forwards == forwards
    if coupling == "gumbel":
        plain = draw(backbone, AR(), sampling=Sampling(guidance), batch=3)
        assert torch.equal(
            draw(backbone, Rolling(), heads=heads, sampling=Sampling(guidance), batch=3).tokens, plain.tokens
        )


def test_copies_of_a_constant_picture_are_accepted() -> None:
    """Greedy decoding of equal features is one code everywhere; copying it is always right."""
    backbone = constant_backbone(6, 5, dtype=DOUBLE)
    report = draw(backbone, Rolling(2), sampling=Sampling(temperature=0.0)).report
    assert report.acceptance == 1.0
    assert report.acceptance_by_direction == {"left": 1.0}
    assert report.total_forwards == 1 + 3
