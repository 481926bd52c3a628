"""Spatial Speculative Decoding for ComfyUI: what ComfyUI imports.

Everything else comes when ComfyUI asks for the nodes, so that the package can be imported outside ComfyUI too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .nodes.extension import SSDExtension

WEB_DIRECTORY = "./web"


async def comfy_entrypoint() -> SSDExtension:
    """Called once by ComfyUI."""
    from .nodes.extension import SSDExtension

    return SSDExtension()
