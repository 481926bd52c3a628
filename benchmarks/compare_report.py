"""Tables of ``benchmarks.compare`` from its rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from .compare_runs import Row
from .decoder_table import PLAIN

MEDIANS = ("forwards", "fewer", "seconds", "faster", "draft_steps_a_row", "tokens_a_forward")
RANGES = ("forwards", "faster")
MEANS = ("equal", "nll", "excluded")


def summary(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Grid such as "24x24" -> decoder -> figures: medians over pictures, with the least and the most, and means for
    likelihood, equality and acceptance."""
    table: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        grid = "{}x{}".format(*row["grid"])
        table.setdefault(grid, {}).setdefault(row["decoder"], []).append(row)
    return {grid: {name: _figures(own) for name, own in found.items()} for grid, found in table.items()}


def _figures(rows: Sequence[Row]) -> Row:
    figures: Row = {key: statistics.median(row[key] for row in rows) for key in MEDIANS}
    figures |= {f"{key}_range": [pick(row[key] for row in rows) for pick in (min, max)] for key in RANGES}
    figures |= {key: statistics.fmean(row[key] for row in rows) for key in MEANS}
    accepted = [row["acceptance"] for row in rows if row["acceptance"] is not None]
    figures["acceptance"] = statistics.fmean(accepted) if accepted else None
    longest = max(len(row["by_round"]) for row in rows)
    figures["by_round"] = [
        statistics.fmean(row["by_round"][i] for row in rows if len(row["by_round"]) > i) for i in range(longest)
    ]
    directions = sorted({name for row in rows for name in row["by_direction"]})
    figures["by_direction"] = {
        name: statistics.fmean(row["by_direction"][name] for row in rows if name in row["by_direction"])
        for name in directions
    }
    figures["ar_spread"] = statistics.median(row["ar_spread"] for row in rows)
    figures["pictures"] = len(rows)
    return figures


def markdown(content: dict[str, Any]) -> str:
    """All tables of a results file."""
    parts = []
    table = summary(content["rows"])
    for grid, figures in table.items():
        parts += [f"### {grid} codes", "", *_decoders(figures, content["memory"].get(grid, {})), ""]
        parts += ["Share of drafts that the first check keeps, by kind, and that later checks keep:", ""]
        parts += [*_acceptance(figures), ""]
    for grid, costs in content["forward_costs"].items():
        parts += [f"### A forward over K tokens, {grid} codes", "", *_forward_costs(costs), ""]
    if len(table) > 1:
        parts += ["### Growth with the grid", "", *_growth(table), ""]
    return "\n".join(parts).rstrip()


def _decoders(figures: dict[str, Row], memory: dict[str, int | None]) -> list[str]:
    lines = [
        "| decoder | forwards | × fewer | seconds | × faster | accepted | drafting, AR steps a row | equal codes | NLL "
        "| excluded | peak memory, MB | pictures |",
        "|---|" + "--:|" * 11,
    ]
    for name, row in figures.items():
        peak = memory.get(name)
        cells = [
            name,
            f"{row['forwards']:.0f}{_range(row['forwards_range'], '.0f')}",
            f"{row['fewer']:.1f}",
            f"{row['seconds']:.2f}",
            f"{row['faster']:.2f}{_range(row['faster_range'], '.1f')}",
            _share(row["acceptance"]),
            f"{row['draft_steps_a_row']:.2f}",
            f"{row['equal']:.3f}",
            f"{row['nll']:.3f}",
            f"{row['excluded']:.3f}",
            "–" if peak is None else f"{peak / 2**20:.0f}",
            str(row["pictures"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    spreads = [row["ar_spread"] for name, row in figures.items() if name != PLAIN]
    if spreads:
        lines += [
            "",
            f"Two runs of plain decoding around a decoder differed by {statistics.median(spreads):.0%} (median).",
        ]
    return lines


def _acceptance(figures: dict[str, Row]) -> list[str]:
    drafted = {name: row for name, row in figures.items() if row["by_round"]}
    kinds = sorted({kind for row in drafted.values() for kind in row["by_direction"]})
    rounds = range(1, min(7, max((len(row["by_round"]) for row in drafted.values()), default=1)))
    lines = [
        "| decoder | " + " | ".join([*kinds, *(f"check {number + 1}" for number in rounds)]) + " |",
        "|---|" + "--:|" * (len(kinds) + len(rounds)),
    ]
    for name, row in drafted.items():
        cells = [_share(row["by_direction"].get(kind)) for kind in kinds]
        cells += [_share(row["by_round"][number] if number < len(row["by_round"]) else None) for number in rounds]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def _forward_costs(costs: Sequence[Row]) -> list[str]:
    one = costs[0]["seconds"]
    lines = ["| K | ms | in single-token forwards | a token | share of logits |", "|--:|--:|--:|--:|--:|"]
    for cost in costs:
        relative = cost["seconds"] / one
        lines.append(
            f"| {cost['width']} | {cost['seconds'] * 1000:.1f} | {relative:.2f} | {relative / cost['width']:.3f} "
            f"| {cost['logits_seconds'] / cost['seconds']:.2f} |"
        )
    return lines


def _growth(table: dict[str, dict[str, Row]]) -> list[str]:
    grids = sorted(table, key=codes_of)
    shared = [name for name in table[grids[0]] if all(name in table[grid] for grid in grids)]
    lines = [
        "| decoder | " + " | ".join(f"{grid}: forwards, seconds, × faster" for grid in grids) + " |",
        "|---|" + "--:|" * len(grids),
    ]
    for name in shared:
        rows = [table[grid][name] for grid in grids]
        cells = [f"{row['forwards']:.0f}, {row['seconds']:.2f} s, {row['faster']:.1f}" for row in rows]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def codes_of(grid: str) -> int:
    """How many codes a grid such as "24x24" has."""
    rows, cols = grid.split("x")
    return int(rows) * int(cols)


def _range(ends: Sequence[float], style: str) -> str:
    """The least and the most in brackets, unless they are one."""
    low, high = (format(end, style) for end in ends)
    return f" ({low}–{high})" if low != high else ""


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
