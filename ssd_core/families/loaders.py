"""``load_backbone``: finds the family of a folder by its ``config.json``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..errors import ShouldStop, SSDError
from .base import Backbone, read_config
from .emoji import MODEL_TYPE as _EMOJI
from .emoji import load_emoji
from .emu3 import load_emu3
from .emu3_files import ORIGINAL as _EMU3_ORIGINAL
from .emu3_files import TRANSFORMERS as _EMU3
from .janus import ORIGINAL as _JANUS_ORIGINAL
from .janus import TRANSFORMERS as _JANUS
from .janus import load_janus
from .lumina import MODEL_TYPE as _LUMINA
from .lumina import load_lumina

BUILT_IN = "emoji-scenes"
ASSETS = Path(__file__).resolve().parent.parent / "assets" / "emoji_scenes"
# config.json's model_type -> loader of that family: one line a family (or a layout of one).
LOADERS: dict[str, Callable[[Path, torch.device, torch.dtype, ShouldStop | None], Backbone]] = {
    _EMOJI: load_emoji,
    _EMU3: load_emu3,
    _EMU3_ORIGINAL: load_emu3,
    _JANUS: load_janus,
    _JANUS_ORIGINAL: load_janus,
    _LUMINA: load_lumina,
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_backbone(
    source: str | Path = BUILT_IN,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "auto",
    should_stop: ShouldStop | None = None,
) -> Backbone:
    """Loads a frozen backbone.

    ``source``: ``"emoji-scenes"`` (ships with the package) or a folder with a ``config.json``. ``dtype``: ``"auto"``
    is float32 on a CPU, so that exact mode keeps its word, and bfloat16 elsewhere. On the device "meta" everything but
    the weights is there: sizes, grids, words, fingerprint. ``should_stop`` is asked before each tensor is read.
    Raises StopRequested when it said so, and SSDError when the folder is not a known model or its files are damaged.
    """
    folder = ASSETS if str(source) == BUILT_IN else Path(source)
    where = torch.device(device)
    return LOADERS[family_of(folder)](folder, where, resolve_dtype(dtype, where), should_stop)


def family_of(folder: Path) -> str:
    """The ``model_type`` of a folder's ``config.json``. Raises SSDError when it is none of ``LOADERS``."""
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise SSDError(f"no backbone at {folder}: expected a folder with a config.json, or the name {BUILT_IN!r}")
    model_type = read_config(folder).get("model_type")
    if not isinstance(model_type, str) or model_type not in LOADERS:
        known = ", ".join(map(repr, LOADERS))
        raise SSDError(f"{config_file} names model_type {model_type!r}; supported: {known}")
    return model_type


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """``"auto"``, a name or a torch dtype -> the torch dtype to compute in on ``device``."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in _DTYPES:
        raise SSDError(f"dtype must be 'auto' or one of {sorted(_DTYPES)}, got {dtype!r}")
    return _DTYPES[dtype]
