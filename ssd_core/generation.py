"""``generate``: a prompt in, tokens, images and a report out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from .auto import Auto
from .drafts import DraftsName, choose_drafter
from .engine import Engine, OnProgress, OnRows
from .errors import ShouldStop, SSDError, StopRequested
from .families.base import Backbone
from .graph_runs import lease
from .graphs import GraphsChoice
from .heads import SpatialHeads
from .noise import image_seeds
from .report import Meter, Report
from .sampling import Sampling
from .schedule import Schedule
from .start import Start


@dataclass(frozen=True)
class Generation:
    """``tokens``: codes int64 [batch, rows, cols]; ``images``: float32 [batch, height, width, 3] in 0..1."""

    tokens: Tensor
    images: Tensor
    report: Report


def generate(
    backbone: Backbone,
    prompt: str | Sequence[str],
    *,
    heads: SpatialHeads | None = None,
    drafts: DraftsName = "auto",
    schedule: Schedule | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    batch: int = 1,
    grid: tuple[int, int] | None = None,
    negative: str = "",
    start: Tensor | None = None,
    keep_rows: int = 0,
    on_progress: OnProgress | None = None,
    on_rows: OnRows | None = None,
    events_per_second: float = math.inf,
    should_stop: ShouldStop | None = None,
    graphs: GraphsChoice = "auto",
) -> Generation:
    """Draws pictures.

    ``prompt``: one text for ``batch`` images, or a list with one text per image (``batch`` must then be 1). Image k
    draws with ``seed + k`` modulo 2**64, so it equals the single image of that seed. ``schedule``: ``AR()``,
    ``Rolling()``, ``Rounds()``, ``Jacobi()`` or ``HorizontalMTP()``; by default ``Auto()``, exact mode that sets its
    own window. ``heads`` and ``drafts``: who drafts, see ``drafts.DRAFTS``. ``grid``: (rows, cols) in codes.
    ``start``: codes [1 or batch, rows, cols] of a picture to begin with: its first ``keep_rows`` rows stay and the
    rest is drawn anew; with ``keep_rows`` 0 it is the first draft of every cell, which in exact mode changes the speed
    and nothing else.
    ``on_progress`` gets the finished rows of each image whenever codes are accepted, at next to no cost.
    ``on_rows`` gets a RowsEvent whenever rows are drafted, corrected or accepted, at most ``events_per_second`` and
    always the last one. ``should_stop`` is asked before every forward and before an image's pixels are decoded. An
    exception from either leaves nothing behind. ``graphs``: "auto" captures steps as CUDA graphs where the device has
    them and keeps them, with their memory, as long as the backbone lives (``graphs.graphs_of(backbone).release()``);
    "off" does not. ``Report.graphs`` says what came of it.

    Raises SSDError for settings that cannot work, StopRequested when ``should_stop`` said so.
    """
    prompts = _expand(prompt, batch)
    schedule = schedule or Auto()
    sampling = sampling or backbone.default_sampling
    if start is None and keep_rows:
        raise SSDError(f"keep_rows is {keep_rows}, but there are no codes to keep; give start, or keep_rows 0")
    if start is not None and grid is None and start.dim() == 3:
        grid = (start.shape[1], start.shape[2])
    if not events_per_second > 0:
        raise SSDError(f"events_per_second must be above 0, got {events_per_second}")
    grid = backbone.check_grid(grid or backbone.default_grid)
    begin = None if start is None else Start.check(start, keep_rows, grid, len(prompts), backbone.codes)
    meter = Meter()
    stream = backbone.stream(grid)
    drafter = choose_drafter(drafts, backbone, heads, schedule, stream, begin)
    if isinstance(schedule, Auto):
        schedule = schedule.informed(heads.spec if heads is not None and drafter.name == "heads" else None)
    settings = {
        "schedule": asdict(schedule),  # type: ignore[call-overload]
        "sampling": asdict(sampling),
        "drafts": drafter.name,
        "backbone": backbone.name,
        "fingerprint": backbone.fingerprint,
        "dtype": str(backbone.dtype).removeprefix("torch."),
        "device": str(backbone.device),
        "prompts": prompts,
        "negative": negative,
        "keep_rows": keep_rows,
    }
    constants = (stream, len(prompts), sampling, schedule.coupling, schedule.tolerance)
    with lease(graphs, backbone, heads, backbone.device, constants) as leased:
        engine = Engine(
            backbone, stream, schedule, drafter, sampling, image_seeds(seed, len(prompts)), meter,
            on_rows, should_stop, events_per_second, begin, on_progress, leased.runner,
        )  # fmt: skip
        with torch.inference_mode():
            rows = backbone.prompt_rows(prompts, negative, grid, sampling.guidance_rows == 2)
            codes = engine.run(rows)
            _wait(backbone.device)
            with meter.phase("pixels"):
                images = torch.cat([_decode(backbone, image[None], should_stop) for image in codes])
                _wait(backbone.device)
        report = Report(schedule.name, settings, seed, grid, len(prompts), graphs=leased.text)
        meter.fill(report)
    report.auto = engine.state.choices
    drawn = codes.numel() - len(prompts) * keep_rows * grid[1]
    report.tokens_per_second = drawn / (report.seconds["total"] - report.seconds["pixels"])
    return Generation(codes.clone(), images.clone(), report)


def _decode(backbone: Backbone, codes: Tensor, should_stop: ShouldStop | None) -> Tensor:
    """One image at a time, so that memory and the time until a stop do not grow with the batch."""
    if should_stop is not None and should_stop():
        raise StopRequested("the run was stopped before its pixels were decoded")
    return backbone.decode_pixels(codes).clamp(0, 1).float()


def _wait(device: torch.device) -> None:
    """Until the device has done what it was asked for: seconds are those of work that is done."""
    if device.type == "cuda":
        # Not for the whole device, which would break a capture that another thread is in.
        torch.cuda.current_stream(device).synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()


def _expand(prompt: str | Sequence[str], batch: int) -> list[str]:
    """One prompt per image."""
    if isinstance(prompt, str):
        if batch < 1:
            raise SSDError(f"batch must be at least 1, got {batch}")
        return [prompt] * batch
    if not prompt or batch != 1:
        raise SSDError(
            f"a list of prompts gives one image each: expected prompts and batch 1, got {len(prompt)} prompts "
            f"and batch {batch}"
        )
    return list(prompt)
