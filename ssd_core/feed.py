"""Feeding tokens to the backbone: their keys and values go to the cache, the features behind them to the board."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .families.base import Backbone, PromptRows
from .runner import StepFunction
from .state import DecodeState
from .transformer import CacheWindow, KVCache, Rotary, rope_table


@dataclass(frozen=True)
class FeedShape:
    """What decides the shapes of a forward. ``width``: tokens fed for each image; ``apart``: every image feeds
    positions of its own; ``length``: cache slots that attention runs over; ``masked``: not every query sees them all.
    """

    width: int
    apart: bool
    length: int
    masked: bool


class Feeder:
    """The forwards of one run. It knows the prompt's length and padding, rope tables and the cache."""

    def __init__(self, backbone: Backbone, state: DecodeState, prompt: PromptRows) -> None:
        self._backbone = backbone
        self._state = state
        runner, device, spec = state.runner, state.device, backbone.decoder.spec
        self._sequences = state.guidance_rows * state.batch
        self._prompt = prompt
        self._cache = KVCache(
            spec,
            sequences=self._sequences,
            slots=runner.slots(prompt.length + state.stream.length),
            dtype=backbone.dtype,
            device=device,
            tensor=runner.tensor,
        )
        self._padding: Tensor | None = None
        if any(prompt.padding) or not runner.exact:
            self._padding = runner.keep("padding", state.index(prompt.padding))  # [sequences]
        rope = self._rope_of(prompt.stream_positions)
        if not runner.exact:
            rope = (rope[0].expand(self._sequences, -1, -1), rope[1].expand(self._sequences, -1, -1))
        self._rope = (
            runner.keep("cos", rope[0]),
            runner.keep("sin", rope[1]),
        )  # [sequences or 1, length, head_dim]
        sequences = torch.arange(self._sequences, device=device)[:, None]
        self._sequence = runner.keep("sequence", sequences)  # [sequences, 1]
        self._image = runner.keep("image", sequences[: state.batch].clone())  # [batch, 1]
        self._last: tuple[FeedShape, list[int]] | None = None

    def feed_prompt(self) -> None:
        """Feeds the prompt; its last position gives the feature of stream position 0."""
        embeddings, rope, window = self._prompt_inputs()
        features = self._backbone.decoder(embeddings, rope, self._cache, window)
        board, state = self._state.board, self._state
        board.features[:, :, 0] = features[:, -1].unflatten(0, (state.guidance_rows, state.batch))

    def _prompt_inputs(self) -> tuple[Tensor, Rotary, CacheWindow]:
        prompt, device = self._prompt, self._state.device
        slots = torch.arange(prompt.length, device=device)[None]
        masked = prompt.length > 1 or self._padding is not None
        return prompt.embeddings, self._rope_of(prompt.positions), self._window(slots, slots, prompt.length, masked)

    def feed(self, starts: list[int], ends: list[int], once: bool = False) -> int:
        """Feeds stream tokens starts[b] .. ends[b] - 1 of each image: features of the positions after them.

        ``once``: as in ``Runner.run``. Returns how many tokens wide the forward was, 0 if there was nothing to feed.
        """
        width = max(end - start for start, end in zip(starts, ends, strict=True))
        if width <= 0:
            return 0
        shape = self._shape(width, starts, ends)
        self._last = (shape, self._numbers(shape, starts, ends))
        self._state.runner.run(shape, self._step_of(shape), self._last[1], once)
        return width

    def widest(self, width: int, start: int) -> tuple[FeedShape, StepFunction, list[int]]:
        """The step that feeds ``width`` tokens from ``start`` on, with numbers that touch scratch only."""
        state = self._state
        end = min(start + width, state.stream.length)
        shape = self._shape(width, [start] * state.batch, [end] * state.batch)
        nothing = [start] * state.batch
        return shape, self._step_of(shape), self._numbers(shape, nothing, nothing)

    def _shape(self, width: int, starts: list[int], ends: list[int]) -> FeedShape:
        state, runner = self._state, self._state.runner
        spans = {(start, end) for start, end in zip(starts, ends, strict=True)}
        apart = state.batch > 1 and (len(spans) > 1 or not runner.exact)
        reach = max(end for start, end in spans if end > start)
        # One query behind everything sees everything.
        masked = not (runner.exact and width == 1 and len(spans) == 1 and self._padding is None)
        length = runner.reach(self._prompt.length + reach, self._cache.slots)
        return FeedShape(runner.widen(width, state.stream.stride), apart, length, masked)

    def _numbers(self, shape: FeedShape, starts: list[int], ends: list[int]) -> list[int]:
        """Four lists [batch or 1, width]: positions to read, slots they are at, slots to write to, features to write.

        What fills the width up repeats the last token fed, so that it is as sound as that, and writes to scratch.
        """
        prompt, scratch, nowhere = self._prompt.length, self._cache.scratch, self._state.stream.length
        positions: list[int] = []
        writes: list[int] = []
        targets: list[int] = []
        for start, end in list(zip(starts, ends, strict=True))[: None if shape.apart else 1]:
            count = max(0, end - start)
            last = start + max(count, 1) - 1
            rest = shape.width - count
            positions += [*range(start, start + count), *[min(last, nowhere - 1)] * rest]
            writes += [*range(prompt + start, prompt + start + count), *[scratch] * rest]
            targets += [*range(start + 1, start + count + 1), *[nowhere] * rest]
        return [*positions, *[prompt + position for position in positions], *writes, *targets]

    def _step_of(self, shape: FeedShape) -> StepFunction:
        return lambda numbers: self._step(shape, numbers)

    def _step(self, shape: FeedShape, numbers: Tensor) -> None:
        state = self._state
        embeddings, rope, window = self._inputs(shape, numbers)
        features = self._backbone.decoder(embeddings, rope, self._cache, window)
        targets = numbers.view(4, -1, shape.width)[3]  # [batch or 1, width]
        state.board.features[:, self._image, targets] = features.unflatten(0, (state.guidance_rows, state.batch))

    def _inputs(self, shape: FeedShape, numbers: Tensor) -> tuple[Tensor, Rotary, CacheWindow]:
        """What the decoder is fed: embeddings [sequences, width, hidden], rope tables, cache rows and mask."""
        rows = self._state.guidance_rows
        positions, slots, writes, _ = numbers.view(4, -1, shape.width).unbind()
        tokens = self._state.board.tokens[self._image, positions]  # [batch, width]
        embeddings = self._backbone.embed(tokens).repeat(rows, 1, 1)
        if shape.apart:
            positions, slots, writes = (each.repeat(rows, 1) for each in (positions, slots, writes))
        return embeddings, self._rope_at(positions), self._window(slots, writes, shape.length, shape.masked)

    def _rope_of(self, positions: Tensor) -> Rotary:
        """Rope tables of positions [sequences or 1, n, axes], in the decoder's dtype, so that no layer casts them."""
        spec, dtype = self._backbone.decoder.spec, self._backbone.dtype
        cos, sin = rope_table(positions.to(self._state.device), spec.head_dim, self._backbone.rope_theta)
        return cos.to(dtype), sin.to(dtype)

    def _rope_at(self, positions: Tensor) -> Rotary:
        """Rope tables [sequences or 1, width, head_dim] for stream positions [sequences or 1, width]."""
        cos, sin = self._rope
        if positions.shape[0] == 1:
            return cos[:, positions[0]], sin[:, positions[0]]
        if cos.shape[0] == 1:
            return cos[0, positions], sin[0, positions]
        return cos[self._sequence, positions], sin[self._sequence, positions]

    def _window(self, slots: Tensor, writes: Tensor, length: int, masked: bool) -> CacheWindow:
        """Cache rows and mask for queries at ``slots`` that write to ``writes``, both [sequences or 1, width]."""
        rows = (self._sequence * (self._cache.slots + 1) + writes).reshape(-1)
        if not masked:
            return CacheWindow(rows, length, None)
        keys = torch.arange(length, device=slots.device)
        seen = keys <= slots[..., None]  # [sequences or 1, width, length]
        if self._padding is not None:
            # A padding query sees itself alone: a row without any key would turn into NaN.
            seen = (seen & (keys >= self._padding[:, None, None])) | (keys == slots[..., None])
        mask = torch.zeros(seen.shape, dtype=self._backbone.dtype, device=slots.device).masked_fill_(~seen, -math.inf)
        group = self._backbone.decoder.spec.group
        return CacheWindow(rows, length, mask.repeat(1, group, 1)[:, None] if group > 1 else mask[:, None])

    def first_nonfinite(self) -> str | None:
        """Feeds the last window again, layer by layer, and names the first place with NaN or infinity."""
        if self._last is None:
            embeddings, rope, window = self._prompt_inputs()
        else:
            shape, numbers = self._last
            embeddings, rope, window = self._inputs(shape, self._state.index(numbers))
        return self._backbone.decoder.first_nonfinite(embeddings, rope, self._cache, window)
