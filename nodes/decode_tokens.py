"""Decode AR Tokens."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import checks
from .host import graph, pixels
from .host.models import BackboneHandle
from .link_types import Backbone, Tokens


class SSDDecodeTokens(io.ComfyNode):
    """Codes to pixels."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SSDDecodeTokens",
            display_name="Decode AR Tokens",
            category="SSD/tokens",
            description="Turns tokens back into pictures with the backbone's pixel decoder; nothing is drawn anew.",
            inputs=[
                Backbone.Input("backbone", tooltip="The model that the tokens were made with."),
                Tokens.Input("tokens", tooltip="From the sampler, Load AR Tokens or Encode Image to AR Tokens."),
            ],
            outputs=[io.Image.Output("images", display_name="image", tooltip="One picture for each grid of codes.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, tokens: Any = None) -> bool | str:
        return checks.answer(checks.decoder, graph.queued_node(cls.hidden.unique_id))

    @classmethod
    def execute(cls, backbone: BackboneHandle, tokens: Any) -> io.NodeOutput:
        tokens.check_fits(backbone.module)
        return io.NodeOutput(pixels.decode(backbone, tokens.codes))
