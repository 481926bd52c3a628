"""Decoders on large grids with flat distributions, against the field's exact law (``benchmarks.field_backbone``).

Run: ``python -m benchmarks.field``. The embedded model is sure of most codes and its largest grid is 32x32; here next
to nothing is sure, and grids may be as large as Lumina-mGPT's (48x48) and Emu3's (90x90). For each decoder: forwards,
tokens a forward, codes equal to plain decoding's, the mean entropy of the laws that its codes were drawn from, and the
*gap*: mean of -log p less that entropy. The gap is 0 in expectation for every decoder that draws from the law, whatever
it draws; after the sign stands what chance does to it (95 %).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssd_core import AR, Jacobi, Rolling, Rounds, Schedule, SpatialHeads, generate
from ssd_core.cli.values import size
from ssd_core.writing import write

from .field_backbone import FieldBackbone, field_heads

Row = dict[str, Any]


def schedules() -> dict[str, Schedule]:
    """What is measured, plain decoding first."""
    exact = {f"exact, {rows} row{'s' * (rows > 1)}": Rolling(rows) for rows in (1, 2, 3, 4, 6, 8)}
    tolerant = {
        f"tolerance {tolerance:g}, {rows} row{'s' * (rows > 1)}": Rolling(rows, tolerance=tolerance)
        for rows in (1, 3) for tolerance in (1.0, 4.0)
    }  # fmt: skip
    rounds = {f"rounds r={rounds}": Rounds(rounds) for rounds in (1, 2, 4, 6, 10)}
    return {"plain AR": AR(), **exact, "SJD, 64 tokens": Jacobi(64), **tolerant, **rounds}


def measure(backbone: FieldBackbone, heads: SpatialHeads, table: dict[str, Schedule], seeds: int) -> Iterator[Row]:
    """One row a schedule, over the same seeds."""
    plain: list[Tensor] = []
    for name, schedule in table.items():
        used = None if isinstance(schedule, AR | Jacobi) else heads
        drawn = [generate(backbone, "", heads=used, schedule=schedule, seed=seed) for seed in range(seeds)]
        pictures = [one.tokens[0] for one in drawn]
        plain = plain or pictures
        excess, entropy = zip(*(surprise(backbone, codes) for codes in pictures), strict=True)
        gaps = torch.cat(excess)
        forwards = [one.report.total_forwards for one in drawn]
        yield {
            "decoder": name,
            "pictures": seeds,
            "forwards": statistics.fmean(forwards),
            "fewer": backbone.stream(backbone.default_grid).codes / statistics.fmean(forwards),
            "tokens_a_forward": sum(one.report.fed_tokens for one in drawn) / sum(forwards),
            "equal": statistics.fmean(
                float((own == first).double().mean()) for own, first in zip(pictures, plain, strict=True)
            ),
            "entropy": statistics.fmean(entropy),
            "gap": float(gaps.mean()),
            "gap_error": 1.96 * float(gaps.std()) / len(gaps) ** 0.5,
        }


def surprise(backbone: FieldBackbone, codes: Tensor) -> tuple[Tensor, float]:
    """-log p less its law's entropy of every code [rows * cols], and the mean entropy, in nats."""
    law = backbone.law(codes)
    entropy = -(law.exp() * law).sum(-1)
    return (-law.gather(-1, codes[..., None])[..., 0] - entropy).flatten(), float(entropy.mean())


def markdown(results: dict[str, list[Row]]) -> str:
    parts = []
    for title, rows in results.items():
        parts += [
            f"### {title}", "",
            "| decoder | forwards | × fewer | tokens a forward | equal codes | entropy | gap |",
            "|---|--:|--:|--:|--:|--:|--:|",
            *(_line(row) for row in rows), "",
        ]  # fmt: skip
    return "\n".join(parts).rstrip()


def _line(row: Row) -> str:
    cells = [
        row["decoder"], f"{row['forwards']:.0f}", f"{row['fewer']:.1f}", f"{row['tokens_a_forward']:.0f}",
        f"{row['equal']:.3f}", f"{row['entropy']:.2f}", f"{row['gap']:+.3f} ± {row['gap_error']:.3f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", nargs="+", type=size, default=[(48, 48)], metavar="ROWSxCOLS")
    parser.add_argument("--strength", nargs="+", type=float, default=[10.0, 15.0, 20.0])
    parser.add_argument("--seeds", type=int, default=2, help="pictures a decoder")
    parser.add_argument("--results", type=Path, default=Path("out"), help="folder for field.json and field.md")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    results: dict[str, list[Row]] = {}
    options.results.mkdir(parents=True, exist_ok=True)
    for height, width in options.grid:
        for strength in options.strength:
            backbone = FieldBackbone(height, width, strength)
            rows = results.setdefault(f"{height}x{width}, strength {strength:g}", [])
            for row in measure(backbone, field_heads(backbone), schedules(), options.seeds):
                rows.append(row)
                print(_line(row), flush=True)
                write(options.results / "field.json", (json.dumps(results, indent=1) + "\n").encode())
    text = markdown(results)
    print(text)
    write(options.results / "field.md", (text + "\n").encode())


if __name__ == "__main__":
    main()
