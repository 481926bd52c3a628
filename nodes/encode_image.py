"""Encode Image to AR Tokens."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import checks
from . import grid as grids
from .host import graph, pixels
from .host.models import BackboneHandle
from .link_types import Backbone, Tokens
from .settings import FITS, check_choice


class SSDEncodeImage(io.ComfyNode):
    """Pixels to codes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SSDEncodeImage",
            display_name="Encode Image to AR Tokens",
            category="SSD/tokens",
            description=(
                "Turns pictures into the backbone's tokens, to redraw a part of them with the sampler (keep_rows) or "
                "to begin a picture from them."
            ),
            inputs=[
                Backbone.Input("backbone", tooltip="The model whose codes are wanted; tokens fit no other."),
                io.Image.Input("image", tooltip="Pictures of any size; an alpha channel is ignored."),
                io.String.Input("grid", default=grids.AUTO, tooltip=grids.TOOLTIP),
                io.Combo.Input(
                    "fit",
                    options=list(FITS),
                    default=FITS[0],
                    tooltip=(
                        "A picture of other proportions: crop cuts the longer side evenly on both ends, stretch "
                        "distorts it."
                    ),
                ),
            ],
            outputs=[Tokens.Output("encoded_tokens", display_name="tokens", tooltip="One grid of codes a picture.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, grid: str | None = None) -> bool | str:
        return checks.answer(checks.encoder, graph.queued_node(cls.hidden.unique_id))

    @classmethod
    def execute(cls, backbone: BackboneHandle, image: Any, grid: str, fit: str) -> io.NodeOutput:
        check_choice("fit", fit, FITS)
        size = grids.parse_grid(grid) or backbone.module.default_grid
        return io.NodeOutput(pixels.encode(backbone, image, size, fit))
