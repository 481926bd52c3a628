"""Load SSD Heads."""

from __future__ import annotations

from comfy_api.latest import io

from . import checks
from .host import folders, graph, models
from .host.models import BackboneHandle
from .link_types import Backbone, Heads


class SSDLoadHeads(io.ComfyNode):
    """Spatial heads, which guess rows for the backbone to check."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SSDLoadHeads",
            display_name="Load SSD Heads",
            category="SSD/loaders",
            description=(
                "Loads spatial heads: small networks that guess the next rows from the row above. They fit exactly one "
                "backbone. Without heads a neighbouring code is copied as the guess, which is slower and just as exact."
            ),
            inputs=[
                Backbone.Input("backbone", tooltip="The model that the heads were trained for."),
                io.Combo.Input(
                    "heads",
                    options=[models.BUILT_IN_HEADS, *folders.heads_names(), models.NO_HEADS],
                    default=models.BUILT_IN_HEADS,
                    tooltip=(
                        "'built in' goes with the built-in backbone; files come from models/ssd_heads; "
                        f"'{models.NO_HEADS}' copies a neighbouring code as the guess."
                    ),
                ),
            ],
            outputs=[Heads.Output("ssd_heads", display_name="heads", tooltip="The heads, for the sampler.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, heads: str | None = None) -> bool | str:
        return checks.answer(checks.heads_loader, graph.queued_node(cls.hidden.unique_id), heads)

    @classmethod
    def fingerprint_inputs(cls, backbone: None = None, heads: str | None = None) -> str:
        return checks.heads_stamp(heads)

    @classmethod
    def execute(cls, backbone: BackboneHandle, heads: str) -> io.NodeOutput:
        return io.NodeOutput(models.load_heads(backbone, heads))
