"""Model and token folders, searched the way ComfyUI searches its own: ``extra_model_paths.yaml`` roots count."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import folder_paths

from ..errors import NodeError
from . import listing

BACKBONES = "ar_backbones"
HEADS = "ssd_heads"
SUFFIX = ".safetensors"
_DEPTH = 2  # models/ar_backbones/NAME or models/ar_backbones/OWNER/NAME
_TOKENS_DEPTH = 3
_OUTPUT = " [output]"
_FORBIDDEN_TEXT = '< > : " | ? *'
_FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]')
_UNUSABLE = re.compile(r"[. ]$|^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?$", re.IGNORECASE)


def register() -> None:
    """Tells ComfyUI about our model folders; roots that its extra paths file has named already stay."""
    for name, extensions in ((BACKBONES, {"folder"}), (HEADS, {SUFFIX})):
        folder_paths.add_model_folder_path(name, os.path.join(folder_paths.models_dir, name), is_default=True)  # noqa: PTH118
        roots, _ = folder_paths.folder_names_and_paths[name]
        folder_paths.folder_names_and_paths[name] = (roots, extensions)


def backbone_names() -> list[str]:
    """Folders with a ``config.json`` under the roots, as ``NAME`` or ``OWNER/NAME``."""
    return sorted(_backbones(), key=str.casefold)


def backbone_folder(name: str) -> Path:
    """The folder of a name from ``backbone_names``; either separator. Raises NodeError when there is none."""
    found = _backbones()
    folder = found.get(_portable(name))
    if folder is None:
        roots = " or ".join(folder_paths.get_folder_paths(BACKBONES))
        have = ", ".join(sorted(found)) or "none"
        raise NodeError(
            f"there is no backbone folder {name!r} with a config.json under {roots} (found: {have}); put the model's "
            "folder there, or choose another backbone"
        )
    return folder


def heads_names() -> list[str]:
    """Heads files under the roots."""
    return [_portable(name) for name in folder_paths.get_filename_list(HEADS)]


def heads_file(name: str) -> Path:
    """The file of a name from ``heads_names``; either separator. Raises NodeError when there is none."""
    path = folder_paths.get_full_path(HEADS, _portable(name))
    if path is None:
        roots = " or ".join(folder_paths.get_folder_paths(HEADS))
        have = ", ".join(heads_names()) or "none"
        raise NodeError(
            f"there is no heads file {name!r} under {roots} (found: {have}); put it there, or choose other heads"
        )
    return Path(path)


def named_heads_file(name: str) -> Path:
    """The file of that name, whether or not it is there, in the first root of the heads.

    Raises NodeError for a name that leaves the root, names no file, or could not be a file's on some system.
    """
    root = _heads_root()
    wanted = _portable(name).strip().removesuffix(SUFFIX)
    file = _plain(root / (wanted + SUFFIX))
    if wanted.split("/")[-1] in ("", ".", "..") or root not in file.parents:
        raise NodeError(f"name must name a file inside models/{HEADS}, like my_heads; got {name!r}")
    for part in wanted.split("/"):
        if _FORBIDDEN.search(part) or (part not in (".", "..") and _UNUSABLE.search(part)):
            raise NodeError(
                f"name must be a file name inside models/{HEADS} on every system, without {_FORBIDDEN_TEXT}, not "
                f"ending in a dot or space and none of Windows' own (CON, NUL, COM1, …); got {name!r}"
            )
    return file


def heads_name(file: Path) -> str:
    """The name under which ``heads_file`` finds a file that lies in the root of ``named_heads_file``."""
    return file.relative_to(_heads_root()).as_posix()


def training_folder(name: str, mark: str) -> Path:
    """Where a training keeps its pictures and its state; not where files are offered for loading."""
    return Path(folder_paths.get_user_directory()) / "ssd_training" / f"{Path(_portable(name)).name}-{mark}"


def tokens_names() -> list[str]:
    """Possible token files: those of the input folder, then those of the output folder, marked as ComfyUI does."""
    places = ((folder_paths.get_input_directory(), ""), (folder_paths.get_output_directory(), _OUTPUT))
    return [name + mark for folder, mark in places for name in listing.files_under(folder, SUFFIX, _TOKENS_DEPTH)]


def tokens_file(name: str) -> Path:
    """The file of a name from ``tokens_names``. Raises NodeError when it is missing or outside the two folders."""
    wanted = _portable(name)
    inside = wanted.removesuffix(_OUTPUT)
    output = inside != wanted
    root = _plain(folder_paths.get_output_directory() if output else folder_paths.get_input_directory())
    path = _plain(root / inside)  # links inside the folder are the user's own business
    if root not in path.parents or not _is_file(path):
        raise NodeError(
            f"there is no tokens file {name!r} in {root}; save one with Save AR Tokens (choose it as 'NAME{_OUTPUT}') "
            "or put one into ComfyUI's input folder"
        )
    return path


def check_prefix(prefix: str) -> None:
    """Raises NodeError for a file name prefix that leaves the output folder or names no file."""
    root = _plain(folder_paths.get_output_directory())
    if root not in _plain(root / prefix).parents or _portable(prefix).endswith("/"):
        raise NodeError(
            f"filename_prefix must be the start of a file name inside ComfyUI's output folder, like tokens/SSD; got "
            f"{prefix!r}"
        )


def new_tokens_file(prefix: str) -> tuple[Path, dict[str, str]]:
    """A free numbered file in the output folder, and what the interface wants to know about it."""
    folder, stem, counter, subfolder, _ = folder_paths.get_save_image_path(prefix, folder_paths.get_output_directory())
    while (Path(folder) / (name := f"{stem}_{counter:05}_{SUFFIX}")).exists():
        counter += 1  # ComfyUI miscounts after an unusual prefix, such as `tokens/.`
    return Path(folder) / name, {"filename": name, "subfolder": subfolder, "type": "output"}


def stamp(path: Path) -> str:
    """Changes when a file or anything in a folder changes: hash of names, sizes and times, nothing is read.

    Names with a leading dot do not count: downloads leave locks and the like there.
    """
    seen = hashlib.sha256(str(path.resolve()).encode())
    files = [path] if path.is_file() else _all_files(path)
    for file in files:
        facts = file.stat()
        seen.update(f"{file.relative_to(path).as_posix()}|{facts.st_size}|{facts.st_mtime_ns}\n".encode())
    return seen.hexdigest()


def _all_files(root: Path) -> list[Path]:
    found = []
    for folder, inner, names in os.walk(root, followlinks=True):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(folder) / name for name in names if not name.startswith(".")]
    return sorted(file for file in found if file.is_file())


def _heads_root() -> Path:
    return _plain(folder_paths.get_folder_paths(HEADS)[0])


def _plain(path: str | Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - it must not follow links


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no file can have such a name
        return False


def _portable(name: object) -> str:
    return str(name).replace("\\", "/")  # a hand-written graph may hold anything


def _backbones() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for root in map(Path, folder_paths.get_folder_paths(BACKBONES)):
        for folder in _model_folders(root, _DEPTH):
            found.setdefault(folder.relative_to(root).as_posix(), folder)  # as ComfyUI: the first root wins
    return found


def _model_folders(root: Path, depth: int) -> Iterator[Path]:
    for folder in _entries(root):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        if (folder / "config.json").is_file():
            yield folder  # what lies deeper belongs to this model
        elif depth > 1:
            yield from _model_folders(folder, depth - 1)


def _entries(folder: Path) -> list[Path]:
    """A folder's entries; none where it is missing or may not be read, as in ComfyUI's own search."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
