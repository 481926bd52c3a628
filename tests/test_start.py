"""Drawing on from a picture: kept rows stay, the rest is what plain decoding draws behind them; drafts only help."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_engine import every_schedule, setup
from toys import ToyBackbone, toy_heads

from ssd_core import AR, Generation, Rolling, Rounds, Sampling, SSDError, generate
from ssd_core.schedule import Schedule
from ssd_core.summary import report_text


def draw(backbone: ToyBackbone, schedule: Schedule, **options: Any) -> Generation:
    return generate(backbone, "abc", schedule=schedule, **{"sampling": Sampling(2.0), "seed": 5, **options})


def any_picture(backbone: ToyBackbone, batch: int = 1, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(backbone.codes, (batch, *backbone.default_grid), generator=generator)


@given(
    rows=st.integers(2, 6),
    cols=st.integers(1, 6),
    keep=st.integers(1, 5),
    window=st.integers(1, 4),
    batch=st.integers(1, 3),
    end_of_line=st.booleans(),
    padded=st.booleans(),
    with_heads=st.booleans(),
)
def test_exact_mode_continues_as_plain_decoding_does(
    rows: int, cols: int, keep: int, window: int, batch: int, end_of_line: bool, padded: bool, with_heads: bool
) -> None:
    backbone = ToyBackbone(rows, cols, end_of_line=end_of_line, padded=padded, dtype=torch.float64)
    keep = min(keep, rows - 1)
    start = any_picture(backbone, batch)
    options: dict[str, Any] = {"start": start, "keep_rows": keep, "batch": batch}
    plain = draw(backbone, AR(), **options)
    got = draw(backbone, Rolling(window), heads=toy_heads(backbone) if with_heads else None, **options)
    assert torch.equal(got.tokens, plain.tokens)
    assert torch.equal(got.tokens[:, :keep], start[:, :keep])


def test_plain_decoding_behind_kept_rows_is_the_tail_of_a_run_that_drew_them() -> None:
    """The rows that a run drew itself, kept, lead to that very run's picture."""
    backbone, _ = setup()
    whole = draw(backbone, AR(), batch=2)
    for keep in range(1, whole.tokens.shape[1]):
        again = draw(backbone, AR(), batch=2, start=whole.tokens, keep_rows=keep)
        assert torch.equal(again.tokens, whole.tokens)
        assert again.report.total_forwards < whole.report.total_forwards


def test_figures_are_about_what_was_drawn() -> None:
    backbone, _ = setup()
    rows, cols = backbone.default_grid
    got = draw(backbone, AR(), batch=2, start=any_picture(backbone), keep_rows=rows - 1)
    seconds = got.report.seconds["total"] - got.report.seconds["pixels"]
    assert got.report.tokens_per_second == pytest.approx(2 * cols / seconds)
    assert f"for {cols} codes behind {rows - 1} kept rows" in report_text(got)
    by_tokens = report_text(draw(backbone, Rolling(window_tokens=4)))
    assert "window tokens 4" in by_tokens
    assert "window rows" not in by_tokens


@every_schedule
def test_progress_counts_finished_rows(schedule: Schedule) -> None:
    """Every acceptance is told, however few events a listener wants."""
    backbone, heads = setup()
    told: list[tuple[int, ...]] = []
    events: list[Any] = []
    start, keep = any_picture(backbone), 1
    draw(
        backbone, schedule, heads=heads, batch=2, start=start, keep_rows=keep,
        on_progress=told.append, on_rows=events.append, events_per_second=1e-6,
    )  # fmt: skip
    assert told[0] == (keep, keep)
    assert told[-1] == (backbone.default_grid[0],) * 2
    assert all(a <= b for before, after in pairwise(told) for a, b in zip(before, after, strict=True))
    if isinstance(schedule, AR):
        assert {rows for rows, _ in told} == set(range(keep, backbone.default_grid[0] + 1))
    assert len(events) == 2  # the first and, always, the last
    assert events[-1].rows_accepted == told[-1]


