"""From pictures to a heads file: what the command line and the ComfyUI node both call."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ..errors import ShouldStop, SSDError
from ..families.base import Backbone
from ..graphs import graphs_of
from ..heads import HeadsSpec, SpatialHeads, read_heads, read_heads_spec, save_heads
from ..version import __version__
from .log import TrainLog, save_plot
from .losses import each_head, head_name
from .prompts import check_prompts, plan_prompts
from .ranks import Ranks
from .samples import Samples, collect, read_samples
from .settings import TrainSettings
from .state import saved_steps
from .train import OnStep, StepInfo, train_heads

EMPTY_PROMPTS = 0.1
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 32
_DRAWING_SHARE = 0.4
_DRAW_BATCH = 8


@dataclass(frozen=True)
class Distilled:
    """``heads`` as the file has them, on the backbone's device and in its dtype; ``acceptance`` on held-out pictures.

    ``pictures``: how many were trained on. ``stopped``: ended by ``should_stop``, with the best heads until then.
    """

    heads: SpatialHeads
    path: Path
    acceptance: dict[str, float]
    steps: int
    pictures: int
    stopped: bool


@dataclass(frozen=True)
class Wanted:
    """Which heads to make and what their file says of them."""

    horizontal: tuple[int, ...] = (1, 2, 3, 4, 5)
    vertical: tuple[int, ...] = (1, 2, 3, 4, 5)
    neighbours: int = 0
    licence: str = ""
    author: str = ""

    def spec(self, backbone: Backbone) -> HeadsSpec:
        """The spec of these heads for a backbone."""
        return HeadsSpec(
            backbone.hidden, self.horizontal, self.vertical, self.neighbours, backbone.name, backbone.fingerprint
        )


def make_heads(
    backbone: Backbone,
    prompts: Sequence[str],
    out: Path,
    *,
    work: Path,
    grids: Sequence[tuple[int, int]] | None = None,
    pictures: int = 64,
    minutes: float = 15.0,
    neighbours: int = 1,
    horizontal: Sequence[int] = (1, 2, 3, 4, 5),
    vertical: Sequence[int] = (1, 2, 3),
    seed: int = 0,
    start_from: Path | None = None,
    settings: TrainSettings | None = None,
    licence: str = "",
    author: str = "",
    on_draw: Callable[[int, int], None] | None = None,
    on_step: OnStep | None = None,
    should_stop: ShouldStop | None = None,
) -> Distilled:
    """Draws ``pictures`` of each of ``grids`` with the backbone, trains heads on them and writes ``out``.

    ``minutes`` is the budget of both: drawing ends after 40 % of it (with at least one batch of each grid), training
    takes the rest. ``work`` keeps the pictures and the training state: another call with the same arguments goes on
    where this one was; once training has begun no more pictures are drawn. ``settings``: by default `quick_settings`
    for what is left of the minutes. ``on_draw(shards, of)``; ``on_step``: see ``StepInfo``. A stop while drawing raises
    StopRequested; a stop while training writes the best heads so far.

    Raises SSDError for prompts and sizes that the backbone cannot draw and for a ``work`` of other settings.
    """
    sizes = [backbone.check_grid(grid) for grid in grids or (backbone.default_grid,)]
    if not prompts:
        raise SSDError("there are no prompts; give at least one, or use starter_prompts(backbone)")
    check_prompts(backbone, prompts, "the list")
    if pictures < 2 or not minutes > 0:
        raise SSDError(f"training needs at least 2 pictures and some minutes, got {pictures} and {minutes}")
    started = time.perf_counter()
    folder, training = work / "samples", work / "training"
    limits = [60 * minutes * _DRAWING_SHARE * (number + 1) / len(sizes) for number in range(len(sizes))]
    if not saved_steps(training):
        for number, limit in enumerate(limits):
            _draw(backbone, prompts, folder, sizes, number, pictures, seed, started + limit, on_draw, should_stop)
        graphs_of(backbone).release()  # training needs the memory
    shards = list(read_samples(folder, backbone.fingerprint))
    drawn = {shard.grid for shard in shards}
    if drawn != set(sizes):
        texts = (", ".join(f"{rows}x{cols}" for rows, cols in sorted(some)) for some in (drawn, set(sizes)))
        raise SSDError("{} holds pictures of {}, expected {}; choose another work folder".format(work, *texts))
    left = max(0.1 * minutes, minutes - (time.perf_counter() - started) / 60)
    wanted = Wanted(tuple(horizontal), tuple(vertical), neighbours, licence, author)
    chosen = settings or replace(quick_settings(backbone), minutes=left)
    return train_file(
        backbone, shards, out, wanted, chosen, work=training, start_from=start_from, on_step=on_step,
        should_stop=should_stop,
    )  # fmt: skip


def quick_settings(backbone: Backbone) -> TrainSettings:
    """For little data and little time: the KL term, and a learning rate that grows as the features get narrower."""
    return TrainSettings(
        learning_rate=min(1e-3, 1e-4 * max(1.0, 2560 / backbone.hidden)),
        kl_weight=1.0,
        autocast=backbone.dtype == torch.bfloat16,
        micro_batch=8 if backbone.hidden < 1024 else 1,
    )


def _draw(
    backbone: Backbone, prompts: Sequence[str], folder: Path, sizes: Sequence[tuple[int, int]], number: int,
    pictures: int, seed: int, end: float, on_draw: Callable[[int, int], None] | None, should_stop: ShouldStop | None,
) -> None:  # fmt: skip
    """Draws the pictures of size ``number``; after the moment ``end`` no further batch is begun."""
    batch = min(_DRAW_BATCH, pictures)
    per_size = -(-pictures // batch)

    def tell(done: int, total: int) -> None:
        if on_draw is not None:
            on_draw(number * per_size + done, len(sizes) * per_size)
        if time.perf_counter() > end and done < total:
            raise _EnoughDrawn

    planned = plan_prompts(prompts, pictures, seed + number, EMPTY_PROMPTS)
    with suppress(_EnoughDrawn):
        collect(
            backbone, planned, folder, grid=sizes[number], seed=seed + number * 10**6, batch=batch, on_shard=tell,
            should_stop=should_stop,
        )  # fmt: skip


class _EnoughDrawn(Exception):  # noqa: N818 - the drawing part of the budget is used up
    pass


def train_file(
    backbone: Backbone,
    shards: Sequence[Samples],
    out: Path,
    wanted: Wanted,
    settings: TrainSettings,
    *,
    work: Path,
    held_out: Sequence[Samples] | None = None,
    start_from: Path | None = None,
    restart: bool = False,
    ranks: Ranks | None = None,
    on_step: OnStep | None = None,
    should_stop: ShouldStop | None = None,
) -> Distilled:
    """Trains heads on ``shards`` and writes the heads file ``out``.

    ``held_out``: pictures that only measure; by default a tenth of ``shards``, 32 at most, is set aside.
    ``start_from``: a heads file of the same width whose heads are the beginning; those of its heads that are not wanted
    here are kept in ``out`` if they were made for these very weights. ``work``: state, log and plot of the run;
    ``restart`` begins a new one there.

    Raises SSDError for heads and pictures that do not fit; what ``train_heads`` raises.
    """
    ranks = ranks or Ranks()
    if out.is_dir():
        raise SSDError(f"{out} is a folder; give the name of the heads file to write")
    if restart and ranks.first:
        shutil.rmtree(work, ignore_errors=True)
    ranks.agree([0.0], backbone.device)
    training, measuring = split(shards) if held_out is None else (list(shards), list(held_out))
    heads, kept = _begin(backbone, wanted, start_from, settings.seed)
    heads = heads.to(backbone.device)
    out.parent.mkdir(parents=True, exist_ok=True)
    names = [head_name(*name) for name in each_head(heads, (10**9, 10**9))]
    log = TrainLog(work, names, saved_steps(work)) if ranks.first else None

    def tell(info: StepInfo) -> None:
        if log is not None:
            log.add(info)
            if info.acceptance is not None:
                save_plot(work)
        if on_step is not None:
            on_step(info)

    result = train_heads(
        backbone, heads, training, settings, tell, held_out=measuring, work=work, ranks=ranks, should_stop=should_stop
    )
    pictures = sum(len(shard.prompts) for shard in training)
    notes: dict[str, object] = {
        "grids": sorted({shard.grid for shard in training}),
        "training": {
            "pictures": pictures,
            "prompts": len({prompt for shard in training for prompt in shard.prompts}),
            "steps": result.steps,
            "minutes": round(result.seconds / 60, 1),
            "processes": ranks.world,
            "settings": asdict(settings),
            "started_from": start_from.name if start_from is not None else None,
        },
        "acceptance": {name: round(value, 4) for name, value in result.acceptance.items()},
        "licence": wanted.licence or f"none given; the licence of {backbone.name} may apply",
        "author": wanted.author or "not given",
        "made_with": f"spatial-speculative-decoding {__version__}",
    }
    final = heads.noted(notes) if kept is None else _joined(heads, kept, notes)
    if ranks.first:
        save_heads(final, out)
        save_plot(work)
    ready = final.to(device=backbone.device, dtype=backbone.dtype)
    return Distilled(ready, out, result.acceptance, result.steps, pictures, result.stopped)


def split(shards: Sequence[Samples]) -> tuple[list[Samples], list[Samples]]:
    """Sets every n-th picture of each shard aside: (training, held out). With one picture there is none to spare."""
    total = sum(len(shard.prompts) for shard in shards)
    spare = min(MOST_HELD_OUT, max(1, int(total * HELD_OUT_SHARE))) if total > 1 else 0
    step = total // spare if spare else total + 1
    training, held_out, number = [], [], 0
    for shard in shards:
        aside = [i for i in range(len(shard.prompts)) if (number + i) % step == step - 1]
        number += len(shard.prompts)
        rest = [i for i in range(len(shard.prompts)) if i not in set(aside)]
        training += [shard.pick(rest)] * bool(rest)
        held_out += [shard.pick(aside)] * bool(aside)
    return training, held_out


def _begin(
    backbone: Backbone, wanted: Wanted, start_from: Path | None, seed: int
) -> tuple[SpatialHeads, SpatialHeads | None]:
    """New or given heads to train, and a file's other heads that stay as they are."""
    spec = wanted.spec(backbone)
    heads = SpatialHeads.new(spec, seed)
    if start_from is None:
        return heads, None
    old_spec = read_heads_spec(start_from)
    old = read_heads(start_from, backbone.hidden, backbone.name, old_spec.fingerprint)
    if old_spec.neighbours != spec.neighbours and old_spec.vertical and spec.vertical:
        raise SSDError(
            f"{start_from} has vertical heads with {old_spec.neighbours} neighbours, expected {spec.neighbours}; "
            f"train with --neighbours {old_spec.neighbours} or without --start-from"
        )
    state = heads.state_dict()
    state.update({name: tensor for name, tensor in old.state_dict().items() if name in state})
    heads.load_state_dict(state)
    more = set(old_spec.horizontal) - set(spec.horizontal), set(old_spec.vertical) - set(spec.vertical)
    same = old_spec.fingerprint == backbone.fingerprint
    return heads, old if same and any(more) else None


def _joined(heads: SpatialHeads, kept: SpatialHeads, notes: dict[str, object]) -> SpatialHeads:
    """Trained heads and the kept ones of another file in one."""
    spec = heads.spec
    old_acceptance = kept.spec.notes.get("acceptance")
    acceptance = {**(old_acceptance if isinstance(old_acceptance, dict) else {}), **dict(notes["acceptance"])}  # type: ignore[call-overload]
    both = replace(
        spec,
        horizontal=tuple(sorted({*spec.horizontal, *kept.spec.horizontal})),
        vertical=tuple(sorted({*spec.vertical, *kept.spec.vertical})),
        neighbours=spec.neighbours if spec.vertical else kept.spec.neighbours,
        notes={**notes, "acceptance": acceptance, "kept_from": kept.spec.notes.get("training")},
    )
    with torch.device("meta"):
        joined = SpatialHeads(both)
    joined.load_state_dict({**kept.state_dict(), **{n: t.cpu() for n, t in heads.state_dict().items()}}, assign=True)
    return joined.requires_grad_(False).eval()
