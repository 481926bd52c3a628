"""Named schedules: each runs, and the exact ones keep their promise."""

from __future__ import annotations

import pytest
import torch
from test_engine import setup
from toys import draw

from ssd_core import AR, Rolling, Rounds, SSDError
from ssd_core.presets import PRESETS, preset_schedule


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_preset_draws(name: str, device: str) -> None:
    backbone, heads = setup()
    got = draw(backbone, preset_schedule(name, device), heads=heads)
    assert got.tokens.shape[1:] == backbone.default_grid
    if name in ("auto", "exact"):
        assert torch.equal(got.tokens, draw(backbone, AR()).tokens)


def test_presets_are_what_they_say() -> None:
    assert preset_schedule("Lumina (paper)", "cuda") == Rounds(5, 2, 4, "separate", "maximal")
    assert preset_schedule("draft only", "cpu") == Rounds(0)
    balanced = preset_schedule("balanced", "cuda")
    assert isinstance(balanced, Rolling)
    assert balanced.tolerance > 0
    with pytest.raises(SSDError, match="no preset 'fast'; choose one of auto, exact"):
        preset_schedule("fast", "cpu")
