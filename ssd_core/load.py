"""Finding and loading heads for a backbone."""

from __future__ import annotations

from pathlib import Path

from .errors import SSDError
from .families import ASSETS, BUILT_IN
from .families.base import Backbone
from .heads import SpatialHeads, read_heads


def load_heads(backbone: Backbone, source: str | Path = "built-in") -> SpatialHeads:
    """Loads spatial heads onto the backbone's device, in its dtype.

    ``source``: ``"built-in"`` for the embedded backbone's own heads, or a heads file. Raises SSDError when the file
    is damaged or was made for other weights.
    """
    if str(source) == "built-in":
        if backbone.name != BUILT_IN:
            raise SSDError(f"no built-in heads for {backbone.name}; give a heads file trained for it")
        path = ASSETS / "heads.safetensors"
    else:
        path = Path(source)
    heads = read_heads(path, backbone.hidden, backbone.name, backbone.fingerprint)
    return heads.to(device=backbone.device, dtype=backbone.dtype)
