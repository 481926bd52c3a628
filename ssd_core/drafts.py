"""Which drafter a run gets: asked for by name, or by what the schedule and the files at hand allow."""

from __future__ import annotations

from typing import Literal, get_args

from .draft import CopyDrafter, Drafter, GivenDrafter, HeadsDrafter, LeftDrafter, NoDrafter, RandomDrafter
from .errors import SSDError
from .families.base import Backbone
from .heads import Direction, HeadsSpec, SpatialHeads
from .schedule import AR, HorizontalMTP, Jacobi, Rounds, Schedule
from .start import Start
from .stream import Stream

DraftsName = Literal["auto", "heads", "left", "copy", "random"]
DRAFTS: tuple[DraftsName, ...] = get_args(DraftsName)
"""Who may draft. ``auto``: the heads where there are any; without heads the left neighbour, which measured best in a
window that refines itself, under fixed rounds a copy of the row above, and chance for SJD, as published."""


def choose_drafter(
    name: str, backbone: Backbone, heads: SpatialHeads | None, schedule: Schedule, stream: Stream, start: Start | None
) -> Drafter:
    """The drafter of one run. Raises SSDError for a name or for heads that cannot serve this schedule."""
    if name not in DRAFTS:
        raise SSDError(f"drafts must be one of {', '.join(DRAFTS)}, got {name!r}")
    if isinstance(schedule, AR):
        return NoDrafter()
    if start is not None and start.keep_rows == 0:
        if name != "auto":
            raise SSDError(f"the codes to start from are the draft, got drafts {name!r} too; drop one of them")
        return GivenDrafter(start.codes.to(backbone.device))
    if name == "auto":
        name = _own_drafts(schedule, heads)
    if isinstance(schedule, HorizontalMTP) and name != "heads":
        raise SSDError(f"1D-MTP drafts with horizontal heads, got drafts {name!r}; choose the rolling schedule or SJD")
    if name == "heads":
        return _heads_drafter(backbone, heads, schedule, stream)
    return {"left": LeftDrafter(), "copy": CopyDrafter(), "random": RandomDrafter(backbone.codes)}[name]


def _own_drafts(schedule: Schedule, heads: SpatialHeads | None) -> DraftsName:
    if isinstance(schedule, Jacobi):
        return "random"
    if heads is not None or isinstance(schedule, HorizontalMTP):
        return "heads"
    return "copy" if isinstance(schedule, Rounds) else "left"


def _heads_drafter(backbone: Backbone, heads: SpatialHeads | None, schedule: Schedule, stream: Stream) -> HeadsDrafter:
    if heads is None and isinstance(schedule, HorizontalMTP):
        raise SSDError("1D-MTP needs a heads file, got none; give heads, or choose auto, the rolling schedule or SJD")
    if heads is None:
        raise SSDError("these drafts need a heads file, got none; give heads, or drafts 'left', 'copy' or 'random'")
    if heads.spec.hidden != backbone.hidden:
        raise SSDError(
            f"these heads read features of width {heads.spec.hidden}, {backbone.name} has width {backbone.hidden}"
        )
    weight = next(heads.parameters())
    if weight.device != backbone.device or weight.dtype != backbone.dtype:
        raise SSDError(
            f"heads are in {weight.dtype} on {weight.device}, the backbone in {backbone.dtype} on {backbone.device}; "
            "load them with load_heads(backbone, ...)"
        )
    check_reach(heads.spec, schedule, (stream.rows, stream.cols))
    return HeadsDrafter(backbone, heads, vertical=not isinstance(schedule, HorizontalMTP))


def check_reach(heads: HeadsSpec, schedule: Schedule, grid: tuple[int, int]) -> None:
    """Fixed rounds make every position of a block final, so the heads must be able to draft them all.

    ``grid``: rows and columns of codes. Raises SSDError that says which heads are missing.
    """
    rows, cols = grid
    if isinstance(schedule, Rounds):
        _check_offsets(heads, "horizontal", min(schedule.first_row_block, cols - 1), "smaller blocks")
        _check_offsets(heads, "vertical", min(schedule.rows_per_block, rows - 1), "smaller blocks")
    if isinstance(schedule, HorizontalMTP):
        _check_offsets(heads, "horizontal", min(schedule.tokens, cols - 1), "fewer tokens a step")


def _check_offsets(heads: HeadsSpec, direction: Direction, wanted: int, less: str) -> None:
    have = heads.horizontal if direction == "horizontal" else heads.vertical
    if not set(range(1, wanted + 1)) <= set(have):
        raise SSDError(
            f"this schedule needs {direction} heads 1 to {wanted}, the heads file has "
            f"{list(have) or 'none'}; use {less}, the rolling schedule, or other heads"
        )
