"""How wide a window is worth its forward: cut it where the drafts are no longer believed.

A forward over K positions costs more than one over a single position (on a CPU in proportion, on a GPU little), and a
draft is of use only if every draft before it holds. The drawn token's *margin* (by how much its perturbed log-weight
log p + g beats the runner-up's) tells how large an error of the logits would change it. Each image learns, in bins of
margin, how often a draft held while everything before it held; the window ends where the product of these chances
falls below a floor. Everything depends on the image alone, so a batch draws what its single images draw.
"""

from __future__ import annotations

from bisect import bisect_right

import torch

from .state import DecodeState

_EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_PRIOR_FRESH = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.95, 0.97, 0.99)
_PRIOR_VERIFIED = (0.4, 0.5, 0.65, 0.75, 0.82, 0.9, 0.95, 0.98, 0.99, 0.995)
_PRIOR_WEIGHT = 8.0
"""Chances that a fresh draft and one verified before hold, by margin bin, before anything is seen."""


class WindowSizer:
    """Running estimates for each image of one run."""

    def __init__(self, batch: int, floor: float) -> None:
        self._floor = floor
        priors = (_PRIOR_FRESH, _PRIOR_VERIFIED)
        self._seen = [[[_PRIOR_WEIGHT] * len(p) for p in priors] for _ in range(batch)]
        self._kept = [[[_PRIOR_WEIGHT * chance for chance in p] for p in priors] for _ in range(batch)]

    def cut(self, state: DecodeState, starts: list[int], ends: list[int]) -> list[int]:
        """New window ends, each between start + 1 and the given end (windows that are empty stay empty)."""
        return [self._cut_one(state, i, start, end) for i, (start, end) in enumerate(zip(starts, ends, strict=True))]

    def _cut_one(self, state: DecodeState, image: int, start: int, end: int) -> int:
        chance = 1.0
        for position, (kind, bin_) in enumerate(self._classify(state, image, start, end), start):
            if state.stream.is_forced(position):
                continue
            if chance < self._floor:
                return position
            if position < state.drafted[image]:
                chance *= self._kept[image][kind][bin_] / self._seen[image][kind][bin_]
        return end

    def observe(self, state: DecodeState, starts: list[int], ends: list[int], changed: list[int | None]) -> None:
        """Counts the drafts of the windows through the first changed one; call before margins are overwritten."""
        for image, (start, end) in enumerate(zip(starts, ends, strict=True)):
            first = changed[image]
            stop = min(end, state.drafted[image]) if first is None else min(first + 1, state.drafted[image])
            for position, (kind, bin_) in enumerate(self._classify(state, image, start, stop), start):
                if not state.stream.is_forced(position):
                    self._seen[image][kind][bin_] += 1
                    self._kept[image][kind][bin_] += position != first

    @staticmethod
    def _classify(state: DecodeState, image: int, start: int, end: int) -> list[tuple[int, int]]:
        """(verified before, margin bin) of each position."""
        window = slice(start, max(start, end))
        numbers = torch.stack((state.margin[image, window], state.rounds[image, window].to(state.margin.dtype)))
        margins, rounds = numbers.tolist()
        return [(int(r > 0), bisect_right(_EDGES, m)) for m, r in zip(margins, rounds, strict=True)]