@every_schedule
def test_kept_rows_stay_in_every_schedule(schedule: Schedule) -> None:
    backbone, heads = setup()
    start = any_picture(backbone, 2)
    keep = 2
    events: list[Any] = []
    got = draw(backbone, schedule, heads=heads, batch=2, start=start, keep_rows=keep, on_rows=events.append)
    assert torch.equal(got.tokens[:, :keep], start[:, :keep])
    assert all(min(event.rows_accepted) >= keep for event in events)
    assert 0 <= int(got.tokens.min()) <= int(got.tokens.max()) < backbone.codes
    single = draw(backbone, schedule, heads=heads, seed=6, start=start[1:], keep_rows=keep)
    assert torch.equal(single.tokens[0], got.tokens[1])


def test_kept_rows_change_what_follows() -> None:
    """Otherwise they would not have been fed."""
    backbone, _ = setup()
    one, two = (draw(backbone, AR(), start=any_picture(backbone, seed=seed), keep_rows=2) for seed in (1, 2))
    assert not torch.equal(one.tokens[:, 2:], two.tokens[:, 2:])


def test_one_start_serves_a_batch() -> None:
    backbone, _ = setup()
    start = any_picture(backbone)
    got = draw(backbone, AR(), batch=3, start=start, keep_rows=1)
    assert torch.equal(got.tokens[:, 0], start[0, 0].expand(3, -1))
    assert not torch.equal(got.tokens[0], got.tokens[1])


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_given_draft_never_changes_exact_mode(window: int) -> None:
    backbone, heads = setup()
    plain = draw(backbone, AR(), batch=2)
    for start in (any_picture(backbone), plain.tokens):
        got = draw(backbone, Rolling(window), heads=heads, batch=2, start=start)
        assert torch.equal(got.tokens, plain.tokens)
        assert got.report.settings["drafts"] == "given"


def test_the_picture_itself_as_the_draft_is_accepted_whole() -> None:
    backbone, _ = setup()
    plain = draw(backbone, AR())
    rows = plain.tokens.shape[1]
    got = draw(backbone, Rolling(1), start=plain.tokens)
    assert got.report.acceptance == 1
    assert got.report.acceptance_by_direction == {"given": 1.0}
    assert got.report.forwards["verify"] == rows


def test_no_rounds_leave_a_given_draft_as_it_is() -> None:
    """Nothing verifies it, apart from the first row, whose blocks have a round of their own."""
    backbone, _ = setup()
    start = any_picture(backbone)
    got = draw(backbone, Rounds(rounds=0), start=start)
    assert torch.equal(got.tokens[:, 1:], start[:, 1:])


def test_the_grid_is_the_starts() -> None:
    backbone, _ = setup()
    backbone.grids = (backbone.default_grid, (3, 5))
    start = torch.zeros(1, 3, 5, dtype=torch.int64)
    got = draw(backbone, AR(), start=start, keep_rows=1)
    assert got.report.grid == (3, 5)
    with pytest.raises(SSDError, match=r"start must hold codes .* got \[1, 3, 5\]"):
        draw(backbone, AR(), start=start, grid=backbone.default_grid)


def test_mistakes_are_named() -> None:
    backbone, _ = setup()
    rows, cols = backbone.default_grid
    start = any_picture(backbone)
    for options, words in [
        ({"keep_rows": 1}, "no codes to keep"),
        ({"start": start, "keep_rows": rows}, f"keep_rows must be from 0 to {rows - 1}"),
        ({"start": start, "keep_rows": -1}, "keep_rows must be"),
        ({"start": start.float()}, "must hold integers"),
        ({"start": start + backbone.codes}, "must hold codes from 0"),
        ({"start": start - 1 - start.min()}, "must hold codes from 0"),
        ({"start": start.expand(2, -1, -1), "batch": 3}, r"\[1 or 3"),
        ({"start": start[0]}, f"got .{rows}, {cols}"),
    ]:
        with pytest.raises(SSDError, match=words):
            draw(backbone, AR(), **options)
