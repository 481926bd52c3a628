"""Codes of pictures as a value and as a file: what "Save AR Tokens" and ``--tokens-out`` write."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import SSDError
from .families.base import Backbone
from .generation import Generation
from .start import INTEGERS
from .version import __version__
from .writing import write

SOFTWARE = f"spatial-speculative-decoding {__version__}"
TENSOR = "tokens"
METADATA = "ssd"
"""Metadata key of the settings, JSON; PNG files carry them under the same key."""


@dataclass(frozen=True)
class ARTokens:
    """``codes``: int64 [batch, rows, cols] on the CPU. ``info``: where they come from, ready for JSON: ``backbone``,
    ``fingerprint`` and, for drawn pictures, prompts, seed and settings."""

    codes: Tensor
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def grid(self) -> tuple[int, int]:
        return self.codes.shape[1], self.codes.shape[2]

    def check_fits(self, backbone: Backbone) -> None:
        """Raises SSDError when the codes were made with another kind of backbone or are none of this one's."""
        made_with = self.info.get("backbone")
        if made_with is not None and made_with != backbone.name:
            raise SSDError(
                f"these tokens were made with {made_with}, they mean nothing to {backbone.name}; load that backbone"
            )
        if int(self.codes.max()) >= backbone.codes:
            raise SSDError(
                f"these tokens hold code {int(self.codes.max())}, {backbone.name} has codes 0 to {backbone.codes - 1}; "
                "load the backbone that made them"
            )
        backbone.check_grid(self.grid)


def tokens_of(result: Generation) -> ARTokens:
    """A run's codes with what it takes to draw them again."""
    report = result.report
    info = {**report.settings, "decoder": report.decoder, "seed": report.seed, "grid": list(report.grid)}
    return ARTokens(result.tokens.cpu(), info)


def encode_image(backbone: Backbone, images: Tensor) -> ARTokens:
    """Codes of images float32 [batch, height, width, 3] in 0..1 that have the pixels of one of the backbone's grids."""
    codes = backbone.encode_pixels(images.to(backbone.device))
    backbone.check_grid((codes.shape[1], codes.shape[2]))
    return ARTokens(codes.cpu(), {"backbone": backbone.name, "fingerprint": backbone.fingerprint})


def save_tokens(path: Path, tokens: ARTokens) -> Path:
    """Writes one int64 tensor ``tokens`` [batch, rows, cols] with the info as JSON metadata; replaces an old file."""
    metadata = {"software": SOFTWARE, METADATA: json.dumps(tokens.info, ensure_ascii=False)}
    return write(path, safetensors.torch.save({TENSOR: tokens.codes.contiguous()}, metadata=metadata))


def read_tokens(path: str | Path) -> ARTokens:
    """Reads a tokens file. Raises SSDError when it is missing, damaged or something else."""
    if not Path(path).is_file():
        raise SSDError(f"there is no tokens file {path}; check the name")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if METADATA not in metadata or list(file.keys()) != [TENSOR]:
                raise SSDError(
                    f"{path} is no tokens file: expected one tensor {TENSOR!r} and metadata {METADATA!r}; "
                    "choose a file that Save AR Tokens or --tokens-out has written"
                )
            codes = file.get_tensor(TENSOR)
        info = json.loads(metadata[METADATA])
    except (OSError, RecursionError, SafetensorError, ValueError) as error:
        raise SSDError(f"cannot read the tokens file {path}: {error}; is it complete?") from error
    good = codes.dtype in INTEGERS and codes.dim() == 3 and codes.numel() > 0 and isinstance(info, dict)
    if not good or int(codes.min()) < 0:
        raise SSDError(
            f"{path} must hold whole numbers of at least 0 in [images, rows, columns], got {codes.dtype} "
            f"{list(codes.shape)}; choose a file that Save AR Tokens or --tokens-out has written"
        )
    return ARTokens(codes.long(), info)
