"""Files that are whole or not there at all, and names that clobber nothing by accident."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place to write a large file: ``path`` appears, whole and on the disk, when the block ends without an error.

    The place is ``path`` with ``.partial`` behind it; what a killed process leaves there the next one overwrites.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.chmod(0o644)  # safetensors writes files that only their owner can read
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write(path: Path, data: bytes, by_way_of: Path | None = None) -> Path:
    """Write a file whole or not at all, replacing an old one.

    ``by_way_of``: a folder of the same disk for the time that it is not whole yet, where a killed process may leave it;
    by default the file's own.
    """
    with _partial(by_way_of or path.parent, data) as partial:
        partial.replace(path)
    return path


def write_new(folder: Path, name: str, suffix: str, data: bytes) -> Path:
    """Write a file that was not there: `name`, else `name-2`, `name-3` … Returns its path."""
    with _partial(folder, data) as partial:
        path = claim(folder, name, suffix)
        try:
            partial.replace(path)
        except BaseException:
            path.unlink()
            raise
    return path


def claim(folder: Path, name: str, suffix: str, joint: str = "-") -> Path:
    """Makes an empty file that was not there, so that no other process takes the name: see `write_new`."""
    number = 1
    while True:
        path = folder / (f"{name}{suffix}" if number == 1 else f"{name}{joint}{number}{suffix}")
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            number += 1


def check_folder(folder: Path) -> None:
    """Raises OSError that names the folder when no file can be written there."""
    try:
        with _partial(folder, b""):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


@contextmanager
def _partial(folder: Path, data: bytes) -> Iterator[Path]:
    """A temporary file in `folder` with `data`; whatever interrupts leaves nothing behind."""
    partial = folder / f".ssd-{secrets.token_hex(8)}.partial"
    try:
        with partial.open("xb") as file:  # not mkstemp: the file gets the mode that any new file gets
            file.write(data)
        yield partial
    finally:
        partial.unlink(missing_ok=True)
