"""Every decoder beside plain decoding, in one process: forwards, seconds, acceptance, costs, memory, likelihood.

Run: ``python -m benchmarks.compare --grid 24x24 16x16 32x32``. The first grid gets every decoder, the others (the
sweep) a core of them; ``--only`` chooses by name, ``--prompts 1 --minutes 2`` makes a short run. Seconds are compared
with plain decoding of the same picture, run before and after every few decoders: ratios are medians over pictures.
Before anything is timed each decoder draws once untimed, which also gives its peak memory.

Results are written as they come. The same command goes on where a run was stopped or killed, and prints the tables.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ssd_core import Backbone, SSDError, load_backbone, load_heads
from ssd_core.cli.values import size
from ssd_core.version import __version__
from ssd_core.writing import write

from .compare_plot import compare_plot
from .compare_report import markdown
from .compare_runs import PROMPTS, Runs, missing, turned
from .decoder_table import PLAIN, Decoder, chosen
from .forward_cost import forward_costs


class Results:
    """The results file: ``machine``, ``rows``, ``memory`` by grid and decoder, ``forward_costs`` by grid."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self.path = path
        self.content: dict[str, Any] = {"machine": machine, "rows": [], "memory": {}, "forward_costs": {}}
        if path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))
            if self.content["machine"] != machine:
                raise SSDError(
                    f"{path} was measured with {self.content['machine']}, this run has {machine}; ratios of the two "
                    "must not be mixed: give --results another folder"
                )

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write(self.path, (json.dumps(self.content, indent=1) + "\n").encode())


def measure(
    backbone: Backbone,
    runs: Runs,
    results: Results,
    tables: dict[tuple[int, int], list[Decoder]],
    prompts: int,
    deadline: float,
) -> None:
    """Fills what is missing in ``results``, prompt by prompt over all grids, until ``time.monotonic()`` is there."""
    content = results.content
    for grid in tables:
        name = f"{grid[0]}x{grid[1]}"
        if name not in content["forward_costs"] and time.monotonic() < deadline:
            content["forward_costs"][name] = [asdict(cost) for cost in forward_costs(backbone, PROMPTS[0], grid)]
            results.save()
    warm: set[tuple[str, tuple[int, int]]] = set()
    for number, prompt in enumerate(PROMPTS[:prompts]):
        for grid, table in tables.items():
            left = missing(content["rows"], turned(table[1:], number * 5), prompt, number, grid)
            for decoder in [table[0], *left] if left else []:
                if (decoder.name, grid) not in warm:
                    if not warm:
                        runs.draw(decoder, prompt, 0, grid)  # a process's first run fills pools and counts too much
                    peaks = content["memory"].setdefault(f"{grid[0]}x{grid[1]}", {})
                    peak = runs.peak(decoder, prompt, grid)
                    peaks.setdefault(decoder.name, peak)
                    warm.add((decoder.name, grid))
                if time.monotonic() >= deadline:
                    return
            if not left:
                continue
            known = not missing(content["rows"], table[:1], prompt, number, grid)
            for rows in runs.rows(table[0], left, prompt, number, grid):
                content["rows"] += [row for row in rows if not (known and row["decoder"] == PLAIN)]
                results.save()
                print(f"{grid[0]}x{grid[1]} {prompt!r}: {rows[-1]['decoder']}", flush=True)
                if time.monotonic() >= deadline:
                    return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--grid", nargs="+", type=size, default=[(24, 24)], metavar="ROWSxCOLS", help="the first gets all"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="decoders by their name or a part of it")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many of the built-in prompts to use")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="measure so long (0: only report)")
    parser.add_argument("--results", type=Path, default=Path("out"), help="folder for compare.json, .md and .png")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    try:
        run(options)
    except SSDError as error:
        parser.exit(2, f"error: {error}\n")


def run(options: argparse.Namespace) -> None:
    """Measures what is missing and writes the report."""
    deadline = time.monotonic() + options.minutes * 60
    torch.set_num_threads(options.threads)
    backbone = load_backbone(device=options.device)
    heads = load_heads(backbone)
    machine = {
        "threads": options.threads,
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "dtype": str(backbone.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "version": __version__,
        "fingerprint": backbone.fingerprint,
        "heads": heads.digest(),
    }
    results = Results(options.results / "compare.json", machine)
    grids = [backbone.check_grid(grid) for grid in options.grid]
    table = chosen(options.only)
    core = [decoder for decoder in table if decoder.core or options.only]
    tables = {grid: core if number else table for number, grid in enumerate(grids)}
    measure(backbone, Runs(backbone, heads), results, tables, options.prompts, deadline)
    if not results.content["rows"]:
        raise SSDError("nothing is measured yet; give it more --minutes")
    text = markdown(results.content)
    print(text)
    write(results.path.with_suffix(".md"), (text + "\n").encode())
    compare_plot(results.content).save(results.path.with_suffix(".png"))


if __name__ == "__main__":
    main()
