"""The plots of ``benchmarks.compare``."""

from __future__ import annotations

from typing import Any

from PIL import Image

from .compare_report import codes_of, summary
from .compare_runs import Row
from .decoder_table import PLAIN, decoders
from .plot import Axis, Chart, Line, charts_page

ROUNDS_SHOWN = ("exact, 1 row", "exact, 3 rows", "exact, 3 rows, no heads", "rounds r=6, separate", "SJD, 32 tokens")


def compare_plot(content: dict[str, Any]) -> Image.Image:
    """Speed against likelihood, acceptance by check, cost of wide forwards and, for several grids, growth."""
    table = summary(content["rows"])
    grid, figures = next(iter(table.items()))
    charts = [
        _trade(f"Speed against likelihood, {grid}", figures, "faster", "times faster than plain AR (seconds)"),
        _trade(f"Forwards against likelihood, {grid}", figures, "fewer", "times fewer forwards than plain AR"),
        _by_round(grid, figures),
    ]
    if content["forward_costs"]:
        charts.append(_widths(content["forward_costs"]))
    if len(table) > 1:
        charts += [
            _growth(table, "forwards", "forwards a picture"),
            _growth(table, "seconds", "seconds a picture"),
        ]
    return charts_page(charts)


def _trade(title: str, figures: dict[str, Row], key: str, label: str) -> Chart:
    families: dict[str, list[tuple[float, float, float]]] = {}
    for decoder in decoders():
        if decoder.name in figures:
            row = figures[decoder.name]
            families.setdefault(decoder.family, []).append((decoder.value, row[key], row["nll"]))
    lines = []
    for name, points in families.items():
        labels = [f"{value:g}" for value, _, _ in sorted(points)] if len(points) > 1 else []
        lines.append(Line(name, [(x, y) for _, x, y in sorted(points)], labels))
    return Chart(title, Axis(label), Axis("NLL under plain AR", log=True), lines)


def _by_round(grid: str, figures: dict[str, Row]) -> Chart:
    lines = [
        Line(name, [(number + 1, share) for number, share in enumerate(figures[name]["by_round"][:10])])
        for name in ROUNDS_SHOWN
        if name in figures
    ] or [
        Line(name, [(number + 1, share) for number, share in enumerate(row["by_round"][:10])])
        for name, row in figures.items()
        if row["by_round"]
    ]
    return Chart(f"Acceptance by check, {grid}", Axis("check of a code"), Axis("share kept", low=0.0, high=1.0), lines)


def _widths(costs: dict[str, list[Row]]) -> Chart:
    lines = [
        Line(grid, [(cost["width"], cost["seconds"] / own[0]["seconds"]) for cost in own])
        for grid, own in costs.items()
    ]
    widest = max(cost["width"] for own in costs.values() for cost in own)
    lines.append(Line("K single forwards", [(1, 1), (widest, widest)], dashed=True))
    return Chart("A forward over K tokens", Axis("K", log=True), Axis("in single-token forwards", log=True), lines)


def _growth(table: dict[str, dict[str, Row]], key: str, label: str) -> Chart:
    grids = sorted(table, key=codes_of)
    shared = [name for name in table[grids[0]] if all(name in table[grid] for grid in grids)]
    lines = [Line(name, [(codes_of(grid), table[grid][name][key]) for grid in grids]) for name in shared]
    plain = table[grids[0]][PLAIN][key]
    if key == "forwards":
        root = [(codes_of(grid), plain / 8 * (codes_of(grid) / codes_of(grids[0])) ** 0.5) for grid in grids]
        lines.append(Line("slope of the side n", root, dashed=True))
    return Chart(label.capitalize(), Axis("codes of the picture", log=True), Axis(label, log=True), lines)
