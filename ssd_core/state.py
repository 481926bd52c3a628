"""What one run knows while it decodes: tokens, features, and how far each image has come.

Four stream positions describe an image, all exclusive ends of a prefix:

* ``front``    tokens before it are final,
* ``drafted``  tokens before it exist (final or draft),
* ``computed`` features before it exist (possibly under drafts that changed since),
* ``clean``    keys and values before it were computed from the tokens as they are now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .runner import Eager, Runner
from .stream import Stream

NO_DRAFT, COPY, HORIZONTAL, VERTICAL, GIVEN, LEFT, RANDOM = range(7)
"""Where a draft came from (``DecodeState.origin``)."""

DRAFTING, VERIFYING = range(2)
"""Entries of ``Board.status`` for trouble with the logits of drafts and of the backbone itself."""

FIRST_CHANGED = 2
"""From this entry on ``Board.status`` holds the first changed position of each image."""


class Board:
    """The tensors of one run that steps read and write.

    Stream tensors have one position more than the stream: scratch, where entries that only fill a shape up read and
    write. ``status`` int64 [2 + batch]: trouble (``sampling.Trouble``) with drafts and with targets, then each image's
    first position that the latest correction changed, ``length`` if none.
    """

    def __init__(
        self, stream: Stream, batch: int, guidance_rows: int, hidden: int, dtype: torch.dtype, device: torch.device,
        runner: Runner,
    ) -> None:  # fmt: skip
        cells, whole = (batch, stream.length + 1), torch.int64
        self.tokens = runner.tensor("tokens", cells, whole, device, scratch=1)  # [batch, length + 1]
        self.tokens[:, : stream.length] = stream.blank(batch).to(device)
        self.features = runner.tensor("features", (guidance_rows, *cells, hidden), dtype, device, scratch=2)
        self.rounds = runner.tensor("rounds", cells, whole, device, scratch=1)
        self.origin = runner.tensor("origin", cells, whole, device, scratch=1)
        self.changed = runner.tensor("changed", cells, torch.bool, device, scratch=1)
        self.status = runner.tensor("status", (FIRST_CHANGED + batch,), whole, device)
        self.status[FIRST_CHANGED:] = stream.length


@dataclass(frozen=True)
class Outcome:
    """What a verification found, for schedules that adapt.

    ``fed``: how many tokens wide its forward was. ``held``: drafts of each image that stand before its first changed
    position; ``failed``: whether there was a draft at that position.
    """

    fed: int
    held: list[int]
    failed: list[bool]

    @classmethod
    def of(
        cls, state: DecodeState, fed: int, starts: list[int], ends: list[int], first_changed: list[int | None]
    ) -> Outcome:
        """From what was corrected; ``state.drafted`` still tells up to where there were drafts."""
        held, failed = [], []
        for start, end, drafted, first in zip(starts, ends, state.drafted, first_changed, strict=True):
            drafts_end = max(start, min(end, drafted))
            stop = drafts_end if first is None else min(first, drafts_end)
            held.append(state.stream.codes_before(stop) - state.stream.codes_before(start))
            failed.append(stop < drafts_end)
        return cls(fed, held, failed)


class DecodeState:
    """Tensors live on the backbone's device; the four prefix ends are Python numbers, one per image.

    ``tokens``, ``features``, ``rounds`` and ``origin`` are the board's without its scratch position.
    """

    def __init__(
        self, stream: Stream, batch: int, guidance_rows: int, hidden: int, dtype: torch.dtype, device: torch.device,
        runner: Runner | None = None,
    ) -> None:  # fmt: skip
        self.stream = stream
        self.batch = batch
        self.guidance_rows = guidance_rows
        self.runner = runner or Eager(device)
        self.board = Board(stream, batch, guidance_rows, hidden, dtype, device, self.runner)
        length = stream.length
        self.tokens = self.board.tokens[:, :length]  # [batch, length]
        self.features = self.board.features[:, :, :length]  # [guidance_rows, batch, length, hidden]
        self.rounds = self.board.rounds[:, :length]
        self.origin = self.board.origin[:, :length]
        self.front = [0] * batch
        self.drafted = [0] * batch
        self.computed = [0] * batch
        self.clean = [0] * batch
        self.outcome = Outcome(0, [0] * batch, [False] * batch)
        self.choices: dict[str, Any] | None = None  # what an adaptive schedule chose and why, for the report

    @property
    def finished(self) -> bool:
        return all(front >= self.stream.length for front in self.front)

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def listed(self, starts: list[int], ends: list[int]) -> tuple[list[int], list[int]]:
        """Flat (images, positions) of the codes at stream positions starts[b] .. ends[b] - 1 of each image."""
        images: list[int] = []
        positions: list[int] = []
        for image, (start, end) in enumerate(zip(starts, ends, strict=True)):
            chosen = [i for i in range(start, end) if not self.stream.is_forced(i)]
            positions.extend(chosen)
            images.extend([image] * len(chosen))
        return images, positions

    def pairs(self, starts: list[int], ends: list[int]) -> tuple[Tensor, Tensor]:
        """``listed`` as int64 tensors [n]."""
        images, positions = self.listed(starts, ends)
        return self.index(images), self.index(positions)

    def index(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def accept(self, image: int, end: int) -> None:
        """Makes the tokens before ``end`` final; forced tokens that follow are final too."""
        end = self.stream.skip_forced(end)
        self.front[image] = end
        self.drafted[image] = max(self.drafted[image], end)
