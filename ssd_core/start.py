"""A picture to begin with: rows that stay as they are, or a first draft of every cell."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import SSDError

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Start:
    """``codes`` int64 [batch, rows, cols]. The first ``keep_rows`` rows are final before anything is drawn; with 0 the
    whole picture is the first draft."""

    codes: Tensor
    keep_rows: int

    @classmethod
    def check(cls, codes: Tensor, keep_rows: int, grid: tuple[int, int], batch: int, known: int) -> Start:
        """Checks what a caller gave: integers [1 or batch, rows, cols] below ``known``, one row at least to draw."""
        rows, cols = grid
        if codes.dim() != 3 or tuple(codes.shape[1:]) != (rows, cols) or codes.shape[0] not in (1, batch):
            raise SSDError(
                f"start must hold codes [1 or {batch}, {rows}, {cols}] (images, rows, columns), got "
                f"{list(codes.shape)}; take codes of the same size, or choose their grid"
            )
        if codes.dtype not in INTEGERS:
            raise SSDError(f"start must hold integers, got {codes.dtype}; give codes, not pixels")
        if int(codes.min()) < 0 or int(codes.max()) >= known:
            raise SSDError(
                f"start must hold codes from 0 to {known - 1}, got {int(codes.min())} to {int(codes.max())}; "
                "were they made with another backbone?"
            )
        if not 0 <= keep_rows < rows:
            raise SSDError(f"keep_rows must be from 0 to {rows - 1}, so that a row is left to draw, got {keep_rows}")
        return cls(codes.to(torch.int64).expand(batch, rows, cols).clone(), keep_rows)
