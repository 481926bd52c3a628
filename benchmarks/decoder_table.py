"""The decoders that the benchmarks set side by side, one line each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ssd_core import AR, Auto, HorizontalMTP, Jacobi, Rolling, Rounds, Schedule
from ssd_core.drafts import DraftsName

PLAIN = "plain AR"


@dataclass(frozen=True)
class Decoder:
    """A named setting. ``family`` groups settings that differ in one number (a line in a plot, ``value`` on it).

    ``heads``: whether there are heads to draft with; ``drafts``: who drafts, as ``generate`` takes it; ``core``: part
    of short tables and of grid sweeps.
    """

    name: str
    family: str
    value: float
    schedule: Schedule
    heads: bool = True
    drafts: DraftsName = "auto"
    core: bool = False

    @property
    def slug(self) -> str:
        """The name as a folder's name."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def decoders() -> list[Decoder]:
    """Every decoder, plain AR first."""
    table = [Decoder(PLAIN, PLAIN, 0, AR(), heads=False, core=True), *_rolling(), *_rounds(), *_others()]
    assert len({decoder.slug for decoder in table}) == len(table)
    return table


def chosen(only: Sequence[str]) -> list[Decoder]:
    """Plain AR and the decoders whose name is one of the texts or, where it is no name, contains it; all for none."""
    table = decoders()
    names = {decoder.name for decoder in table}
    wanted = {name for text in only for name in names if name == text or (text not in names and text in name)}
    return [d for d in table if d.name == PLAIN or not only or d.name in wanted]


def _rolling() -> Iterator[Decoder]:
    yield Decoder("auto", "auto", 0, Auto(), core=True)
    yield Decoder("auto, no heads", "auto, no heads", 0, Auto(), heads=False, core=True)
    for rows in (1, 2, 3, 4, 6):
        yield Decoder(f"exact, {_rows(rows)}", "exact", rows, Rolling(rows), core=rows in (1, 3))
    for rows in (1, 2, 3, 4):
        name = f"exact, {_rows(rows)}, no heads"
        yield Decoder(name, "exact, no heads", rows, Rolling(rows), heads=False, core=rows in (1, 3))
    for drafts in ("copy", "random"):
        for rows in (1, 3):
            name, family = f"exact, {_rows(rows)}, {drafts} drafts", f"exact, {drafts} drafts"
            yield Decoder(name, family, rows, Rolling(rows), heads=False, drafts=drafts)
    yield Decoder("exact in law, 3 rows, maximal", "maximal", 3, Rolling(3, coupling="maximal"))
    for rows in (1, 2, 3):
        for tolerance in (1.0, 4.0, 10.0, 20.0):
            name, family = f"tolerance {tolerance:g}, {_rows(rows)}", f"tolerance, {_rows(rows)}"
            yield Decoder(name, family, tolerance, Rolling(rows, tolerance=tolerance), core=(rows, tolerance) == (1, 4))
    yield Decoder("tolerance 4, 1 row, no heads", "tolerance, no heads", 4, Rolling(1, tolerance=4.0), heads=False)


def _rounds() -> Iterator[Decoder]:
    for rounds in range(7):
        yield Decoder(f"rounds r={rounds}", "rounds", rounds, Rounds(rounds), core=rounds in (1, 2))
    for rounds in range(7):
        name = f"rounds r={rounds}, separate"
        yield Decoder(name, "rounds, separate", rounds, Rounds(rounds, commit="separate"), core=rounds == 2)
    yield Decoder("rounds r=2, Gumbel", "rounds, Gumbel", 2, Rounds(2, coupling="gumbel"))
    for rows, first, later in ((2, 1, 1), (2, 2, 1), (2, 5, 4), (3, 2, 1), (3, 4, 2)):
        schedule = Rounds(first, rows_per_block=rows, incremental_rounds=later, commit="separate")
        yield Decoder(f"staged {rows} rows, b={first} i={later}", f"staged, {rows} rows", first, schedule)


def _others() -> Iterator[Decoder]:
    for tokens, rounds in ((3, 1), (5, 1), (5, 2)):
        name = f"1D-MTP, {tokens} tokens, r={rounds}"
        yield Decoder(
            name, f"1D-MTP, r={rounds}", tokens, HorizontalMTP(tokens, rounds), core=(tokens, rounds) == (5, 1)
        )
    for tokens in (16, 32, 64, 96):
        yield Decoder(f"SJD, {tokens} tokens", "SJD", tokens, Jacobi(tokens), heads=False, core=tokens == 32)
    yield Decoder("SJD, 32 tokens, Gumbel", "SJD, Gumbel", 32, Jacobi(32, coupling="gumbel"), heads=False)
    for drafts in ("copy", "left"):
        yield Decoder(f"SJD, 32 tokens, {drafts} drafts", f"SJD, {drafts}", 32, Jacobi(32), heads=False, drafts=drafts)


def _rows(rows: int) -> str:
    return f"{rows} row{'s' if rows > 1 else ''}"
