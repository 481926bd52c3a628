"""From pictures to a heads file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ..errors import ShouldStop, SSDError
from ..families.base import Backbone
from ..heads import HeadsSpec, SpatialHeads, read_heads, read_heads_spec, save_heads, save_new_heads
from ..version import __version__
from .log import LOG_FILE, PLOT_FILE, TrainLog, read_log, save_plot, thinned
from .losses import ANY_GRID, each_head, head_name
from .ranks import Ranks
from .samples import Samples
from .settings import TrainSettings
from .state import STATE_FILE, saved_steps
from .train import BEST_FILE, OnStep, StepInfo, train_heads

HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 32


@dataclass(frozen=True)
class Distilled:
    """``heads`` as the file has them, on the backbone's device and in its dtype; ``acceptance`` on held-out pictures.

    ``pictures``: how many were trained on. ``stopped``: ended by ``should_stop``, with the best heads until then.
    ``reused``: nothing was trained, ``path`` is the file of an earlier run of the same plan. ``left_out``: names of
    wanted heads that the memory did not hold.
    """

    heads: SpatialHeads
    path: Path
    acceptance: dict[str, float]
    steps: int
    pictures: int
    stopped: bool
    reused: bool = False
    left_out: tuple[str, ...] = ()


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


def quick_settings(backbone: Backbone) -> TrainSettings:
    """For little data and little time: the KL term, and a learning rate that grows as the features get narrower."""
    return TrainSettings(
        learning_rate=min(1e-3, 1e-4 * max(1.0, 2560 / backbone.hidden)),
        kl_weight=1.0,
        autocast=backbone.dtype == torch.bfloat16,
        micro_batch=8 if backbone.hidden < 1024 else 1,
    )


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
    new: bool = False,
    run: Mapping[str, object] | None = None,
    ranks: Ranks | None = None,
    on_step: OnStep | None = None,
    should_stop: ShouldStop | None = None,
) -> Distilled:
    """Trains heads on ``shards`` and writes the heads file ``out``.

    ``held_out``: pictures that only measure; by default a tenth of ``shards``, 32 at most, is set aside.
    ``start_from``: a heads file of the same width whose heads are the beginning; those of its heads that are not wanted
    here are kept in ``out`` if they were made for these very weights. ``work``: state, log and plot of the run;
    ``restart`` begins a new one there. ``new``: no file is replaced, a number is added where the name is taken.
    ``run``: for the file's notes of that name, which also say whether the run was stopped.

    Raises SSDError for heads and pictures that do not fit; what ``train_heads`` raises, and then writes no heads file.
    """
    ranks = ranks or Ranks()
    if out.is_dir():
        raise SSDError(f"{out} is a folder; give the name of the heads file to write")
    training, measuring = split(shards) if held_out is None else (list(shards), list(held_out))
    heads, kept = _begin(backbone, wanted, start_from, settings.seed)
    if restart and ranks.first:
        for name in (STATE_FILE, BEST_FILE, LOG_FILE, PLOT_FILE):  # what else lies there is not ours
            (work / name).unlink(missing_ok=True)
    ranks.agree([0.0], backbone.device)
    heads = heads.to(backbone.device)
    out.parent.mkdir(parents=True, exist_ok=True)
    names = [head_name(*name) for name in each_head(heads, ANY_GRID)]
    log = TrainLog(work, names, saved_steps(work)) if ranks.first else None

    def tell(info: StepInfo) -> None:
        if log is not None:
            log.add(info)
            if info.measured is not None:
                save_plot(work)
        if on_step is not None:
            on_step(info)

    result = train_heads(
        backbone, heads, training, settings, tell, held_out=measuring, work=work, ranks=ranks, should_stop=should_stop
    )
    pictures = sum(len(shard.prompts) for shard in training)
    said: dict[str, object] = {
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
        "history": thinned(read_log(work / LOG_FILE)) if ranks.first else {},
        "run": {**(run or {}), "stopped": result.stopped},
    }
    final = heads.noted(said) if kept is None else _joined(heads, kept, said)
    path = out
    if ranks.first:
        if new:
            path = save_new_heads(final, out)
        else:
            save_heads(final, out)
        save_plot(work)
    ready = final.to(device=backbone.device, dtype=backbone.dtype)
    return Distilled(ready, path, result.acceptance, result.steps, pictures, result.stopped)


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


def check_start(wanted: HeadsSpec, start_from: Path) -> HeadsSpec:
    """The spec of a heads file to begin with. Raises SSDError when heads like ``wanted`` cannot begin with it."""
    old = read_heads_spec(start_from)
    misfit = old.misfit(wanted.backbone, wanted.hidden, old.fingerprint)
    if misfit is not None:
        raise SSDError(f"{start_from} {misfit}")
    if old.neighbours != wanted.neighbours and old.vertical and wanted.vertical:
        raise SSDError(
            f"{start_from} has vertical heads with {old.neighbours} neighbours, expected {wanted.neighbours}; train "
            "heads with as many, or start from others"
        )
    return old


def _begin(
    backbone: Backbone, wanted: Wanted, start_from: Path | None, seed: int
) -> tuple[SpatialHeads, SpatialHeads | None]:
    """New or given heads to train, and a file's other heads that stay as they are."""
    spec = wanted.spec(backbone)
    if start_from is None:
        return SpatialHeads.new(spec, seed), None
    old_spec = check_start(spec, start_from)
    heads = SpatialHeads.new(spec, seed)
    old = read_heads(start_from, backbone.hidden, backbone.name, old_spec.fingerprint)
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
