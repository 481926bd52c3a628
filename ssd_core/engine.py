"""The one decode loop. It knows neither prompts nor pixels, and every decoder is a schedule and a drafter.

Each step of the schedule: extend the drafts, feed the backbone from the first stale token, correct the targets against
their distributions, move the finished prefix.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from .correct import Corrector
from .coupling import Coupling, GumbelCoupling, MaximalCoupling
from .draft import Drafter
from .errors import ShouldStop, SSDError, StopRequested
from .families.base import Backbone, PromptRows
from .feed import Feeder
from .noise import Noise
from .report import EventKind, Meter, RowsEvent
from .runner import Eager, Runner, StepFunction
from .sampling import Sampling, Trouble
from .schedule import Schedule, Step
from .start import Start
from .state import DRAFTING, FIRST_CHANGED, VERIFYING, DecodeState, Outcome
from .stream import Stream

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
        runner: Runner | None = None,
    ) -> None:
        self._backbone = backbone
        self._schedule = schedule
        self._drafter = drafter
        self._meter = meter
        self._on_rows = on_rows
        self._should_stop = should_stop
        self._event_pause = 1 / events_per_second
        self._last_event = -math.inf
        self._start = start
        self._on_progress = on_progress
        self._runner = runner or Eager(backbone.device)
        self.state = DecodeState(
            stream, len(seeds), sampling.guidance_rows, backbone.hidden, backbone.dtype, backbone.device, self._runner
        )
        self._coupling = self._make_coupling(stream, seeds)
        tally = meter.new_tally(self._runner.tensor, backbone.device)
        self._corrector = Corrector(backbone, self.state, self._coupling, sampling, tally)

    def _make_coupling(self, stream: Stream, seeds: list[int]) -> Coupling:
        schedule, codes, device = self._schedule, self._backbone.codes, self._backbone.device
        tensor = self._runner.tensor
        noise = Noise(seeds, device, tensor)
        window = schedule.window(stream)
        if schedule.coupling == "gumbel":
            return GumbelCoupling(noise, stream, len(seeds), window, codes, schedule.tolerance, device, tensor)
        return MaximalCoupling(noise, stream, len(seeds), window, codes, device, tensor)

    @torch.inference_mode()
    def run(self, prompt: PromptRows) -> Tensor:
        """Decodes to the end. Returns codes int64 [batch, rows, cols] on the backbone's device."""
        self._prefill(prompt)
        if self._start is not None and self._start.keep_rows:
            self._keep(self._start)
        self._runner.warm(self._widest())
        for step in self._schedule.steps(self.state):
            self._step(step)
        return self.state.stream.to_grid(self.state.tokens)

    def _prefill(self, prompt: PromptRows) -> None:
        """Feeds the prompt; its last position gives the feature of stream position 0."""
        self._poll()
        with self._meter.phase("prompt"):
            self._feeder = Feeder(self._backbone, self.state, prompt)
            self._feeder.feed_prompt()
            self.state.computed = [1] * self.state.batch
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

    def _widest(self) -> list[tuple[Hashable, StepFunction, list[int]]]:
        """The forward and the correction that need most memory."""
        stream = self.state.stream
        width = min(self._schedule.window(stream), stream.length)
        return [self._feeder.widest(width, stream.length - width), self._corrector.widest(width)]

    def _step(self, step: Step) -> None:
        self._poll()
        state, meter = self.state, self._meter
        starts = list(state.front)
        if step.draft:
            with meter.phase("sample"):
                self._coupling.prepare(step.ends)
            with meter.phase("draft"):
                before = list(state.drafted)
                self._drafter.extend(state, step.ends, self._coupling, self._corrector.draft_weights)
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
            fed = self._feed(feed_from, [end - 1 for end in ends], "verify" if step.verify else "commit")
        first_changed: list[int | None] = [None] * state.batch
        if step.verify:
            with meter.phase("sample"):
                self._coupling.prepare(ends)
                self._corrector.correct(starts, ends)
                first_changed = self._fetch()
            state.outcome = Outcome.of(state, fed, starts, ends, first_changed)
            state.drafted = [max(drafted, end) for drafted, end in zip(state.drafted, ends, strict=True)]
            self._emit("corrected", state.board.changed[:, : state.stream.length])
        elif step.draft:
            self._fetch()
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

    def _feed(self, starts: list[int], ends: list[int], kind: str) -> int:
        """Feeds stream tokens starts[b] .. ends[b] - 1 of each image: features of the positions after them.

        Returns how many tokens wide the forward was.
        """
        width = self._feeder.feed(starts, ends, once=kind == "prefill")
        if width == 0:
            return 0
        state = self.state
        for image, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if end > start:
                state.clean[image] = end
                state.computed[image] = max(state.computed[image], end + 1)
        self._meter.forwards[kind] += 1
        self._meter.fed_tokens += width
        return width

    def _fetch(self) -> list[int | None]:
        """Waits for the device, once a step: each image's first changed position. Raises if logits were damaged."""
        status: list[int] = self.state.board.status.tolist()
        for source in (DRAFTING, VERIFYING):
            if status[source] == Trouble.NOT_FINITE:
                raise SSDError(self._blame(drafted=source == DRAFTING))
            if status[source] == Trouble.ALL_EXCLUDED:
                raise SSDError(
                    "every code of one position is excluded (all logits are minus infinity); "
                    "check the backbone's output head and its list of image codes"
                )
        return [None if first == self.state.stream.length else first for first in status[FIRST_CHANGED:]]

    def _blame(self, drafted: bool) -> str:
        """Words the error for NaN or infinity: feeds the last window again, layer by layer, to find the first place."""
        where = self._feeder.first_nonfinite() or ("the spatial heads" if drafted else "the output head")
        dtype = str(self._backbone.dtype).removeprefix("torch.")
        hint = "the weights may be damaged: check the file and load it again"
        if dtype == "float16":
            hint = "float16 overflows easily: load the backbone in bfloat16 or float32"
        return f"NaN or infinity in the logits, first seen in {where} (weights in {dtype}); {hint}"

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
