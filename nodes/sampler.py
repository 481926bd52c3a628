"""Spatial Speculative Sampler."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import checks, drawing
from .core import core
from .grid import TOOLTIP_WITH_TOKENS, parse_grid
from .host import graph, memory, stop
from .host.events import RowsChannel, RunAddress
from .host.models import BackboneHandle, HeadsHandle
from .host.progress import RowProgress
from .link_types import Tokens
from .settings import GRAPHS, Verification


class SSDSampler(io.ComfyNode):
    """Draws pictures row by row."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SSDSampler",
            display_name="Spatial Speculative Sampler",
            category="SSD/sampling",
            description=(
                "Draws pictures with an autoregressive model: guesses whole rows from the row above, checks them in "
                "one forward and keeps what holds. The picture grows inside the node. With tokens it keeps their "
                "first rows (keep_rows) and draws the rest anew, or takes them as the first draft (keep_rows 0)."
            ),
            inputs=[
                *drawing.required_inputs(TOOLTIP_WITH_TOKENS),
                io.Int.Input(
                    "keep_rows",
                    default=0,
                    min=0,
                    max=4096,
                    tooltip=(
                        "Rows of the connected tokens that stay as they are, counted from the top; the rest is drawn "
                        "anew. 0: the tokens are only the first draft."
                    ),
                ),
                *drawing.optional_inputs(),
                Tokens.Input(
                    "tokens",
                    optional=True,
                    tooltip="Codes to start from: one picture for the whole batch, or one for each picture of it.",
                ),
                drawing.graphs_input(),
            ],
            outputs=[
                io.Image.Output("images", display_name="image", tooltip="The pictures."),
                Tokens.Output(
                    "drawn_tokens",
                    display_name="tokens",
                    tooltip="Their codes, to save, to decode again, or to redraw a part of the picture.",
                ),
                io.String.Output(
                    "report", display_name="report", tooltip="Forwards, seconds, acceptance and settings of the run."
                ),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def validate_inputs(cls, positive: str | None = None) -> bool | str:
        return checks.answer(checks.drawing_node, graph.queued_node(cls.hidden.unique_id))

    @classmethod
    def execute(
        cls,
        backbone: BackboneHandle,
        positive: str,
        negative: str,
        seed: int,
        cfg: float,
        temperature: float,
        top_k: int,
        top_p: float,
        grid: str,
        batch_size: int,
        keep_rows: int,
        heads: HeadsHandle | None = None,
        verification: Verification | None = None,
        tokens: Any = None,
        graphs: str = GRAPHS[0],
    ) -> io.NodeOutput:
        ssd, model = core(), backbone.module
        if tokens is not None:
            tokens.check_fits(model)
        size = parse_grid(grid) or (model.default_grid if tokens is None else tokens.grid)
        settings = drawing.make_ready(
            backbone, heads, verification, cfg=cfg, temperature=temperature, top_k=top_k, top_p=top_p,
            grid=size, batch=batch_size, graphs=graphs,
        )  # fmt: skip
        previews = core("preview")
        progress = RowProgress(size[0])
        preview = previews.Preview(model, size, batch_size, keep_rows)
        with RowsChannel(RunAddress.of(cls.hidden), preview) as channel:
            result = ssd.generate(
                model,
                positive,
                negative=negative,
                seed=seed,
                start=None if tokens is None else tokens.codes,
                keep_rows=keep_rows,
                on_rows=channel.rows,
                on_progress=lambda rows: progress.reached(min(rows)),
                events_per_second=previews.EVENTS_PER_SECOND,
                should_stop=stop.poll,
                **settings,
            )
            channel.finished(result)
        report = core("summary").report_text(result)
        return io.NodeOutput(memory.to_output(result.images), core("tokens").tokens_of(result), report)
