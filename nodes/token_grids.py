"""The tokens that a queued node is connected to, as far as they can be known before anything runs."""

from __future__ import annotations

from typing import Any

from .core import core
from .errors import NodeError
from .grid import parse_grid
from .host import folders
from .host.graph import QueuedNode

_FARTHEST = 16  # samplers in a row; a graph may be a circle, which ComfyUI refuses only later


def of_file(node: QueuedNode) -> Any | None:
    """The ``ARTokens`` at a node's input ``tokens`` if a readable file holds them, else None."""
    file = node.linked("tokens", "SSDLoadTokens")
    if file is None or not file.has_constant("file"):
        return None
    try:
        return core("tokens").read_tokens(folders.tokens_file(file.constant("file")))
    except (NodeError, core().SSDError):
        return None  # the loader's own check tells


def grid_of(node: QueuedNode, default: tuple[int, int], left: int = _FARTHEST) -> tuple[int, int] | None:
    """Rows and columns of the tokens at a node's input ``tokens``; None where they are not known.

    ``default``: the backbone's own size, which ``auto`` stands for.
    """
    tokens = of_file(node)
    if tokens is not None:
        rows, cols = tokens.grid
        return rows, cols
    source = node.linked("tokens", "SSDSampler") or node.linked("tokens", "SSDEncodeImage")
    if source is None or not source.has_constant("grid") or left == 0:
        return None
    try:
        grid = parse_grid(str(source.constant("grid")))
    except NodeError:
        return None  # its own check tells
    if grid is None and source.connected("tokens"):
        return grid_of(source, default, left - 1)
    return grid or default
