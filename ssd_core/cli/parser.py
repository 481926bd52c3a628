"""The options and their value checks, as argparse needs them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from .. import __version__
from ..drafts import DRAFTS
from ..errors import SSDError
from ..graphs import GRAPHS
from ..hub import PUBLISHED
from .bench_options import add_bench
from .distill_options import add_distill
from .values import batch as _batch
from .values import real as _real
from .values import size as _size
from .values import threads as _threads
from .values import whole as _whole

DEFAULT_MODEL = "emoji-scenes"
MAX_SEED = 2**64 - 1

EPILOG = """\
examples:
  python -m ssd_core generate "two apples on a beach"
  python -m ssd_core generate "a cat" "a dog" --seed 7 -o pictures/
  python -m ssd_core generate "a red heart" --compare
  python -m ssd_core generate "a duck" --decoder sjd --jacobi-window 64 --drafts left --compare
  python -m ssd_core words
  python -m ssd_core download janus-pro-1b
  python -m ssd_core inspect models/ar_backbones/Janus-Pro-1B
  python -m ssd_core generate "a red cat" --backbone models/ar_backbones/Janus-Pro-1B --device cuda
  python -m ssd_core convert vqgan.ckpt -o models/Lumina-mGPT-7B-768/vqgan.safetensors
  python -m ssd_core distill --help
  python -m ssd_core bench prompts.jsonl --decoders ar exact rolling:tolerance=4 -o pictures/
