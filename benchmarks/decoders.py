"""Plain decoding against speculative settings, in one process, alternated: forwards, seconds, acceptance, likelihood.

Run: ``python -m benchmarks.decoders``. Each prompt is drawn by every decoder in turn, in an order that moves on by one
with each picture, before the next prompt comes: all decoders meet the same noise of the machine. Ratios are medians
over pictures of the ratio to plain decoding of the same prompt and seed. ``--json FILE`` writes all figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ssd_core import (
    AR,
    Backbone,
    Generation,
    Rolling,
    Rounds,
    Schedule,
    SpatialHeads,
    generate,
    load_backbone,
    load_heads,
)

from .likelihood import negative_log_likelihood

PROMPTS = (
    "a cat on grass", "two apples on a beach", "a dog left of a car", "a red heart on a blue background",
    "three mushrooms on grass", "a rocket at night", "a fish underwater", "four stars at night",
    "a house and a tree on grass", "a duck", "a yellow balloon in the sky", "a car right of a house",
)  # fmt: skip

PLAIN = "plain AR"
Row = dict[str, Any]


def decoders(heads: SpatialHeads) -> dict[str, tuple[Schedule, SpatialHeads | None]]:
    """The settings that are compared."""
    table: dict[str, tuple[Schedule, SpatialHeads | None]] = {PLAIN: (AR(), None)}
    for rows in (1, 2, 3, 4, 6):
        table[f"rolling exact, {rows} rows"] = (Rolling(window_rows=rows), heads)
    for tokens in (8, 16):
        table[f"rolling exact, {tokens} tokens"] = (Rolling(window_tokens=tokens), heads)
    for rows in (1, 3):
        table[f"rolling exact, {rows} rows, no heads"] = (Rolling(window_rows=rows), None)
    for rows in (1, 2, 3):
        for tolerance in (1.0, 4.0):
            name = f"rolling, {rows} rows, tolerance {tolerance:g}"
            table[name] = (Rolling(window_rows=rows, tolerance=tolerance), heads)
    table["rolling, 3 rows, tolerance 10"] = (Rolling(window_rows=3, tolerance=10.0), heads)
    table["rolling, 3 rows, maximal coupling"] = (Rolling(window_rows=3, coupling="maximal"), heads)
    for rounds in (1, 2, 3):
        table[f"rounds, fused, r={rounds}"] = (Rounds(rounds=rounds), heads)
    for rounds in (0, 1, 2):
        table[f"rounds, published, r={rounds}"] = (Rounds(rounds=rounds, commit="separate"), heads)
    table["rounds, fused, r=2, Gumbel"] = (Rounds(rounds=2, coupling="gumbel"), heads)
    return table


def measure(
    backbone: Backbone, table: dict[str, tuple[Schedule, SpatialHeads | None]], prompts: Sequence[str],
    grid: tuple[int, int], repeat: int,
) -> dict[str, list[Row]]:  # fmt: skip
    """Runs every decoder on every prompt, ``repeat`` seeds each; one row of figures per picture."""
    rows: dict[str, list[Row]] = {name: [] for name in table}
    names = list(table)
    for name in (PLAIN, names[-1]):  # warm-up
        generate(backbone, prompts[0], heads=table[name][1], schedule=table[name][0], grid=grid)
    for index, prompt in enumerate(prompts):
        for turn in range(repeat):
            first = (index * repeat + turn) % len(names)
            drawn: dict[str, Generation] = {}
            for name in names[first:] + names[:first]:
                schedule, heads = table[name]
                drawn[name] = generate(
                    backbone, prompt, heads=heads, schedule=schedule, seed=1000 * turn + index, grid=grid
                )
            for name, result in drawn.items():
                likelihood = negative_log_likelihood(backbone, result.tokens, [prompt], backbone.default_sampling)
                rows[name].append(_figures(result, drawn[PLAIN], float(likelihood)))
    return rows


def _figures(drawn: Generation, plain: Generation, nll: float) -> Row:
    seconds = drawn.report.seconds["total"] - drawn.report.seconds["pixels"]
    plain_seconds = plain.report.seconds["total"] - plain.report.seconds["pixels"]
    return {
        "forwards": drawn.report.total_forwards,
        "fewer": plain.report.total_forwards / drawn.report.total_forwards,
        "seconds": seconds,
        "faster": plain_seconds / seconds,
        "acceptance": drawn.report.acceptance,
        "equal": float((drawn.tokens == plain.tokens).float().mean()),
        "nll": nll,
    }


def summary(rows: dict[str, list[Row]]) -> list[Row]:
    """Medians (means for likelihood and equal tokens) per decoder."""
    table = []
    for name, figures in rows.items():
        middle = {key: statistics.median(f[key] for f in figures) for key in ("forwards", "fewer", "seconds", "faster")}
        means = {key: statistics.fmean(f[key] for f in figures) for key in ("equal", "nll")}
        accepted = [f["acceptance"] for f in figures if f["acceptance"] is not None]
        acceptance = statistics.fmean(accepted) if accepted else None
        table.append({"decoder": name, **middle, **means, "acceptance": acceptance, "pictures": len(figures)})
    return table


def markdown(table: list[Row]) -> str:
    """The summary as a markdown table."""
    lines = [
        "| decoder | forwards | × fewer | seconds | × faster | accepted | equal tokens | NLL |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in table:
        accepted = "–" if row["acceptance"] is None else f"{row['acceptance']:.2f}"
        lines.append(
            f"| {row['decoder']} | {row['forwards']:.0f} | {row['fewer']:.1f} | {row['seconds']:.2f} "
            f"| {row['faster']:.1f} | {accepted} | {row['equal']:.3f} | {row['nll']:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many of the built-in prompts to use")
    parser.add_argument("--repeat", type=int, default=1, help="seeds a prompt")
    parser.add_argument("--grid", default="24x24", help="rows x columns in codes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="only decoders whose name contains this text (and plain AR)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    backbone = load_backbone()
    heads = load_heads(backbone)
    rows, cols = (int(part) for part in options.grid.split("x"))
    table = {n: d for n, d in decoders(heads).items() if options.only in n or n == PLAIN}
    figures = measure(backbone, table, PROMPTS[: options.prompts], (rows, cols), options.repeat)
    result = summary(figures)
    print(markdown(result))
    if options.json:
        versions = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        content = {"grid": [rows, cols], "threads": options.threads, "versions": versions, "decoders": result}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
