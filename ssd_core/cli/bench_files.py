"""`bench`: pictures in the folders that evaluators read, and the timings beside them.

GenEval (Ghosh et al. 2023) reads ``<digits>/metadata.jsonl``, one JSON object, and every ``<digits>.png`` in
``<digits>/samples``. DPG-Bench (Hu et al. 2024) reads every file of its folder as a picture named like its prompt, cut
into up to four squares; so nothing else may lie there.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import SSDError
from ..writing import write
from .bench_options import Layout
from .bench_prompts import BenchPrompt
from .bench_summary import Pictures

Picture = NDArray[np.uint8]
"""[height, width, 3]."""


@dataclass(frozen=True)
class PictureFolder:
    """One decoder's pictures."""

    path: Path
    layout: Layout

    def files(self, index: int, prompt: BenchPrompt, images: int) -> list[Path]:
        """The pictures' files of prompt number ``index`` (from 0)."""
        if self.layout == "dpg":
            return [self.path / f"{prompt.name}.png"]
        return [self.path / f"{index:05d}" / "samples" / f"{image:04d}.png" for image in range(images)]

    def save_line(self, index: int, prompt: BenchPrompt) -> None:
        """GenEval's metadata of a prompt, written where it is not yet what the prompts file says now."""
        if self.layout == "dpg":
            return
        file, line = self.path / f"{index:05d}" / "metadata.jsonl", (prompt.line + "\n").encode()
        if not file.is_file() or file.read_bytes() != line:
            write(file, line)

    def save(self, index: int, prompt: BenchPrompt, pictures: Sequence[Picture]) -> None:
        """Writes a prompt's line and pictures, each file whole or not at all."""
        files = self.files(index, prompt, len(pictures))
        files[0].parent.mkdir(parents=True, exist_ok=True)
        if self.layout == "dpg":
            pictures = [grid_of(pictures)]
        self.save_line(index, prompt)
        for file, picture in zip(files, pictures, strict=True):
            data = io.BytesIO()
            Image.fromarray(picture).save(data, format="PNG")
            # A killed process must not leave anything in a folder whose files are all taken for pictures.
            write(file, data.getvalue(), by_way_of=self.path.parent)


def grid_of(pictures: Sequence[Picture]) -> Picture:
    """Four pictures as 2x2, row by row; one stays as it is. The evaluator cuts squares, so others are refused."""
    height, width = pictures[0].shape[:2]
    if height != width:
        raise SSDError(f"DPG-Bench cuts square pictures, got {width}x{height} pixels; choose a square --size")
    if len(pictures) == 1:
        return pictures[0]
    rows = [np.concatenate(pictures[first : first + 2], axis=1) for first in (0, 2)]
    return np.concatenate(rows, axis=0)


class Timings:
    """A JSON file ``{"settings": ..., "prompts": {"0": {"prompt": ..., "name": ..., "pictures": [...]}}}``.

    Always whole. ``name``: ``BenchPrompt.name``.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path
        self._content: dict[str, Any] = {"settings": settings, "prompts": {}}
        if path.exists():
            self._content = _read(path)
            self._check(settings)

    def pictures(self, prompts: int) -> Pictures:
        """What is known of the pictures of the first so many prompts, all of which must have been drawn."""
        found = [(index, self._content["prompts"][str(index)]["pictures"]) for index in range(prompts)]
        return {(index, picture["image"]): picture for index, pictures in found for picture in pictures}

    def has(self, index: int, prompt: BenchPrompt) -> bool:
        """Whether prompt number ``index`` was drawn.

        Raises SSDError when another text was drawn under the number, or the same under another name: the evaluator
        would score the picture of the old name too.
        """
        entry = self._content["prompts"].get(str(index))
        if entry is not None and entry["prompt"] != prompt.text:
            raise SSDError(
                f"{prompt.place}: {self._path} has {entry['prompt']!r} as prompt {index}, got {prompt.text!r}; "
                "give -o another folder, or the same prompts"
            )
        if entry is not None and entry.get("name", prompt.name) != prompt.name:  # older files do not tell the name
            raise SSDError(
                f"{prompt.place}: {self._path} has prompt {index} under the name {entry['name']!r}, got "
                f"{prompt.name!r}; give -o another folder, or the same names"
            )
        return entry is not None

    def add(self, index: int, prompt: BenchPrompt, pictures: list[dict[str, Any]]) -> None:
        self._content["prompts"][str(index)] = {"prompt": prompt.text, "name": prompt.name, "pictures": pictures}
        text = json.dumps(self._content, ensure_ascii=False, allow_nan=False, indent=1)
        write(self._path, (text + "\n").encode())

    def _check(self, settings: dict[str, Any]) -> None:
        found = self._content["settings"]
        for key in sorted(settings.keys() | found.keys()):
            if found.get(key) != settings.get(key):
                raise SSDError(
                    f"{self._path} was drawn with {key} {found.get(key)}, now it is {settings.get(key)}; "
                    "give -o another folder, or the same settings"
                )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(content["settings"], dict) and isinstance(content["prompts"], dict)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise SSDError(f"{path} is no timings file of bench; move it away")
    return dict(content)