"""


class _Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one SSDError instead of a usage text and an exit."""

    def error(self, message: str) -> NoReturn:
        raise SSDError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; `command` names the chosen one."""
    parser = _Parser(
        prog="python -m ssd_core",
        description="Draw pictures with an autoregressive image model, sped up by Spatial Speculative Decoding.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_generate(commands)
    words = commands.add_parser("words", help="list the words that the embedded model knows", allow_abbrev=False)
    words.add_argument("--model", default=DEFAULT_MODEL, help="model name or folder")
    words.add_argument("--json", action="store_true", help="print a JSON list")
    convert = commands.add_parser(
        "convert", help="make vqgan.safetensors for Lumina-mGPT from Meta's vqgan.ckpt", allow_abbrev=False
    )
    convert.add_argument(
        "checkpoint", type=Path, metavar="CKPT", help="the vqgan.ckpt of Chameleon; read as weights only"
    )
    convert.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the .safetensors file, overwritten (default: beside CKPT)"
    )
    _add_inspect(commands)
    _add_download(commands)
    add_distill(commands)
    add_bench(commands)
    return parser


def _add_inspect(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = commands.add_parser(
        "inspect", help="show what a model folder is, needs and lacks; weights are not read", allow_abbrev=False
    )
    add = command.add_argument
    add("model", metavar="NAME|DIR", help="model name or folder")
    add("--heads", type=Path, action="append", default=[], metavar="FILE|DIR", help="heads to check; repeatable")
    add("--batch", type=_batch, default=1, metavar="N", help="pictures at once, for the memory (default: 1)")
    add("--json", action="store_true", help="print one JSON object")


def _add_download(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = commands.add_parser(
        "download", help="fetch a published model; shows size and licence and asks first", allow_abbrev=False
    )
    add = command.add_argument
    add("name", choices=tuple(PUBLISHED), metavar="NAME", help="one of " + ", ".join(PUBLISHED))
    add("--into", type=Path, metavar="DIR", help="folder for models (default: ComfyUI's models/ar_backbones)")
    add("--yes", action="store_true", help="agree to size and licence without being asked")


def _add_generate(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = commands.add_parser(
        "generate",
        help="draw one picture for each prompt",
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("prompts", nargs="+", metavar="PROMPT", help="what to draw; quote each prompt, unquoted words make one prompt")
    add(
        "-o",
        "--output",
        default="out/",
        metavar="FILE|DIR",
        help="a .png FILE is overwritten (several pictures become FILE-1.png, FILE-2.png …); in a DIR nothing is "
        "overwritten, files are numbered (default: out/)",
    )

    decoder = command.add_argument_group("decoder")
    add = decoder.add_argument
    add(
        "--decoder",
        choices=("ar", "ssd", "mtp", "sjd"),
        default="ssd",
        help="plain decoding, SSD, horizontal heads only (1D-MTP), or speculative Jacobi decoding, which needs no "
        "heads (default: ssd)",
    )
    add(
        "--drafts",
        choices=DRAFTS,
        help="ssd, sjd: who drafts; heads, the left neighbour, a copy of the row above, or chance (default: auto)",
    )
    add(
        "--mode",
        choices=("auto", "rolling", "rounds"),
        help="SSD's schedule: plain decoding's picture with a window that follows this machine and the drafts, a "
        "fixed rolling window, or the paper's blocks with a fixed number of rounds (default: auto; rolling with "
        "--window-rows or --tolerance)",
    )
    add("--jacobi-window", type=_whole(1), metavar="N", help="sjd: tokens that one forward corrects (default: 32)")
    add("--window-rows", type=_whole(1), metavar="M", help="rolling: rows in the window (default: 1 on a CPU, else 3)")
    add(
        "--tolerance",
        type=_real("a number from 0 up", lambda v: v >= 0),
        metavar="T",
        help="rolling: 0 is exact (the picture of plain decoding); more keeps more drafts",
    )
    add("--rounds", type=_whole(0), metavar="R", help="rounds, mtp: verification rounds for a block")
    add("--rows-per-block", type=_whole(1), metavar="K", help="rounds: rows in a block")
    add(
        "--commit",
        choices=("fused", "separate"),
        help="rounds: refresh final rows with the next block's forward, or in one of their own as published "
        "(default: fused)",
    )

    sampling = command.add_argument_group("sampling (defaults: the model's own)")
    add = sampling.add_argument
    add(
        "--cfg",
        dest="guidance",
        type=_real("a number from 0 up", lambda v: v >= 0),
        metavar="W",
        help="weight of classifier-free guidance; 1 is off",
    )
    add("--temperature", type=_real("a number from 0 up", lambda v: v >= 0), metavar="T", help="0 is greedy")
    add("--top-k", type=_whole(0), metavar="K", help="0 is off")
    add("--top-p", type=_real("a number above 0 and at most 1", lambda v: 0 < v <= 1), metavar="P", help="1 is off")
    add("--negative", default="", metavar="PROMPT", help="what to steer away from; needs --cfg above 1")
    add("--seed", type=_whole(0, MAX_SEED), default=0, help="picture k of a call uses seed + k (default: 0)")
    add("--batch", type=_batch, default=1, metavar="N", help="pictures of the one prompt (default: 1)")
    add(
        "--size",
        type=_size,
        metavar="ROWSxCOLS",
        help="size in codes, rows first; 24x24 codes of the embedded model are 192x192 pixels",
    )

    model = command.add_argument_group("model")
    add = model.add_argument
    add(
        "--model",
        "--backbone",
        default=DEFAULT_MODEL,
        metavar="NAME|DIR",
        help=f"model name or folder (default: {DEFAULT_MODEL})",
    )
    add("--heads", metavar="FILE|none", help="heads file, or none for drafts without heads (default: the model's own)")
    add("--device", default="cpu", help="torch device (default: cpu)")
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto", help="default: auto")
    add("--threads", type=_threads, metavar="N", help="CPU threads (default: measured, one if the cores are busy)")
    add("--graphs", choices=GRAPHS, default="auto", help="CUDA graphs, where the device has them (default: auto)")

    out = command.add_argument_group("output")
    add = out.add_argument
    add("--tokens-out", type=Path, metavar="FILE", help="also write the codes as safetensors")
    add("--rows-gif", type=Path, metavar="FILE", help="also write an animation of the rows as they are accepted")
    add("--json", action="store_true", help="print the report as one JSON object")
    add("--progress", action=argparse.BooleanOptionalAction, help="progress bar (default: only on a terminal)")
    add(
        "--compare",
        action="store_true",
        help="draw the same seed with ar too; print the speed-up and the share of equal tokens (any other decoder)",
    )
    add("--repeats", type=_whole(1), metavar="N", help="compare: timed runs of each, alternated (default: 3)")
