"""What a decoder costs in quality: prompt score, likelihood and law of its pictures, beside plain decoding's.

Run: ``python -m benchmarks.quality``. Every decoder draws the same prompts with the same seeds, in an order that keeps
their numbers equal, and what is drawn stays in ``--folder``: a killed run goes on where it was, ``--minutes`` stops it
in good order, and the report covers what all decoders have. Measured for each:

* *all asked*, *exact set*: the objective prompt score of ``benchmarks.emoji_score``;
* *NLL*: mean of -log p a token under plain decoding's law before top-k and top-p. Less is not better: it means
  likelier pictures. *Excluded*: share of tokens that top-k and top-p exclude, so plain decoding never draws them;
* *differences to AR*: of the same prompt and seed, so that the intervals are narrow;
* *equal*: share of codes that plain decoding draws too for this seed;
* *distance*: energy distance to plain decoding with other seeds (``benchmarks.two_sample``) on what is in the pictures
  and on their texture, with the chance of one as large if both had one law.

The row of plain decoding with other seeds is the noise floor of every column.

Brackets are 95 % bootstrap intervals over pictures. Plain decoding's pictures are drawn in exact mode, which is faster
and gives the same codes; a few batches are drawn again by plain decoding to prove it (``--plain``: draw all so).
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ssd_core import AR, Rolling, SSDError, load_backbone, load_heads
from ssd_core.cli.values import size
from ssd_core.writing import write

from .decoder_table import PLAIN, Decoder, chosen
from .emoji_score import draw_specs, load_detector
from .picture_store import Lot, PictureStore
from .quality_plot import contact_sheet, quality_plot
from .quality_report import evaluate, markdown

DEFAULT = (
    "tolerance 1, 1 row", "tolerance 4, 1 row", "tolerance 10, 1 row", "rounds r=0", "rounds r=1", "rounds r=2",
    "rounds r=4", "rounds r=6", "rounds r=2, separate", "exact in law, 3 rows, maximal",
    "SJD, 32 tokens", "1D-MTP, 5 tokens, r=1",
)  # fmt: skip
"""Measured by default, besides plain decoding. Exact mode is left out: its pictures are plain decoding's."""

OTHER_SEEDS = 1_000_000
CHECKED = 4
"""Lots that plain decoding draws again where exact mode stands for it."""
SHEET_COLUMNS = 12


@dataclass(frozen=True)
class Job:
    """One set of pictures to draw: by whom, and with seeds shifted by how much."""

    decoder: Decoder
    shift: int = 0

    @property
    def slug(self) -> str:
        return self.decoder.slug

    def lot(self, lot: Lot) -> Lot:
        return replace(lot, seed=lot.seed + self.shift)


