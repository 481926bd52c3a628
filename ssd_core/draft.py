"""Who drafts: spatial heads, a neighbour's code, chance, a picture that is there already, or nobody.

A drafter fills the stream from ``state.drafted`` towards the wanted ends and stops where it has nothing to go by.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from .coupling import Coupling
from .families.base import Backbone
from .heads import Direction, SpatialHeads
from .runner import StepFunction
from .state import COPY, GIVEN, HORIZONTAL, LEFT, RANDOM, VERTICAL, DecodeState
from .stream import Stream

Target = Callable[[Tensor], Tensor]
"""Features [guidance_rows, n, hidden] -> truncated guided log-weights [n, codes]."""


class Drafter(ABC):
    """Extends drafts; ``state.drafted`` tells afterwards how far they reach."""

    name: str

    @abstractmethod
    def extend(self, state: DecodeState, ends: list[int], coupling: Coupling, target: Target) -> None:
        """Drafts every image's stream positions up to ``ends`` as far as it can."""


class NoDrafter(Drafter):
    """Plain decoding: each token is drawn when its own distribution is known."""

    name = "none"

    def extend(self, state: DecodeState, ends: list[int], coupling: Coupling, target: Target) -> None:
        pass


class NeighbourDrafter(Drafter):
    """Training-free drafts: the code of a neighbour, known or itself a draft."""

    origin: int

    @abstractmethod
    def source(self, stream: Stream, position: int) -> int:
        """The stream position of the code that a position above 0 gets; it lies before it."""

    def extend(self, state: DecodeState, ends: list[int], coupling: Coupling, target: Target) -> None:
        stream = state.stream
        copies: list[tuple[int, int, int]] = []  # image, position, source
        for image, (start, end) in enumerate(zip(state.drafted, ends, strict=True)):
            if not start < end or start == 0:  # with nothing known there is nothing to copy
                continue
            known: dict[int, int] = {}
            for position in range(start, end):
                if not stream.is_forced(position):
                    source = self.source(stream, position)
                    known[position] = known.get(source, source)  # a copy of a copy
            copies += [(image, *pair) for pair in known.items()]
            state.drafted[image] = stream.skip_forced(end)
        if copies:
            self._copy(state, copies, coupling)

    def _copy(self, state: DecodeState, copies: list[tuple[int, int, int]], coupling: Coupling) -> None:
        def step(numbers: Tensor) -> None:
            board = state.board
            images, positions, sources = numbers.view(3, -1).unbind()
            tokens = board.tokens[images, sources]
            board.tokens[images, positions] = tokens
            board.origin[images, positions] = torch.full_like(positions, self.origin)
            coupling.propose_tokens(images, positions, tokens)

        images, positions, sources = map(list, zip(*copies, strict=True))
        _run(state, ("copy", self.origin), step, images, positions, sources)


class CopyDrafter(NeighbourDrafter):
    """The code above; in the first row the code to the left."""

    name = "copy"
    origin = COPY

    def source(self, stream: Stream, position: int) -> int:
        return position - (1 if position < stream.cols else stream.stride)


class LeftDrafter(NeighbourDrafter):
    """The code to the left, so the row's last known code again and again; at the row's begin the code above."""

    name = "left"
    origin = LEFT

    def source(self, stream: Stream, position: int) -> int:
        return position - (1 if position % stream.stride else stream.stride)


class RandomDrafter(Drafter):
    """Speculative Jacobi decoding's own start: any code, all equally likely."""

    name = "random"

    def __init__(self, codes: int) -> None:
        self._codes = codes

    def extend(self, state: DecodeState, ends: list[int], coupling: Coupling, target: Target) -> None:
        starts = list(state.drafted)
        images, positions = state.listed(starts, ends)
        if not images:
            return

        def step(numbers: Tensor) -> None:
            board = state.board
            images, positions = numbers.view(2, -1).unbind()
            flat = torch.zeros(1, self._codes, device=numbers.device).expand(len(positions), -1)
            board.tokens[images, positions] = coupling.propose(images, positions, flat)
            board.origin[images, positions] = torch.full_like(positions, RANDOM)

        _run(state, ("random",), step, images, positions)
        state.drafted = [max(start, state.stream.skip_forced(end)) for start, end in zip(starts, ends, strict=True)]


