"""`bench`: its options, as argparse reads them and as the code gets them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import SSDError
from ..graphs import GRAPHS, GraphsChoice
from .bench_decoders import NAMES, BenchDecoder, read_decoder
from .values import batch, not_negative, positive, size, threads, whole

EPILOG = f"""\
PROMPTS is a JSONL file, one object with a "prompt" a line (GenEval's evaluation_metadata.jsonl is one), or a folder of
.txt files, one prompt each (DPG-Bench's prompts). A JSONL line for dpg also needs an "id", the picture's file name.

Each decoder gets a folder in DIR:
  geneval   DIR/DECODER/00000/metadata.jsonl and samples/0000.png ...; the line of PROMPTS, and N pictures
  dpg       DIR/DECODER/ID.png, one picture of 2x2 (N = 4) or of one
and a file DIR/timings-DECODER.json. What is there already is not drawn again.

DPG-Bench's dist_eval.sh takes pictures of 2x2 unless told otherwise: with --images 1 run it with PIC_NUM=1, else it
also scores three empty squares of each. It writes its results as text files into DIR/DECODER, where its next run takes
them for pictures, unless the line of compute_dpg_bench.py in it gets --res-path FILE.txt.

decoders: {", ".join(NAMES)};
  those named -paper need heads, as mtp does; the others draft without them too
  settings of a schedule follow a colon: rolling:window_rows=2,tolerance=4  rounds:rounds=2,commit=separate
  sjd:window_tokens=64  rolling:drafts=copy (who drafts: auto, heads, left, copy, random)

examples:
  python -m ssd_core bench evaluation_metadata.jsonl --backbone models/ar_backbones/Janus-Pro-7B --device cuda \\
      --heads heads.safetensors --decoders ar exact janus-paper -o geneval/
  python -m ssd_core bench ELLA/dpg_bench/prompts --layout dpg --backbone models/ar_backbones/Janus-Pro-7B -o dpg/
"""

Layout = Literal["geneval", "dpg"]


@dataclass(frozen=True)
class BenchOptions:
    """One checked `bench` call."""

    prompts: Path
    output: Path
    layout: Layout
    decoders: tuple[BenchDecoder, ...]
    images: int
    batch: int
    seed: int
    limit: int | None
    size: tuple[int, int] | None
    negative: str
    guidance: float | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    model: str
    heads: str | None
    device: str
    dtype: str
    threads: int | None
    graphs: GraphsChoice
    json: bool


def add_bench(commands: Any) -> None:
    """Adds `bench` to the parser's commands."""
    command = commands.add_parser(
        "bench",
        help="draw the pictures that GenEval and DPG-Bench evaluate, by several decoders, with timings",
        description="Draw the pictures that GenEval and DPG-Bench evaluate, by several decoders in turn, with timings.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = command.add_argument
    add("prompts", type=Path, metavar="PROMPTS", help="a JSONL file, or a folder of .txt files")
    add("-o", "--output", type=Path, default=Path("bench"), metavar="DIR", help="where to (default: bench/)")
    add("--layout", choices=("geneval", "dpg"), default="geneval", help="folders as which evaluator expects them")
    add("--decoders", nargs="+", default=["ar", "exact"], metavar="NAME", help="default: ar exact")
    add("--images", type=whole(1, 10_000), default=4, metavar="N", help="pictures a prompt (default: 4)")
    add("--batch", type=batch, default=1, metavar="N", help="pictures at once: more take less time each, but "
        "their timings are a batch's (default: 1)")  # fmt: skip
    add("--seed", type=whole(0, 2**64 - 1), default=0, help="picture k of prompt i uses seed + i*N + k (default: 0)")
    add("--limit", type=whole(1), metavar="N", help="only the first N prompts")
    add("--size", type=size, metavar="ROWSxCOLS", help="size in codes (default: the model's own)")
    add("--negative", default="", metavar="PROMPT", help="what to steer away from; needs --cfg above 1")
    add("--cfg", dest="guidance", type=not_negative, metavar="W", help="guidance (default: the model's own)")
    add("--temperature", type=not_negative, metavar="T", help="default: the model's own")
    add("--top-k", type=whole(0), metavar="K", help="default: the model's own")
    add("--top-p", type=positive, metavar="P", help="default: the model's own")
    add("--model", "--backbone", default="emoji-scenes", metavar="NAME|DIR", help="model name or folder")
    add("--heads", metavar="FILE|none", help="heads file, or none (default: the model's own)")
    add("--device", default="cpu", help="torch device (default: cpu)")
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto", help="default: auto")
    add("--threads", type=threads, metavar="N", help="CPU threads (default: measured)")
    add("--graphs", choices=GRAPHS, default="auto", help="CUDA graphs, where the device has them (default: auto)")
    add("--json", action="store_true", help="print the summary as one JSON object")


def bench_options(values: dict[str, Any]) -> BenchOptions:
    """The options of a parsed `bench` call. Raises SSDError for combinations that make no sense."""
    values["decoders"] = tuple(read_decoder(text) for text in values["decoders"])
    options = BenchOptions(**values)
    folders = [decoder.folder for decoder in options.decoders]
    twice = [name for name in folders if folders.count(name) > 1]
    if twice:
        raise SSDError(f"--decoders: got {twice[0]} twice, expected each decoder once; drop one")
    if options.layout == "dpg" and options.images not in (1, 4):
        raise SSDError(
            f"--images: got {options.images}, expected 4 or 1 with --layout dpg, whose evaluator cuts pictures of 2x2"
        )
    return options
