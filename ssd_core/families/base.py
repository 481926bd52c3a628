"""What every backbone offers the decoder: prompt rows, a stream, embeddings, logits and pixels."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SSDError
from ..sampling import Sampling
from ..stream import Stream
from ..transformer import Decoder


@dataclass(frozen=True)
class PromptRows:
    """The guidance rows of a batch, conditional rows first; R rows in all, left-padded to one length P.

    ``embeddings`` [R, P, hidden]; ``padding`` tokens before each row's own first one; ``positions`` float32
    [R or 1, P, axes] and ``stream_positions`` [R or 1, stream length, axes] are rope positions.
    """

    embeddings: Tensor
    padding: list[int]
    positions: Tensor
    stream_positions: Tensor

    @property
    def length(self) -> int:
        return self.embeddings.shape[1]


class Backbone(nn.Module, ABC):
    """A frozen autoregressive image model.

    Attributes: ``decoder``; ``name``; ``fingerprint`` (hash of the weights that heads depend on); ``codes`` (how many
    different codes there are); ``grids`` (supported (rows, cols), the first is the default); ``default_sampling``;
    ``rope_theta``; ``patch`` (pixels a side of the square that one code stands for).
    """

    decoder: Decoder
    name: str
    fingerprint: str
    codes: int
    grids: Sequence[tuple[int, int]]
    default_sampling: Sampling
    rope_theta: float
    patch: int

    @property
    def hidden(self) -> int:
        return self.decoder.spec.hidden

    @property
    def default_grid(self) -> tuple[int, int]:
        return self.grids[0]

    @property
    def dtype(self) -> torch.dtype:
        return next(self.decoder.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.decoder.parameters()).device

    def check_grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Returns ``grid`` or raises SSDError with the supported ones."""
        if tuple(grid) not in {tuple(g) for g in self.grids}:
            known = ", ".join(f"{rows}x{cols}" for rows, cols in self.grids)
            raise SSDError(f"{self.name} cannot draw {grid[0]}x{grid[1]} codes (rows x columns); choose one of {known}")
        return grid

    def check_prompt(self, prompt: str) -> None:
        """Raises SSDError for a prompt that this backbone cannot read. Needs no weights. By default it reads any."""

    @abstractmethod
    def stream(self, grid: tuple[int, int]) -> Stream:
        """The stream of one grid."""

    @abstractmethod
    def prompt_rows(self, prompts: Sequence[str], negative: str, grid: tuple[int, int], guided: bool) -> PromptRows:
        """Guidance rows for one image per prompt; with ``guided`` the unconditional rows follow."""

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Stream ids int64 [...] -> embeddings [..., hidden]."""

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Pre-norm features [..., hidden] -> logits over codes [..., codes]: final norm, then output head."""

    @abstractmethod
    def decode_pixels(self, codes: Tensor) -> Tensor:
        """Codes int64 [batch, rows, cols] -> images float32 [batch, height, width, 3] in 0..1."""

    @abstractmethod
    def encode_pixels(self, images: Tensor) -> Tensor:
        """Images float32 [batch, height, width, 3] in 0..1 -> codes int64 [batch, rows, cols]."""


def read_config(folder: Path) -> dict[str, Any]:
    """The content of a folder's ``config.json``. Raises SSDError when it is missing or no JSON object."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise SSDError(f"cannot read {path}: {error}; download it again") from error
    if not isinstance(config, dict):
        raise SSDError(f"{path} holds {type(config).__name__}, expected a JSON object; download it again")
    return config
