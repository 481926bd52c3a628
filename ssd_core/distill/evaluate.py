"""What heads are worth: acceptance by direction and offset, and what each schedule makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..errors import ShouldStop, SSDError
from ..families.base import Backbone
from ..generation import generate
from ..heads import SpatialHeads
from ..noise import image_seeds
from ..presets import BALANCED_TOLERANCE
from ..sampling import Sampling
from ..schedule import AR, Rolling, Rounds, Schedule
from .acceptance import expected_acceptance
from .likelihood import likelihood
from .losses import DIRECTIONS, head_name
from .samples import Samples

NLL_MARGIN = 0.1
"""A tolerant schedule is only recommended when its mean -log p is within this share of plain decoding's,"""
WORTH_IT = 1.2
"""and when it is so many times as fast as exact mode: plain decoding's own picture is not given up for little."""


@dataclass(frozen=True)
class Measured:
    """One schedule on the same prompts and seeds: means over the pictures.

    ``nll``: mean -log p of a code under plain decoding's law (``Likelihood.nll``), lower is likelier. ``equal``: share
    of codes that plain decoding has drawn too. ``acceptance``: share of drafts kept.
    """

    name: str
    schedule: Schedule
    forwards: float
    seconds: float
    nll: float
    equal: float
    acceptance: float | None


@dataclass(frozen=True)
class Evaluation:
    """``acceptance``: expected, by head; ``schedules``: the first one is plain decoding; ``recommended``: for notes."""

    acceptance: dict[str, float]
    schedules: list[Measured]
    recommended: dict[str, Any]
    pictures: int
    grid: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        rows = [{**asdict(row), "schedule": asdict(row.schedule)} for row in self.schedules]  # type: ignore[call-overload]
        return {
            "grid": list(self.grid),
            "pictures": self.pictures,
            "acceptance": self.acceptance,
            "schedules": rows,
            "recommended": self.recommended,
        }

    def notes(self) -> dict[str, object]:
        """What the heads file says of it."""
        plain = self.schedules[0]
        return {
            "acceptance": {name: round(value, 4) for name, value in self.acceptance.items()},
            "recommended": self.recommended,
            "evaluation": {
                "grid": list(self.grid),
                "pictures": self.pictures,
                "forwards": {row.name: round(row.forwards, 1) for row in self.schedules},
                "nll": {row.name: round(row.nll, 4) for row in self.schedules},
                "speedup": {row.name: round(plain.seconds / row.seconds, 2) for row in self.schedules},
            },
        }


def candidates(heads: SpatialHeads, grid: tuple[int, int]) -> dict[str, Schedule]:
    """The schedules that are compared, plain decoding first; those that these heads cannot draft for are left out."""
    found: dict[str, Schedule] = {"plain": AR()}
    windows = [rows for rows in (1, 2, 3, 4) if rows <= grid[0]]
    found |= {f"exact, {rows} rows": Rolling(window_rows=rows) for rows in windows}
    tolerant = {f"balanced, {rows} rows": Rolling(window_rows=rows, tolerance=BALANCED_TOLERANCE) for rows in windows}
    found |= tolerant
    block, rows = min(5, _without_gap(heads.spec.horizontal)), _without_gap(heads.spec.vertical)
    if block and rows:
        found |= {f"rounds, r = {rounds}": Rounds(rounds=rounds, first_row_block=block) for rounds in (0, 1, 2, 6)}
    if block and min(rows, grid[0]) >= 2:  # the paper's setting for Lumina
        staged = Rounds(rounds=5, incremental_rounds=4, rows_per_block=2, first_row_block=block)
        found["staged, b = 5, i = 4"] = staged
    return found


