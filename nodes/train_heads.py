"""Train SSD Heads."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import checks
from .core import core
from .grid import parse_grid
from .host import folders, graph, models, training
from .host.models import BackboneHandle
from .host.progress import ShareProgress
from .link_types import Backbone, Heads
from .settings import NOTHING, SEED_MAX, prompt_lines


class SSDTrainHeads(io.ComfyNode):
    """Heads for a backbone, made from its own pictures."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SSDTrainHeads",
            display_name="Train SSD Heads",
            category="SSD/training",
            description=(
                "Makes spatial heads for a backbone: lets it draw pictures, trains heads to foresee its rows, and "
                "writes one file into models/ssd_heads. Stop while it trains keeps the best heads so far; the same "
                "node run again goes on where it was. Heads that are done are not trained again."
            ),
            inputs=[
                Backbone.Input("backbone", tooltip="The model to make heads for. Its own weights stay as they are."),
                io.String.Input(
                    "prompts",
                    multiline=True,
                    default="",
                    tooltip=(
                        "What to draw for training, one prompt a line: the more like your later prompts, the better. "
                        "Empty: a list that ships with the extension, or the built-in backbone's own words."
                    ),
                ),
                io.String.Input(
                    "name",
                    default="my_heads",
                    tooltip=(
                        "Name of the file in models/ssd_heads, which may hold a subfolder. A number is added where "
                        "the name is taken; only heads of the same training, stopped before, are replaced."
                    ),
                ),
                io.Int.Input(
                    "pictures",
                    default=64,
                    min=2,
                    max=1_000_000,
                    tooltip="How many pictures to draw at most; drawing ends after two fifths of the time.",
                ),
                io.Float.Input(
                    "minutes",
                    default=15.0,
                    min=0.1,
                    max=100_000.0,
                    step=1.0,
                    round=0.01,
                    tooltip=(
                        "Time for drawing and training together. A quarter of an hour suits the built-in backbone; a "
                        "backbone of 7B wants a night on a good GPU."
                    ),
                ),
                io.String.Input(
                    "grid",
                    default="auto",
                    tooltip="Size of the pictures in codes, as ROWSxCOLUMNS; 'auto' is the backbone's own size.",
                ),
                io.Int.Input("seed", default=0, min=0, max=SEED_MAX, tooltip="Seed of the pictures and the training."),
                io.Combo.Input(
                    "start_from",
                    options=[NOTHING, models.BUILT_IN_HEADS, *folders.heads_names()],
                    default=NOTHING,
                    tooltip="Heads of the same width to train further, for example those of the model you fine-tuned.",
                ),
            ],
            outputs=[
                Heads.Output("ssd_heads", display_name="heads", tooltip="The heads, for the sampler."),
                io.String.Output(
                    "report", display_name="report", tooltip="Where the file is, and how well each head foresees."
                ),
                io.Image.Output("plot", display_name="plot", tooltip="Loss and acceptance over the training."),
            ],
            is_output_node=True,
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, name: str | None = None) -> bool | str:
        return checks.answer(checks.trainer, graph.queued_node(cls.hidden.unique_id), name)

    @classmethod
    def fingerprint_inputs(cls, start_from: str | None = None, **_: Any) -> str:
        return checks.heads_stamp(None if start_from == NOTHING else start_from)

    @classmethod
    def execute(
        cls,
        backbone: BackboneHandle,
        prompts: str,
        name: str,
        pictures: int,
        minutes: float,
        grid: str,
        seed: int,
        start_from: str,
    ) -> io.NodeOutput:
        size = parse_grid(grid) or backbone.module.default_grid
        source = None if start_from == NOTHING else models.heads_path(backbone, start_from)
        made, plot = training.make_heads(
            backbone, prompt_lines(prompts), name, ShareProgress(),
            grid=size, pictures=pictures, minutes=minutes, seed=seed, start_from=source,
        )  # fmt: skip
        handle = models.load_heads(backbone, folders.heads_name(made.path))
        return io.NodeOutput(handle, core("distill.summary").made_text(made), plot)
