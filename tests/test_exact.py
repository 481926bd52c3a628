"""Exact mode: with Gumbel coupling and tolerance 0 every window and every drafter gives plain decoding's own tokens.

Plain decoding itself is checked against the slow reference, and so is the rolling window's number of forwards.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Reference
from toys import OracleDrafter, ToyBackbone, draw, run_engine, toy_heads

from ssd_core import AR, Rolling, Rounds, Sampling
from ssd_core.heads import SpatialHeads

DOUBLE = torch.float64
KINDS: dict[str, dict[str, Any]] = {
    "end of line": {},
    "no end of line": {"end_of_line": False},
    "padded prompts": {"padded": True},
    "two rope axes": {"axes": 2, "padded": True, "qk_norm": True, "kv_heads": 2},
}
SAMPLINGS = [
    Sampling(),
    Sampling(guidance=3.0, temperature=0.8, top_k=8, top_p=0.95),
    Sampling(guidance=0.0, top_k=4),
    Sampling(guidance=2.0, temperature=0.0),
]
# Each kind with two of the samplings, each sampling with two of the kinds.
PAIRS = [(kind, SAMPLINGS[(i + j) % 4]) for i, kind in enumerate(KINDS) for j in (0, 1)]
WINDOWS = [
    *(Rolling(rows) for rows in (1, 2, 3, 4)),
    *(Rolling(window_tokens=n) for n in (2, 7)),
]
PROMPTS = ["a", "bcdef", "gab"]


def drafters(backbone: ToyBackbone) -> dict[str, SpatialHeads | None]:
    return {
        "left": None,
        "heads": toy_heads(backbone),
        "neighbours": toy_heads(backbone, neighbours=1, seed=2),
        "no vertical heads": toy_heads(backbone, 3, 0),
        "no horizontal heads": toy_heads(backbone, 0, 2),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_plain_decoding_equals_the_reference(kind: str, sampling: Sampling) -> None:
    """AR with a cache and a batch against no cache, one image, one position at a time; both couplings."""
    backbone = ToyBackbone(3, 4, dtype=DOUBLE, **KINDS[kind])
    for coupling in ("gumbel", "maximal"):
        got = draw(backbone, AR(coupling), PROMPTS, sampling=sampling, seed=11)
        assert got.report.forwards == {"prefill": 1, "verify": 11, "commit": 0}
        for image, prompt in enumerate(PROMPTS):
            want = Reference(backbone, prompt, sampling, 11 + image).plain(coupling)
            assert got.tokens[image].tolist() == want.tolist()


@pytest.mark.parametrize(("kind", "sampling"), PAIRS, ids=str)
def test_every_window_and_drafter_gives_plain_tokens(kind: str, sampling: Sampling) -> None:
    """Three prompts in a batch, five drafters, rows and tokens as windows."""
    backbone = ToyBackbone(4, 4, dtype=DOUBLE, **KINDS[kind])
    want = draw(backbone, AR(), PROMPTS, sampling=sampling, seed=5).tokens
    assert sampling.temperature == 0 or len(set(want.flatten().tolist())) > 2  # the toy must not be trivial
    for name, heads in drafters(backbone).items():
        for schedule in WINDOWS:
            got = draw(backbone, schedule, PROMPTS, sampling=sampling, seed=5, heads=heads)
            assert torch.equal(got.tokens, want), (name, schedule)


@pytest.mark.parametrize("kind", KINDS)
def test_many_seeds_in_float32(kind: str) -> None:
    """The dtype that users run on a CPU: 16 seeds a drafter, drawn as a batch of eight and one by one."""
    backbone = ToyBackbone(5, 6, **KINDS[kind])
    for heads in (None, toy_heads(backbone)):
        for seed in range(0, 16, 8):
            want = draw(backbone, AR(), seed=seed, batch=8).tokens
            assert torch.equal(draw(backbone, Rolling(), seed=seed, batch=8, heads=heads).tokens, want)
            single = draw(backbone, Rolling(2), seed=seed + 3, heads=heads)
            assert torch.equal(single.tokens[0], want[3])


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (2, 9), (6, 2)])
@pytest.mark.parametrize("end_of_line", [True, False])
def test_grids(size: tuple[int, int], end_of_line: bool) -> None:
    backbone = ToyBackbone(*size, end_of_line=end_of_line, dtype=DOUBLE)
    want = draw(backbone, AR(), batch=4).tokens
    for heads in (None, toy_heads(backbone)):
        for schedule in WINDOWS:
            assert torch.equal(draw(backbone, schedule, batch=4, heads=heads).tokens, want)


def test_true_features_as_drafts() -> None:
    """Good drafts change the number of forwards, never the tokens."""
    backbone = ToyBackbone(4, 4, dtype=DOUBLE)
    sampling = Sampling(guidance=2.5)
    want = draw(backbone, AR(), PROMPTS, sampling=sampling)
    codes, report = run_engine(backbone, OracleDrafter(backbone, PROMPTS), Rolling(2), PROMPTS, sampling)
    assert torch.equal(codes, want.tokens)
    assert report.total_forwards < want.report.total_forwards / 3


@pytest.mark.parametrize("kind", KINDS)
def test_forwards_equal_the_reference(kind: str) -> None:
    """The window reaches and commits exactly as far as the rule says: as many forwards as the reference's steps."""
    backbone = ToyBackbone(4, 5, dtype=DOUBLE, **KINDS[kind])
    heads = toy_heads(backbone, neighbours=int(kind == "two rope axes"))
    for schedule in (Rolling(1), Rolling(2), Rolling(4), Rolling(window_tokens=3), Rolling(window_tokens=9)):
        for drafts in (heads, None):
            reference = Reference(backbone, "abc", Sampling(), 2, drafts)
            want = reference.rolling(schedule.window_rows, schedule.window_tokens)
            got = draw(backbone, schedule, seed=2, heads=drafts)
            assert got.tokens[0].tolist() == want.tolist()
            assert got.report.total_forwards == reference.steps
            assert got.report.acceptance == pytest.approx(reference.kept / max(reference.judged, 1))


