"""The command line's results: where pictures go and what a PNG carries."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin
from torch import Tensor

from ..errors import SSDError
from ..tokens import METADATA, SOFTWARE
from ..writing import check_folder, write, write_new


@dataclass(frozen=True)
class Target:
    """Where pictures go: an exact file that is overwritten, or a folder in which nothing is."""

    path: Path
    is_file: bool

    @classmethod
    def read(cls, text: str) -> Target:
        """`-o`'s argument: a name that ends in .png is a file, one without an ending (or a folder) is a folder."""
        if not text.strip():
            raise SSDError("-o: got an empty name, expected a name ending in .png or a folder")
        try:
            path = Path(text).expanduser()
        except RuntimeError as error:  # ~nobody/…
            raise SSDError(f"-o: got {text!r}, whose home folder is not known; write the path in full") from error
        if text.endswith(("/", os.sep)) or path.is_dir():
            return cls(path, is_file=False)
        if path.suffix.lower() == ".png":
            return cls(path, is_file=True)
        if path.suffix or path.name.lower() == ".png" or path.exists():
            raise SSDError(f"-o: got {text!r}, expected a name ending in .png or a folder; end a folder's name with /")
        return cls(path, is_file=False)

    def make_folder(self) -> None:
        """Create what is missing and try it, so that a bad path fails before the drawing and not after it."""
        folder = self.path.parent if self.is_file else self.path
        folder.mkdir(parents=True, exist_ok=True)
        check_folder(folder)

    def file(self, number: int, of: int, mark: str = "") -> Path:
        """The file of picture `number` (from 1) `of` several, where the target is a file."""
        part = f"{mark}-{number}" if of > 1 else mark
        return self.path.with_name(f"{self.path.stem}{part}{self.path.suffix}")

    def save(self, data: bytes, name: str, number: int, of: int, mark: str = "") -> Path:
        """Write picture `number` (from 1) `of` several; `name` serves in a folder. Returns the path written."""
        if self.is_file:
            return write(self.file(number, of, mark), data)
        return write_new(self.path, f"{name}{mark}", ".png", data)


def picture_name(prompt: str, seed: int) -> str:
    """`a cat, on grass`, 7 -> `a-cat-on-grass-7`; safe on every file system."""
    slug = re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-")[:60].rstrip("-")
    return f"{slug or 'picture'}-{seed}"


def png_bytes(image: Tensor, prompt: str, settings: dict[str, Any]) -> bytes:
    """Image [height, width, 3] in 0..1 -> PNG with Description, Software and, as JSON, `settings`."""
    info = PngImagePlugin.PngInfo()
    info.add_itxt("Description", prompt)
    info.add_text("Software", SOFTWARE)
    # One key of our own: ComfyUI and others read "prompt", "workflow" and "parameters" as their own data.
    info.add_itxt(METADATA, json.dumps(settings, ensure_ascii=False))
    stream = io.BytesIO()
    Image.fromarray(to_bytes(image)).save(stream, format="PNG", pnginfo=info)
    return stream.getvalue()


def to_bytes(image: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Values 0..1 -> 0..255, rounded, same shape."""
    return (image.detach().cpu().clamp(0, 1) * 255).round().numpy().astype(np.uint8)
