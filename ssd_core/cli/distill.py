"""`distill`: collect, train, evaluate."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..distill.estimate import GIB, SMALL_CARD, estimate_drawing, fitting, in_words, training_memory
from ..distill.evaluate import Evaluation, acceptance_table, evaluate, schedules_table
from ..distill.prompts import check_prompts, plan_prompts, read_prompts, starter_prompts
from ..distill.ranks import Ranks
from ..distill.samples import Part, Samples, claim, collect, missing, read_samples
from ..distill.session import Wanted, train_file
from ..distill.train import StepInfo
from ..errors import ShouldStop, SSDError, StopRequested
from ..families.base import Backbone
from ..families.loaders import load_backbone
from ..heads import update_notes
from ..hub import gigabytes
from ..load import load_heads
from ..sampling import Sampling
from ..schedule import Schedule, default_schedule
from .distill_options import CollectOptions, DistillOptions, EvaluateOptions, TrainOptions
from .setup import chosen_heads, load_model

_SAY_EVERY = 10.0  # seconds
_SEED_STEP = 10**8  # between the seeds of two sizes


def distill(options: DistillOptions) -> None:
    """Runs one step of `distill`."""
    if isinstance(options, CollectOptions):
        _collect(options)
    elif isinstance(options, TrainOptions):
        _train(options)
    else:
        _evaluate(options)


# --- collect -------------------------------------------------------------------------------------------------------


def _collect(options: CollectOptions) -> None:
    ranks = Ranks.from_environment()
    if ranks.world > 1 and options.shard is not None:
        raise SSDError("--shard splits the work by hand and torchrun splits it too; use one of them")
    part = options.shard or Part(ranks.rank + 1, ranks.world)
    backbone = load_model(options.model, ranks.device(options.device), options.dtype, options.threads)
    prompts = _prompts(backbone, options.prompts)
    sampling = _sampling(options, backbone)
    exact = options.mode == "exact"
    schedule: Schedule | None = default_schedule(backbone.device.type) if exact else None
    heads = chosen_heads(backbone, options.model, options.heads) if exact else None
    jobs = []
    for number, grid in enumerate(options.size or [backbone.default_grid]):
        planned = plan_prompts(prompts, options.pictures, options.seed, options.empty)
        seed = (options.seed + number * _SEED_STEP) % 2**64
        claim(backbone, planned, options.output, grid=grid, seed=seed, batch=options.batch, sampling=sampling)
        jobs.append((grid, planned, seed))
        if ranks.first:
            left = missing(planned, options.output, grid=grid, batch=options.batch, part=options.shard)
            print(f"{grid[0]}x{grid[1]}: {_work(len(planned), len(left), options.shard)}", end="", flush=True)
            if left:
                estimate = estimate_drawing(
                    backbone, left, grid=grid, batch=options.batch, sampling=sampling, schedule=schedule, heads=heads
                )
                time_left = in_words(estimate.seconds / ranks.world)
                among = f" by each of {ranks.world} processes" if ranks.world > 1 else ""
                print(f", about {time_left} of drawing{among}, {gigabytes(estimate.bytes)} on disk", end="")
            print(flush=True)
    if options.estimate:
        return
    for grid, planned, seed in jobs:
        collect(
            backbone, planned, options.output, grid=grid, seed=seed, batch=options.batch, sampling=sampling,
            schedule=schedule, heads=heads, part=part, on_shard=_shard_line(f"{grid[0]}x{grid[1]}", part),
        )  # fmt: skip
    if part.number == 1:
        print(f"pictures are in {options.output}")


def _work(planned: int, left: int, part: Part | None) -> str:
    """How many pictures there are to draw."""
    text = f"{planned} pictures"
    if part is not None:
        text += f", {left} to draw in part {part.number} of {part.of}"
    elif left < planned:
        text += f", {left} still to draw" if left else ", all there"
    return text


def _sampling(options: CollectOptions, backbone: Backbone) -> Sampling:
    wishes = {
        "guidance": options.guidance,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
    }
    given: dict[str, Any] = {name: value for name, value in wishes.items() if value is not None}
    return replace(backbone.default_sampling, **given)


def _prompts(backbone: Backbone, file: Path | None) -> list[str]:
    """The file's prompts, or the starters; checked."""
    prompts = starter_prompts(backbone) if file is None else read_prompts(file)
    check_prompts(backbone, prompts, "the starter prompts" if file is None else str(file))
    return prompts


def _shard_line(size: str, part: Part) -> Callable[[int, int], None]:
    """Says now and then how far drawing is; shards that were there already do not count for the time left."""
    started, said, first = time.perf_counter(), 0.0, None
    mark = f" (part {part.number}/{part.of})" if part.of > 1 else ""

    def say(done: int, total: int) -> None:
        nonlocal said, first, started
        now = time.perf_counter()
        if first is None and now - started > 0.2:
            first = done - 1  # the first one that had to be drawn
        elif first is None:
            started = now
        if done == total or now - said >= _SAY_EVERY:
            said = now
            drawn = done - (first if first is not None else done)
            left = f", {in_words((now - started) / drawn * (total - done))} left" if drawn and done < total else ""
            print(f"{size}{mark}: shard {done} of {total}{left}", flush=True)

    return say


# --- train ---------------------------------------------------------------------------------------------------------


