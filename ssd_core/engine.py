"""The one decode loop. It knows neither prompts nor pixels, and every decoder is a schedule and a drafter.

Each step of the schedule: extend the drafts, feed the backbone from the first stale token, correct the targets against
their distributions, move the finished prefix.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from .coupling import Coupling, GumbelCoupling, MaximalCoupling
from .draft import Drafter
from .errors import ShouldStop, SSDError, StopRequested
from .families.base import Backbone, PromptRows
from .noise import Noise
from .report import EventKind, Meter, RowsEvent
from .sampling import Sampling, guide, truncate
from .schedule import Schedule, Step
from .start import Start
from .state import DecodeState
from .stream import Stream
from .transformer import CacheWindow, KVCache, Rotary, rope_table

OnRows = Callable[[RowsEvent], None]
OnProgress = Callable[[tuple[int, ...]], None]
"""Gets the number of finished rows of each image."""

_KEPT_CHUNK = 512
"""Kept tokens fed at once: they need no logits, and wide forwards only cost memory."""


class Engine:
    """Decodes one batch. All that changes lives in this object, so a backbone serves several engines at once."""

    def __init__(
        self,
        backbone: Backbone,
        stream: Stream,
        schedule: Schedule,
        drafter: Drafter,
        sampling: Sampling,
        seeds: list[int],
        meter: Meter,
        on_rows: OnRows | None = None,
        should_stop: ShouldStop | None = None,
        events_per_second: float = math.inf,
        start: Start | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._backbone = backbone
        self._schedule = schedule
        self._drafter = drafter
        self._sampling = sampling
        self._meter = meter
        self._on_rows = on_rows
        self._should_stop = should_stop
        self._event_pause = 1 / events_per_second
        self._last_event = -math.inf
        self._start = start
        self._on_progress = on_progress
        self._rows = sampling.guidance_rows
        self._coupling = self._make_coupling(stream, seeds)
        self.state = DecodeState(stream, len(seeds), self._rows, backbone.hidden, backbone.dtype, backbone.device)

    def _make_coupling(self, stream: Stream, seeds: list[int]) -> Coupling:
        schedule, codes, device = self._schedule, self._backbone.codes, self._backbone.device
        noise = Noise(seeds, device)
        window = schedule.window(stream)
        if schedule.coupling == "gumbel":
            return GumbelCoupling(noise, stream, len(seeds), window, codes, schedule.tolerance, device)
        return MaximalCoupling(noise, stream, len(seeds), window, codes, device)

    @torch.inference_mode()
    def run(self, prompt: PromptRows) -> Tensor:
        """Decodes to the end. Returns codes int64 [batch, rows, cols] on the backbone's device."""
        self._prefill(prompt)
        if self._start is not None and self._start.keep_rows:
            self._keep(self._start)
        for step in self._schedule.steps(self.state):
            self._step(step)
        return self.state.stream.to_grid(self.state.tokens)

    def _prefill(self, prompt: PromptRows) -> None:
        """Feeds the prompt; its last position gives the feature of stream position 0."""
        self._poll()
        backbone, state = self._backbone, self.state
        with self._meter.phase("prompt"):
            self._prompt_length = prompt.length
            self._padding = state.index(prompt.padding) if any(prompt.padding) else None
            head_dim, theta = backbone.decoder.spec.head_dim, backbone.rope_theta
            self._rope = rope_table(prompt.stream_positions.to(state.device), head_dim, theta)
            self._cache = KVCache(
                backbone.decoder.spec,
                sequences=self._rows * state.batch,
                slots=prompt.length + state.stream.length,
                dtype=backbone.dtype,
                device=state.device,
            )
            slots = torch.arange(prompt.length, device=state.device)[None]
            rope = rope_table(prompt.positions.to(state.device), head_dim, theta)
            window = self._window(slots, prompt.length)
            self._last = (prompt.embeddings, rope, window)
            features = backbone.decoder(prompt.embeddings, rope, self._cache, window)
            state.features[:, :, 0] = features[:, -1].unflatten(0, (self._rows, state.batch))
            state.computed = [1] * state.batch
            self._meter.forwards["prefill"] += 1
            self._meter.fed_tokens += prompt.length

    def _keep(self, start: Start) -> None:
        """Makes the kept rows final and feeds them, so that the next row has features to be drawn and drafted from."""
        state, stream = self.state, self.state.stream
        cells = stream.code_positions[: start.keep_rows * stream.cols].to(state.device)
        state.tokens[:, cells] = start.codes[:, : start.keep_rows].flatten(1).to(state.device)
        end = stream.row_end(start.keep_rows - 1)
        for image in range(state.batch):
            state.accept(image, end)
        with self._meter.phase("prompt"):
            for begin in range(0, end, _KEPT_CHUNK):
                self._poll()
                self._feed([begin] * state.batch, [min(begin + _KEPT_CHUNK, end)] * state.batch, "prefill")
        self._tell_accepted()

    def _step(self, step: Step) -> None:
        self._poll()
        state, meter = self.state, self._meter
        starts = list(state.front)
        if step.draft:
            with meter.phase("draft"):
                before = list(state.drafted)
                self._coupling.prepare(step.ends)
                self._drafter.extend(state, step.ends, self._coupling, self._draft_target)
            if state.drafted != before:
                self._emit("drafted", None)
        # A token can be drawn at the first position without a draft, but nothing lies behind it.
        ends = [
            max(front, min(end, state.stream.skip_forced(drafted) + 1))
            for front, end, drafted in zip(starts, step.ends, state.drafted, strict=True)
        ]
        feed_from = state.clean
        if step.refeed:
            feed_from = [min(clean, max(front - 1, 0)) for clean, front in zip(state.clean, starts, strict=True)]
        with meter.phase("forward"):
            self._feed(feed_from, [end - 1 for end in ends], "verify" if step.verify else "commit")
        first_changed: list[int | None] = [None] * state.batch
        if step.verify:
            with meter.phase("sample"):
                self._coupling.prepare(ends)
                changed, first_changed = self._correct(starts, ends)
            self._emit("corrected", changed)
        for image, end in enumerate(ends):
            first = first_changed[image]
            if first is not None:
                state.clean[image] = min(state.clean[image], first)
            if step.prefix:
                state.accept(image, end if first is None else first + 1)
            elif step.final is not None:
                state.accept(image, step.final)
        if state.front != starts:
            self._tell_accepted()

    def _feed(self, starts: list[int], ends: list[int], kind: str) -> None:
        """Feeds stream tokens starts[b] .. ends[b] - 1 of each image: features of the positions after them."""
        state, backbone = self.state, self._backbone
        widths = [max(0, end - start) for start, end in zip(starts, ends, strict=True)]
        width = max(widths)
        if width == 0:
            return
        device, rows, batch = state.device, self._rows, state.batch
        offsets = torch.arange(width, device=device)[None]
        if len(set(zip(starts, widths, strict=True))) == 1:
            positions = offsets + starts[0]  # [1, q]: every image feeds the same positions
            slots = positions + self._prompt_length
        else:
            begin, count = state.index(starts)[:, None], state.index(widths)[:, None]
            last = state.stream.length - 1
            positions = (begin + offsets).clamp(max=last)  # [batch, q]
            slots = torch.where(offsets < count, positions + self._prompt_length, self._cache.scratch)
            slots = slots.repeat(rows, 1)
        reach = max(start + used for start, used in zip(starts, widths, strict=True))
        window = self._window(slots, self._prompt_length + reach)
        tokens = state.tokens.gather(1, positions.expand(batch, -1))
        embeddings = backbone.embed(tokens).repeat(rows, 1, 1)
        rope = self._rope_at(positions)
        self._last = (embeddings, rope, window)
        features = backbone.decoder(embeddings, rope, self._cache, window)
        images, targets = state.pairs(
            [start + 1 for start in starts],
            [start + used + 1 for start, used in zip(starts, widths, strict=True)],
            codes_only=False,
        )
        columns = targets - 1 - state.index(starts)[images]
        state.features[:, images, targets] = features.unflatten(0, (rows, batch))[:, images, columns]
        for image, (start, used) in enumerate(zip(starts, widths, strict=True)):
            if used:
                state.clean[image] = start + used
                state.computed[image] = max(state.computed[image], start + used + 1)
        self._meter.forwards[kind] += 1
        self._meter.fed_tokens += width

    def _rope_at(self, positions: Tensor) -> Rotary:
        """Rope tables [sequences or 1, q, head_dim / 2] for fed stream positions [batch or 1, q]."""
        cos, sin = self._rope  # [sequences or 1, length, head_dim / 2]
        if positions.shape[0] == 1:
            return cos[:, positions[0]], sin[:, positions[0]]
        sequences = torch.arange(self._rows * self.state.batch, device=positions.device)[:, None]
        if cos.shape[0] == 1:
            sequences = torch.zeros_like(sequences)
        positions = positions.repeat(self._rows, 1)
        return cos[sequences, positions], sin[sequences, positions]

    def _window(self, slots: Tensor, length: int) -> CacheWindow:
        """Cache rows and mask for queries at ``slots`` [sequences or 1, q]; the first ``length`` slots are in play."""
        sequences = self._cache.sequences
        stride = self._cache.slots + 1
        base = torch.arange(sequences, device=slots.device)[:, None] * stride
        rows = (base + slots).reshape(-1)
        if slots.shape == (1, 1) and self._padding is None:
            return CacheWindow(rows, length, None)  # one query at the end sees everything
        keys = torch.arange(length, device=slots.device)
        mask = keys <= slots[..., None]  # [sequences or 1, q, length]
        if self._padding is not None:
            # A padding query sees itself alone: a row without any key would turn into NaN.
            mask = (mask & (keys >= self._padding[:, None, None])) | (keys == slots[..., None])
        return CacheWindow(rows, length, mask[:, None])

    def _draft_target(self, features: Tensor) -> Tensor:
        """Like ``_target`` for features that heads predicted."""
        return self._target(features, drafted=True)

    def _target(self, features: Tensor, drafted: bool = False) -> Tensor:
        """Features [guidance_rows, n, hidden] -> truncated log-weights [n, codes]."""
        logits = self._backbone.logits(features)
        guided = guide(logits, self._sampling.guidance, self._rows)[0]
        if not bool(torch.isfinite(guided).all()):
            guided = self._masked_logits(logits, guided, drafted)
        return truncate(guided, self._sampling)

    def _masked_logits(self, logits: Tensor, guided: Tensor, drafted: bool) -> Tensor:
        """Lets minus infinity stand for an excluded code; refuses NaN, plus infinity and a fully excluded position."""
        excluded = (logits == -torch.inf).any(0)  # in any guidance row: infinities must not meet in the mix
        guided = guided.masked_fill(excluded, -torch.inf)
        broken = (torch.isnan(logits) | (logits == torch.inf)).any(0)  # also where another row excludes the code
        if bool((broken | ~(torch.isfinite(guided) | excluded)).any()):
            raise SSDError(self._blame(drafted))
        if bool(excluded.all(-1).any()):
            raise SSDError(
                "every code of one position is excluded (all logits are minus infinity); "
                "check the backbone's output head and its list of image codes"
            )
        return guided

    def _blame(self, drafted: bool) -> str:
        """Words the error for NaN or infinity: feeds the last window again, layer by layer, to find the first place."""
        embeddings, rope, window = self._last
        where = self._backbone.decoder.first_nonfinite(embeddings, rope, self._cache, window)
        where = where or ("the spatial heads" if drafted else "the output head")
        dtype = str(self._backbone.dtype).removeprefix("torch.")
        hint = "the weights may be damaged: check the file and load it again"
        if dtype == "float16":
            hint = "float16 overflows easily: load the backbone in bfloat16 or float32"
        return f"NaN or infinity in the logits, first seen in {where} (weights in {dtype}); {hint}"

    def _correct(self, starts: list[int], ends: list[int]) -> tuple[Tensor, list[int | None]]:
        """Corrects targets starts[b] .. ends[b] - 1. Returns (changed [batch, length], first changed position)."""
        state = self.state
        at = state.pairs(starts, ends, codes_only=True)
        images, positions = at
        logits = self._target(state.features[:, images, positions])
        drafted = positions < state.index(state.drafted)[images]
        before, rounds = state.tokens[at], state.rounds[at]
        after = self._coupling.update(images, positions, logits, before, drafted, rounds)
        changed = (after != before) | ~drafted
        state.tokens[at] = after
        state.rounds[at] = rounds + 1
        if any(draft > start for draft, start in zip(state.drafted, starts, strict=True)):
            self._meter.verified(rounds, state.origin[at], drafted, changed)
        marks = torch.zeros_like(state.tokens, dtype=torch.bool)
        marks[at] = changed
        first: list[int | None] = [None] * state.batch
        for image, (position, has) in enumerate(
            zip(marks.int().argmax(-1).tolist(), marks.any(-1).tolist(), strict=True)
        ):
            if has:
                first[image] = position
        state.drafted = [max(drafted, end) for drafted, end in zip(state.drafted, ends, strict=True)]
        return marks, first

    def _poll(self) -> None:
        if self._should_stop is not None and self._should_stop():
            raise StopRequested("the run was stopped before it finished")

    def _tell_accepted(self) -> None:
        if self._on_progress is not None:
            self._on_progress(tuple(self.state.stream.rows_before(front) for front in self.state.front))
        self._emit("accepted", None)

    def _emit(self, kind: EventKind, changed: Tensor | None) -> None:
        if self._on_rows is None:
            return
        now = time.perf_counter()
        finished = kind == "accepted" and self.state.finished
        if finished or now - self._last_event >= self._event_pause:
            self._last_event = now
            self._on_rows(self._meter.event(kind, self.state, changed))
