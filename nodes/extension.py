"""The list of nodes that ComfyUI asks for."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .compare_decoders import SSDCompareDecoders
from .decode_tokens import SSDDecodeTokens
from .encode_image import SSDEncodeImage
from .host import folders, graph, pages
from .load_backbone import SSDLoadBackbone
from .load_heads import SSDLoadHeads
from .load_tokens import SSDLoadTokens
from .sampler import SSDSampler
from .save_tokens import SSDSaveTokens
from .train_heads import SSDTrainHeads
from .verification import SSDVerification

NODES: list[type[io.ComfyNode]] = [
    SSDLoadBackbone,
    SSDLoadHeads,
    SSDVerification,
    SSDSampler,
    SSDCompareDecoders,
    SSDDecodeTokens,
    SSDEncodeImage,
    SSDSaveTokens,
    SSDLoadTokens,
    SSDTrainHeads,
]


class SSDExtension(ComfyExtension):
    """Spatial Speculative Decoding."""

    def __init__(self) -> None:
        folders.register()
        graph.watch()
        pages.serve()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES
