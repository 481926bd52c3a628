"""Step 1: gets the emoji pictures (npm package ``@lobehub/fluent-emoji-3d``, MIT) into the cache.

Run: ``python -m recipes.emoji_scenes.fetch``. Needs ``npm``; the package is asked for by name and version from
whatever registry npm is set up for.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from .paths import PICTURES
from .words import OBJECTS

PACKAGE = "@lobehub/fluent-emoji-3d@1.1.0"

CODE_POINTS: dict[str, str] = {
    "apple": "1f34e",
    "banana": "1f34c",
    "cat": "1f431",
    "dog": "1f436",
    "car": "1f697",
    "ball": "26bd",
    "heart": "2764-fe0f",
    "star": "2b50",
    "tree": "1f333",
    "rocket": "1f680",
    "fish": "1f420",
    "house": "1f3e0",
    "balloon": "1f388",
    "mushroom": "1f344",
    "duck": "1f986",
    "flower": "1f337",
}
"""The package names its pictures by code point; the word of each is ours."""


def picture_path(name: str) -> Path:
    """Path of an object's 256 px RGBA picture in the cache."""
    return PICTURES / f"{name}.webp"


def fetch() -> None:
    """Downloads the package and keeps the pictures the scenes use. Does nothing when all are there."""
    if all(picture_path(name).exists() for name in OBJECTS):
        return
    if shutil.which("npm") is None:
        raise SystemExit("npm was not found; install Node.js, or unpack the package's pictures by hand")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as package:
            for name in OBJECTS:
                member = package.extractfile(f"package/assets/{CODE_POINTS[name]}.webp")
                assert member is not None
                picture_path(name).write_bytes(member.read())


if __name__ == "__main__":
    fetch()
    print(f"{len(OBJECTS)} pictures in {PICTURES}")