class GivenDrafter(Drafter):
    """The codes of a picture that is to be refined, int64 [batch, rows, cols]."""

    name = "given"

    def __init__(self, codes: Tensor) -> None:
        self._codes = codes

    def extend(self, state: DecodeState, ends: list[int], coupling: Coupling, target: Target) -> None:
        starts = list(state.drafted)
        at = state.pairs(starts, ends)
        images, positions = at
        if not len(images):
            return
        stride = state.stream.stride
        state.tokens[at] = self._codes[images, positions // stride, positions % stride]
        state.origin[at] = GIVEN
        coupling.propose_tokens(*at, state.tokens[at])
        state.drafted = [max(start, state.stream.skip_forced(end)) for start, end in zip(starts, ends, strict=True)]


class HeadsDrafter(Drafter):
    """Paper section 3: vertical heads from the rows above, horizontal heads where there is no row above.

    With ``vertical`` False only the horizontal heads draft, each within its row (1D-MTP).
    """

    name = "heads"

    def __init__(self, backbone: Backbone, heads: SpatialHeads, vertical: bool = True) -> None:
        self._backbone = backbone
        self._heads = heads
        self._vertical = heads.offsets("vertical") if vertical else ()

    def extend(self, state: DecodeState, ends: list[int], coupling: Coupling, target: Target) -> None:
        jobs: dict[tuple[Direction, int], list[tuple[int, int]]] = defaultdict(list)
        for image, end in enumerate(ends):
            position = state.stream.skip_forced(state.drafted[image])
            known = min(state.computed[image], state.drafted[image])  # both feature and token exist before it
            while position < end:
                source = self._source(state.stream, known, position)
                if source is None:
                    break
                jobs[source].append((image, position))
                position = state.stream.skip_forced(position + 1)
            state.drafted[image] = max(state.drafted[image], position)
        for (direction, offset), pairs in jobs.items():
            self._draft(state, direction, offset, pairs, coupling, target)

    def _source(self, stream: Stream, known: int, position: int) -> tuple[Direction, int] | None:
        """The direction and smallest offset that lead to ``position`` from before ``known``."""
        for offset in self._vertical:
            if 0 <= position - offset * stream.stride < known:
                return "vertical", offset
        last = known - 1
        same_row = last >= 0 and stream.row_of(last) == stream.row_of(position) and not stream.is_forced(last)
        if same_row and position - last in self._heads.offsets("horizontal"):
            return "horizontal", position - last
        return None

    def _draft(
        self,
        state: DecodeState,
        direction: Direction,
        offset: int,
        pairs: list[tuple[int, int]],
        coupling: Coupling,
        target: Target,
    ) -> None:
        distance = offset * (state.stream.stride if direction == "vertical" else 1)
        reach = self._heads.spec.neighbours if direction == "vertical" else 0
        sources = [
            [self._beside(state, image, position - distance, shift) for image, position in pairs]
            for shift in range(-reach, reach + 1)
        ]
        head = self._heads.head(direction, offset)
        origin = VERTICAL if direction == "vertical" else HORIZONTAL

        def step(numbers: Tensor) -> None:
            board = state.board
            images, positions, *sources = numbers.view(3 + 2 * reach, -1).unbind()
            features = [board.features[:, images, source] for source in sources]  # [rows, n, hidden] each
            embeddings = [self._backbone.embed(board.tokens[images, source]) for source in sources]  # [n, hidden] each
            embedding = torch.cat(embeddings, dim=-1).expand(state.guidance_rows, -1, -1)
            predicted = head(torch.cat(features, dim=-1), embedding)
            board.tokens[images, positions] = coupling.propose(images, positions, target(predicted))
            board.origin[images, positions] = torch.full_like(positions, origin)

        images, positions = map(list, zip(*pairs, strict=True))
        _run(state, ("draft", direction, offset), step, images, positions, *sources)

    @staticmethod
    def _beside(state: DecodeState, image: int, source: int, shift: int) -> int:
        """The position ``shift`` columns beside ``source``, or ``source`` itself at an edge or where unknown."""
        column = source % state.stream.stride + shift
        inside = 0 <= column < state.stream.cols and source + shift < state.computed[image]
        return source + shift if inside else source


def _run(
    state: DecodeState, key: tuple[Hashable, ...], step: StepFunction, images: list[int], *positions: list[int]
) -> None:  # fmt: skip
    """Carries out a drafting step on lists [n] of images and stream positions, filled up with scratch.

    In steps a bare number must not be written by index: on a GPU it would be copied from the host, which no capture
    takes.
    """
    width = state.runner.widen(len(images), state.stream.cols)
    rest = width - len(images)
    numbers = [*images, *[0] * rest]
    for each in positions:
        numbers += [*each, *[state.stream.length] * rest]
    state.runner.run((*key, width), step, numbers)
