"""Settings and logits at the edge of the representable: a picture of valid codes, or an error, never anything else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from toys import ToyBackbone, toy_heads

from ssd_core import AR, Rolling, Rounds, RowsEvent, Sampling, Schedule, SSDError, generate

SCHEDULES: tuple[Schedule, ...] = (
    AR(),
    AR("maximal"),
    Rolling(2),
    Rolling(2, coupling="maximal"),
    Rounds(2),
    Rounds(1, coupling="gumbel"),
)


class Masked(ToyBackbone):
    """A toy whose output head excludes codes in one guidance row: minus infinity there."""

    def mask(self, row: int, codes: list[int]) -> Masked:
        self.row, self.excluded = row, codes
        return self

    def logits(self, features: Tensor) -> Tensor:
        logits = super().logits(features).clone()
        logits[self.row, ..., self.excluded] = -torch.inf
        return logits


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("row", [0, 1])
def test_a_code_excluded_in_either_guidance_row_is_never_drawn(schedule: Schedule, row: int) -> None:
    """Minus infinity in the conditional or in the unconditional row excludes the code; the others stay in play."""
    backbone = Masked(4, 5).mask(row, [4, 7])
    drawn = generate(backbone, "ab", schedule=schedule, sampling=Sampling(guidance=2.0), seed=1, batch=3)
    assert not torch.isin(drawn.tokens, torch.tensor([4, 7])).any()
    assert len(drawn.tokens.unique()) > 3


@pytest.mark.parametrize("row", [0, 1])
def test_a_position_without_any_code_is_an_error(row: int) -> None:
    backbone = Masked(4, 5).mask(row, list(range(11)))
    with pytest.raises(SSDError, match="every code of one position is excluded"):
        generate(backbone, "ab", schedule=AR(), sampling=Sampling(guidance=2.0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_does_not_hide_behind_an_excluded_code(bad: float) -> None:
    """One guidance row excludes a code where the other holds NaN or infinity: that is damage, not an exclusion."""
    backbone = Masked(4, 5).mask(0, [4])
    backbone.head.weight.data[4] = bad
    with pytest.raises(SSDError, match="NaN or infinity in the logits"):
        generate(backbone, "ab", schedule=AR(), sampling=Sampling(guidance=2.0))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("temperature", [1e-40, 1e-38, 1e-12, 9e-7])
def test_vanishing_temperatures_are_greedy(schedule: Schedule, temperature: float) -> None:
    backbone = ToyBackbone(3, 4)
    heads = None if isinstance(schedule, AR) else toy_heads(backbone)
    greedy = generate(backbone, "ab", heads=heads, schedule=schedule, sampling=Sampling(2.0, 0.0), seed=3)
    cold = generate(backbone, "ab", heads=heads, schedule=schedule, sampling=Sampling(2.0, temperature), seed=3)
    assert torch.equal(greedy.tokens, cold.tokens)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("temperature", [2e-6, 1e-3, 1e6, 1e38])
def test_any_temperature_draws_valid_codes(schedule: Schedule, temperature: float) -> None:
    drawn = generate(ToyBackbone(3, 4), "ab", schedule=schedule, sampling=Sampling(2.0, temperature), seed=3)
    assert drawn.tokens.min() >= 0
    assert drawn.tokens.max() < 11


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_vanishing_top_p_is_greedy(schedule: Schedule) -> None:
    backbone = ToyBackbone(3, 4)
    greedy = generate(backbone, "ab", schedule=schedule, sampling=Sampling(2.0, 0.0), seed=3)
    for top_p in (1e-300, 1e-45, 1e-38):
        tight = generate(backbone, "ab", schedule=schedule, sampling=Sampling(2.0, top_p=top_p), seed=3)
        assert torch.equal(greedy.tokens, tight.tokens)


@pytest.mark.parametrize("row", [0, 1])
def test_excluded_codes_stay_so_at_the_highest_temperature(row: int) -> None:
    backbone = Masked(3, 4).mask(row, [4, 5, 6, 7, 8, 9, 10])
    drawn = generate(backbone, "ab", schedule=Rolling(2), sampling=Sampling(2.0, 1e38), seed=3)
    assert drawn.tokens.max() < 4


@pytest.mark.parametrize(("name", "value"), [("guidance", 3e38), ("temperature", 4e38)])
def test_settings_that_overflow_are_refused(name: str, value: float) -> None:
    with pytest.raises(SSDError, match=f"{name} must be from 0 to 1e"):
        Sampling(**{name: value})


def test_a_listener_may_change_its_copies() -> None:
    """Events carry ordinary tensors of their own: changing them changes nothing in the run."""
    backbone = ToyBackbone(3, 4)
    reference = generate(backbone, "ab", schedule=Rolling(2), seed=3)

    def meddle(event: RowsEvent) -> None:
        event.codes.zero_()
        event.changed.logical_not_()

    meddled = generate(backbone, "ab", schedule=Rolling(2), seed=3, on_rows=meddle)
    assert torch.equal(reference.tokens, meddled.tokens)