def _train(options: TrainOptions) -> None:
    ranks = Ranks.from_environment()
    wanted = Wanted(options.horizontal, options.vertical, options.neighbours, options.licence, options.author)
    device = ranks.device(options.device)
    outline = load_backbone(options.model, device="meta", dtype=_dtype_of(options))
    shards = _read(options.samples, outline.fingerprint)
    if ranks.first:
        _say_memory(options, wanted, outline, shards)
    if options.estimate:
        return
    backbone = load_model(options.model, device, options.dtype, options.threads)
    held_out = None if options.held_out is None else _read([options.held_out], outline.fingerprint)
    autocast = options.autocast == "on" or (options.autocast == "auto" and backbone.dtype == torch.bfloat16)
    settings = replace(options.settings, autocast=autocast)
    say = _step_line() if ranks.first else None
    with ranks.joined(backbone.device.type), _gentle_stop() as should_stop:
        try:
            result = train_file(
                backbone, shards, options.output, wanted, settings, work=options.work, held_out=held_out,
                start_from=options.start_from, restart=options.restart, ranks=ranks, on_step=say,
                should_stop=should_stop,
            )  # fmt: skip
        except StopRequested as stop:
            print(f"{stop}; no heads were written", file=sys.stderr)
            raise KeyboardInterrupt from stop
    if ranks.first:
        how = "stopped; " if result.stopped else ""
        print(f"{how}{result.steps} steps on {result.pictures} pictures; expected acceptance on held-out pictures:")
        print(acceptance_table(result.acceptance) if result.acceptance else "(none were held out)")
        print(f"heads are in {result.path}, log and plot in {options.work}")


def _dtype_of(options: TrainOptions) -> str:
    """On the meta device ``auto`` would be bfloat16 for every device."""
    return "float32" if options.dtype == "auto" and torch.device(options.device).type == "cpu" else options.dtype


def _read(folders: list[Path], fingerprint: str) -> list[Samples]:
    return [shard for folder in folders for shard in read_samples(folder, fingerprint)]


def _say_memory(options: TrainOptions, wanted: Wanted, backbone: Backbone, shards: list[Samples]) -> None:
    """What training will take, and what would fit a card of 24 GB if it does not."""
    grids = sorted({shard.grid for shard in shards})
    settings = options.settings
    kl_positions = settings.kl_positions if settings.kl_weight else 0
    need = training_memory(backbone, wanted, grids, settings.micro_batch, kl_positions)
    print(
        f"memory: {gigabytes(need.weights)} weights + {gigabytes(need.heads)} heads and optimizer + at most "
        f"{gigabytes(need.activations)} working = {gigabytes(need.total)}",
        flush=True,
    )
    if need.total > SMALL_CARD:
        some = fitting(backbone, wanted, grids, kl_positions)
        if some is None:
            print(f"a card of {SMALL_CARD // GIB} GB does not hold this model and one head; try --dtype bfloat16")
        else:
            ways = {"--horizontal": some.horizontal, "--vertical": some.vertical}
            text = " ".join(" ".join([way, *map(str, offsets)]) for way, offsets in ways.items())
            print(
                f"for {SMALL_CARD // GIB} GB: {text} --micro-batch 1; then the others with --start-from this file",
                flush=True,
            )


def _step_line() -> Callable[[StepInfo], None]:
    """Says now and then how training goes, and whatever was measured on held-out pictures."""
    said = 0.0

    def say(info: StepInfo) -> None:
        nonlocal said
        now = time.perf_counter()
        if info.measured is not None:
            found, missed = info.measured.acceptance, info.measured.losses
            nearest = [name for name in found if name.endswith(" 1")]
            text = "  ".join(f"{name} {found[name]:.3f} (feature loss {missed[name]:.3f})" for name in nearest)
            mean = sum(found.values()) / len(found)
            print(f"step {info.step}: held out: expected acceptance {text}  mean {mean:.3f}", flush=True)
        elif now - said >= _SAY_EVERY or info.step == 1:
            said = now
            losses = "  ".join(f"{name} {loss:.3f}" for name, loss in info.losses.items())
            left = info.seconds / info.progress * (1 - info.progress) if info.progress > 0 else 0
            time_left = f", {in_words(left)} left" if left else ""
            print(f"step {info.step} ({info.progress:.0%}{time_left}): loss {losses}", flush=True)

    return say


@contextmanager
def _gentle_stop() -> Iterator[ShouldStop]:
    """The first Ctrl-C ends training in good order, with the best heads written; the second one ends the program."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("stopping; once more to stop at once", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


# --- evaluate ------------------------------------------------------------------------------------------------------


def _evaluate(options: EvaluateOptions) -> None:
    backbone = load_model(options.model, options.device, options.dtype, options.threads)
    heads = load_heads(backbone, options.heads)
    prompts = plan_prompts(_prompts(backbone, options.prompts), options.pictures, 0, 0.0)

    def say(done: int, total: int, name: str) -> None:
        print(f"\r{done} of {total} pictures ({name})".ljust(60), end="", file=sys.stderr, flush=True)

    found = evaluate(
        backbone, heads, prompts, grid=options.size, seed=options.seed,
        on_run=say if sys.stderr.isatty() else None,
    )  # fmt: skip
    if sys.stderr.isatty():
        print("\r".ljust(61) + "\r", end="", file=sys.stderr)
    if options.write:
        update_notes(options.heads, found.notes())
    print(json.dumps(found.to_dict(), allow_nan=False) if options.json else _evaluation_text(options, found))


def _evaluation_text(options: EvaluateOptions, found: Evaluation) -> str:
    rows, cols = found.grid
    wish = found.recommended
    return "\n".join(
        [
            f"expected acceptance, {found.pictures} pictures of {rows}x{cols} codes:",
            acceptance_table(found.acceptance),
            "",
            schedules_table(found),
            "",
            f"recommended: {wish['preset']}, {wish['window_rows']} rows, tolerance {wish['tolerance']:g}"
            + (f" (written into {options.heads})" if options.write else ""),
        ]
    )
