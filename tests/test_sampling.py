"""From logits to the target distribution, against a reference that judges each code by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import textbook
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from ssd_core import Sampling, SSDError
from ssd_core.sampling import guide, truncate

logits = st.lists(st.floats(-12, 12, width=32), min_size=1, max_size=12).map(lambda v: torch.tensor(v).double())
settings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.25, 1.0, 1.7]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
)


def law(values: Tensor, sampling: Sampling) -> np.ndarray:
    return truncate(values, sampling).softmax(-1).numpy()


@given(logits, settings)
def test_truncation_equals_the_reference(values: Tensor, sampling: Sampling) -> None:
    """Any temperature, top-k and top-p on distinct logits: the same distribution, excluded codes exactly 0."""
    gaps = values.sort().values.diff()
    assume(bool((gaps > 1e-6).all()))  # ties have tests of their own
    got, want = law(values, sampling), textbook.truncated(values.numpy(), sampling)
    np.testing.assert_allclose(got, want, atol=1e-12)
    assert ((got == 0) == (want == 0)).all()


@given(logits, settings)
def test_truncation_keeps_the_likeliest(values: Tensor, sampling: Sampling) -> None:
    """With ties too: a proper distribution, the best code survives, nothing is kept over something more likely."""
    p = law(values, sampling)
    assert math.isclose(p.sum(), 1.0, rel_tol=1e-9)
    kept = values.numpy()[p > 0]
    assert kept.max() == values.max()
    if sampling.top_p == 1 and sampling.temperature > 0:
        assert values.numpy()[p == 0].max(initial=-np.inf) < kept.min()
    if sampling.top_k and sampling.temperature > 0:
        assert (kept > np.sort(values.numpy())[-min(sampling.top_k, len(values))]).sum() < sampling.top_k


@given(st.integers(2, 5), st.integers(1, 4), settings)
def test_rows_are_independent(rows: int, codes: int, sampling: Sampling) -> None:
    values = torch.randn(rows, 3, codes, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
    together = truncate(values, sampling)
    for index in np.ndindex(rows, 3):
        assert torch.equal(together[index], truncate(values[index], sampling))


def test_temperature_zero_takes_the_first_of_equals() -> None:
    got = truncate(torch.tensor([1.0, 5.0, 5.0, -2.0]), Sampling(temperature=0))
    assert got.tolist() == [-math.inf, 0.0, -math.inf, -math.inf]


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-7, 1e-5])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    """Logits that would overflow when divided still give a proper distribution: the best code alone."""
    for dtype in (torch.float32, torch.float64):
        values = torch.tensor([3.0, 900.0, -math.inf, 880.0], dtype=dtype)
        assert law(values, Sampling(temperature=temperature, top_p=0.9)).tolist() == [0, 1, 0, 0]


def test_top_k_keeps_ties_with_the_last() -> None:
    """Equal logits are equally likely: none of them is excluded by its index."""
    p = law(torch.tensor([2.0, 1.0, 1.0, 0.0]).double(), Sampling(top_k=2))
    assert (p > 0).tolist() == [True, True, True, False]


@pytest.mark.parametrize(("top_p", "kept"), [(0.45, 1), (0.55, 2), (0.79, 2), (0.81, 3), (0.99, 4), (1.0, 4)])
def test_top_p_is_the_smallest_set_that_reaches_the_mass(top_p: float, kept: int) -> None:
    p = law(torch.tensor([0.1, 0.5, 0.3, 0.1]).log().double(), Sampling(top_p=top_p))
    assert (p > 0).sum() == kept
    assert p[1] > 0


def test_top_p_at_the_boundary() -> None:
    """A set with exactly the mass asked for is enough (transformers' rule); 1/2 and 1/4 are exact in binary."""
    p = law(torch.tensor([0.5, 0.25, 0.25]).log().double(), Sampling(top_p=0.25))
    assert (p > 0).sum() == 1
    assert (law(torch.zeros(2).double(), Sampling(top_p=0.5)) > 0).sum() == 1


@pytest.mark.parametrize("top_k", [1, 2, 7, 100])
def test_top_k_cuts_below_the_kth_largest(top_k: int) -> None:
    """With many equals and excluded codes, to the bit."""
    logits = torch.randn(5, 200).mul(3).round().masked_fill_(torch.rand(5, 200) < 0.4, -math.inf)
    kth = logits.sort(-1, descending=True).values[:, top_k - 1 : top_k]
    want = torch.where(logits < kth, -math.inf, logits)
    assert torch.equal(truncate(logits, Sampling(top_k=top_k)), want)


def test_top_p_acts_on_what_top_k_left() -> None:
    """Order as documented: temperature, top-k, top-p. Of 0.5 0.3 0.2 top-k 2 leaves 0.625 0.375."""
    values = torch.tensor([0.5, 0.3, 0.2]).log().double()
    assert (law(values, Sampling(top_p=0.6)) > 0).sum() == 2
    assert (law(values, Sampling(top_k=2, top_p=0.6)) > 0).sum() == 1


def test_excluded_codes_stay_excluded() -> None:
    for sampling in (Sampling(), Sampling(top_k=3), Sampling(top_p=0.99), Sampling(temperature=0)):
        p = law(torch.tensor([-math.inf, 1.0, -math.inf, 0.0]).double(), sampling)
        assert p[0] == p[2] == 0


@given(st.integers(1, 3), st.integers(1, 4), st.floats(0, 9), st.sampled_from([torch.float32, torch.float64]))
def test_guidance_formula(images: int, positions: int, weight: float, dtype: torch.dtype) -> None:
    """u + w (c - u) with the conditional rows first, in float32 or wider."""
    both = torch.randn(2 * images, positions, 5, generator=torch.Generator().manual_seed(images), dtype=dtype)
    got = guide(both, weight, 2)
    assert got.shape == (images, positions, 5)
    for image in range(images):
        conditional, unconditional = both[image], both[images + image]
        torch.testing.assert_close(
            got[image], (1 - weight) * unconditional + weight * conditional, atol=1e-5, rtol=1e-5
        )


def test_guidance_is_mixed_in_float32() -> None:
    """Half precision logits are widened before they are mixed: 3 (c - u) + u would lose small differences."""
    both = torch.tensor([[[1.0, 1.0078125]], [[1.0, 1.0]]], dtype=torch.bfloat16)
    got = guide(both, 1.5, 2)
    assert got.dtype == torch.float32
    assert float(got[0, 0, 1]) == 1.01171875
    assert guide(both[:1], 1.0, 1).dtype == torch.float32


def test_one_row_without_guidance() -> None:
    assert Sampling(guidance=1).guidance_rows == 1
    assert [Sampling(guidance=w).guidance_rows for w in (0, 0.5, 1.5, 7)] == [2] * 4
    alone = torch.randn(1, 2, 3)
    assert torch.equal(guide(alone, 1.0, 1), alone)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("guidance", -0.1),
        ("guidance", math.nan),
        ("guidance", math.inf),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
    ],
)
def test_impossible_settings_are_refused(field: str, value: float) -> None:
    with pytest.raises(SSDError, match=f"{field} must be .* got"):
        Sampling(**{field: value})  # type: ignore[arg-type]


def test_equals_transformers_warpers() -> None:
    """transformers' own temperature, top-k and top-p give the same distribution."""
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    generator = torch.Generator().manual_seed(4)
    values = torch.randn(50, 40, generator=generator, dtype=torch.float64) * 3
    for temperature, top_k, top_p in ((0.7, 10, 0.8), (1.0, 40, 0.3), (1.5, 5, 0.95), (1.0, 1, 0.5)):
        warped = logits_process.TemperatureLogitsWarper(temperature)(None, values)
        warped = logits_process.TopKLogitsWarper(top_k)(None, warped)
        warped = logits_process.TopPLogitsWarper(top_p)(None, warped)
        want = warped.softmax(-1).numpy()
        np.testing.assert_allclose(law(values, Sampling(1.0, temperature, top_k, top_p)), want, atol=1e-12)
