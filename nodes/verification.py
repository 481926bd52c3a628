"""Verification Rounds."""

from __future__ import annotations

from comfy_api.latest import io

from . import checks
from .host import graph
from .link_types import Verification as VerificationLink
from .settings import COMMITS, CUSTOM, MODES, PRESETS, Verification

_ONLY_CUSTOM = " Counts only with the preset 'custom'."


class SSDVerification(io.ComfyNode):
    """How drafts are checked before they become final."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SSDVerification",
            display_name="Verification Rounds",
            category="SSD/sampling",
            description=(
                "How drafted rows are checked. A preset decides everything; with 'custom' the widgets below it do. "
                "Exact settings give plain decoding's very picture, the others trade quality for speed."
            ),
            inputs=[
                io.Combo.Input(
                    "preset",
                    options=[CUSTOM, *PRESETS],
                    default="auto",
                    tooltip=(
                        "auto: exact, with a window that follows this device and the drafts. exact: the same with a "
                        "fixed window. balanced: also keeps likely drafts (tolerance 4). draft only: no check at all. "
                        "(paper): the published settings for that model. A preset other than custom decides everything."
                    ),
                ),
                io.Combo.Input(
                    "mode",
                    options=list(MODES),
                    default=MODES[0],
                    tooltip=(
                        "rolling: every forward checks a window of rows and keeps the part before the first wrong "
                        "draft. rounds: a fixed number of checks for each row, as published." + _ONLY_CUSTOM
                    ),
                ),
                io.Int.Input(
                    "window_rows",
                    default=1,
                    min=1,
                    max=16,
                    tooltip="rolling: rows that one forward checks; 1 suits a CPU, 3 a GPU." + _ONLY_CUSTOM,
                ),
                io.Float.Input(
                    "tolerance",
                    default=0.0,
                    min=0.0,
                    max=1000.0,
                    step=0.1,
                    round=0.001,
                    tooltip=(
                        "rolling: 0 is exact. Otherwise a draft also stays where tolerance × its probability is at "
                        "least that of the drawn code: faster, another picture." + _ONLY_CUSTOM
                    ),
                ),
                io.Int.Input(
                    "rounds",
                    default=2,
                    min=0,
                    max=16,
                    tooltip="rounds: checks of each block of rows before it is final; 0 keeps the drafts as they are."
                    + _ONLY_CUSTOM,
                ),
                io.Int.Input(
                    "rows_per_block",
                    default=1,
                    min=1,
                    max=5,
                    tooltip="rounds: rows that are drafted and checked together; the heads must reach that far."
                    + _ONLY_CUSTOM,
                ),
                io.Int.Input(
                    "incremental_rounds",
                    default=0,
                    min=0,
                    max=16,
                    tooltip="rounds: further checks of each later row of a block, once the rows before it are final."
                    + _ONLY_CUSTOM,
                ),
                io.Combo.Input(
                    "commit",
                    options=list(COMMITS),
                    default=COMMITS[0],
                    tooltip=(
                        "rounds: separate feeds every finished row once more by itself, as published; fused does it "
                        "in the next row's first forward and saves one forward a row." + _ONLY_CUSTOM
                    ),
                ),
            ],
            outputs=[
                VerificationLink.Output(
                    "ssd_verification",
                    display_name="verification",
                    tooltip="The settings, for the sampler and for Compare Decoders.",
                )
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, preset: str | None = None) -> bool | str:
        return checks.answer(checks.verification, graph.queued_node(cls.hidden.unique_id))

    @classmethod
    def execute(
        cls,
        preset: str,
        mode: str,
        window_rows: int,
        tolerance: float,
        rounds: int,
        rows_per_block: int,
        incremental_rounds: int,
        commit: str,
    ) -> io.NodeOutput:
        return io.NodeOutput(
            Verification(preset, mode, window_rows, tolerance, rounds, rows_per_block, incremental_rounds, commit)
        )
