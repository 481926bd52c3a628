"""Load AR Tokens."""

from __future__ import annotations

from comfy_api.latest import io

from . import checks
from .core import core
from .host import folders
from .link_types import Tokens


class SSDLoadTokens(io.ComfyNode):
    """Tokens from a file."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SSDLoadTokens",
            display_name="Load AR Tokens",
            category="SSD/tokens",
            description="Reads tokens that Save AR Tokens or the command line (--tokens-out) has written.",
            inputs=[
                io.Combo.Input(
                    "file",
                    options=folders.tokens_names(),
                    tooltip="Safetensors files in ComfyUI's input folder and, marked [output], in its output folder.",
                )
            ],
            outputs=[
                Tokens.Output(
                    "loaded_tokens",
                    display_name="tokens",
                    tooltip="For Decode AR Tokens, or for the sampler to go on from.",
                )
            ],
        )

    @classmethod
    def validate_inputs(cls, file: str | None = None) -> bool | str:
        return checks.answer(checks.tokens_loader, file)

    @classmethod
    def fingerprint_inputs(cls, file: str | None = None) -> str:
        return "" if file is None else folders.stamp(folders.tokens_file(file))

    @classmethod
    def execute(cls, file: str) -> io.NodeOutput:
        return io.NodeOutput(core("tokens").read_tokens(folders.tokens_file(file)))
