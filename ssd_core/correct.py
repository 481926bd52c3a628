"""Correcting a window: from the features of its positions to their target distributions, kept drafts and new tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from .coupling import Coupling
from .families.base import Backbone
from .report import count_verified
from .runner import StepFunction
from .sampling import Sampling, target_weights
from .state import DRAFTING, FIRST_CHANGED, VERIFYING, DecodeState


class Corrector:
    """The corrections of one run. Trouble with the logits goes into ``Board.status`` and leaves the tokens alone."""

    def __init__(
        self, backbone: Backbone, state: DecodeState, coupling: Coupling, sampling: Sampling, tally: Tensor
    ) -> None:
        self._backbone = backbone
        self._state = state
        self._coupling = coupling
        self._sampling = sampling
        self._tally = tally

    def correct(self, starts: list[int], ends: list[int]) -> None:
        """Corrects targets starts[b] .. ends[b] - 1; ``Board.changed`` and ``Board.status`` tell what came of it."""
        state = self._state
        images, positions = state.listed(starts, ends)
        drafted = [int(p < state.drafted[image]) for image, p in zip(images, positions, strict=True)]
        width = state.runner.widen(len(images), state.stream.cols)
        rest = width - len(images)
        numbers = [*images, *[0] * rest, *positions, *[state.stream.length] * rest, *drafted, *[0] * rest]
        state.runner.run(("correct", width), self._step, numbers)

    def widest(self, count: int) -> tuple[tuple[str, int], StepFunction, list[int]]:
        """The step that corrects ``count`` targets, with numbers that touch scratch only."""
        width = self._state.runner.widen(count, self._state.stream.cols)
        return ("correct", width), self._step, [*[0] * width, *[self._state.stream.length] * width, *[0] * width]

    def _step(self, numbers: Tensor) -> None:
        board = self._state.board
        images, positions, has_draft = numbers.view(3, -1).unbind()
        at = images, positions
        drafted = has_draft > 0
        logits, trouble = target_weights(self._backbone.logits(board.features[:, images, positions]), self._sampling)
        board.status[VERIFYING] = trouble
        before, rounds = board.tokens[at], board.rounds[at]
        after = self._coupling.update(images, positions, logits, before, drafted, rounds)
        after = torch.where(trouble > 0, before, after)
        changed = (after != before) | ~drafted
        board.tokens[at] = after
        board.rounds[at] = rounds + 1
        board.changed.zero_()
        board.changed[at] = changed
        length = self._state.stream.length
        first = positions.masked_fill(~changed, length)
        board.status[FIRST_CHANGED:].fill_(length).scatter_reduce_(0, images, first, "amin")
        count_verified(self._tally, rounds, board.origin[at], drafted, changed)

    def draft_weights(self, features: Tensor) -> Tensor:
        """Features [guidance_rows, n, hidden] that heads predicted -> truncated log-weights [n, codes]."""
        logits, trouble = target_weights(self._backbone.logits(features), self._sampling)
        status = self._state.board.status
        status[DRAFTING] = torch.maximum(status[DRAFTING], trouble)
        return logits
