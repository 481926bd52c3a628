"""A model folder seen from outside: what it is, what it needs, which heads fit. No weights are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import SSDError
from .families.base import Backbone
from .families.loaders import ASSETS, BUILT_IN, family_of, load_backbone
from .heads import HeadsSpec, read_heads_spec
from .memory import Memory, memory_of
from .tensor_files import read_header

HEADS_FOLDER = "ssd_heads"
"""Where ComfyUI keeps heads: beside ``ar_backbones``, in which a model is NAME or OWNER/NAME."""

DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True)
class HeadsFile:
    """A heads file; ``problem`` says why it does not fit, None when it fits."""

    path: Path
    spec: HeadsSpec
    problem: str | None


@dataclass(frozen=True)
class Inspection:
    """``stored``: dtype on disk -> bytes. ``backbone`` is on the meta device; None when ``problem`` says why not.

    ``memory``: dtype -> what one picture of the default size needs, with the model's own guidance.
    """

    folder: Path
    model_type: str
    stored: dict[str, int]
    backbone: Backbone | None
    memory: dict[str, Memory]
    heads: list[HeadsFile]
    problem: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        backbone = self.backbone
        facts: dict[str, Any] = {}
        if backbone is not None:
            rows, cols = backbone.default_grid
            facts = {
                "name": backbone.name,
                "fingerprint": backbone.fingerprint,
                "codes": backbone.codes,
                "grids": [list(grid) for grid in backbone.grids],
                "pixels": [rows * backbone.patch, cols * backbone.patch],
            }
        return {
            "folder": str(self.folder),
            "model_type": self.model_type,
            **facts,
            "stored_bytes": self.stored,
            "memory_bytes": {
                dtype: {"weights": need.weights, "cache": need.cache, "working": need.working, "total": need.total}
                for dtype, need in self.memory.items()
            },
            "heads": [
                {"file": str(file.path), "fits": file.problem is None, "problem": file.problem} for file in self.heads
            ],
            "problem": self.problem,
        }


def inspect(source: str | Path, heads: Iterable[Path] = (), batch: int = 1) -> Inspection:
    """Looks at a model folder, or at the built-in model by its name.

    ``heads``: files and folders to look through besides the model's own folder and ComfyUI's. What keeps the model
    from being loaded becomes ``problem``; SSDError is raised only when ``source`` is no model of a known family or a
    file of ``heads`` is none.
    """
    heads = list(heads)
    for path in heads:
        if not path.is_dir():
            read_heads_spec(path)
    folder = ASSETS if str(source) == BUILT_IN else Path(source)
    model_type = family_of(folder)
    backbone, problem = None, None
    try:
        backbone = load_backbone(folder, device="meta", dtype=torch.bfloat16)
    except SSDError as error:
        problem = str(error)
    memory = {}
    if backbone is not None:
        rows = backbone.default_sampling.guidance_rows
        for name in DTYPES:
            memory[name] = memory_of(backbone, getattr(torch, name), backbone.default_grid, batch, rows)
    places = [folder, folder.parent.parent / HEADS_FOLDER, folder.parent.parent.parent / HEADS_FOLDER, *heads]
    found = [_heads_file(path, backbone) for path in _candidates(places)]
    files = [file for file in found if file is not None]
    return Inspection(folder, model_type, _stored(folder, files), backbone, memory, files, problem)


def _candidates(places: Iterable[Path]) -> Iterator[Path]:
    """Every safetensors file of the places, once."""
    seen = set()
    for place in places:
        for path in sorted(place.glob("*.safetensors")) if place.is_dir() else [place]:
            if path.is_file() and path.resolve() not in seen:
                seen.add(path.resolve())
                yield path


def _heads_file(path: Path, backbone: Backbone | None) -> HeadsFile | None:
    """The heads in a file and whether they fit, or None when it holds something else."""
    try:
        spec = read_heads_spec(path)
    except SSDError:
        return None
    problem = spec.misfit(backbone.name, backbone.hidden, backbone.fingerprint) if backbone is not None else None
    return HeadsFile(path, spec, problem)


def _stored(folder: Path, heads: list[HeadsFile]) -> dict[str, int]:
    """Bytes of each dtype in the folder's safetensors, those of folders in it included (Emu3 keeps its pixels there).

    Heads do not count, nor do files that cannot be read.
    """
    sizes: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.safetensors")):
        if path in {file.path for file in heads}:
            continue
        try:
            for info in read_header(path).values():
                sizes[str(info.dtype).removeprefix("torch.")] += info.bytes
        except SSDError:
            continue  # what is wrong with it is the inspection's `problem`
    return dict(sizes.most_common())
