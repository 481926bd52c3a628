"""Training inside a running ComfyUI: Stop keeps what is there, and the plot is ComfyUI's own preview."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core import core
from . import folders, memory, models, pixels, stop
from .models import BackboneHandle
from .progress import ShareProgress

_DRAWING = 0.4
"""Share of the bar that drawing takes, as of the time."""
_PLOT_SIZE = (512, 320)
_PLOT_SECONDS = 2.0


def make_heads(
    backbone: BackboneHandle,
    prompts: Sequence[str],
    name: str,
    progress: ShareProgress,
    *,
    grid: tuple[int, int],
    pictures: int,
    minutes: float,
    seed: int,
    start_from: Path | None,
) -> tuple[Any, Tensor]:
    """Draws and trains; the ``ssd_core.distill.Distilled`` and a plot of the run, float32 [1, height, width, 3].

    ``prompts``: none for the starter prompts. A stop while it trains leaves the best heads so far in the file and then
    ends the run as every stop does. What was drawn and trained stays in ComfyUI's user folder until the heads are done:
    another run with the same arguments goes on there.
    """
    distill, model = core("distill"), backbone.module
    wanted = list(prompts) or core("distill.prompts").starter_prompts(model)
    sizes = {"grids": [grid], "pictures": pictures, "seed": seed, "start_from": start_from}
    work = folders.training_folder(name, _mark([backbone.key, wanted, str(sizes)]))
    models.make_resident(backbone, None, core("distill.estimate").quick_memory(model, [grid]))
    log = work / "training" / "log.csv"
    shown, stopped = 0.0, False

    def reached(share: float, picture: Any = None) -> None:
        """ComfyUI's bar raises for Stop; the training must end in good order instead."""
        nonlocal stopped
        try:
            progress.reached(share, picture)
        except stop.Stopped:
            stopped = True

    def drawn(done: int, total: int) -> None:
        reached(_DRAWING * done / total)

    def trained(step: Any) -> None:
        nonlocal shown
        picture = None
        if time.monotonic() - shown > _PLOT_SECONDS:
            picture, shown = core("distill.log").plot(log, _PLOT_SIZE), time.monotonic()
        reached(_DRAWING + (1 - _DRAWING) * step.progress, picture)

    # ComfyUI runs nodes in inference mode, whose tensors no training can use.
    with torch.inference_mode(False), torch.enable_grad():
        try:
            made = distill.make_heads(
                model, wanted, folders.new_heads_file(name), work=work, minutes=minutes, on_draw=drawn, on_step=trained,
                should_stop=lambda: stopped or stop.asked(), **sizes,
            )  # fmt: skip
        except core().StopRequested:
            stop.end()
    if made.stopped:
        logging.info("Train SSD Heads was stopped; the best heads so far are in %s", made.path)
        stop.end()
    plot = memory.to_output(pixels.from_picture(core("distill.log").plot(log, _PLOT_SIZE)))
    shutil.rmtree(work, ignore_errors=True)
    progress.reached(1.0)
    return made, plot


def _mark(settings: Any) -> str:
    """A short name for settings: work of other settings is not gone on with."""
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
