"""The grid widget: ``auto`` or ROWSxCOLUMNS in codes."""

from __future__ import annotations

import re

from .errors import NodeError

AUTO = "auto"
TOOLTIP = (
    "Size in codes as ROWSxCOLUMNS, for example 24x24; 'auto' is the backbone's own size. A code of the built-in "
    "backbone is 8x8 pixels, so 24x24 codes are 192x192 pixels."
)
TOOLTIP_WITH_TOKENS = TOOLTIP + " With tokens connected, 'auto' is their size."


def parse_grid(text: str) -> tuple[int, int] | None:
    """``"24x32"`` -> (24, 32) rows and columns; None for ``auto`` or an empty text. Raises NodeError for the rest."""
    wish = text.strip().lower()
    if wish in ("", AUTO):
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,3})\s*[x×*]\s*([1-9][0-9]{0,3})", wish)
    if match is None:
        raise NodeError(f"grid must be 'auto' or ROWSxCOLUMNS in codes, like 24x24; got {text!r}")
    return int(match[1]), int(match[2])
