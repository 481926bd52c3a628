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
_PLOT_SHARE = 20
"""At most one part of so many of the time goes into the live plot, however long its log grows."""


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
    another run with the same arguments goes on there, one from other heads uses the pictures.
    """
    distill, log, model = core("distill"), core("distill.log"), backbone.module
    wanted = list(prompts) or core("distill.prompts").starter_prompts(model)
    plan = distill.plan_heads(
        model, wanted, grids=[grid], pictures=pictures, seed=seed, start_from=start_from
    )  # fmt: skip
    work = folders.training_folder(name, _mark([backbone.key, wanted, grid, pictures, seed]))
    training = plan.training_folder(work)
    next_plot, stopped = 0.0, False

    def room(wish: int) -> float:
        models.make_resident(backbone, None, wish)
        return memory.free_bytes(model.device)

    def reached(share: float, picture: Any = None) -> None:
        """ComfyUI's bar raises for Stop; the training must end in good order instead."""
        nonlocal stopped
        try:
            progress.reached(share, picture)
        except stop.Stopped:
            stopped = True

    def drawn(share: float) -> None:
        reached(_DRAWING * share)

    def trained(step: Any) -> None:
        nonlocal next_plot
        picture, begun = None, time.monotonic()
        if begun >= next_plot:
            picture = log.plot(log.read_log(training / log.LOG_FILE), _PLOT_SIZE)
            ended = time.monotonic()
            next_plot = ended + max(_PLOT_SECONDS, _PLOT_SHARE * (ended - begun))
        reached(_DRAWING + (1 - _DRAWING) * step.progress, picture)

    # ComfyUI runs nodes in inference mode, whose tensors no training can use.
    with torch.inference_mode(False), torch.enable_grad():
        try:
            made = distill.make_heads(
                model, plan, folders.named_heads_file(name), work=work, minutes=minutes, make_room=room, on_draw=drawn,
                on_step=trained, should_stop=lambda: stopped or stop.asked(),
            )  # fmt: skip
        except core().StopRequested as reason:
            logging.info("Train SSD Heads: %s; no heads were written, and the same node run again goes on", reason)
            stop.end()
    if made.stopped:
        logging.info("Train SSD Heads was stopped; the best heads so far are in %s", made.path)
        stop.end()
    for left_out in made.left_out:
        logging.warning("Train SSD Heads: memory did not hold the head %s", left_out)
    plot = memory.to_output(pixels.from_picture(log.plot(made.heads.spec.notes["history"], _PLOT_SIZE)))
    _clear(work, training)
    progress.reached(1.0)
    return made, plot


def _clear(work: Path, training: Path) -> None:
    """Deletes a finished training; the pictures too, unless another training of them is under way."""
    shutil.rmtree(training, ignore_errors=True)
    if not any(work.glob("training-*")):
        shutil.rmtree(work, ignore_errors=True)


def _mark(settings: Any) -> str:
    """A short name for settings: pictures of other settings are not used."""
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
