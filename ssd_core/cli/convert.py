"""`convert`: Meta's vqgan.ckpt once into vqgan.safetensors, which Lumina-mGPT needs to show its pictures."""

from __future__ import annotations

import safetensors.torch

from ..errors import SSDError
from ..families.vqgan_ckpt import read_vqgan_ckpt
from ..tokens import SOFTWARE
from ..writing import write
from .arguments import ConvertOptions


def convert(options: ConvertOptions) -> None:
    """Write the tensors of encoder, decoder and codebook; a whole file or none."""
    output = options.output or options.checkpoint.with_suffix(".safetensors")
    if output.suffix != ".safetensors" or output.is_dir():
        raise SSDError(f"-o: got {str(output)!r}, expected a file name ending in .safetensors")
    tensors, left_out = read_vqgan_ckpt(options.checkpoint)
    data = safetensors.torch.save(tensors, metadata={"format": "pt", "software": SOFTWARE})
    output.parent.mkdir(parents=True, exist_ok=True)
    write(output, data)
    groups = sorted({name.split(".")[0] for name in left_out})
    rest = f"; left out {len(left_out)} others ({', '.join(groups)})" if left_out else ""
    print(f"{output}: {len(tensors)} tensors, {len(data) / 2**20:.0f} MB{rest}")
