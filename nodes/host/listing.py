"""Files below a folder, for combos: looked up again only when a folder has changed, as ComfyUI does for models."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class _Listing:
    """What was found, and the times of the folders it was found in."""

    names: list[str]
    times: dict[str, int]


_known: dict[tuple[str, str, int], _Listing] = {}


def files_under(root: str, suffix: str, depth: int) -> list[str]:
    """Names of the files with a suffix, relative to ``root`` and with ``/``, at most ``depth`` levels deep, sorted.

    A folder that is missing or may not be read holds nothing. Files are not touched: an output folder may hold
    tens of thousands of pictures on a slow drive.
    """
    key = (root, suffix, depth)
    listing = _known.get(key)
    if listing is None or any(_time(folder) != then for folder, then in listing.times.items()):
        times: dict[str, int] = {}
        names = _search(root, suffix, depth, "", times)
        listing = _known[key] = _Listing(sorted(names), times)
    return list(listing.names)


def _search(folder: str, suffix: str, depth: int, prefix: str, times: dict[str, int]) -> list[str]:
    times[folder] = _time(folder)
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(suffix):
                    names.append(prefix + entry.name)
                elif depth > 1 and entry.is_dir():
                    names += _search(entry.path, suffix, depth - 1, f"{prefix}{entry.name}/", times)
    except OSError:
        return []
    return names


def _time(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - this module works on plain names throughout
    except OSError:
        return 0
