"""`download`: a published model into the models folder, after size and licence were shown and agreed to."""

from __future__ import annotations

import sys
from pathlib import Path

from ..errors import SSDError
from ..hub import VQGAN_CKPT, Offer, download, gigabytes, offer
from ..inspection import inspect
from .arguments import ConvertOptions, DownloadOptions
from .convert import convert
from .inspect import inspection_text


def download_model(options: DownloadOptions) -> None:
    """Show what would come, ask, fetch, convert where needed, inspect the result."""
    wanted = offer(options.name, options.into)
    print(offer_text(wanted))
    if not options.yes and not _agreed(wanted):
        print("nothing was downloaded")
        return
    folder = download(wanted)
    for part in wanted.parts:
        if part.makes is not None:
            convert(ConvertOptions(checkpoint=folder / VQGAN_CKPT, output=folder / part.makes))
    found = inspect(folder)
    print(inspection_text(found))
    if found.problem is not None:
        raise SSDError(found.problem)


def offer_text(wanted: Offer) -> str:
    """Repositories, sizes, licence, place."""
    lines = [wanted.name]
    for repository, (files, size) in wanted.sizes.items():
        lines.append(f"  from      https://huggingface.co/{repository}: {files} files, {gigabytes(size)}")
    lines.append(f"  licence   {wanted.model.licence}")
    lines.append(f"  into      {_shown(wanted.target)} ({gigabytes(wanted.free)} free)")
    return "\n".join(lines)


def _agreed(wanted: Offer) -> bool:
    if not sys.stdin.isatty():
        raise SSDError("nobody can be asked here; give --yes to agree to size and licence")
    try:
        answer = input(f"Download {gigabytes(wanted.bytes)} under this licence? [y/N] ")
    except EOFError:  # Ctrl-D
        print()
        return False
    return answer.strip().lower() in ("y", "yes")


def _shown(path: Path) -> str:
    return str(path.absolute())
