"""Who drafts: spatial heads, a neighbour's code, chance, a picture that is there already, or nobody.

A drafter fills the stream from ``state.drafted`` towards the wanted ends and stops where it has nothing to go by.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from .coupling import Coupling
from .families.base import Backbone
from .heads import Direction, SpatialHeads
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
    def fill(self, stream: Stream, tokens: Tensor, start: int, end: int) -> None:
        """Writes drafts of one row's stream positions start .. end - 1 into ``tokens`` [length]; start is above 0."""

    def extend(self, state: DecodeState, ends: list[int], coupling: Coupling, target: Target) -> None:
        stream = state.stream
        starts = list(state.drafted)
        reach = [end if start else 0 for start, end in zip(starts, ends, strict=True)]  # 0: nothing to copy from yet
        for image, (start, end) in enumerate(zip(starts, reach, strict=True)):
            for row in range(stream.row_of(start), stream.row_of(max(end - 1, 0)) + 1):  # a row may copy a copy
                begin = max(start, row * stream.stride)
                stop = min(end, row * stream.stride + stream.cols)
                if begin < stop:
                    self.fill(stream, state.tokens[image], begin, stop)
            if start < end:
                state.drafted[image] = stream.skip_forced(end)
        at = state.pairs(starts, reach)
        if len(at[0]):
            state.origin[at] = self.origin
            coupling.propose_tokens(*at, state.tokens[at])


class CopyDrafter(NeighbourDrafter):
    """The code above; in the first row the code to the left."""

    name = "copy"
    origin = COPY

    def fill(self, stream: Stream, tokens: Tensor, start: int, end: int) -> None:
        if start < stream.cols:
            tokens[start:end] = tokens[start - 1]
        else:
            tokens[start:end] = tokens[start - stream.stride : end - stream.stride].clone()


class LeftDrafter(NeighbourDrafter):
    """The code to the left, so the row's last known code again and again; at the row's begin the code above."""

    name = "left"
    origin = LEFT

    def fill(self, stream: Stream, tokens: Tensor, start: int, end: int) -> None:
        tokens[start:end] = tokens[start - 1 if start % stream.stride else start - stream.stride]


class RandomDrafter(Drafter):
    """Speculative Jacobi decoding's own start: any code, all equally likely."""

    name = "random"

    def __init__(self, codes: int) -> None:
        self._codes = codes

    def extend(self, state: DecodeState, ends: list[int], coupling: Coupling, target: Target) -> None:
        starts = list(state.drafted)
        at = state.pairs(starts, ends)
        if not len(at[0]):
            return
        flat = torch.zeros(1, self._codes, device=state.device).expand(len(at[0]), -1)
        state.tokens[at] = coupling.propose(*at, flat)
        state.origin[at] = RANDOM
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
        width = state.runner.widen(len(pairs), state.stream.cols)
        rest = width - len(pairs)
        nowhere = [state.stream.length] * rest
        numbers = [*[image for image, _ in pairs], *[0] * rest, *[position for _, position in pairs], *nowhere]
        for shift in range(-reach, reach + 1):
            numbers += [self._beside(state, image, position - distance, shift) for image, position in pairs]
            numbers += nowhere
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
            # A bare number would be copied from the host, for which no capture waits.
            board.origin[images, positions] = torch.full_like(positions, origin)

        state.runner.run(("draft", direction, offset, width), step, numbers)

    @staticmethod
    def _beside(state: DecodeState, image: int, source: int, shift: int) -> int:
        """The position ``shift`` columns beside ``source``, or ``source`` itself at an edge or where unknown."""
        column = source % state.stream.stride + shift
        inside = 0 <= column < state.stream.cols and source + shift < state.computed[image]
        return source + shift if inside else source
