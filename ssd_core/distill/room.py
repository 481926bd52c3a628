"""Whether a plan fits into memory and onto the disk, found out before hours of work, and what to do where it does not.

Device memory is counted beside the backbone's weights, which are there already.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from ..errors import SSDError
from ..families.base import Backbone
from ..heads import HeadsSpec, SpatialHeads
from ..hub import gigabytes
from ..memory import memory_of
from ..schedule import AR, Schedule, default_schedule
from .estimate import RESERVE, USEFUL, fitting, training_memory
from .losses import head_name
from .plan import HeadsPlan
from .session import Wanted
from .state import HEADS_BYTES, STATE_FILE
from .train import BEST_FILE

MOST_AT_ONCE = 8
"""Pictures drawn at the same time where memory allows."""
_STATES = 2 * HEADS_BYTES + 4
"""Bytes of the work folder for each weight of the heads: the state, the next one while it is written, the best heads
in float32."""
_HEADS_FILE = 2
_WAY_OUT = "close what else uses it, choose a smaller grid or, where there is one, a smaller precision"


def drawing_schedule(backbone: Backbone, drafting: HeadsSpec | None) -> Schedule:
    """Plain decoding, or exact mode where there are heads to draft: the same distribution in fewer forwards."""
    return AR() if drafting is None else default_schedule(backbone.device.type)


def wished_bytes(backbone: Backbone, plan: HeadsPlan, drafting: HeadsSpec | None) -> int:
    """What all wanted heads and as many pictures at once as help would take, whichever is more."""
    batch = min(MOST_AT_ONCE, plan.pictures)
    drawing = _drawing_bytes(backbone, plan, drafting, batch)
    return math.ceil(max(drawing, _training_bytes(backbone, plan, plan.wanted, plan.settings.micro_batch)) + RESERVE)


def pictures_at_once(backbone: Backbone, plan: HeadsPlan, drafting: HeadsSpec | None, free: float) -> int:
    """How many pictures ``free`` bytes allow to draw together, ``MOST_AT_ONCE`` at most; 0 where not even one."""
    sizes = range(min(MOST_AT_ONCE, plan.pictures), 0, -1)
    return next((n for n in sizes if _drawing_bytes(backbone, plan, drafting, n) + RESERVE <= free), 0)


def refuse_drawing(backbone: Backbone, plan: HeadsPlan, free: float) -> SSDError:
    """The error for a backbone that cannot draw a picture in ``free`` bytes."""
    need = math.ceil(_drawing_bytes(backbone, plan, None, 1) + RESERVE)
    return SSDError(
        f"drawing a picture takes up to {gigabytes(need)} beside the backbone's weights, {gigabytes(int(free))} are "
        f"free on {backbone.device}; {_WAY_OUT}"
    )


def heads_that_fit(
    backbone: Backbone, plan: HeadsPlan, begun: tuple[tuple[int, ...], tuple[int, ...]] | None, free: float | None
) -> tuple[Wanted, int]:
    """The heads to train and how many pictures a forward; the most useful ones where ``free`` bytes hold not all.

    ``begun``: horizontal and vertical offsets of a training that is under way, which goes on with its heads.
    ``free``: None where it is not known. Raises SSDError when not even one head fits, or not all that were begun.
    """
    wanted, micro_batch = plan.wanted, plan.settings.micro_batch
    if begun is not None:
        wanted = replace(wanted, horizontal=begun[0], vertical=begun[1])
    if free is None:
        return wanted, micro_batch
    for size in (micro_batch, 1):
        if _training_bytes(backbone, plan, wanted, size) + RESERVE <= free:
            return wanted, size
    weights = training_memory(backbone, wanted, plan.grids, 1, 0).weights
    fewer = fitting(backbone, wanted, plan.grids, _kl_positions(plan), weights + free) if begun is None else None
    if fewer is not None:
        return replace(wanted, horizontal=fewer.horizontal, vertical=fewer.vertical), 1
    what = "the heads that this training began with take"
    least = wanted
    if begun is None:
        direction, offset = next(name for name in USEFUL if name[1] in getattr(wanted, name[0]))
        one: dict[str, tuple[int, ...]] = {"horizontal": (), "vertical": (), direction: (offset,)}
        least = replace(wanted, horizontal=one["horizontal"], vertical=one["vertical"])
        what = f"training {head_name(direction, offset)} alone takes"
    need = math.ceil(_training_bytes(backbone, plan, least, 1) + RESERVE)
    raise SSDError(
        f"{what} up to {gigabytes(need)} beside the backbone's weights, {gigabytes(int(free))} are free on "
        f"{backbone.device}; {_WAY_OUT}"
    )


def check_disk(backbone: Backbone, plan: HeadsPlan, wanted: Wanted, training: Path, out: Path) -> None:
    """Raises SSDError when the disks do not hold the state of the training and the heads file."""
    with torch.device("meta"):
        count = sum(p.numel() for p in SpatialHeads(wanted.spec(backbone)).parameters())
    there = sum(path.stat().st_size for path in (training / STATE_FILE, training / BEST_FILE) if path.is_file())
    needs = [(training, _STATES * count - there), (out.parent, _HEADS_FILE * count)]
    folders = [_existing(folder) for folder, _ in needs]
    if folders[0].stat().st_dev == folders[1].stat().st_dev:
        needs = [(training, needs[0][1] + needs[1][1])]
    for (folder, need), existing in zip(needs, folders, strict=False):
        free = shutil.disk_usage(existing).free
        if need > free:
            raise SSDError(
                f"{folder} will take up to {gigabytes(need)} more for the training, {gigabytes(free)} are free on its "
                "disk; make room there"
            )


def free_bytes(device: torch.device) -> int | None:
    """What torch can still allocate on a CUDA device; None for others."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _drawing_bytes(backbone: Backbone, plan: HeadsPlan, drafting: HeadsSpec | None, batch: int) -> int:
    schedule, rows = drawing_schedule(backbone, drafting), backbone.default_sampling.guidance_rows
    heads = 0
    if drafting is not None:
        with torch.device("meta"):
            heads = sum(p.numel() for p in SpatialHeads(drafting).parameters()) * backbone.dtype.itemsize
    needs = []
    for grid in plan.grids:
        window = schedule.window(backbone.stream(grid))
        need = memory_of(backbone, backbone.dtype, grid, batch, rows, window)
        needs.append(need.cache + need.working)
    return heads + max(needs)


def _training_bytes(backbone: Backbone, plan: HeadsPlan, wanted: Wanted, micro_batch: int) -> int:
    need = training_memory(backbone, wanted, plan.grids, micro_batch, _kl_positions(plan))
    return need.heads + need.activations


def _kl_positions(plan: HeadsPlan) -> int:
    return plan.settings.kl_positions if plan.settings.kl_weight else 0


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
