"""From a plan to a heads file in a given time: what the ComfyUI node calls."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..errors import ShouldStop, SSDError
from ..families.base import Backbone
from ..graphs import graphs_of
from ..heads import HeadsSpec, SpatialHeads, read_heads_spec
from ..load import built_in_heads, load_heads
from ..writing import claim
from .losses import DIRECTIONS, head_name
from .plan import HeadsPlan
from .prompts import EMPTY_PROMPTS, plan_prompts
from .room import (
    MOST_AT_ONCE,
    check_disk,
    drawing_schedule,
    free_bytes,
    heads_that_fit,
    pictures_at_once,
    refuse_drawing,
    wished_bytes,
)
from .samples import begun_batch, collect, read_samples
from .session import Distilled, Wanted, train_file
from .state import saved_offsets, saved_steps
from .train import OnStep

_DRAWING_SHARE = 0.4
_SEED_STEP = 10**6  # between the seeds of two sizes

MakeRoom = Callable[[int], float]
"""Gets the bytes that a run would like on the backbone's device beside its weights; returns those that are free."""


def make_heads(
    backbone: Backbone,
    plan: HeadsPlan,
    out: Path,
    *,
    work: Path,
    minutes: float,
    make_room: MakeRoom | None = None,
    on_draw: Callable[[float], None] | None = None,
    on_step: OnStep | None = None,
    should_stop: ShouldStop | None = None,
) -> Distilled:
    """Draws pictures, trains heads on them and writes ``out``, or ``out`` with ``_2``, ``_3`` ... where that is taken.

    ``minutes`` is the budget of both: drawing ends after 40 % of it (with at least one batch of each grid), training
    takes the rest. ``work`` keeps the pictures and the training state: another call with the same plan goes on where
    this one was, and once training has begun no more pictures are drawn. A file that an earlier call with the same plan
    wrote is taken as it is if it had the same minutes; if it was stopped, it is replaced.
    Pictures are drawn in exact mode where the start file, or a built-in one, fits the backbone's weights. Memory and
    disk are looked at before anything is drawn: fewer pictures are drawn at once and fewer heads trained where not all
    fit. ``make_room``: by default torch is asked on CUDA devices, and elsewhere memory is not looked at.
    ``on_draw``: gets the share of the drawing that is over, 0..1. ``on_step``: see ``StepInfo``. A stop raises
    StopRequested before trained heads have been measured; later it writes the best ones so far.

    Raises SSDError for a folder that cannot be written into, too little memory or disk, and a ``work`` of other
    pictures.
    """
    if not minutes > 0:
        raise SSDError(f"training needs some minutes, got {minutes}")
    finished, stopped = _earlier(plan, out, minutes)
    if finished is not None:
        return _made_before(backbone, plan, finished, should_stop)
    _check_writable(out)
    started = time.perf_counter()
    samples, training = work / "samples", plan.training_folder(work)
    begun = saved_offsets(training) if saved_steps(training) else None
    draws = not any(saved_steps(folder) for folder in work.glob("training-*"))
    drafting = _drafting_file(backbone, plan) if draws else None
    spec = None if drafting is None else read_heads_spec(drafting)
    free = free_bytes(backbone.device) if make_room is None else make_room(wished_bytes(backbone, plan, spec))
    wanted, micro_batch = heads_that_fit(backbone, plan, begun, free)
    at_once = MOST_AT_ONCE
    if draws and free is not None:
        at_once = pictures_at_once(backbone, plan, spec, free)
        if not at_once:
            drafting, at_once = None, pictures_at_once(backbone, plan, None, free)
        if not at_once:
            raise refuse_drawing(backbone, plan, free)
    check_disk(backbone, plan, wanted, training, out)
    if draws:
        heads = None if drafting is None else load_heads(backbone, drafting, should_stop=should_stop)
        _draw(backbone, plan, samples, heads, at_once, 60 * minutes * _DRAWING_SHARE, on_draw, should_stop)
        del heads
        graphs_of(backbone).release()  # of the drawing; training needs the memory
    shards = list(read_samples(samples, backbone.fingerprint))
    drawn = {shard.grid for shard in shards}
    if drawn != set(plan.grids):
        texts = (", ".join(f"{rows}x{cols}" for rows, cols in sorted(some)) for some in (drawn, set(plan.grids)))
        raise SSDError("{} holds pictures of {}, expected {}; choose another work folder".format(work, *texts))
    left = max(0.1 * minutes, minutes - (time.perf_counter() - started) / 60)
    settings = replace(plan.settings, micro_batch=micro_batch)
    made = train_file(
        backbone, shards, stopped or out, wanted, replace(settings, minutes=left) if plan.timed else settings,
        work=training, start_from=plan.start_from, new=stopped is None,
        run={"mark": plan.mark, "minutes": minutes}, on_step=on_step, should_stop=should_stop,
    )  # fmt: skip
    return replace(made, left_out=_left_out(plan.wanted, wanted))


