"""What one run knows while it decodes: tokens, features, and how far each image has come.

Four stream positions describe an image, all exclusive ends of a prefix:

* ``front``    tokens before it are final,
* ``drafted``  tokens before it exist (final or draft),
* ``computed`` features before it exist (possibly under drafts that changed since),
* ``clean``    keys and values before it were computed from the tokens as they are now.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .stream import Stream

NO_DRAFT, COPY, HORIZONTAL, VERTICAL, GIVEN, LEFT, RANDOM = range(7)
"""Where a draft came from (``DecodeState.origin``)."""


class DecodeState:
    """Tensors live on the backbone's device; the four prefix ends are Python numbers, one per image."""

    def __init__(
        self, stream: Stream, batch: int, guidance_rows: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.stream = stream
        self.batch = batch
        self.guidance_rows = guidance_rows
        self.tokens = stream.blank(batch).to(device)  # [batch, length]
        self.features = torch.zeros(guidance_rows, batch, stream.length, hidden, dtype=dtype, device=device)
        self.rounds = torch.zeros(batch, stream.length, dtype=torch.int64, device=device)
        self.origin = torch.zeros(batch, stream.length, dtype=torch.int64, device=device)
        self.front = [0] * batch
        self.drafted = [0] * batch
        self.computed = [0] * batch
        self.clean = [0] * batch

    @property
    def finished(self) -> bool:
        return all(front >= self.stream.length for front in self.front)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def pairs(self, starts: list[int], ends: list[int], codes_only: bool) -> tuple[Tensor, Tensor]:
        """Flat (images, positions) int64 [n] of the stream positions starts[b] .. ends[b] - 1 of each image."""
        images: list[int] = []
        positions: list[int] = []
        for image, (start, end) in enumerate(zip(starts, ends, strict=True)):
            span = range(start, end)
            chosen = [i for i in span if not self.stream.is_forced(i)] if codes_only else span
            positions.extend(chosen)
            images.extend([image] * len(chosen))
        return self.index(images), self.index(positions)

    def index(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def accept(self, image: int, end: int) -> None:
        """Makes the tokens before ``end`` final; forced tokens that follow are final too."""
        end = self.stream.skip_forced(end)
        self.front[image] = end
        self.drafted[image] = max(self.drafted[image], end)
