"""Compare Decoders."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from comfy_api.latest import io

from . import checks, drawing
from .core import core
from .grid import parse_grid
from .host import graph, memory, stop
from .host.events import RowsChannel, RunAddress
from .host.models import BackboneHandle, HeadsHandle
from .host.progress import RowProgress
from .settings import GRAPHS, Verification


class SSDCompareDecoders(io.ComfyNode):
    """Draws the same seed by plain decoding and by the chosen settings."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SSDCompareDecoders",
            display_name="Compare Decoders",
            category="SSD/sampling",
            description=(
                "Draws the same seed twice, by plain decoding (one forward a code) and by the chosen settings, and "
                "reports forwards, seconds, acceptance and how many codes are equal: a proof on your own machine."
            ),
            inputs=[*drawing.required_inputs(), *drawing.optional_inputs(), drawing.graphs_input()],
            outputs=[
                io.Image.Output("plain_image", display_name="plain_image", tooltip="The picture of plain decoding."),
                io.Image.Output(
                    "ssd_image",
                    display_name="ssd_image",
                    tooltip="The picture of the chosen settings; in exact mode the same one.",
                ),
                io.String.Output(
                    "report",
                    display_name="report",
                    tooltip="Forwards, seconds, acceptance, speed-up and share of equal codes.",
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
        heads: HeadsHandle | None = None,
        verification: Verification | None = None,
        graphs: str = GRAPHS[0],
    ) -> io.NodeOutput:
        model = backbone.module
        size = parse_grid(grid) or model.default_grid
        settings = drawing.make_ready(
            backbone, heads, verification, cfg=cfg, temperature=temperature, top_k=top_k, top_p=top_p,
            grid=size, batch=batch_size, graphs=graphs,
        )  # fmt: skip
        previews = core("preview")
        with _TwoRuns(cls.hidden, lambda: previews.Preview(model, size, batch_size), size[0]) as runs:
            comparison = core("compare").compare(
                model,
                positive,
                negative=negative,
                seed=seed,
                on_rows=runs.rows,
                on_result=runs.result,
                on_progress=runs.progress,
                events_per_second=previews.EVENTS_PER_SECOND,
                should_stop=stop.poll,
                **settings,
            )
        return io.NodeOutput(
            memory.to_output(comparison.plain.images),
            memory.to_output(comparison.ssd.images),
            core("summary").comparison_text(comparison),
        )


class _TwoRuns:
    """Shows the plain run, then the other, under one node: each with its own ``begin`` and ``end``.

    The plain one begins before the warm-up, so that the widget is not left with an older picture, and the other as
    soon as the plain one has ended: neither inside the time that is measured.
    """

    def __init__(self, hidden: Any, new_preview: Callable[[], Any], rows: int) -> None:
        self._address = RunAddress.of(hidden)
        self._new_preview = new_preview
        self._rows = rows
        self._finished = 0
        self._progress = RowProgress(2 * rows)
        self._open = ExitStack()
        self._channel = self._new_channel("plain")

    def __enter__(self) -> _TwoRuns:
        self._open.enter_context(self._channel)
        return self

    def rows(self, label: str, event: Any) -> None:
        """``on_rows`` of ``compare``."""
        self._channel.rows(event)

    def progress(self, rows: tuple[int, ...]) -> None:
        """``on_progress`` of ``compare``."""
        self._progress.reached(self._finished * self._rows + min(rows))

    def result(self, label: str, result: Any) -> None:
        """``on_result`` of ``compare``."""
        self._channel.finished(result)
        self._open.close()
        self._finished += 1
        if label == "plain":
            self._channel = self._open.enter_context(self._new_channel("ssd"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def _new_channel(self, label: str) -> RowsChannel:
        return RowsChannel(self._address, self._new_preview(), label)
