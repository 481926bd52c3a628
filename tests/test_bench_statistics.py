"""The statistics of the quality bench against distributions that are known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bootstrap import estimate
from benchmarks.two_sample import distances, energy_distance


def test_interval_of_a_known_sample():
    """The interval holds the mean and has the width of the normal one; a constant has none."""
    values = np.linspace(0, 1, 50)
    found = estimate(values)
    assert found.mean == pytest.approx(0.5)
    assert 0.5 in found
    assert 0 not in found
    half = 1.96 * values.std() / np.sqrt(50)
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)
    assert estimate(values * 0 + 3).numbers == [3, 3, 3]


@pytest.mark.parametrize("law", ["normal", "coin", "exponential"])
def test_the_interval_covers_the_true_mean(law):
    """Of 300 samples of 120, about 95 % of the intervals hold the true mean."""
    rng = np.random.default_rng(7)
    draw, mean = {
        "normal": (lambda: rng.normal(2, 3, 120), 2.0),
        "coin": (lambda: (rng.random(120) < 0.3).astype(float), 0.3),
        "exponential": (lambda: rng.exponential(1, 120), 1.0),
    }[law]
    held = np.mean([mean in estimate(draw(), resamples=400, seed=trial) for trial in range(300)])
    assert 0.90 <= held <= 0.985


def test_paired_differences_see_what_unpaired_means_cannot():
    """A shift of a tenth of the spread between prompts, drowned unpaired, stands out in pairs."""
    rng = np.random.default_rng(1)
    prompt = rng.normal(0, 1, 200)
    x, y = prompt + rng.normal(0, 0.1, 200), prompt + 0.1 + rng.normal(0, 0.1, 200)
    assert estimate(x).high > estimate(y).low
    assert estimate(y - x).low > 0


def test_energy_distance_equals_its_definition():
    """The U-statistic over pairs, written out as sums."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(0, 1, (7, 3)), rng.normal(0.5, 1, (7, 3))
    pairs = [(i, j) for i in range(7) for j in range(7) if i != j]

    def mean(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.mean([np.linalg.norm(a[i] - b[j]) for i, j in pairs]))

    expected = (2 * mean(x, y) - mean(x, x) - mean(y, y)) / (2 * mean(x, y))
    assert energy_distance(x, y, resamples=10).distance.mean == pytest.approx(expected)
    assert distances(x, y)[2, 5] == pytest.approx(np.linalg.norm(x[2] - y[5]))


def test_energy_distance_of_normals_has_its_known_value():
    """For N(0, 1) and N(2, 1): 2 E|X - Y| from the folded normal, E|X - X'| = 2 / sqrt(pi)."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(0, 1, (2000, 1)), rng.normal(2, 1, (2000, 1))
    spread = np.sqrt(2)
    across = spread * np.sqrt(2 / np.pi) * np.exp(-1) + 2 * 0.8427007929  # 2 * (2 Phi(sqrt 2) - 1) = 2 erf(1)
    expected = (2 * across - 4 / np.sqrt(np.pi)) / (2 * across)
    found = energy_distance(x, y, resamples=200)
    assert found.distance.mean == pytest.approx(expected, abs=0.02)
    assert expected in found.distance
    assert found.p < 0.01


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_energy_distance_separates_a_shift_and_nothing_else(shift):
    """Where both sides have one law p is uniform, though both share what a prompt fixes; a shifted side is found."""
    rng = np.random.default_rng(4)
    values = []
    for trial in range(100):
        prompt = rng.normal(0, 2, (60, 5))  # what a prompt fixes, on both sides
        x, y = prompt + rng.normal(0, 1, (60, 5)), prompt + shift + rng.normal(0, 1, (60, 5))
        values.append(energy_distance(x, y, resamples=200, seed=trial).p)
    found = np.mean(np.array(values) <= 0.05)
    if shift:
        assert found > 0.95
    else:
        assert found <= 0.12
        assert 0.35 <= np.mean(values) <= 0.65


def test_energy_distance_sees_a_change_of_shape():
    """Same mean and spread, another law: means and variances would see nothing."""
    rng = np.random.default_rng(5)
    x = rng.normal(0, 1, (400, 2))
    y = rng.choice([-1.0, 1.0], (400, 2))
    assert energy_distance(x, y, resamples=300).p < 0.01


def test_energy_distance_of_a_set_with_itself():
    x = np.random.default_rng(6).normal(0, 1, (30, 4))
    found = energy_distance(x, x, resamples=50)
    assert abs(found.distance.mean) < 1e-12
    assert found.p == 1
    assert energy_distance(x * 0, x * 0, resamples=50).p == 1


def test_two_pairs_are_enough_for_an_interval():
    """Half of all resamples hold one pair alone; they say nothing and are left out."""
    x, y = np.array([[0.0], [1.0]]), np.array([[5.0], [7.0]])
    found = energy_distance(x, y, resamples=100)
    assert found.distance.low == found.distance.high == pytest.approx(found.distance.mean)
    assert found.distance.mean == pytest.approx((7 + 4 - 1 - 2) / (7 + 4))