def evaluate(
    backbone: Backbone,
    heads: SpatialHeads,
    prompts: Sequence[str],
    *,
    grid: tuple[int, int] | None = None,
    seed: int = 0,
    sampling: Sampling | None = None,
    on_run: Callable[[int, int, str], None] | None = None,
    should_stop: ShouldStop | None = None,
) -> Evaluation:
    """Draws every prompt with every schedule, one picture at a time, and measures.

    Acceptance is measured on the pictures of plain decoding. ``on_run(done, of, schedule)`` is called before each
    picture; prompt k is drawn with ``seed + k`` modulo 2**64. Raises SSDError for what is no seed, StopRequested when
    ``should_stop`` said so.
    """
    if not prompts:
        raise SSDError("there are no prompts to evaluate with; give at least one")
    grid = backbone.check_grid(grid or backbone.default_grid)
    sampling = sampling or backbone.default_sampling
    schedules = candidates(heads, grid)
    seeds = image_seeds(seed, len(prompts))
    total, done = len(schedules) * len(prompts), 0
    plain = torch.empty(0)
    acceptance: dict[str, float] = {}
    rows = []
    for name, schedule in schedules.items():
        pictures, forwards, seconds = [], 0, 0.0
        kept: list[float] = []
        for number, prompt in enumerate(prompts):
            if on_run is not None:
                on_run(done, total, name)
            for _ in range(2 if done == 0 else 1):  # the first picture of a process is slow
                drawn = generate(
                    backbone, prompt, heads=heads, schedule=schedule, sampling=sampling, seed=seeds[number],
                    grid=grid, should_stop=should_stop,
                )  # fmt: skip
            done += 1
            report = drawn.report
            pictures.append(drawn.tokens)
            forwards += report.total_forwards
            seconds += report.seconds["total"] - report.seconds["pixels"]
            kept += [report.acceptance] if report.acceptance is not None else []
        tokens = torch.cat(pictures).cpu()
        if name == "plain":
            plain = tokens
            acceptance = expected_acceptance(backbone, heads, [Samples(tokens, list(prompts))], sampling)
        count = len(prompts)
        rows.append(
            Measured(
                name,
                schedule,
                forwards / count,
                seconds / count,
                float(likelihood(backbone, tokens, prompts, sampling).nll.mean()),
                float((tokens == plain).double().mean()),
                sum(kept) / len(kept) if kept else None,
            )
        )
    return Evaluation(acceptance, rows, recommend(rows), len(prompts), grid)


def recommend(rows: Sequence[Measured]) -> dict[str, Any]:
    """The fastest rolling schedule as a preset: exact mode's, or a tolerant one that is near (``NLL_MARGIN``) and
    ``WORTH_IT``.

    Exact mode always qualifies: its distribution is plain decoding's, however few pictures were measured.
    """
    plain = rows[0]
    rolling = [(row, row.schedule) for row in rows if isinstance(row.schedule, Rolling)]
    exact = min((pair for pair in rolling if not pair[1].tolerance), key=lambda pair: pair[0].seconds)
    good = [
        (row, schedule) for row, schedule in rolling
        if schedule.tolerance and abs(row.nll - plain.nll) <= NLL_MARGIN * plain.nll
        and row.seconds * WORTH_IT <= exact[0].seconds
    ]  # fmt: skip
    _, schedule = min(good or [exact], key=lambda pair: pair[0].seconds)
    return {
        "preset": "balanced" if schedule.tolerance else "exact",
        "window_rows": schedule.window_rows,
        "tolerance": schedule.tolerance,
    }


def acceptance_table(acceptance: dict[str, float]) -> str:
    """The paper's figure 1 as text: a row for each direction, a column for each offset."""
    offsets = sorted({int(name.split()[1]) for name in acceptance})
    lines = ["offset      " + "".join(f"{offset:>7}" for offset in offsets)]
    for way in DIRECTIONS:
        values = [acceptance.get(head_name(way, offset)) for offset in offsets]
        if any(value is not None for value in values):
            lines.append(f"{way:<12}" + "".join(f"{'-':>7}" if v is None else f"{v:7.3f}" for v in values))
    return "\n".join(lines)


def schedules_table(evaluation: Evaluation) -> str:
    """Forwards, speed and quality of every schedule as text."""
    plain = evaluation.schedules[0]
    lines = [f"{'schedule':<21}{'forwards':>9}{'fewer':>7}{'faster':>8}{'kept':>7}{'NLL':>8}{'= plain':>9}"]
    for row in evaluation.schedules:
        kept = "-" if row.acceptance is None else f"{row.acceptance:.2f}"
        lines.append(
            f"{row.name:<21}{row.forwards:>9.1f}{plain.forwards / row.forwards:>7.1f}"
            f"{plain.seconds / row.seconds:>8.2f}{kept:>7}{row.nll:>8.3f}{row.equal:>9.3f}"
        )
    return "\n".join(lines)


def _without_gap(offsets: tuple[int, ...]) -> int:
    """How many of 1, 2, 3 ... there are before the first gap."""
    return next((n for n in range(len(offsets)) if offsets[n] != n + 1), len(offsets))