def part_of(text: str) -> tuple[int, int]:
    """`2/3`: which part, and of how many; for argparse's `type`."""
    match = re.fullmatch(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", text)
    if match is None or int(match.group(1)) > int(match.group(2)):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected I/N with I from 1 to N, such as 1/2 and 2/2")
    return int(match.group(1)), int(match.group(2))


def lots_of(count: int, batch: int) -> list[Lot]:
    """The evaluation set in batches; picture i has seed i."""
    specs = draw_specs(count)
    return [Lot(start // batch, specs[start : start + batch], start) for start in range(0, count, batch)]


def jobs_of(table: Sequence[Decoder], plain: bool) -> tuple[list[Job], Job, Job]:
    """The decoders' own sets; plain decoding with other seeds; the check that exact mode stands for plain decoding."""
    slow = Decoder(PLAIN, PLAIN, 0, AR(), heads=False)
    quick = slow if plain else Decoder(PLAIN, PLAIN, 0, Rolling(1))
    jobs = [Job(quick if d.name == PLAIN else d) for d in table]
    other, check = replace(quick, name=f"{PLAIN}, other seeds"), replace(slow, name=f"{PLAIN}, check")
    return jobs, Job(other, OTHER_SEEDS), Job(check)


def spread(lots: Sequence[Lot]) -> list[Lot]:
    """A few lots from all over the set, to be drawn again."""
    return list(lots[:: -(-len(lots) // CHECKED)])


def draw(store: PictureStore, jobs: Sequence[Job], lots: Sequence[Lot], minutes: float) -> None:
    """Draws lot by lot, every decoder's in turn, until all are there or the time is up."""
    start = time.monotonic()
    for done, lot in enumerate(lots, start=1):
        for job in jobs:
            if time.monotonic() - start >= minutes * 60:
                return
            store.fill(job.decoder, job.lot(lot))
        print(f"lot {done} of {len(lots)} drawn, {(time.monotonic() - start) / 60:.1f} min", flush=True)


def check_exact(store: PictureStore, plain: Job, check: Job, lots: Sequence[Lot]) -> str:
    """Draws lots again by plain decoding and says that exact mode drew the same. Raises SSDError when it did not."""
    equal = []
    for lot in lots:
        store.fill(check.decoder, lot)
        equal += (store.tokens(plain.slug, lot) == store.tokens(check.slug, lot)).flatten(1).all(1).tolist()
    if not all(equal):
        raise SSDError(
            f"exact mode drew {sum(equal)} of {len(equal)} pictures as plain decoding does, expected all; run "
            "with --plain and another --folder"
        )
    return f"plain decoding's were drawn in exact mode, and {len(equal)} of them again by plain decoding: equal codes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=504, help="pictures a decoder: prompts of the evaluation set")
    parser.add_argument("--grid", type=size, default=(24, 24), metavar="ROWSxCOLS", help="size in codes")
    parser.add_argument("--batch", type=int, default=8, help="pictures drawn together")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="decoders by their name or a part of it")
    parser.add_argument("--plain", action="store_true", help="draw plain decoding's pictures by plain decoding")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop drawing after so long (0: only report)"
    )
    parser.add_argument(
        "--share", type=part_of, default=(1, 1), metavar="I/N", help="draw every Nth lot, to run N processes at once"
    )
    parser.add_argument("--folder", type=Path, default=Path("out/quality"), help="where drawn pictures stay")
    parser.add_argument("--results", type=Path, default=Path("out"), help="folder for JSON, markdown, plot and sheet")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    try:
        run(options)
    except SSDError as error:
        parser.exit(2, f"error: {error}\n")


def run(options: argparse.Namespace) -> None:
    """Draws what is missing and writes the report."""
    torch.set_num_threads(options.threads)
    part, parts = options.share
    backbone = load_backbone(device=options.device, dtype="float32")
    store = PictureStore(
        options.folder, backbone, load_heads(backbone), load_detector(), backbone.check_grid(options.grid)
    )
    table = [d for d in chosen(options.only) if options.only or d.name in (PLAIN, *DEFAULT)]
    jobs, other, check = jobs_of(table, options.plain)
    lots = lots_of(options.count, options.batch)
    draw(store, [*jobs, other], lots[part - 1 :: parts], options.minutes)
    complete = [lot for lot in lots if all(store.has(job.decoder, job.lot(lot)) for job in (*jobs, other))]
    if not complete:
        raise SSDError("nothing is drawn by all decoders yet; give it more --minutes")
    names = [(decoder.name, job.slug) for decoder, job in zip(table, jobs, strict=True)]
    report = evaluate(store, names, (other.slug, OTHER_SEEDS), complete)
    if not options.plain:
        for name in (PLAIN, other.decoder.name):  # exact mode's cost is not plain decoding's
            del report["decoders"][name]["seconds"], report["decoders"][name]["forwards_a_batch"]
    report["check"] = "all by plain decoding" if options.plain else check_exact(store, jobs[0], check, spread(complete))
    report["grid"] = "{}x{}".format(*options.grid)
    text = markdown(report)
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    base = options.results / f"quality-{report['grid']}"
    write(base.with_suffix(".json"), (json.dumps(report, indent=1) + "\n").encode())
    write(base.with_suffix(".md"), (text + "\n").encode())
    quality_plot(report).save(base.with_suffix(".png"))
    sheet = contact_sheet(store, names, complete, SHEET_COLUMNS)
    sheet.save(base.with_name(base.name + "-sheet.jpg"), quality=88)


if __name__ == "__main__":
    main()
