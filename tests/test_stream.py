"""Grid geometry: codes and forced tokens, for any grid, against the list one would write by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssd_core import SSDError
from ssd_core.stream import Stream

EOL = 99
streams = st.builds(Stream, st.integers(1, 7), st.integers(1, 7), st.sampled_from([EOL, None]))


def written_out(stream: Stream) -> list[tuple[int, int] | None]:
    """Each stream position's cell, or None for a forced token."""
    cells: list[tuple[int, int] | None] = []
    for row in range(stream.rows):
        cells += [(row, col) for col in range(stream.cols)]
        if stream.end_of_line is not None:
            cells.append(None)
    return cells


@given(streams)
def test_geometry(stream: Stream) -> None:
    cells = written_out(stream)
    assert stream.length == len(cells)
    assert stream.codes == stream.rows * stream.cols
    assert stream.stride * stream.rows == stream.length
    assert stream.code_positions.tolist() == [i for i, cell in enumerate(cells) if cell]
    assert stream.forced_mask.tolist() == [cell is None for cell in cells]
    for position, cell in enumerate(cells):
        assert stream.is_forced(position) == (cell is None)
        assert cell is None or stream.row_of(position) == cell[0]
        assert stream.codes_before(position) == sum(c is not None for c in cells[:position])
        following = [i for i in range(position, len(cells)) if cells[i]]
        assert stream.skip_forced(position) == (following[0] if following else stream.length)
    assert stream.codes_before(stream.length) == stream.codes
    assert stream.skip_forced(stream.length) == stream.length
    ends = [max(i for i, c in enumerate(cells) if c is None or c[0] == row) + 1 for row in range(stream.rows)]
    if stream.end_of_line is None:
        assert [stream.row_end(row) for row in range(stream.rows)] == ends
    assert [stream.row_end(row) for row in (0, stream.rows - 1, stream.rows, 50)] == [
        stream.stride, *[stream.length] * 3
    ]  # fmt: skip


@given(streams, st.integers(1, 3))
def test_grid_round_trip(stream: Stream, batch: int) -> None:
    """Blank streams hold the forced tokens and code 0; codes written at their positions come back as the grid."""
    tokens = stream.blank(batch)
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [[0 if cell else EOL for cell in written_out(stream)]] * batch
    codes = torch.arange(batch * stream.codes).view(batch, stream.rows, stream.cols)
    tokens[:, stream.code_positions] = codes.flatten(1)
    assert torch.equal(stream.to_grid(tokens), codes)


@pytest.mark.parametrize("size", [(0, 3), (3, 0), (-1, 2)])
def test_empty_grids_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(SSDError, match=f"at least 1x1 codes, got {size[0]}x{size[1]}"):
        Stream(*size, None)
