"""The published schedule: the paper's own step counts, and tokens equal to a reference that recomputes everything."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from reference import Reference
from toys import ToyBackbone, draw, toy_heads

from ssd_core import Rounds, RowsEvent, Sampling, SSDError
from ssd_core.schedule import Commit, CouplingName

DOUBLE = torch.float64
PUBLISHED = [  # grid, end-of-line token, schedule, steps in the paper
    ((24, 24), False, Rounds(2, commit="separate"), 80),
    ((24, 24), False, Rounds(1, commit="separate"), 57),
    ((24, 24), False, Rounds(0, commit="separate"), 34),
    ((48, 48), True, Rounds(5, 2, 4, commit="separate"), 281),
]
EMU3 = ((90, 90), True, Rounds(6, commit="separate"), 661)
Block = tuple[int, int, int]  # rounds, rows, incremental rounds
BLOCKS: list[Block] = [
    (0, 1, 0), (1, 1, 0), (3, 1, 0), (1, 2, 0), (2, 2, 1), (3, 2, 2), (2, 3, 1), (0, 2, 0), (0, 2, 1), (1, 3, 0)
]  # fmt: skip


@pytest.mark.parametrize(
    ("grid", "end_of_line", "schedule", "steps"),
    [*PUBLISHED, pytest.param(*EMU3, marks=pytest.mark.slow)],
    ids=lambda v: str(v) if isinstance(v, int) else "",
)
def test_published_step_counts(grid: tuple[int, int], end_of_line: bool, schedule: Rounds, steps: int) -> None:
    backbone = ToyBackbone(*grid, end_of_line=end_of_line, codes=5, layers=1)
    got = draw(backbone, schedule, heads=toy_heads(backbone, vertical=2))
    assert got.report.total_forwards == steps


def separate_forwards(rows: int, cols: int, end_of_line: bool, schedule: Rounds) -> int:
    """Forwards by the paper's formulas: first row, then (b + 1) + (k - 1)(i + 1) a block of k rows."""
    first = 1 + 2 * math.ceil((cols - 1) / schedule.first_row_block) + (end_of_line and rows > 1)
    whole, rest = divmod(rows - 1, schedule.rows_per_block)
    blocks = [schedule.rows_per_block] * whole + [rest] * (rest > 0)
    b, i = schedule.rounds, schedule.incremental_rounds
    return first + sum((b + 1) + (k - 1) * (i + 1) for k in blocks)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("end_of_line", [True, False])
def test_forwards_by_formula(block: Block, end_of_line: bool) -> None:
    for rows, cols in ((1, 1), (1, 8), (6, 1), (4, 7), (6, 3)):
        backbone = ToyBackbone(rows, cols, end_of_line=end_of_line)
        schedule = Rounds(*block, "separate", first_row_block=4)
        report = draw(backbone, schedule, heads=toy_heads(backbone)).report
        assert report.total_forwards == separate_forwards(rows, cols, end_of_line, schedule)
        assert report.forwards["prefill"] == 1


def test_fused_commit_saves_a_forward_a_row() -> None:
    """A row costs r forwards instead of r + 1 (a first row block one instead of two); never more."""
    backbone = ToyBackbone(6, 7)
    heads = toy_heads(backbone)
    for rounds in (1, 2, 4):
        counts = []
        commits: tuple[Commit, Commit] = ("fused", "separate")
        for commit in commits:
            schedule = Rounds(rounds, commit=commit)
            counts.append(draw(backbone, schedule, heads=heads, batch=16).report.total_forwards)
        fused, separate = counts  # in a batch of 16 no round is without a change
        assert separate - fused == 5 + 2 + 1  # rows below the first, first row blocks, the end-of-line forward
        assert fused == 1 + 2 + 5 * rounds


@pytest.mark.parametrize("coupling", ["maximal", "gumbel"])
def test_fused_rounds_end_when_nothing_changes(coupling: CouplingName) -> None:
    """However many rounds are allowed, the picture is that of enough of them, and no round is played for nothing."""
    backbone = ToyBackbone(6, 7)
    heads = toy_heads(backbone)
    enough = draw(backbone, Rounds(64, coupling=coupling), heads=heads, batch=3)
    endless = draw(backbone, Rounds(10**9, coupling=coupling), heads=heads, batch=3)
    assert torch.equal(endless.tokens, enough.tokens)
    assert endless.report.forwards == enough.report.forwards


# Without rounds a block of several rows may be drafted at once or row by row: the paper does not say.
@pytest.mark.parametrize("block", [b for b in BLOCKS if b[0] > 0 or b[1] == 1])
@pytest.mark.parametrize("commit", ["fused", "separate"])
@pytest.mark.parametrize("coupling", ["maximal", "gumbel"])
@pytest.mark.parametrize("end_of_line", [True, False])
def test_tokens_equal_the_reference(block: Block, commit: Any, coupling: Any, end_of_line: bool) -> None:
    backbone = ToyBackbone(5, 4, end_of_line=end_of_line, dtype=DOUBLE)
    heads = toy_heads(backbone)
    sampling = Sampling(2.0, top_k=9) if end_of_line else Sampling()
    schedule = Rounds(*block, commit, coupling, first_row_block=2)
    got = draw(backbone, schedule, heads=heads, batch=2, seed=40, sampling=sampling).tokens
    for image in range(2):
        reference = Reference(backbone, "abc", sampling, 40 + image, heads)
        want = reference.published(*block, commit == "fused", coupling, 2)
        assert got[image].tolist() == want.tolist()


@pytest.mark.parametrize("options", [{"padded": True, "axes": 2}, {"qk_norm": True, "kv_heads": 2}], ids=str)
def test_tokens_equal_the_reference_on_other_backbones(options: dict[str, Any]) -> None:
    backbone = ToyBackbone(4, 5, dtype=DOUBLE, **options)
    heads = toy_heads(backbone, neighbours=1)
    sampling = Sampling(3.0, 0.9, 7, 0.9)
    for fused in (True, False):
        schedule = Rounds(2, 2, 1, commit="fused" if fused else "separate")
        got = draw(backbone, schedule, heads=heads, sampling=sampling, seed=8).tokens
        want = Reference(backbone, "abc", sampling, 8, heads).published(2, 2, 1, fused)
        assert got[0].tolist() == want.tolist()


HEADS_THAT_END_EARLY = [
    ((5, 3), Rounds(1, first_row_block=8)),
    ((0, 3), Rounds(1)),
    ((5, 0), Rounds(1)),
    ((5, 1), Rounds(1, rows_per_block=3)),
    ((5, 1), Rounds(0, rows_per_block=2)),
]


@pytest.mark.parametrize(("offsets", "schedule"), HEADS_THAT_END_EARLY, ids=str)
def test_heads_that_do_not_reach(offsets: tuple[int, int], schedule: Rounds) -> None:
    """Rounds need a draft everywhere: an error says so, or the rest is drafted some other way; never blank codes."""
    backbone = ToyBackbone(4, 9)
    events: list[RowsEvent] = []
    try:
        draw(backbone, schedule, heads=toy_heads(backbone, *offsets), on_rows=events.append)
    except SSDError:
        return
    for before, event in itertools.pairwise(events):
        if event.kind == "accepted":  # what becomes final was drafted or drawn before
            assert int(before.codes.flatten()[: event.accepted[0]].min()) >= 0
