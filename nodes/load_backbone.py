"""Load AR Backbone."""

from __future__ import annotations

from comfy_api.latest import io

from . import checks
from .host import folders, graph, models
from .link_types import Backbone
from .settings import PRECISIONS, check_choice


class SSDLoadBackbone(io.ComfyNode):
    """Weights of an autoregressive image model."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SSDLoadBackbone",
            display_name="Load AR Backbone",
            category="SSD/loaders",
            description=(
                "Loads an autoregressive image model. 'emoji scenes (built in)' ships with the extension and needs no "
                "download; other models are folders with a config.json under models/ar_backbones. Loaders with the "
                "same choice share one set of weights."
            ),
            inputs=[
                io.Combo.Input(
                    "backbone",
                    options=[models.BUILT_IN_BACKBONE, *folders.backbone_names()],
                    default=models.BUILT_IN_BACKBONE,
                    tooltip=(
                        "The built-in model, or a folder with a config.json under models/ar_backbones or a root that "
                        "extra_model_paths.yaml names under ar_backbones."
                    ),
                ),
                io.Combo.Input(
                    "precision",
                    options=list(PRECISIONS),
                    default=PRECISIONS[0],
                    tooltip=(
                        "auto: float32 on a CPU, otherwise what suits the device (bfloat16 where it can). In float32 "
                        "exact mode gives plain decoding's picture code for code; in half precision near-ties may "
                        "fall the other way."
                    ),
                ),
            ],
            outputs=[
                Backbone.Output(
                    "ar_backbone",
                    display_name="backbone",
                    tooltip="The model, for Load SSD Heads and every node that draws, decodes or encodes.",
                )
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, backbone: str | None = None) -> bool | str:
        return checks.answer(checks.backbone_loader, graph.queued_node(cls.hidden.unique_id), backbone)

    @classmethod
    def fingerprint_inputs(cls, backbone: str | None = None, precision: str | None = None) -> str:
        return checks.backbone_stamp(backbone)

    @classmethod
    def execute(cls, backbone: str, precision: str) -> io.NodeOutput:
        check_choice("precision", precision, PRECISIONS)
        return io.NodeOutput(models.load_backbone(backbone, precision))
