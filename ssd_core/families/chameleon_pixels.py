"""Chameleon's VQGAN (16x16 pixels a code), which Lumina-mGPT draws with but does not carry along.

Its file ``vqgan.safetensors`` is made once from Meta's ``vqgan.ckpt`` by ``python -m ssd_core convert`` and has the
original's tensor names. The network itself is ``vqgan.py``: attention in the middle only, a plain codebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import Checkpoint, Source, fill
from ..errors import ShouldStop, SSDError
from .vqgan import VQGAN, VQGANSpec

PIXELS_FILE = "vqgan.safetensors"
SOURCE = (
    "tokenizer/vqgan.ckpt of Meta's Chameleon download (github.com/facebookresearch/chameleon) or of "
    "GAIR/Anole-7b-v0.1 on Hugging Face"
)


def file_key(name: str) -> str:
    """The file's name for a parameter of `VQGAN`."""
    return "quantize.embedding.weight" if name == "codebook" else name


def empty_vqgan(shapes: Mapping[str, tuple[int, ...]], path: Path) -> VQGAN:
    """The network for tensors of these names and shapes, on the meta device.

    Raises SSDError that names ``path`` when they are not a VQGAN's.
    """
    try:
        spec = VQGANSpec.of_shapes(lambda name: shapes.get(file_key(name)), coarse_attention=False, unit_codes=False)
        with torch.device("meta"):
            return VQGAN(spec)
    except SSDError as error:
        raise SSDError(f"{path} is not Chameleon's VQGAN: {error}; expected {SOURCE}") from error


def load_chameleon_pixels(
    folder: Path, device: torch.device, order: Tensor, should_stop: ShouldStop | None = None
) -> VQGAN:
    """Loads ``vqgan.safetensors`` of ``folder`` in float32; code c gets the codebook row ``order[c]`` (int64 [codes]).

    Raises SSDError that says where the file comes from when it is missing, and for what does not fit; StopRequested
    when ``should_stop`` said so.
    """
    path = folder / PIXELS_FILE
    if not path.is_file():
        raise SSDError(_where_to_get_it(folder))
    checkpoint = Checkpoint.open(folder, PIXELS_FILE)
    pixels = empty_vqgan({name: info.shape for name, info in checkpoint.tensors.items()}, path)
    if pixels.spec.codes != len(order):
        raise SSDError(f"{path} has {pixels.spec.codes} codes, the model draws {len(order)}; expected {SOURCE}")
    plan: dict[str, Source | str] = {name: file_key(name) for name in pixels.state_dict()}
    plan["codebook"] = Source((file_key("codebook"),), transform=lambda book: book[order])
    fill(pixels, checkpoint, plan, dtype=torch.float32, device=device, should_stop=should_stop)
    return pixels.requires_grad_(False).eval()


def _where_to_get_it(folder: Path) -> str:
    beside = folder / "vqgan.ckpt"
    get = "" if beside.is_file() else f"get {SOURCE}, and "
    command = f'python -m ssd_core convert "{beside if beside.is_file() else beside.name}" -o "{folder / PIXELS_FILE}"'
    return (
        f"{folder / PIXELS_FILE} is missing: Lumina-mGPT's own files hold no pixel decoder; {get}convert it once with "
        f"`{command}`"
    )
