"""A picture as it grows, for a live view: cheap enough to be shown while the decoder runs.

Two layers. The *mosaic* has one pixel per code, the code's mean colour, drafts included. The *picture* has the true
pixels of the rows that are accepted so far. Both live on a small share of the run's time and wait when it is used up,
so a slow pixel decoder means fewer updates, never a slower run.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .auto import clock_of
from .families.base import Backbone
from .generation import Generation
from .report import RowsEvent

Status = Literal["running", "done", "stopped", "failed"]

EVENTS_PER_SECOND = 8.0
"""What a live view needs; give it to ``generate``."""
MOST_IMAGES = 4
"""Of a batch the first few are shown."""
MOST_PIXELS = 512
"""Longest side of a shown picture."""
SHARE = 0.01
"""Share of a run's seconds that pixel decoding for the view may take."""
_CONTEXT_ROWS = 2
"""Rows decoded on either side of the new ones. Pixel decoders look further, but what lies further hardly shows."""
_FEW_CODES = 32
_CODES_AT_ONCE = 1024
_CLOCK_TICK = 1e-6
"""Seconds that a clock may be too coarse to see."""

_colours: WeakKeyDictionary[Backbone, Tensor] = WeakKeyDictionary()
"""Mean colour of the codes seen so far, uint8 [codes, 4] with the last channel 255 where known."""
_paces: WeakKeyDictionary[Backbone, float] = WeakKeyDictionary()
"""Seconds that one code's pixels took of late."""


