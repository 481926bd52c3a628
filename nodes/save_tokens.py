"""Save AR Tokens."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import checks
from .core import core
from .host import folders
from .link_types import Tokens


class SSDSaveTokens(io.ComfyNode):
    """Tokens to a file."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SSDSaveTokens",
            display_name="Save AR Tokens",
            category="SSD/tokens",
            description=(
                "Writes tokens as a safetensors file into ComfyUI's output folder, with the backbone's fingerprint, "
                "grid, prompt, seed and settings: a few kilobytes that decode to the same picture again."
            ),
            inputs=[
                Tokens.Input("tokens", tooltip="From the sampler or Encode Image to AR Tokens."),
                io.String.Input(
                    "filename_prefix",
                    default="tokens/SSD",
                    tooltip="Start of the file's name; a number follows, nothing is overwritten. May hold subfolders.",
                ),
            ],
            outputs=[],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(cls, filename_prefix: str | None = None) -> bool | str:
        return checks.answer(checks.tokens_saver, filename_prefix)

    @classmethod
    def execute(cls, tokens: Any, filename_prefix: str) -> io.NodeOutput:
        path, shown = folders.new_tokens_file(filename_prefix)
        core("tokens").save_tokens(path, tokens)
        return io.NodeOutput(ui={"tokens": [shown]})
