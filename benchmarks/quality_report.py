"""From drawn pictures to the table of ``benchmarks.quality``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .bootstrap import Floats, estimate
from .emoji_score import CATEGORIES
from .features import KINDS
from .picture_store import Lot, PictureStore
from .two_sample import energy_distance

Figures = dict[str, Any]
SCORES = ("all asked", "exact set")


def evaluate(
    store: PictureStore, names: Sequence[tuple[str, str]], other: tuple[str, int], lots: Sequence[Lot]
) -> Figures:
    """The figures of every decoder over the same lots.

    Args:
        store: Where the pictures are.
        names: Name and folder of every decoder, plain decoding first.
        other: Folder and seed shift of plain decoding with other seeds.
        lots: Lots that all of them have drawn.
    """
    plain = _Drawn(store, names[0][1], lots)
    elsewhere = _Drawn(store, other[0], [replace(lot, seed=lot.seed + other[1]) for lot in lots])
    (first, _), *rest = names
    # What another seed alone changes: no decoder can be expected to differ less.
    table = {first: _row(plain, plain, elsewhere), f"{first}, other seeds": _row(elsewhere, plain, plain)}
    table |= {name: _row(_Drawn(store, slug, lots), plain, elsewhere) for name, slug in rest}
    return {"pictures": len(plain.nll), "fingerprint": store.backbone.fingerprint, "decoders": table}


class _Drawn:
    """What one decoder drew, all lots together."""

    def __init__(self, store: PictureStore, slug: str, lots: Sequence[Lot]) -> None:
        figures = [store.figures(slug, lot) for lot in lots]
        costs = [store.cost(slug, lot) for lot in lots]
        self.tokens = torch.cat([store.tokens(slug, lot) for lot in lots])
        self.nll = _double(torch.cat([part["nll"] for part in figures]))
        self.excluded = _double(torch.cat([part["excluded"] for part in figures]))
        self.outcomes = torch.cat([part["outcomes"] for part in figures]).numpy()
        self.features = {kind: _double(torch.cat([part[kind] for part in figures])) for kind in KINDS}
        self.seconds = sum(seconds for seconds, _ in costs) / len(self.nll)
        self.forwards = sum(forwards for _, forwards in costs) / len(costs)

    def score(self, category: str) -> Floats:
        """1 or 0 for every picture; the category must apply to all."""
        return self.outcomes[:, CATEGORIES.index(category)].astype(np.float64)


def _row(drawn: _Drawn, plain: _Drawn, elsewhere: _Drawn) -> Figures:
    row: Figures = {"seconds": round(drawn.seconds, 4), "forwards_a_batch": round(drawn.forwards, 2)}
    for category in SCORES:
        key = category.replace(" ", "_")
        row[key] = estimate(drawn.score(category)).numbers
        row[f"{key}_minus_ar"] = estimate(drawn.score(category) - plain.score(category)).numbers
    row["categories"] = {}
    for index, category in enumerate(CATEGORIES):
        asked = drawn.outcomes[:, index] >= 0
        if asked.any():
            row["categories"][category] = [round(float(drawn.outcomes[asked, index].mean()), 4), int(asked.sum())]
    row["nll"] = estimate(drawn.nll).numbers
    row["nll_minus_ar"] = estimate(drawn.nll - plain.nll).numbers
    row["excluded"] = estimate(drawn.excluded).numbers
    row["equal"] = estimate(_double((drawn.tokens == plain.tokens).double().flatten(1).mean(1))).numbers
    for kind in KINDS:
        centre, spread = plain.features[kind].mean(0), plain.features[kind].std(0) + 1e-6
        x, y = ((side.features[kind] - centre) / spread for side in (drawn, elsewhere))
        found = energy_distance(x, y)
        row[kind] = {"distance": found.distance.numbers, "p": round(found.p, 5)}
    return row


def _double(values: Tensor) -> Floats:
    return values.double().numpy()


def markdown(report: Figures) -> str:
    """The report as a markdown table with a line of what it covers."""
    lines = [
        f"{report['pictures']} pictures a decoder, {report['grid']} codes; {report['check']}.",
        "",
        "| decoder | all asked | difference to AR | exact set | difference to AR | NLL | difference to AR | excluded "
        "| equal | distance: objects | distance: texture |",
        "|---|" + "--:|" * 10,
    ]
    for name, row in report["decoders"].items():
        cells = [name]
        for key in ("all_asked", "exact_set", "nll"):
            cells += [_cell(row[key]), _cell(row[f"{key}_minus_ar"], signed=True)]
        cells += [f"{row[key][0]:.3f}" for key in ("excluded", "equal")]
        cells += [f"{row[kind]['distance'][0]:.3f} (p = {row[kind]['p']:.3f})" for kind in KINDS]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(numbers: Sequence[float], signed: bool = False) -> str:
    style = "+.3f" if signed else ".3f"
    mean, low, high = (format(number, style) for number in numbers)
    return f"{mean} [{low}, {high}]"
