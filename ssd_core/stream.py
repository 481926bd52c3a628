"""Grid geometry: where a code sits in the stream that the transformer sees.

The *stream* is the picture's codes in raster order plus forced tokens (an end-of-line token after each row, where the
backbone has one). Stream position ``i`` is the token at index ``i``; feeding token ``i - 1`` produces the feature and
the distribution of token ``i``. Position 0 comes from the last prompt token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .errors import SSDError


@dataclass(frozen=True)
class Stream:
    """A ``rows`` x ``cols`` grid of codes; ``end_of_line`` is the stream id forced after each row, or None."""

    rows: int
    cols: int
    end_of_line: int | None

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cols < 1:
            raise SSDError(f"a grid needs at least 1x1 codes, got {self.rows}x{self.cols}")

    @property
    def stride(self) -> int:
        """Stream positions per row."""
        return self.cols + (self.end_of_line is not None)

    @property
    def length(self) -> int:
        """Stream positions of the whole picture, the last row's end-of-line token included."""
        return self.rows * self.stride

    @property
    def codes(self) -> int:
        """Codes of the whole picture."""
        return self.rows * self.cols

    def row_of(self, position: int) -> int:
        return position // self.stride

    def row_end(self, row: int) -> int:
        """First stream position after ``row``, its end-of-line token included; at most ``length``."""
        return min(row + 1, self.rows) * self.stride

    def is_forced(self, position: int) -> bool:
        return position % self.stride >= self.cols

    def skip_forced(self, position: int) -> int:
        """``position``, or the next one that holds a code when it is forced."""
        while position < self.length and self.is_forced(position):
            position += 1
        return position

    def codes_before(self, position: int) -> int:
        """How many codes lie before ``position`` in the stream."""
        row, column = divmod(position, self.stride)
        return row * self.cols + min(column, self.cols)

    def rows_before(self, position: int) -> int:
        """How many rows have all their codes before ``position`` in the stream."""
        return self.codes_before(position) // self.cols

    @cached_property
    def code_positions(self) -> Tensor:
        """Stream positions of the codes in raster order, int64 [rows * cols]."""
        grid = torch.arange(self.length).view(self.rows, self.stride)
        return grid[:, : self.cols].reshape(-1)

    @cached_property
    def forced_mask(self) -> Tensor:
        """True where the stream holds a forced token, bool [length]."""
        mask = torch.ones(self.length, dtype=torch.bool)
        mask[self.code_positions] = False
        return mask

    def blank(self, batch: int) -> Tensor:
        """Stream ids [batch, length] with the forced tokens in place and code 0 elsewhere."""
        tokens = torch.zeros(batch, self.length, dtype=torch.int64)
        if self.end_of_line is not None:
            tokens[:, self.forced_mask] = self.end_of_line
        return tokens

    def to_grid(self, tokens: Tensor) -> Tensor:
        """Takes the codes [batch, rows, cols] out of stream values [batch, length]."""
        return tokens[:, self.code_positions.to(tokens.device)].view(-1, self.rows, self.cols)
