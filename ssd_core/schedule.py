"""Which positions are fed next and when tokens become final. A schedule is plain data; ``steps`` plays it.

``steps`` is a generator: it yields a :class:`Step`, the engine carries it out on the state, and the generator goes on.
It never touches tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .errors import SSDError
from .state import DecodeState
from .stream import Stream

CouplingName = Literal["gumbel", "maximal"]
Commit = Literal["fused", "separate"]


@dataclass(frozen=True)
class Step:
    """One backbone forward.

    ``ends``: for each image, the stream position up to which targets reach; fed are the tokens before it.
    ``verify``: correct the targets (else the forward only refreshes features, keys and values).
    ``draft``: extend drafts up to ``ends`` first.
    ``prefix``: afterwards everything through the first changed token is final.
    ``final``: afterwards everything before this stream position is final.
    ``refeed``: feed from the last final token on even where keys and values are clean (the published schedule).
    """

    ends: list[int]
    verify: bool = True
    draft: bool = True
    prefix: bool = False
    final: int | None = None
    refeed: bool = False


class Schedule(Protocol):
    """What every schedule offers; ``AR``, ``Rolling``, ``Rounds``, ``Jacobi``, ``HorizontalMTP`` and ``Auto``."""

    @property
    def name(self) -> str:
        """Short name for reports."""

    @property
    def coupling(self) -> CouplingName: ...

    @property
    def tolerance(self) -> float: ...

    def window(self, stream: Stream) -> int:
        """The largest number of stream positions between ``front`` and the end of a step."""

    def steps(self, state: DecodeState) -> Iterator[Step]:
        """Yields steps until every image is finished."""


@dataclass(frozen=True)
class AR:
    """Plain decoding: one token a forward."""

    coupling: CouplingName = "gumbel"
    tolerance: float = field(default=0.0, init=False)
    name: str = field(default="ar", init=False)

    def __post_init__(self) -> None:
        _check_coupling(self.coupling, self.tolerance)

    def window(self, stream: Stream) -> int:
        return 1

    def steps(self, state: DecodeState) -> Iterator[Step]:
        while not state.finished:
            yield Step([min(front + 1, state.stream.length) for front in state.front], draft=False, prefix=True)


@dataclass(frozen=True)
class Rolling:
    """A window after the finished prefix; every forward verifies all of it and commits through the first change.

    ``window_rows``: rows in the window, the front's own row included. ``window_tokens``: stream positions instead of
    rows. ``tolerance``: where the drawn token is y, keep a draft x if tolerance * p(x) >= p(y); 0 is exact mode, with
    Gumbel coupling the very picture of plain decoding.
    """

    window_rows: int = 3
    window_tokens: int | None = None
    tolerance: float = 0.0
    coupling: CouplingName = "gumbel"

    def __post_init__(self) -> None:
        if self.window_rows < 1:
            raise SSDError(f"window_rows must be at least 1, got {self.window_rows}")
        if self.window_tokens is not None and self.window_tokens < 1:
            raise SSDError(f"window_tokens must be at least 1, got {self.window_tokens}")
        _check_coupling(self.coupling, self.tolerance)

    @property
    def name(self) -> str:
        return "rolling"

    def window(self, stream: Stream) -> int:
        return self.window_tokens or self.window_rows * stream.stride

    def steps(self, state: DecodeState) -> Iterator[Step]:
        while not state.finished:
            yield Step([self._end(state.stream, front) for front in state.front], prefix=True)

    def _end(self, stream: Stream, front: int) -> int:
        if self.window_tokens is not None:
            return min(front + self.window_tokens, stream.length)
        return stream.row_end(stream.row_of(front) + self.window_rows - 1)


@dataclass(frozen=True)
class Rounds:
    """The published schedule (paper section 3): blocks of rows, a fixed number of verification rounds, then commit.

    The first row goes in blocks of ``first_row_block`` tokens with one round each. ``rows_per_block`` rows (k_v) get
    ``rounds`` rounds together; the leading row is committed, and each trailing row gets ``incremental_rounds`` more
    against it. ``commit``: *separate* feeds the whole block in every round and its final tokens once more (the paper);
    *fused* lets the next block's first forward refresh the final tokens, which saves one forward a row, and skips
    rounds that cannot change anything because the one before changed nothing.
    """

    rounds: int = 2
    rows_per_block: int = 1
    incremental_rounds: int = 0
    commit: Commit = "fused"
    coupling: CouplingName = "maximal"
    tolerance: float = 0.0
    first_row_block: int = 5

    def __post_init__(self) -> None:
        if self.rounds < 0 or self.incremental_rounds < 0:
            raise SSDError(f"rounds must be at least 0, got {self.rounds} and {self.incremental_rounds}")
        if self.rows_per_block < 1 or self.first_row_block < 1:
            raise SSDError(f"blocks need at least 1, got {self.rows_per_block} rows and {self.first_row_block} tokens")
        if self.commit not in ("fused", "separate"):
            raise SSDError(f"commit must be 'fused' or 'separate', got {self.commit!r}")
        _check_coupling(self.coupling, self.tolerance)

    @property
    def name(self) -> str:
        return "rounds"

    def window(self, stream: Stream) -> int:
        return max(self.rows_per_block * stream.stride, self.first_row_block + 1)

    def steps(self, state: DecodeState) -> Iterator[Step]:
        stream = state.stream
        if state.front[0] == 0:
            yield from self._first_row(state)
        row = stream.row_of(state.front[0])
        while row < stream.rows:
            last = min(row + self.rows_per_block, stream.rows) - 1
            reach = stream.row_end(last)
            rounds = self.rounds
            if self.commit == "fused" and self.incremental_rounds == 0:
                row = last  # nothing happens between the leading row and the trailing ones: all become final at once
            for leading in range(row, last + 1):
                yield from self._block(state, stream.row_end(leading), reach, rounds)
                rounds = self.incremental_rounds
            row = last + 1

    def _first_row(self, state: DecodeState) -> Iterator[Step]:
        stream, batch = state.stream, state.batch
        yield Step([1] * batch, draft=False, final=1)  # the first code comes from the prompt's own forward
        while state.front[0] < stream.cols:
            end = min(state.front[0] + self.first_row_block, stream.cols)
            yield from self._block(state, end, end, rounds=1)
        if self.commit == "separate" and stream.stride > stream.cols and stream.rows > 1:
            yield Step([stream.stride + 1] * batch, verify=False, draft=False)  # the first end-of-line token by itself

    def _block(self, state: DecodeState, end: int, reach: int, rounds: int) -> Iterator[Step]:
        """``rounds`` verification rounds up to ``reach``, then everything before ``end`` becomes final."""
        separate, batch = self.commit == "separate", state.batch
        for left in reversed(range(rounds)):
            yield Step([reach] * batch, final=end if left == 0 and not separate else None, refeed=separate)
            if left and not separate and min(state.clean) >= reach - 1:  # nothing changed, so nothing ever will
                yield Step([end] * batch, verify=False, draft=False, final=end)
                return
        if separate or rounds == 0:
            yield Step([end] * batch, verify=False, draft=rounds == 0, final=end, refeed=separate)


@dataclass(frozen=True)
class Jacobi:
    """Speculative Jacobi decoding (SJD, arXiv 2410.01699): a window of tokens that judges and redraws itself.

    Needs no heads. ``window_tokens``: stream positions that one forward corrects. A position's draft is what the
    forward before drew there, with that forward's distribution as q; only positions new to the window are guessed.
    Everything through the first changed token is final, so the law is plain decoding's with either coupling; with
    *gumbel* the picture is too.
    """

    window_tokens: int = 32
    coupling: CouplingName = "maximal"
    tolerance: float = field(default=0.0, init=False)
    name: str = field(default="jacobi", init=False)

    def __post_init__(self) -> None:
        if self.window_tokens < 1:
            raise SSDError(f"window_tokens must be at least 1, got {self.window_tokens}")
        _check_coupling(self.coupling, self.tolerance)

    def window(self, stream: Stream) -> int:
        return self.window_tokens

    def steps(self, state: DecodeState) -> Iterator[Step]:
        yield from Rolling(window_tokens=self.window_tokens, coupling=self.coupling).steps(state)


@dataclass(frozen=True)
class HorizontalMTP:
    """One-dimensional multi-token prediction (the paper's 1D-MTP): horizontal heads only, blocks along the row.

    A block of ``tokens`` codes is drafted from the last final position, corrected in ``rounds`` rounds and then final:
    fast, but blind within the block. A block that ends a row also draws the next row's first code, which no
    horizontal head can draft.
    """

    tokens: int = 5
    rounds: int = 1
    coupling: CouplingName = "maximal"
    tolerance: float = field(default=0.0, init=False)
    name: str = field(default="mtp", init=False)

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.rounds < 1:
            raise SSDError(f"a block needs at least 1 token and 1 round, got {self.tokens} and {self.rounds}")
        _check_coupling(self.coupling, self.tolerance)

    def window(self, stream: Stream) -> int:
        return self.tokens + 2  # the end-of-line token and the next row's first code

    def steps(self, state: DecodeState) -> Iterator[Step]:
        stream = state.stream
        while not state.finished:
            front = state.front[0]
            row_end = stream.row_of(front) * stream.stride + stream.cols
            end = min(front + self.tokens, row_end)
            if front % stream.stride == 0:
                end = front + 1  # nothing in this row to draft from
            elif end == row_end:
                end = min(stream.skip_forced(end) + 1, stream.length)
            for left in reversed(range(self.rounds)):
                yield Step([end] * state.batch, final=end if left == 0 else None)


def default_schedule(device_type: str) -> Rolling:
    """Exact mode with a fixed window: a forward costs by its width on a CPU, hardly so elsewhere."""
    return Rolling(window_rows=1 if device_type == "cpu" else 3)


def _check_coupling(coupling: str, tolerance: float) -> None:
    if coupling not in ("gumbel", "maximal"):
        raise SSDError(f"coupling must be 'gumbel' or 'maximal', got {coupling!r}")
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise SSDError(f"tolerance must be a number >= 0 (0 is exact), got {tolerance}")
    if tolerance > 0 and coupling == "maximal":
        raise SSDError("tolerance needs Gumbel coupling; maximal coupling has no drawn token to compare with")
