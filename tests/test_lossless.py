"""Lossless in law: over a tiny vocabulary, whole pictures come out with exactly the probabilities plain decoding has.

The law of every possible picture is enumerated with the slow reference; thousands of pictures are drawn in one batch
and compared by chi-square. The published fixed rounds fail the same test, so it has the power to see a wrong law.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from reference import Reference
from statistics_of import chi_square_tail
from toys import ToyBackbone, draw, toy_heads

from ssd_core import AR, HorizontalMTP, Jacobi, Rolling, Rounds, Sampling, Schedule
from ssd_core.drafts import DraftsName

CODES = 3
PICTURES = 6000
FEWER = 1500  # Gumbel numbers are drawn image by image: the same tokens, more slowly
SIGNIFICANT = 1e-3
PLAIN, GUIDED = Sampling(), Sampling(guidance=2.0, temperature=1.3, top_k=2)
ROLLING = [
    Rolling(1, coupling="maximal"),
    Rolling(2, coupling="maximal"),
    Rolling(window_tokens=2, coupling="maximal"),
    Rolling(window_tokens=3, coupling="maximal"),
]


@functools.cache
def toy(rows: int, cols: int, end_of_line: bool) -> ToyBackbone:
    return ToyBackbone(rows, cols, codes=CODES, end_of_line=end_of_line, sharpness=1.2, seed=41)


@functools.cache
def law(backbone: ToyBackbone, sampling: Sampling) -> np.ndarray:
    """Probability of every picture, [codes] * (rows * cols)."""
    reference = Reference(backbone, "abc", sampling, 0)
    cells = reference.rows * reference.cols
    table = np.zeros([CODES] * cells)

    def spread(prefix: tuple[int, ...], probability: float) -> None:
        if len(prefix) == cells:
            table[prefix] = probability
            return
        reference.tokens = []
        for token in prefix:
            reference.put(len(reference.tokens), token)
        reference.forward(len(reference.tokens) + 1)
        p = reference.target(reference.features[:, len(reference.tokens)])
        for code in range(CODES):
            if p[code] > 0:
                spread((*prefix, code), probability * p[code])

    spread((), 1.0)
    assert abs(table.sum() - 1) < 1e-9
    return table


def tail(
    backbone: ToyBackbone,
    schedule: Schedule,
    sampling: Sampling,
    *,
    heads: bool,
    seed: int = 0,
    pictures: int = PICTURES,
    drafts: DraftsName = "auto",
) -> float:
    """How likely a fit this bad is if the pictures have the enumerated law."""
    given = toy_heads(backbone, horizontal=2, vertical=1, seed=7) if heads else None
    drawn = draw(backbone, schedule, sampling=sampling, heads=given, drafts=drafts, batch=pictures, seed=seed)
    got = drawn.tokens.flatten(1)
    want = law(backbone, sampling)
    flat = np.ravel_multi_index(tuple(got.T.numpy()), want.shape)
    return chi_square_tail(np.bincount(flat, minlength=want.size), want)


@pytest.mark.parametrize("sampling", [PLAIN, GUIDED], ids=["plain", "guided"])
@pytest.mark.parametrize("coupling", ["gumbel", "maximal"])
def test_plain_decoding_has_the_enumerated_law(coupling: str, sampling: Sampling) -> None:
    pictures = PICTURES if coupling == "maximal" else FEWER
    schedule = AR(coupling)  # type: ignore[arg-type]
    assert tail(toy(2, 2, True), schedule, sampling, heads=False, pictures=pictures) > SIGNIFICANT


@pytest.mark.parametrize("heads", [True, False], ids=["heads", "copies"])
@pytest.mark.parametrize("schedule", ROLLING, ids=["1 row", "2 rows", "2 tokens", "3 tokens"])
@pytest.mark.parametrize("end_of_line", [True, False])
def test_rolling_with_maximal_coupling_has_the_law(schedule: Rolling, heads: bool, end_of_line: bool) -> None:
    """Prefix commit: nothing is final under a context that changed, so every picture keeps its probability."""
    assert tail(toy(2, 2, end_of_line), schedule, PLAIN, heads=heads, seed=10**6) > SIGNIFICANT


@pytest.mark.parametrize("heads", [True, False], ids=["heads", "copies"])
def test_guided_and_truncated(heads: bool) -> None:
    assert tail(toy(2, 2, True), Rolling(2, coupling="maximal"), GUIDED, heads=heads) > SIGNIFICANT


@pytest.mark.parametrize("drafts", ["random", "left", "copy"])
@pytest.mark.parametrize("window", [2, 4, 16])
def test_jacobi_with_maximal_coupling_has_the_law(window: int, drafts: DraftsName) -> None:
    """SJD is lossless in distribution, whatever it starts from."""
    assert tail(toy(2, 2, True), Jacobi(window), PLAIN, heads=False, seed=10**8 + window, drafts=drafts) > SIGNIFICANT


def test_jacobi_guided_and_truncated() -> None:
    assert tail(toy(2, 2, True), Jacobi(3), GUIDED, heads=False) > SIGNIFICANT


def test_horizontal_mtp_does_not_have_the_law() -> None:
    """Its block is judged once, in the context of drafts: fast and lossy."""
    assert tail(toy(2, 2, True), HorizontalMTP(1), PLAIN, heads=True) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("heads", [True, False], ids=["heads", "copies"])
@pytest.mark.parametrize("size", [(2, 3), (3, 2)])
def test_six_codes(size: tuple[int, int], heads: bool) -> None:
    """All 729 pictures of six codes, windows of rows and of tokens; SJD needs no heads."""
    for index, schedule in enumerate([*ROLLING[1:3], *([] if heads else [Jacobi(3)])]):
        assert tail(toy(*size, False), schedule, PLAIN, heads=heads, seed=index * 10**7, pictures=12_000) > SIGNIFICANT


@pytest.mark.parametrize("coupling", ["maximal", "gumbel"])
def test_enough_published_rounds_have_the_law(coupling: str) -> None:
    """A row of two codes is settled after two rounds, and the third judges it under its own context."""
    schedule = Rounds(3, coupling=coupling, first_row_block=1)  # type: ignore[arg-type]
    pictures = PICTURES if coupling == "maximal" else FEWER
    assert tail(toy(2, 2, True), schedule, PLAIN, heads=True, pictures=pictures) > SIGNIFICANT


@pytest.mark.parametrize("commit", ["fused", "separate"])
def test_one_published_round_does_not_have_the_law(commit: str) -> None:
    """The test's power: blind acceptance with one round is far off, as the paper's own scores say."""
    schedule = Rounds(1, commit=commit)  # type: ignore[arg-type]
    assert tail(toy(2, 2, True), schedule, PLAIN, heads=True) < 1e-12


def test_tolerance_tilts_the_law() -> None:
    assert tail(toy(2, 2, True), Rolling(2, tolerance=2.0), PLAIN, heads=True, pictures=FEWER) < 1e-12


def test_chi_square_itself() -> None:
    """Exact draws pass at any size, a shift of a few per cent is seen, an impossible outcome is fatal."""
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(81))
    tails = [chi_square_tail(np.bincount(generator.choice(81, PICTURES, p=p), minlength=81), p) for _ in range(200)]
    assert 0.3 < np.mean(np.array(tails) < 0.5) < 0.7
    assert min(tails) > 1e-5
    off = p * np.where(np.arange(81) % 2, 1.15, 0.85)
    drawn = generator.choice(81, PICTURES, p=off / off.sum())
    assert chi_square_tail(np.bincount(drawn, minlength=81), p) < 1e-6
    assert chi_square_tail(np.array([1, 99]), np.array([0.0, 1.0])) == 0


def test_the_toy_is_not_trivial() -> None:
    """Codes depend on what came before, or a schedule that ignores context would pass."""
    table = law(toy(2, 2, True), PLAIN)
    for a, b in itertools.combinations(range(4), 2):
        pair = table.sum(axis=tuple({0, 1, 2, 3} - {a, b}))
        independent = np.outer(pair.sum(1), pair.sum(0))
        assert np.abs(pair - independent).max() > 0.05
