"""What heads are made of: everything that their weights hang on, checked before hours of work."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..errors import SSDError
from ..families.base import Backbone
from ..heads import SpatialHeads, read_heads_spec
from ..noise import image_seeds
from .losses import check_reach
from .prompts import check_prompts
from .samples import INDEX_VERSION
from .session import Wanted, check_start, quick_settings
from .settings import TrainSettings
from .state import STATE_VERSION, fixed


@dataclass(frozen=True)
class HeadsPlan:
    """``pictures`` of each of ``grids`` are drawn, the heads of ``wanted`` learn from them.

    ``timed``: training takes what the minutes leave, else as long as ``settings`` say. ``mark``: 16 hexadecimal digits,
    equal for plans that make the same heads of the same weights; how long they train does not count.
    """

    prompts: tuple[str, ...]
    grids: tuple[tuple[int, int], ...]
    pictures: int
    seed: int
    wanted: Wanted
    settings: TrainSettings
    timed: bool
    start_from: Path | None
    mark: str

    def training_folder(self, work: Path) -> Path:
        """Where in a work folder the state of the training is; pictures are shared by the plans of a folder."""
        return work / f"training-{self.mark}"


def plan_heads(
    backbone: Backbone,
    prompts: Sequence[str],
    *,
    grids: Sequence[tuple[int, int]] | None = None,
    pictures: int = 64,
    seed: int = 0,
    neighbours: int | None = None,
    horizontal: Sequence[int] = (1, 2, 3, 4, 5),
    vertical: Sequence[int] = (1, 2, 3),
    start_from: Path | None = None,
    settings: TrainSettings | None = None,
    licence: str = "",
    author: str = "",
) -> HeadsPlan:
    """A plan for ``make_heads``; the backbone may be on the meta device to find out whether there is one.

    ``grids``: (rows, cols) in codes, by default the backbone's own size. ``seed`` of pictures and training.
    ``neighbours``: as in ``HeadsSpec``, by default those of ``start_from``, else 1. ``start_from``: a heads file of the
    same width to begin with. ``settings``: by default `quick_settings` for as long as the minutes allow.

    Raises SSDError for prompts and sizes that the backbone cannot draw, heads that fit in no such picture, and a start
    file that is damaged or of another width.
    """
    if not prompts:
        raise SSDError("there are no prompts; give at least one, or use starter_prompts(backbone)")
    check_prompts(backbone, prompts, "the list")
    if pictures < 2:
        raise SSDError(f"training needs at least 2 pictures, one to learn from and one to measure, got {pictures}")
    image_seeds(seed, 1)
    sizes = tuple(backbone.check_grid(grid) for grid in grids or (backbone.default_grid,))
    if neighbours is None:
        neighbours = _neighbours_of(start_from)
    wanted = Wanted(tuple(horizontal), tuple(vertical), neighbours, licence, author)
    spec = wanted.spec(backbone)
    with torch.device("meta"):
        check_reach(SpatialHeads(spec), sizes)
    if start_from is not None:
        check_start(spec, start_from)
    chosen = settings or replace(quick_settings(backbone), seed=seed)
    facts = {
        "versions": [INDEX_VERSION, STATE_VERSION],
        "weights": [backbone.fingerprint, str(backbone.dtype)],
        "pictures": [list(prompts), sizes, pictures, seed],
        "heads": [wanted.horizontal, wanted.vertical, wanted.neighbours],
        "settings": fixed(chosen),
        "start_from": None if start_from is None else _stamp(start_from),
    }
    mark = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return HeadsPlan(tuple(prompts), sizes, pictures, seed, wanted, chosen, settings is None, start_from, mark)


def _neighbours_of(start_from: Path | None) -> int:
    """Those of the file's vertical heads; 1, which measured best, where there are none."""
    old = None if start_from is None else read_heads_spec(start_from)
    return old.neighbours if old is not None and old.vertical else 1


def _stamp(path: Path) -> list[int]:
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns]
