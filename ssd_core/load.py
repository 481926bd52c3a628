"""Finding and loading heads for a backbone."""

from __future__ import annotations

from pathlib import Path

import torch

from .errors import ShouldStop, SSDError
from .families.base import Backbone
from .families.loaders import ASSETS, BUILT_IN
from .heads import SpatialHeads, read_heads

BUILT_IN_HEADS = "built-in"


def heads_file(backbone: Backbone, source: str | Path = BUILT_IN_HEADS) -> Path:
    """The file that ``source`` names: the embedded backbone's own heads, or a path. The backbone needs no weights."""
    if str(source) != BUILT_IN_HEADS:
        return Path(source)
    own = built_in_heads(backbone)
    if own is None:
        raise SSDError(
            f"no heads for {backbone.name} are built in; give a heads file trained for it, or decode without heads"
        )
    return own


def built_in_heads(backbone: Backbone) -> Path | None:
    """The file of the heads that ship for this backbone; None for all but the embedded one."""
    return ASSETS / "heads.safetensors" if backbone.name == BUILT_IN else None


def load_heads(
    backbone: Backbone,
    source: str | Path = BUILT_IN_HEADS,
    *,
    device: str | torch.device | None = None,
    should_stop: ShouldStop | None = None,
) -> SpatialHeads:
    """Loads spatial heads onto ``device``, by default the backbone's, in the backbone's dtype.

    ``source``: ``"built-in"`` for the embedded backbone's own heads, or a heads file. ``should_stop`` is asked before
    each tensor is read. Raises SSDError when the file is damaged or was made for other weights, StopRequested when
    ``should_stop`` said so.
    """
    file = heads_file(backbone, source)
    heads = read_heads(file, backbone.hidden, backbone.name, backbone.fingerprint, should_stop)
    return heads.to(device=device or backbone.device, dtype=backbone.dtype)
