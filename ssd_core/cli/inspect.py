"""`inspect`: what a model folder is, needs and lacks."""

from __future__ import annotations

import json

from ..errors import SSDError
from ..hub import gigabytes
from ..inspection import HeadsFile, Inspection, inspect
from .arguments import InspectOptions

MOST_GRIDS = 9


def inspect_model(options: InspectOptions) -> None:
    """Print the findings; SSDError at the end when the model cannot be loaded."""
    found = inspect(options.model, options.heads, options.batch)
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print(inspection_text(found, options.batch))
    if found.problem is not None:
        raise SSDError(found.problem)


def inspection_text(found: Inspection, batch: int = 1) -> str:
    """The findings on one screen."""
    backbone = found.backbone
    lines = [backbone.name if backbone is not None else str(found.folder)]
    lines += [_row("folder", str(found.folder)), _row("family", f"model_type {found.model_type!r} in config.json")]
    least = sum(found.stored.values()) / 1000  # counters and the like are not worth a word
    stored = ", ".join(f"{gigabytes(size)} {dtype}" for dtype, size in found.stored.items() if size > least)
    lines.append(_row("on disk", stored or "no weights that can be read"))
    if backbone is not None:
        (rows, cols), patch = backbone.default_grid, backbone.patch
        sampling = backbone.default_sampling
        lines += [
            _row("picture", f"{cols * patch}×{rows * patch} pixels, {rows}×{cols} codes (rows × columns)"),
            _row("other sizes", _sizes(backbone.grids[1:])),
            _row("sampling", f"guidance {sampling.guidance:g}, temperature {sampling.temperature:g}, "
                 f"top k {sampling.top_k or 'off'}, top p {sampling.top_p:g}"),
            _row("weights", f"fingerprint {backbone.fingerprint[:16]}…"),
        ]  # fmt: skip
    for dtype, need in found.memory.items():
        pictures = "a picture" if batch == 1 else f"{batch} pictures"
        lines.append(
            _row(
                dtype,
                f"weights {gigabytes(need.weights)} + keys and values of {pictures} {gigabytes(need.cache)} "
                f"+ work and CUDA graphs up to {gigabytes(need.working)} = {gigabytes(need.total)}",
            )
        )
    lines += [_row("heads" if number == 0 else "", _heads(file)) for number, file in enumerate(found.heads)]
    if not found.heads:
        lines.append(_row("heads", "none found; drafts copy a neighbouring code"))
    lines.append(_row("missing", "nothing" if found.problem is None else "see the error below"))
    return "\n".join(lines)


def _sizes(grids: object) -> str:
    known = [f"{rows}×{cols}" for rows, cols in grids]  # type: ignore[attr-defined]
    more = f" … ({len(known)} in all)" if len(known) > MOST_GRIDS else ""
    return (", ".join(known[:MOST_GRIDS]) + more) or "none"


def _heads(file: HeadsFile) -> str:
    spec = file.spec
    kinds = " and ".join(
        f"{name} {min(offsets)}–{max(offsets)}"
        for name, offsets in (("horizontal", spec.horizontal), ("vertical", spec.vertical))
        if offsets
    )
    return f"{file.path}: {kinds}, " + ("fit" if file.problem is None else f"do not fit: {file.problem}")


def _row(name: str, value: str) -> str:
    return f"  {name:<13}{value}"
