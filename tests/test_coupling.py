"""Couplings: what is drawn has the target law, whatever the draft; a draft that may stay stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from statistics_of import chi_square_tail
from torch import Tensor

from ssd_core.coupling import Coupling, GumbelCoupling, MaximalCoupling, inverse_cdf
from ssd_core.noise import Noise
from ssd_core.stream import Stream

CPU = torch.device("cpu")
MANY = 20_000
STREAM = Stream(1, MANY, None)
AT = torch.zeros(MANY, dtype=torch.int64), torch.arange(MANY)  # one image, many positions


def coupling(kind: str, codes: int, tolerance: float = 0.0, seed: int = 0) -> Coupling:
    noise = Noise([seed], CPU)
    if kind == "maximal":
        return MaximalCoupling(noise, STREAM, 1, MANY, codes, CPU)
    made = GumbelCoupling(noise, STREAM, 1, MANY, codes, tolerance, CPU)
    made.prepare([MANY])
    return made


def random_law(codes: int, seed: int, zeros: int = 0) -> Tensor:
    p = torch.rand(codes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2
    p[torch.randperm(codes, generator=torch.Generator().manual_seed(seed))[:zeros]] = 0
    return p / p.sum()


def draw(made: Coupling, p: Tensor, tokens: Tensor | None, rounds: int = 0) -> Tensor:
    n = MANY
    current = torch.zeros(n, dtype=torch.int64) if tokens is None else tokens
    drafted = torch.full((n,), tokens is not None)
    return made.update(*AT, p.log().expand(n, -1), current, drafted, torch.full((n,), rounds))


@pytest.mark.parametrize("kind", ["maximal", "gumbel"])
@pytest.mark.parametrize("seed", range(4))
def test_tokens_follow_the_target(kind: str, seed: int) -> None:
    """Draft from q, correct to p, correct again to r: each time exactly the law asked for, zeros included."""
    q, p, r = (random_law(6, 10 * seed + i, zeros=i) for i in range(3))
    made = coupling(kind, 6, seed=seed)
    tokens = made.propose(*AT, q.log().expand(MANY, -1))
    laws = [(tokens, q)]
    for rounds, target in enumerate((p, r)):
        tokens = draw(made, target, tokens, rounds)
        laws.append((tokens, target))
    for drawn, target in laws:
        assert chi_square_tail(np.bincount(drawn.numpy(), minlength=6), target.numpy()) > 1e-3


@pytest.mark.parametrize("kind", ["maximal", "gumbel"])
def test_tokens_without_a_draft_follow_the_target(kind: str) -> None:
    p = random_law(5, 3, zeros=1)
    drawn = draw(coupling(kind, 5), p, None)
    assert chi_square_tail(np.bincount(drawn.numpy(), minlength=5), p.numpy()) > 1e-3


def test_copied_tokens_become_the_target_law() -> None:
    """A draft that was not drawn counts as certain: it stays with probability p(x)."""
    p, made = random_law(5, 8), coupling("maximal", 5)
    copied = torch.full((MANY,), 2)
    made.propose_tokens(*AT, copied)
    drawn = draw(made, p, copied)
    assert chi_square_tail(np.bincount(drawn.numpy(), minlength=5), p.numpy()) > 1e-3
    assert abs(float((drawn == 2).double().mean()) - float(p[2])) < 4 * 0.5 / MANY**0.5


@pytest.mark.parametrize("seed", range(3))
def test_maximal_coupling_keeps_as_much_as_can_be_kept(seed: int) -> None:
    """The share of unchanged drafts is the overlap, sum of min(p, q); the pair (draft, token) has the exact law."""
    q, p = random_law(5, seed, zeros=1), random_law(5, seed + 50, zeros=1)
    made = coupling("maximal", 5, seed=seed)
    draft = made.propose(*AT, q.log().expand(MANY, -1))
    token = draw(made, p, draft)
    overlap = torch.minimum(p, q)
    residual = (p - q).clamp(min=0)
    joint = torch.diag(overlap) + torch.outer(q - overlap, residual) / residual.sum()
    counts = np.bincount((draft * 5 + token).numpy(), minlength=25)
    assert chi_square_tail(counts, joint.numpy()) > 1e-3
    assert abs(float((draft == token).double().mean()) - float(overlap.sum())) < 0.015


def test_equal_distributions_change_nothing() -> None:
    """p = q keeps every draft, in every later round too."""
    p = random_law(7, 1).float()
    for kind in ("maximal", "gumbel"):
        made = coupling(kind, 7)
        tokens = made.propose(*AT, p.log().expand(MANY, -1))
        for rounds in range(3):
            assert torch.equal(draw(made, p, tokens, rounds), tokens)


def test_gumbel_tokens_depend_on_target_and_place_alone() -> None:
    """Whatever the draft was and however often it is corrected: the same token. Other seeds draw others."""
    p, made = random_law(6, 2), coupling("gumbel", 6)
    first = draw(made, p, None)
    for rounds in (0, 1, 5):
        assert torch.equal(draw(made, p, (first + rounds) % 6, rounds), first)
    assert not torch.equal(draw(coupling("gumbel", 6, seed=1), p, None), first)


@pytest.mark.parametrize("tolerance", [0.51, 1.0, 3.9])
def test_tolerance_rule(tolerance: float) -> None:
    """A draft x stays where tolerance * p(x) >= p(y), y the token drawn; without a draft nothing is kept."""
    p = torch.tensor([0.4, 0.3, 0.2, 0.1]).double()
    picked = draw(coupling("gumbel", 4), p, None)
    lenient = coupling("gumbel", 4, tolerance=tolerance)
    assert torch.equal(draw(lenient, p, None), picked)
    draft = torch.arange(MANY) % 4
    keep = tolerance * p[draft] * (1 + 1e-9) >= p[picked]
    assert torch.equal(draw(lenient, p, draft), torch.where(keep, draft, picked))
    assert 0 < int(keep.sum()) < MANY


def test_tolerance_never_keeps_an_excluded_code() -> None:
    p = torch.tensor([0.0, 1.0]).double()
    assert bool((draw(coupling("gumbel", 2, tolerance=1e30), p, torch.zeros(MANY, dtype=torch.int64)) == 1).all())


@given(st.lists(st.sampled_from([0.0, 1e-30, 0.1, 1.0, 3.0]), min_size=1, max_size=9), st.integers(0, 2**23 - 1))
def test_inverse_cdf(weights: list[float], step: int) -> None:
    """The first code whose cumulative weight passes u; codes of weight zero are never drawn, for any u in (0, 1)."""
    if sum(weights) < 0.05:
        weights = [*weights, 1.0]
    u = (step + 0.5) / 2**23
    code = int(inverse_cdf(torch.tensor([weights]).double(), torch.tensor([u]))[0])
    assert weights[code] > 0
    assert sum(weights[:code]) <= u * sum(weights) * (1 + 1e-12)
    assert sum(weights[: code + 1]) >= u * sum(weights) * (1 - 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inverse_cdf_at_the_ends(dtype: torch.dtype) -> None:
    """Near 0 and 1 (and at 1, should a product round up), with zero weights at both ends and inexact sums."""
    wide = torch.cat((torch.zeros(3), torch.rand(5000, generator=torch.Generator().manual_seed(0)), torch.zeros(3)))
    rows = [wide, wide.flip(0), torch.nn.functional.one_hot(torch.tensor(17), len(wide)).float(), wide * 1e-9]
    for weights in rows:
        for u in (0.5 / 2**23, 1 - 0.5 / 2**23, 1.0):
            code = int(inverse_cdf(weights[None].to(dtype), torch.tensor([u]))[0])
            assert weights[code] > 0
