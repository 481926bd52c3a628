"""The judge: does a picture show what its caption asks, category by category, as GenEval does."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recipes.emoji_scenes.captions import KINDS, SceneSpec, draw_spec

from .detector import Detection, Detector, Finding, detect, load_detector

CATEGORIES: tuple[str, ...] = (
    "single object",
    "two objects",
    "counting",
    "colours",
    "position",
    "background",
    "exact set",
    "all asked",
)
"""``exact set``: exactly the asked objects, none missing, none more. ``all asked``: everything the caption says."""


@dataclass(frozen=True)
class ScoreRow:
    """Share of pictures that pass a category, and how many were judged in it."""

    share: float
    count: int


def draw_specs(count: int, seed: int = 4242) -> list[SceneSpec]:
    """A fixed evaluation set with the four kinds of captions in turn."""
    rng = random.Random(seed)
    kinds = list(KINDS)
    return [draw_spec(rng, kinds[index % len(kinds)]) for index in range(count)]


def judge(seen: Detection, spec: SceneSpec) -> dict[str, bool]:
    """Outcome of every category that applies to one picture."""
    wanted = Counter(thing.name for thing in spec.things)
    counts = Counter(finding.name for finding in seen.objects)
    present = all(counts[name] > 0 for name in wanted)
    result: dict[str, bool] = {}
    if spec.kind == "single":
        result["single object"] = present
    elif spec.kind == "count":
        result["counting"] = all(counts[name] == number for name, number in wanted.items())
    else:
        result["two objects"] = present
    if any(thing.colour_named for thing in spec.things):
        result["colours"] = all(_has(seen, thing.name, thing.colour) for thing in spec.things if thing.colour_named)
    if spec.relation:
        result["position"] = (
            present
            and _related(_surest(seen, spec.things[0].name), _surest(seen, spec.things[1].name)) == spec.relation
        )
    if spec.background_named:
        result["background"] = seen.background == spec.background
    result["all asked"] = present and all(result.values())
    result["exact set"] = counts == wanted
    return result


def score(
    images: Tensor | Sequence[NDArray[np.uint8]], specs: Sequence[SceneSpec], detector: Detector | None = None
) -> dict[str, ScoreRow]:
    """Judges pictures against what was asked.

    Args:
        images: float32 [B, H, W, 3] in 0..1 or uint8 pictures, one per spec, all of one size.
        specs: What each picture should show.
        detector: A loaded detector; the committed one by default.

    Returns:
        A row per category, in the order of ``CATEGORIES``; a category without pictures is left out.
    """
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for seen, spec in zip(detect(detector or load_detector(), images), specs, strict=True):
        for category, passed in judge(seen, spec).items():
            outcomes[category].append(passed)
    return {
        category: ScoreRow(sum(outcomes[category]) / len(outcomes[category]), len(outcomes[category]))
        for category in CATEGORIES
        if category in outcomes
    }


def format_row(table: dict[str, ScoreRow]) -> str:
    """A table in one line: each category's share and count."""
    return ", ".join(f"{name} {row.share:.3f} ({row.count})" for name, row in table.items())


def _has(seen: Detection, name: str, colour: str | None) -> bool:
    return any(finding.name == name and finding.colour == colour for finding in seen.objects)


def _surest(seen: Detection, name: str) -> Finding:
    return max((finding for finding in seen.objects if finding.name == name), key=lambda finding: finding.confidence)


def _related(first: Finding, second: Finding) -> str:
    """The relation that holds between two findings: the longer of the two distances decides."""
    across, down = first.col - second.col, first.row - second.row
    if abs(across) > abs(down):
        return "left of" if across < 0 else "right of"
    return "above" if down < 0 else "below"
