"""The library's own steps outside of a run: forwards that can be had again and again, and graphs that are none.

A forward here is the very step that a run feeds its tokens with (``ssd_core.feed``), with the embeddings, mask, rope
tables and cache of a run. A runner that keeps the step instead of carrying it out gets hold of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_core import Backbone
from ssd_core.capture import CaptureBackend, Replay
from ssd_core.feed import Feeder, FeedShape
from ssd_core.graph_runs import GraphRunner
from ssd_core.graphs import Graphs
from ssd_core.runner import Eager, StepFunction
from ssd_core.state import DecodeState

_CHUNK = 512
"""Tokens fed at once to fill the cache, as the engine feeds rows that are kept."""


class PlainReplays(CaptureBackend):
    """Does a step again where others replay its graph: the plain path on a graphed run's own shapes and tensors."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def buffer(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int64, device=self.device)

    def fill(self, buffer: Tensor, numbers: list[int]) -> None:
        buffer.copy_(torch.tensor(numbers, dtype=torch.int64))

    def aside(self, step: StepFunction, numbers: Tensor) -> None:
        step(numbers)

    def capture(self, step: StepFunction, numbers: Tensor) -> Replay:
        return lambda: step(numbers)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def trim(self) -> None:
        pass  # there are no graphs


class _Holds:
    """Keeps the latest step, its shape and its numbers instead of carrying it out."""

    held: tuple[Hashable, StepFunction, list[int]]

    def run(self, key: Hashable, step: StepFunction, numbers: list[int], once: bool = False) -> None:
        self.held = key, step, numbers


class _HoldsPlain(_Holds, Eager):
    """In a plain run's shapes."""


class _HoldsGraphed(_Holds, GraphRunner):
    """In the shapes of a run with graphs."""


@dataclass(frozen=True)
class Forward:
    """One forward. ``feed()`` carries it out; ``features`` [guidance_rows, width, hidden] then lie behind the tokens.

    ``shape.width``: tokens fed, with those that fill a graph's shape up; ``shape.length``: cache slots attended to.
    """

    shape: FeedShape
    feed: Callable[[], None]
    features: Tensor


class Forwards:
    """Guided forwards over a picture of random codes, whose prompt and first half have their keys and values.

    ``graphed``: in the shapes of a run with graphs, else in those of a plain run; either kind runs on any device.
    """

    @torch.inference_mode()
    def __init__(self, backbone: Backbone, prompt: str, grid: tuple[int, int], graphed: bool) -> None:
        stream, device, rows = backbone.stream(grid), backbone.device, backbone.default_sampling.guidance_rows
        self._runner: _HoldsPlain | _HoldsGraphed = _HoldsPlain(device)
        if graphed:
            backend = PlainReplays(device)
            self._runner = _HoldsGraphed(Graphs(backend), [backbone], backend, "forwards")
        self._state = DecodeState(stream, 1, rows, backbone.hidden, backbone.dtype, device, self._runner)
        cells = stream.code_positions.to(device)
        generator = torch.Generator(device).manual_seed(2)
        self._state.tokens[0, cells] = torch.randint(backbone.codes, cells.shape, generator=generator, device=device)
        self._feeder = Feeder(backbone, self._state, backbone.prompt_rows([prompt], "", grid, rows == 2))
        self._feeder.feed_prompt()
        half = stream.length // 2
        for start in range(0, half, _CHUNK):
            self.forward(start, min(_CHUNK, half - start)).feed()

    def forward(self, start: int, width: int) -> Forward:
        """The one over stream tokens ``start`` .. ``start + width - 1``; ``start`` at most half the stream's length."""
        self._feeder.feed([start], [start + width])
        shape, step, numbers = self._runner.held
        assert isinstance(shape, FeedShape)
        static = self._state.index(numbers)
        features = self._state.board.features[:, 0, start + 1 : start + width + 1]
        return Forward(shape, lambda: step(static), features)
