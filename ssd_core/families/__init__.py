"""Backbone families. ``load_backbone`` finds the family of a folder by its ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ..errors import SSDError
from .base import Backbone
from .emoji import MODEL_TYPE as _EMOJI
from .emoji import load_emoji

BUILT_IN = "emoji-scenes"
ASSETS = Path(__file__).resolve().parent.parent / "assets" / "emoji_scenes"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_backbone(
    source: str | Path = BUILT_IN, *, device: str | torch.device = "cpu", dtype: str | torch.dtype = "auto"
) -> Backbone:
    """Loads a frozen backbone.

    ``source``: ``"emoji-scenes"`` (ships with the package) or a folder with a ``config.json``. ``dtype``: ``"auto"``
    is float32 on a CPU, so that exact mode keeps its word, and bfloat16 elsewhere.
    Raises SSDError when the folder is not a known model or its files are damaged.
    """
    folder = ASSETS if str(source) == BUILT_IN else Path(source)
    where = torch.device(device)
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise SSDError(f"no backbone at {folder}: expected a folder with a config.json, or the name {BUILT_IN!r}")
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SSDError(f"cannot read {config_file}: {error}") from error
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type != _EMOJI:
        raise SSDError(f"{config_file} names model_type {model_type!r}; supported: {_EMOJI!r}")
    return load_emoji(folder, where, resolve_dtype(dtype, where))


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """``"auto"``, a name or a torch dtype -> the torch dtype to compute in on ``device``."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in _DTYPES:
        raise SSDError(f"dtype must be 'auto' or one of {sorted(_DTYPES)}, got {dtype!r}")
    return _DTYPES[dtype]