def _draw(
    backbone: Backbone, plan: HeadsPlan, folder: Path, heads: SpatialHeads | None, at_once: int, seconds: float,
    on_draw: Callable[[float], None] | None, should_stop: ShouldStop | None,
) -> None:  # fmt: skip
    """Draws the pictures of every size; no further shard is begun that would end well after its size's time."""
    started = time.perf_counter()
    count = len(plan.grids)
    for number, grid in enumerate(plan.grids):
        batch = begun_batch(folder, grid) or min(at_once, plan.pictures)
        end = started + seconds * (number + 1) / count
        latest = time.perf_counter()

        def told(done: int, total: int, end: float = end) -> None:
            nonlocal latest
            now = time.perf_counter()
            took, latest = now - latest, now
            if now + took / 2 > end and done < total:
                raise _EnoughDrawn

        def shared(share: float, number: int = number) -> None:
            if on_draw is not None:
                on_draw(min(1.0, max((number + share) / count, (time.perf_counter() - started) / seconds)))

        planned = plan_prompts(plan.prompts, plan.pictures, plan.seed + number, EMPTY_PROMPTS)
        with suppress(_EnoughDrawn):
            collect(
                backbone, planned, folder, grid=grid, seed=(plan.seed + number * _SEED_STEP) % 2**64, batch=batch,
                at_once=min(at_once, batch), on_shard=told, on_share=shared, should_stop=should_stop, heads=heads,
                schedule=drawing_schedule(backbone, None if heads is None else heads.spec),
            )  # fmt: skip
        shared(1.0)


class _EnoughDrawn(Exception):  # noqa: N818 - the drawing part of the budget is used up
    pass


def _drafting_file(backbone: Backbone, plan: HeadsPlan) -> Path | None:
    """Heads that draft for this very backbone: the start file, or what is built in."""
    for file in (plan.start_from, built_in_heads(backbone)):
        if file is not None and _fits(read_heads_spec(file), backbone):
            return file
    return None


def _fits(spec: HeadsSpec, backbone: Backbone) -> bool:
    known = spec.fingerprint == backbone.fingerprint
    return known and spec.misfit(backbone.name, backbone.hidden, backbone.fingerprint) is None


def _earlier(plan: HeadsPlan, out: Path, minutes: float) -> tuple[Path | None, Path | None]:
    """Files that earlier calls with this plan wrote under this name: a finished one of these minutes, a stopped one."""
    finished = stopped = None
    for path in _numbered(out):
        with suppress(SSDError):
            run = read_heads_spec(path).notes.get("run")
            if not isinstance(run, dict) or run.get("mark") != plan.mark:
                continue
            if run["stopped"]:
                stopped = path
            elif run["minutes"] == minutes:
                finished = path
    return finished, stopped


def _numbered(out: Path) -> Iterator[Path]:
    """``out`` and its namesakes with a number, those that there are."""
    name = re.compile(re.escape(out.stem) + r"(_\d+)?" + re.escape(out.suffix))
    if out.parent.is_dir():
        yield from sorted(path for path in out.parent.iterdir() if name.fullmatch(path.name) and path.is_file())


def _made_before(backbone: Backbone, plan: HeadsPlan, file: Path, should_stop: ShouldStop | None) -> Distilled:
    heads = load_heads(backbone, file, should_stop=should_stop)
    notes = heads.spec.notes
    training, acceptance = notes["training"], notes["acceptance"]
    assert isinstance(training, dict)
    assert isinstance(acceptance, dict)
    return Distilled(
        heads, file, dict(acceptance), training["steps"], training["pictures"], stopped=False, reused=True,
        left_out=_left_out(plan.wanted, heads.spec),
    )  # fmt: skip


def _check_writable(out: Path) -> None:
    """Raises SSDError where no heads file could be written in the end."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        claim(out.parent, out.stem, out.suffix, "_").unlink()
    except (OSError, ValueError) as error:
        raise SSDError(f"cannot write {out} ({error}); choose another name or folder for the heads") from error


def _left_out(wanted: Wanted, trained: Wanted | HeadsSpec) -> tuple[str, ...]:
    return tuple(
        head_name(direction, offset)
        for direction in DIRECTIONS
        for offset in getattr(wanted, direction)
        if offset not in getattr(trained, direction)
    )
