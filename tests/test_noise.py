"""The random numbers: Random123's known answers, the right laws, and a value that depends on its counter alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ssd_core import SSDError
from ssd_core.noise import ACCEPT, DRAFT, RESAMPLE, Noise, image_seeds, philox

CPU = torch.device("cpu")
ONES = 0xFFFFFFFF
KNOWN = [  # Random123 1.14, tests/kat_vectors, "philox4x32 10"
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
seeds = st.integers(0, 2**64 - 1)


def words(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    result = philox([torch.tensor(c) for c in counter], (torch.tensor(key[0]), torch.tensor(key[1])))
    return [int(word) for word in result]


def plain_philox(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Philox 4x32-10 in Python's own integers."""
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], answer: str) -> None:
    assert [f"{word:08x}" for word in words(counter, key)] == answer.split()


@given(st.tuples(*[st.integers(0, ONES)] * 4), st.tuples(*[st.integers(0, ONES)] * 2))
def test_equals_plain_integers(counter: tuple[int, ...], key: tuple[int, int]) -> None:
    """Signed 64-bit tensors wrap to the same words as unbounded integers."""
    assert words(counter, key) == plain_philox(counter, key)


def uniforms(count: int, seed: int = 5, purpose: int = ACCEPT, round_: int = 0) -> Tensor:
    zero = torch.zeros(count, dtype=torch.int64)
    return Noise([seed], CPU).uniform(zero, torch.arange(count), zero + round_, purpose)


def kolmogorov(sample: np.ndarray, cdf: np.ndarray) -> float:
    """Largest distance between the empirical distribution of a sorted sample and its law, times sqrt(n)."""
    n = len(sample)
    steps = np.arange(1, n + 1) / n
    return float(max(np.abs(steps - cdf).max(), np.abs(steps - 1 / n - cdf).max()) * math.sqrt(n))


def test_uniform_law() -> None:
    """200,000 numbers: strictly inside (0, 1), mean, variance and shape of the uniform law (KS at 0.1 %)."""
    u = uniforms(200_000).double().sort().values.numpy()
    assert u[0] > 0
    assert u[-1] < 1
    assert abs(u.mean() - 0.5) < 4 * math.sqrt(1 / 12 / len(u))
    assert abs(u.var() - 1 / 12) < 1e-3
    assert kolmogorov(u, u) < 1.95


@pytest.mark.parametrize("bits", [0, 1, 511, 512, 2**31, 2**32 - 512, 2**32 - 1])
def test_uniform_is_never_zero_or_one(bits: int) -> None:
    """Also from the smallest and largest words, where float32 rounding could reach the ends."""
    from ssd_core.noise import _unit

    value = float(_unit(torch.tensor(bits)))
    assert 0 < value < 1
    assert math.isfinite(-math.log(-math.log(value)))


def test_gumbel_law() -> None:
    """Gumbel's law over codes and positions (KS at 0.1 %), finite everywhere, no correlation along either."""
    g = Noise([9], CPU).gumbel(0, 0, 400, 401)
    assert g.dtype == torch.float32
    assert g.shape == (400, 401)
    assert bool(torch.isfinite(g).all())
    flat = g.double().flatten().sort().values.numpy()
    assert kolmogorov(flat, np.exp(-np.exp(-flat))) < 1.95
    table = g.double().numpy() - np.euler_gamma
    for a, b in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1]), (table[:, 4:], table[:, :-4])):
        assert abs((a * b).mean()) / table.var() < 4 / math.sqrt(a.size)


@given(st.integers(0, 60), st.integers(1, 30), st.integers(1, 40), seeds)
def test_gumbel_does_not_depend_on_the_window(start: int, width: int, codes: int, seed: int) -> None:
    """Any window, any number of codes and any place in a batch: the number of (seed, position, code) is the same."""
    whole = Noise([seed], CPU).gumbel(0, 0, start + width, 41)
    in_batch = Noise([1, seed, 2], CPU).gumbel(1, start, start + width, codes)
    assert torch.equal(in_batch, whole[start:, :codes])


@given(st.integers(0, 500), st.integers(0, 20), seeds, st.sampled_from([DRAFT, ACCEPT, RESAMPLE]))
def test_uniform_does_not_depend_on_the_batch(position: int, round_: int, seed: int, purpose: int) -> None:
    def at(noise: Noise, images: list[int], positions: list[int], rounds: list[int]) -> Tensor:
        return noise.uniform(torch.tensor(images), torch.tensor(positions), torch.tensor(rounds), purpose)

    alone = at(Noise([seed], CPU), [0], [position], [round_])
    among = at(Noise([3, seed], CPU), [0, 1, 1], [7, position, 8], [0, round_, 3])
    assert among[1] == alone[0]
    word = plain_philox((0, position, round_, purpose), (seed % 2**32, seed >> 32))[0]
    assert float(alone[0]) == (word // 512 + 0.5) / 2**23


def test_every_argument_matters() -> None:
    """Seed (both halves), position, round, purpose and code each give another number."""
    base = float(uniforms(1))
    others = [uniforms(1, seed=6), uniforms(1, seed=5 + 2**32), uniforms(2)[1:], uniforms(1, round_=1)]
    others += [uniforms(1, purpose=purpose) for purpose in (DRAFT, RESAMPLE)]
    values = [float(other) for other in others]
    assert len({base, *values}) == 1 + len(values)
    correlation = np.corrcoef([uniforms(4000, seed=s, purpose=p).numpy() for s in (5, 6, 7) for p in (DRAFT, ACCEPT)])
    assert np.abs(correlation - np.eye(6)).max() < 4.5 / math.sqrt(4000)


def test_gumbel_shares_no_word_with_the_uniforms() -> None:
    g = torch.exp(-torch.exp(-Noise([5], CPU).gumbel(0, 0, 50, 4).double()))
    drawn = torch.stack([uniforms(50, purpose=p) for p in (DRAFT, ACCEPT, RESAMPLE)], 1).double()
    assert (g[:, :, None] - drawn[:, None, :]).abs().min() > 1e-7


@given(seeds, st.integers(1, 5))
def test_image_seeds(seed: int, batch: int) -> None:
    """All 64 bits of a seed count; a batch counts up and wraps at 2**64."""
    assert image_seeds(seed, batch) == [(seed + k) % 2**64 for k in range(batch)]
    zero = torch.tensor([0])
    first = Noise(image_seeds(seed, batch), CPU).uniform(zero, zero, zero, ACCEPT)
    assert float(uniforms(1, seed=seed)) == float(first)


def test_last_seed_wraps_to_the_first() -> None:
    assert image_seeds(2**64 - 1, 2) == [2**64 - 1, 0]


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_outside_64_bits_are_refused(seed: int) -> None:
    with pytest.raises(SSDError, match="seed must be from 0 to"):
        image_seeds(seed, 1)