@pytest.mark.parametrize("tolerance", [0.3, 1.0, 5.0])
def test_tolerance_equals_the_reference(tolerance: float) -> None:
    backbone = ToyBackbone(4, 5, dtype=DOUBLE)
    for heads in (toy_heads(backbone), None):
        for seed, rows in enumerate((1, 2, 3)):
            schedule = Rolling(rows, tolerance=tolerance)
            reference = Reference(backbone, "abc", Sampling(2.0), seed, heads)
            want = reference.rolling(rows, tolerance=tolerance)
            got = draw(backbone, schedule, seed=seed, heads=heads, sampling=Sampling(2.0))
            assert got.tokens[0].tolist() == want.tolist()
            assert got.report.total_forwards == reference.steps


def test_more_tolerance_means_fewer_forwards() -> None:
    backbone = ToyBackbone(6, 6)
    heads = toy_heads(backbone)
    forwards = [
        draw(backbone, Rolling(tolerance=t), batch=4, heads=heads).report.total_forwards for t in (0.0, 1.0, 10.0, 1e9)
    ]
    assert forwards[0] > forwards[2] > forwards[3]
    assert forwards[-1] < forwards[0] / 2


def test_enough_rounds_are_exact_too() -> None:
    """Fixed rounds with Gumbel coupling settle on plain decoding's tokens once they outnumber a block's codes."""
    backbone = ToyBackbone(4, 4, dtype=DOUBLE)
    want = draw(backbone, AR(), batch=3).tokens
    heads = toy_heads(backbone, horizontal=1)
    for commit in ("fused", "separate"):
        schedule = Rounds(5, commit=commit, coupling="gumbel", first_row_block=1)
        assert torch.equal(draw(backbone, schedule, batch=3, heads=heads).tokens, want)
        few = dataclasses.replace(schedule, rounds=1)
        assert not torch.equal(draw(backbone, few, batch=3, heads=heads).tokens, want)


@settings(max_examples=15)
@given(
    st.integers(0, 2**64 - 1),
    st.floats(0, 8),
    st.floats(0.2, 2),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["left", "heads", "neighbours"]),
)
def test_any_seed_and_setting(
    seed: int, guidance: float, temperature: float, rows: int, batch: int, drafter: str
) -> None:
    backbone = ToyBackbone(3, 4, dtype=DOUBLE, padded=True)
    sampling = Sampling(guidance, temperature)
    want = draw(backbone, AR(), sampling=sampling, seed=seed, batch=batch).tokens
    heads = drafters(backbone)[drafter]
    got = draw(backbone, Rolling(rows), sampling=sampling, seed=seed, batch=batch, heads=heads).tokens
    assert torch.equal(got, want)
