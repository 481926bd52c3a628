"""What a run did: counters while it runs, a report afterwards, and the events a preview lives on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from .runner import NewTensor
from .state import COPY, GIVEN, HORIZONTAL, LEFT, RANDOM, VERTICAL, DecodeState

_ORIGINS = {
    "copy": COPY,
    "left": LEFT,
    "random": RANDOM,
    "horizontal": HORIZONTAL,
    "vertical": VERTICAL,
    "given": GIVEN,
}
_KINDS = 1 + len(_ORIGINS)
_MAX_ROUNDS = 16
_TALLY = (_MAX_ROUNDS * _KINDS, 2)

EventKind = Literal["drafted", "corrected", "accepted"]


@dataclass(frozen=True)
class RowsEvent:
    """A moment of a run. ``codes``: int64 [batch, rows, cols] on the CPU, -1 where nothing is drafted yet.

    ``changed``: bool of the same shape, the cells that the last verification replaced. ``accepted``: final codes of
    each image, out of ``total``. ``rows_accepted``: complete final rows of each image. ``elapsed`` in seconds.
    """

    kind: EventKind
    codes: Tensor
    changed: Tensor
    accepted: tuple[int, ...]
    total: int
    rows_accepted: tuple[int, ...]
    forwards: int
    acceptance: float | None
    elapsed: float


@dataclass
class Report:
    """Figures of a finished run. ``seconds`` by phase: prompt, draft, forward, sample, pixels, total. A GPU is waited
    for once a step, in *sample*, and around *pixels*: what it still does then counts there and not where it was asked
    for.

    On a GPU the host runs ahead of the device, and what it waits for counts where it waits (in ``sample``).

    ``acceptance`` is the share of drafted codes that a verification left as they were; ``acceptance_by_round`` splits
    it by how often a code had been verified before (16 rounds and more in the last), ``acceptance_by_direction`` by
    the kind of draft, first verification only. ``auto`` is what the schedule ``Auto`` chose and why. ``graphs``: what
    came of CUDA graphs; begins with "off" where none was used, and says why.
    """

    decoder: str
    settings: dict[str, Any]
    seed: int
    grid: tuple[int, int]
    batch: int
    forwards: dict[str, int] = field(default_factory=lambda: {"prefill": 0, "verify": 0, "commit": 0})
    fed_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    acceptance: float | None = None
    acceptance_by_round: list[float] = field(default_factory=list)
    acceptance_by_direction: dict[str, float] = field(default_factory=dict)
    tokens_per_second: float = 0.0
    auto: dict[str, Any] | None = None
    graphs: str = "off"

    @property
    def total_forwards(self) -> int:
        return sum(self.forwards.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts, ready for JSON."""
        return {**asdict(self), "grid": list(self.grid), "total_forwards": self.total_forwards}


class Meter:
    """Counts forwards, seconds and acceptance of one run."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.forwards = {"prefill": 0, "verify": 0, "commit": 0}
        self.fed_tokens = 0
        self.seconds: dict[str, float] = {}
        self._tally: Tensor | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def new_tally(self, tensor: NewTensor, device: torch.device) -> Tensor:
        """The counters that verifications add to with :func:`count_verified`; the meter reads them when asked."""
        self._tally = tensor("tally", _TALLY, torch.int64, device)
        return self._tally

    def _counts(self) -> Tensor:
        """Codes verified and codes kept, int64 [rounds before, kind of draft, 2]."""
        tally = torch.zeros(_TALLY, dtype=torch.int64) if self._tally is None else self._tally.cpu()
        return tally.view(_MAX_ROUNDS, _KINDS, 2)

    @property
    def acceptance(self) -> float | None:
        verified, kept = self._counts().sum((0, 1)).tolist()
        return kept / verified if verified else None

    def fill(self, report: Report) -> None:
        """Writes the figures into ``report``."""
        report.forwards = dict(self.forwards)
        report.fed_tokens = self.fed_tokens
        report.seconds = {**self.seconds, "total": self.elapsed}
        report.acceptance = self.acceptance
        counts = self._counts()
        by_round = [(kept, verified) for verified, kept in counts.sum(1).tolist() if verified]
        report.acceptance_by_round = [kept / verified for kept, verified in by_round]
        first = counts[0].tolist()
        report.acceptance_by_direction = {
            name: first[kind][1] / first[kind][0] for name, kind in _ORIGINS.items() if first[kind][0]
        }

    def event(self, kind: EventKind, state: DecodeState, changed: Tensor | None) -> RowsEvent:
        """``changed``: bool [batch, length] in stream positions, or None."""
        stream = state.stream
        reach = state.index(state.drafted)[:, None]
        positions = torch.arange(stream.length, device=state.device)[None]
        shown = torch.where(positions < reach, state.tokens, -1)
        marks = torch.zeros_like(shown, dtype=torch.bool) if changed is None else changed
        codes, cells = stream.to_grid(shown).cpu(), stream.to_grid(marks).cpu()
        with torch.inference_mode(False):  # a listener may do with its copies what it likes
            codes, cells = codes.clone(), cells.clone()
        return RowsEvent(
            kind=kind,
            codes=codes,
            changed=cells,
            accepted=tuple(stream.codes_before(f) for f in state.front),
            total=stream.codes,
            rows_accepted=tuple(stream.rows_before(f) for f in state.front),
            forwards=sum(self.forwards.values()),
            acceptance=self.acceptance,
            elapsed=self.elapsed,
        )


def count_verified(tally: Tensor, rounds: Tensor, origin: Tensor, drafted: Tensor, changed: Tensor) -> None:
    """Adds one verification of ``n`` codes to the counters; int64 or bool [n], what was not drafted does not count."""
    at = rounds.clamp(max=_MAX_ROUNDS - 1) * _KINDS + origin
    tally.index_add_(0, at, torch.stack((drafted, drafted & ~changed), dim=-1).to(tally.dtype))