class Preview:
    """Follows one run. ``begin``, ``rows`` and ``end`` return the parts of a live event, ready for JSON."""

    def __init__(
        self,
        backbone: Backbone,
        grid: tuple[int, int],
        batch: int,
        keep_rows: int = 0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``clock``: seconds that count as spent; by default ``clock_of`` the device, so that a busy machine does not
        use up the view's share."""
        self._backbone = backbone
        self._grid = grid
        self._batch = batch
        self._kept = keep_rows * grid[1]
        self._clock = clock or clock_of(backbone.device.type)
        self._spent = 0.0
        self._pixels: list[Tensor | None] = [None] * min(batch, MOST_IMAGES)  # uint8 [height so far, width, 3]
        self._rows = [0] * len(self._pixels)
        self._last = self._event("begin", "running", [], 0, None, 0.0, 0.0)

    def begin(self) -> dict[str, Any]:
        """The event before anything is drawn.

        The first decoding of a process is slow: it is spent here, uncounted, on the colours of a small codebook.
        """
        if self._backbone not in _paces:
            codes = self._backbone.codes
            _colours[self._backbone] = torch.full((codes, 4), 128, dtype=torch.uint8)
            first = torch.arange(codes if codes <= _CODES_AT_ONCE else 1)
            self._learn(first)
            began = self._clock()
            self._learn(first)
            _paces[self._backbone] = max(self._clock() - began, _CLOCK_TICK) / len(first)
        return self._last

    def rows(self, event: RowsEvent) -> dict[str, Any]:
        """The event for a moment of the run."""
        images = []
        for index in range(len(self._pixels)):
            reach = int((event.codes[index] >= 0).sum())
            changed = event.changed[index].flatten().nonzero()[:, 0].tolist()
            picture = self._grow(index, event)
            images.append(
                {
                    "accepted": event.accepted[index],
                    "rows_accepted": event.rows_accepted[index],
                    "drafted": max(reach, event.accepted[index]),
                    "changed": changed,
                    "mosaic": _data_url(self._mosaic(event.codes[index], event.elapsed), "PNG"),
                    "picture": picture,
                }
            )
        drawn = sum(event.accepted) / len(event.accepted) - self._kept
        self._last = self._event("rows", "running", images, event.forwards, event.acceptance, event.elapsed, drawn)
        return self._last

    def end(self, status: Status, result: Generation | None = None) -> dict[str, Any]:
        """The last event: with the finished ``result`` the whole picture, otherwise as far as it came."""
        if result is None:
            images = [{**image, "changed": [], "picture": None} for image in self._last["images"]]
            return {**self._last, "kind": "end", "status": status, "images": images, "eta": None}
        rows, cols = self._grid
        images = [
            {
                "accepted": rows * cols,
                "rows_accepted": rows,
                "drafted": rows * cols,
                "changed": [],
                "mosaic": None,
                "picture": {"rows": rows, "data": _picture_url(_to_bytes(result.images[index]), 1.0)},
            }
            for index in range(len(self._pixels))
        ]
        report = result.report
        drawn = rows * cols - self._kept
        return self._event(
            "end", status, images, report.total_forwards, report.acceptance, report.seconds["total"], drawn
        )

    def _event(
        self,
        kind: str,
        status: Status,
        images: list[dict[str, Any]],
        forwards: int,
        acceptance: float | None,
        elapsed: float,
        drawn: float,
    ) -> dict[str, Any]:
        """``drawn``: codes of one image that are final by now, kept rows aside (a mean over the batch)."""
        rows, cols = self._grid
        whole = rows * cols - self._kept
        running = kind == "rows" and drawn > 0
        return {
            "kind": kind,
            "status": status,
            "rows": rows,
            "cols": cols,
            "batch": self._batch,
            "shown": len(self._pixels),
            "images": images,
            "forwards": forwards,
            "plain_forwards": whole,
            "fewer": drawn / forwards if forwards and drawn else None,
            "acceptance": acceptance,
            "elapsed": elapsed,
            "eta": elapsed * (whole - drawn) / drawn if running else None,
            "tokens_per_second": drawn * self._batch / elapsed if elapsed else None,
        }

    def _grow(self, index: int, event: RowsEvent) -> dict[str, Any] | None:
        """Decodes as many newly accepted rows as there is time for; None where nothing is new."""
        done = self._rows[index]
        first = max(0, done - 2 * _CONTEXT_ROWS)
        affordable = (SHARE * event.elapsed - self._spent) / (_paces[self._backbone] * self._grid[1])
        ready = min(event.rows_accepted[index], first + max(0, int(min(affordable, self._grid[0]))) - _CONTEXT_ROWS)
        if ready <= done:
            return None
        codes = event.codes[index]
        below = codes[ready : ready + _CONTEXT_ROWS]
        below = torch.where(below < 0, codes[ready - 1], below)  # drafts, or the row above: no dark edge
        window = torch.cat((codes[first:ready], below))[None]
        began = self._clock()
        with torch.inference_mode():
            strip = _to_bytes(self._backbone.decode_pixels(window.to(self._backbone.device))[0])
        cell = strip.shape[0] // window.shape[1]
        strip = strip[: (ready - first) * cell]
        keep_from = max(0, done - _CONTEXT_ROWS)  # the last rows had only drafts below them
        old = self._pixels[index]
        above = [] if old is None else [old[: keep_from * cell]]
        self._pixels[index] = torch.cat([*above, strip[(keep_from - first) * cell :]])
        self._rows[index] = ready
        pixels = self._pixels[index]
        assert pixels is not None
        picture = {"rows": ready, "data": _picture_url(pixels, ready / self._grid[0])}
        self._spend(began, window.numel())
        return picture

    def _mosaic(self, codes: Tensor, elapsed: float) -> Image.Image:
        """One pixel per code [rows, cols]: mean colour, gray where the colour is unknown yet, black without a code."""
        table = self._known_colours(codes, elapsed)
        pixels = table[codes.clamp(min=0)][..., :3]
        pixels = pixels.masked_fill((codes < 0)[..., None], 0)
        return Image.fromarray(np.asarray(pixels))

    def _known_colours(self, codes: Tensor, elapsed: float) -> Tensor:
        table = _colours[self._backbone]
        unknown = torch.unique(codes[codes >= 0])
        unknown = unknown[table[unknown, 3] != 255]
        portion = _FEW_CODES
        while len(unknown) and self._spent <= SHARE * elapsed:
            began = self._clock()
            self._learn(unknown[:portion])
            self._spend(began, len(unknown[:portion]))
            unknown = unknown[portion:]
            portion = min(2 * portion, _CODES_AT_ONCE)  # what was affordable tells what is
        return table

    def _learn(self, codes: Tensor) -> None:
        """Notes the mean colours of ``codes`` [n]."""
        with torch.inference_mode():
            patches = self._backbone.decode_pixels(codes.view(-1, 1, 1).to(self._backbone.device))
        edge = patches.shape[1] // 4  # borders of a picture of one code are darker than its middle
        middle = patches[:, edge : patches.shape[1] - edge, edge : patches.shape[2] - edge]
        table = _colours[self._backbone]
        table[codes, :3] = _to_bytes(middle.float().mean((1, 2)))
        table[codes, 3] = 255

    def _spend(self, began: float, codes: int) -> None:
        """Books the time since ``began``, which went into the pixels of ``codes``."""
        seconds = self._clock() - began
        self._spent += seconds
        _paces[self._backbone] = (_paces[self._backbone] + seconds / codes) / 2  # one slow moment is no rule


def _to_bytes(pixels: Tensor) -> Tensor:
    """0..1 -> uint8 on the CPU, rounded, same shape."""
    return (pixels.float().clamp(0, 1) * 255).round().to("cpu", torch.uint8).clone()


def _picture_url(pixels: Tensor, share: float) -> str:
    """JPEG of uint8 [height, width, 3], the upper ``share`` of a picture that is at most ``MOST_PIXELS`` a side."""
    height, width = pixels.shape[:2]
    scale = min(1.0, MOST_PIXELS / max(width, height / share))
    image = Image.fromarray(np.asarray(pixels))
    if scale < 1:
        image = image.resize((max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.BOX)
    return _data_url(image, "JPEG")


def _data_url(image: Image.Image, kind: Literal["PNG", "JPEG"]) -> str:
    stream = io.BytesIO()
    options = {"compress_level": 1} if kind == "PNG" else {"quality": 85}
    image.save(stream, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"
