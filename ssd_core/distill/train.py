"""Training of spatial heads on true features (paper section 3.2), all heads at once and independently."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import ShouldStop, SSDError, StopRequested
from ..families.base import Backbone
from ..heads import Direction, SpatialHeads, read_heads, save_heads
from .acceptance import HeadsMeasured, measure_heads
from .features import FeatureGrid, feature_grid
from .losses import ANY_GRID, check_reach, each_head, head_loss, head_name, shifted
from .ranks import Ranks
from .samples import Samples, digest
from .settings import StepChoice, TrainSettings
from .state import Progress, load_state, save_state

BEST_FILE = "best.safetensors"
_SCALE_PICTURES = 32
_STOP_SECONDS = 5.0
"""After a stop heads are measured once more if the last time took no longer."""
_EARLY = tuple(32 * 4**n for n in range(6))
"""Steps after which acceptance is measured besides the saved states: early numbers tell whether it is worth waiting."""


@dataclass(frozen=True)
class StepInfo:
    """One optimizer step. ``seconds`` of training so far; ``progress`` 0..1; ``losses`` by head (``vertical 1``).

    ``measured``: on held-out pictures, only when that has just been done. The first one, before step 1, and the last
    one, after the last step, have no losses.
    """

    step: int
    seconds: float
    progress: float
    learning_rate: float
    losses: dict[str, float]
    measured: HeadsMeasured | None = None


OnStep = Callable[[StepInfo], None]


@dataclass(frozen=True)
class Trained:
    """How a run ended. ``acceptance`` of the heads that were kept; empty without held-out pictures."""

    steps: int
    seconds: float
    acceptance: dict[str, float]
    stopped: bool


def train_heads(
    backbone: Backbone,
    heads: SpatialHeads,
    shards: Sequence[Samples],
    settings: TrainSettings,
    on_step: OnStep | None = None,
    *,
    held_out: Sequence[Samples] = (),
    work: Path | None = None,
    ranks: Ranks | None = None,
    should_stop: ShouldStop | None = None,
) -> Trained:
    """Trains ``heads`` (float32, on the backbone's device) in place until the schedule ends or ``should_stop``.

    ``work``: a folder for the state of the run, written every ``settings.checkpoint_minutes``; a call with the same
    settings and pictures goes on from there, step for step as if it had never ended. ``held_out`` pictures are measured
    at first, early on, whenever the state is written and at the end; with a ``work`` folder the heads with the best
    acceptance on them are the result, those it began with included.
    ``should_stop`` is asked before every micro-batch (with several ranks: before every step) and every picture that is
    measured; a step that it interrupts is forgotten. After a stop nothing more is measured where that takes long.
    With several ``ranks`` each process takes its share of every batch; all end up with the same heads.

    Raises SSDError when there is nothing to learn from, or when ``work`` belongs to another run; StopRequested for a
    stop before anything was learned that could be told: before the first step, or with ``held_out`` and ``work`` before
    heads that had learned were measured (their state is kept).
    """
    run = _Run(backbone, heads, shards, settings, held_out, work, ranks or Ranks(), should_stop)
    return run.until_end(on_step)


class _Run:
    """One call of ``train_heads``."""

    def __init__(
        self, backbone: Backbone, heads: SpatialHeads, shards: Sequence[Samples], settings: TrainSettings,
        held_out: Sequence[Samples], work: Path | None, ranks: Ranks, should_stop: ShouldStop | None,
    ) -> None:  # fmt: skip
        self.backbone, self.heads, self.settings, self.ranks = backbone, heads, settings, ranks
        self.shards, self.held_out, self.work = shards, held_out, work
        self.should_stop = should_stop
        self.stopping = False
        self.pictures = [(shard, i) for shard in shards for i in range(len(shard.prompts))]
        self.names = self._check()
        self.optimizer = torch.optim.AdamW(
            heads.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay,
            foreach=False,  # all tensors at once would take another copy of every head on a GPU
        )  # fmt: skip
        self.progress = Progress()
        self.data = digest(shards)
        found = None if work is None else load_state(work, heads, self.optimizer, settings, self.data)
        if found is None:
            alone = self.ranks.world == 1  # else all must end at the same place
            scale = channel_spread(backbone, self._some(_SCALE_PICTURES), self._asked if alone else None)
        else:
            self.progress, scale = found
        self.scale = scale.to(backbone.device, torch.float32)
        self.total = settings.last_step(len(self.pictures))
        self.acceptance: dict[str, float] = {}

    def _check(self) -> list[tuple[Direction, int]]:
        """The heads; raises SSDError when one of them fits in no picture."""
        if not self.pictures:
            raise SSDError("there are no pictures to train on; collect samples first")
        check_reach(self.heads, {shard.grid for shard in self.shards})
        return each_head(self.heads, ANY_GRID)

    def _some(self, count: int) -> list[Samples]:
        """Up to ``count`` pictures, evenly spread over all."""
        step = max(1, len(self.pictures) // count)
        return [shard.pick([i]) for shard, i in self.pictures[::step][:count]]

    def _asked(self) -> bool:
        """Whether the run was asked to stop, now or before."""
        self.stopping = self.stopping or (self.should_stop is not None and self.should_stop())
        return self.stopping

    def until_end(self, on_step: OnStep | None) -> Trained:
        progress, settings = self.progress, self.settings
        before = saved = progress.seconds
        if not progress.steps:
            measured = self._measure()
            if on_step is not None and measured is not None:
                on_step(StepInfo(0, before, 0.0, 0.0, {}, measured))
        self.heads.train().requires_grad_(True)
        started = time.perf_counter()
        while True:
            progress.seconds = before + time.perf_counter() - started
            share = self._share()
            share, wish, seconds = self._agree(share, self._asked(), progress.seconds)
            if wish or (share >= 1 and progress.steps):
                break
            rate = settings.rate(progress.steps, share)
            losses = self._step(settings.step_choice(progress.steps, len(self.pictures)), rate)
            if losses is None:
                continue
            progress.steps += 1
            due = seconds - saved >= 60 * settings.checkpoint_minutes
            measured = self._measure() if due or progress.steps in _EARLY else None
            if due:
                self._save()
                saved = seconds
            if on_step is not None:
                on_step(StepInfo(progress.steps, progress.seconds, share, rate, losses, measured))
        self.heads.eval().requires_grad_(False)
        stopped = bool(wish) and (share < 1 or not progress.steps)
        if not progress.steps:
            raise StopRequested("training was stopped before its first step")
        measured = self._last_measure(stopped)
        self._save()
        learned, *_ = self._agree(progress.measured)
        if stopped and self.work is not None and self.held_out and not learned:
            raise StopRequested("training was stopped before its heads were measured; its state is kept")
        if on_step is not None and measured is not None:
            on_step(StepInfo(progress.steps, progress.seconds, min(share, 1.0), 0.0, {}, measured))
        self._take_best()
        return Trained(progress.steps, progress.seconds, self.acceptance, stopped)

    def _agree(self, *values: float) -> list[float]:
        return self.ranks.agree(values, self.backbone.device)

    def _share(self) -> float:
        """How much of the run is over."""
        if self.total is not None:
            return self.progress.steps / self.total
        assert self.settings.minutes is not None
        return min(1.0, self.progress.seconds / (60 * self.settings.minutes))

    def _step(self, choice: StepChoice, rate: float) -> dict[str, float] | None:
        """One optimizer step; returns the losses of the whole batch, None when a stop came before its end."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=False)
        pictures = [self.pictures[number] for number in choice.pictures]
        names = self.names
        # Every head's loss is the mean over the pictures that it fits into, whichever process has them.
        counts = {name: sum(name in each_head(self.heads, shard.grid) for shard, _ in pictures) for name in names}
        losses = torch.zeros(len(names), device=self.backbone.device)
        for samples, unconditional in self._micro_batches(pictures, choice):
            if self.ranks.world == 1 and self._asked():
                return None
            grid = feature_grid(self.backbone, samples, unconditional)
            for direction, offset in each_head(self.heads, samples.grid):
                loss = self._loss(grid, direction, offset, choice) * len(samples.prompts) / counts[direction, offset]
                loss.backward()  # type: ignore[no-untyped-call]
                losses[names.index((direction, offset))] += loss.detach()
        self.ranks.add([losses, *self._gradients()])
        heads = [self.heads.head(*name) for name in names]
        norms = [torch.nn.utils.clip_grad_norm_(head.parameters(), self.settings.clip) for head in heads]
        found, lengths = torch.stack((losses, torch.stack(norms))).tolist()
        self._check_finite("loss", found)
        self._check_finite("gradient", lengths)
        for name, head in zip(names, heads, strict=True):
            if not counts[name]:  # no picture of this batch is large enough: leave the head alone
                head.zero_grad(set_to_none=True)
        self.optimizer.step()
        return {head_name(*name): loss for name, loss in zip(names, found, strict=True) if counts[name]}

    def _check_finite(self, what: str, values: list[float]) -> None:
        """Raises SSDError for NaN and infinity, before they reach the heads."""
        for name, value in zip(self.names, values, strict=True):
            if not math.isfinite(value):
                hint = "train again with a lower learning rate"
                if self.backbone.dtype == torch.float16:
                    hint = "float16 overflows easily: load the backbone in bfloat16 or float32"
                raise SSDError(
                    f"the {what} of {head_name(*name)} is {value} in step {self.progress.steps + 1}; {hint}"
                    + ("" if self.work is None else f" (saved state and best heads so far are in {self.work})")
                )

    def _gradients(self) -> list[Tensor]:
        """The gradient of every parameter, zeros where there is none."""
        for parameter in self.heads.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.heads.parameters() if parameter.grad is not None]

    def _micro_batches(self, pictures: list[tuple[Samples, int]], choice: StepChoice) -> list[tuple[Samples, Tensor]]:
        """This process's share of the batch, pictures of one grid together, with who is unconditional."""
        groups: dict[tuple[int, int], list[int]] = {}
        for place in range(self.ranks.rank, len(pictures), self.ranks.world):
            groups.setdefault(pictures[place][0].grid, []).append(place)
        batches = []
        for places in groups.values():
            for start in range(0, len(places), self.settings.micro_batch):
                part = places[start : start + self.settings.micro_batch]
                chosen = [pictures[place] for place in part]
                tokens = torch.stack([shard.tokens[i] for shard, i in chosen])
                prompts = [shard.prompts[i] for shard, i in chosen]
                batches.append((Samples(tokens, prompts), choice.unconditional[part]))
        return batches

    def _loss(self, grid: FeatureGrid, direction: Direction, offset: int, choice: StepChoice) -> Tensor:
        settings = self.settings
        if direction == "horizontal" and settings.horizontal_rows < 1:
            rows = grid.features.shape[1]
            some = choice.rows(rows, rows * settings.horizontal_rows)
            grid = FeatureGrid(grid.features[:, some], grid.embeddings[:, some])
        inputs = shifted(grid, direction, offset, self.heads.spec.neighbours)
        count, rows, cols = inputs[2].shape[:3]
        kl_rows = choice.rows(rows, settings.kl_positions / (count * cols))
        return head_loss(
            self.backbone, self.heads.head(direction, offset), inputs, self.scale, settings.kl_weight, kl_rows,
            settings.autocast,
        )  # fmt: skip

    def _measure(self, last: bool = False) -> HeadsMeasured | None:
        """Measures on held-out pictures; the heads that did best are kept in the work folder.

        None without such pictures, and when a stop came before the last one; a ``last`` measurement is not stopped.
        """
        measured = None
        if self.ranks.first and self.held_out:
            started, ask = time.perf_counter(), None if last else self._asked
            with suppress(StopRequested):
                measured = measure_heads(self.backbone, self.heads, self.held_out, self.scale, should_stop=ask)
            self.progress.measuring = time.perf_counter() - started
        if measured is not None:
            self.acceptance, self.progress.measured = measured.acceptance, self.progress.steps
            mean = sum(self.acceptance.values()) / len(self.acceptance)
            if self.work is not None and mean > self.progress.best:
                self.progress.best = mean
                self.work.mkdir(parents=True, exist_ok=True)
                save_heads(self.heads.noted({"acceptance": self.acceptance}), self.work / BEST_FILE, torch.float32)
        self._agree(0.0)  # the others wait for the first one
        return measured

    def _last_measure(self, stopped: bool) -> HeadsMeasured | None:
        """At the end; after a stop only where nobody waits long for it."""
        quick, *_ = self._agree(self.progress.measuring <= _STOP_SECONDS)
        return self._measure(last=True) if quick or not stopped else None

    def _save(self) -> None:
        """Writes the state of the run, if it has a folder."""
        if self.ranks.first and self.work is not None:
            self.work.mkdir(parents=True, exist_ok=True)
            save_state(self.work, self.heads, self.optimizer, self.scale, self.progress, self.settings, self.data)
        self._agree(0.0)

    def _take_best(self) -> None:
        """Ends with the heads that did best on held-out pictures, in every process."""
        if self.work is None or not self.held_out:
            return
        if self.ranks.first:
            spec = self.heads.spec
            best = read_heads(self.work / BEST_FILE, spec.hidden, spec.backbone, spec.fingerprint)
            self.heads.load_state_dict(best.state_dict())
            self.acceptance = dict(best.spec.notes["acceptance"])  # type: ignore[call-overload]
        self.ranks.share(list(self.heads.parameters()))


@torch.no_grad()
def channel_spread(backbone: Backbone, pictures: Sequence[Samples], should_stop: ShouldStop | None = None) -> Tensor:
    """Standard deviation of each feature channel over pictures of one each, float32 [hidden], never zero.

    Raises StopRequested when ``should_stop``, asked before each picture, said so.
    """
    count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for picture in pictures:
        if should_stop is not None and should_stop():
            raise StopRequested("training was stopped before its first step")
        features = feature_grid(backbone, picture, False).features.flatten(0, 2).cpu().double()
        count += len(features)
        total = total + features.sum(0)
        squares = squares + features.square().sum(0)
    mean = total / count
    return ((squares / count - mean.square()).clamp(min=0).sqrt() + 1e-6).float()
