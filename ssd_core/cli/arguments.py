"""What the command line accepts, checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import SSDError
from ..graphs import GraphsChoice
from .bench_options import BenchOptions, bench_options
from .distill_options import DistillOptions, distill_options
from .parser import build_parser


@dataclass(frozen=True)
class GenerateOptions:
    """One checked `generate` call. None means: the model's or the schedule's own default."""

    prompts: list[str]
    output: str
    model: str
    heads: str | None
    device: str
    dtype: str
    decoder: Literal["ar", "ssd"]
    mode: Literal["rolling", "rounds"] | None
    window_rows: int | None
    tolerance: float | None
    rounds: int | None
    rows_per_block: int | None
    commit: Literal["fused", "separate"] | None
    guidance: float | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int
    batch: int
    size: tuple[int, int] | None
    negative: str
    tokens_out: Path | None
    rows_gif: Path | None
    json: bool
    progress: bool | None
    threads: int | None
    compare: bool
    repeats: int
    graphs: GraphsChoice


@dataclass(frozen=True)
class WordsOptions:
    """One checked `words` call."""

    model: str
    json: bool


@dataclass(frozen=True)
class ConvertOptions:
    """One checked `convert` call."""

    checkpoint: Path
    output: Path | None


@dataclass(frozen=True)
class InspectOptions:
    """One checked `inspect` call."""

    model: str
    heads: list[Path]
    batch: int
    json: bool


@dataclass(frozen=True)
class DownloadOptions:
    """One checked `download` call."""

    name: str
    into: Path | None
    yes: bool


Options = (
    GenerateOptions | WordsOptions | ConvertOptions | InspectOptions | DownloadOptions | BenchOptions | DistillOptions
)


def parse(arguments: Sequence[str]) -> Options:
    """Read the arguments (without the program's name). Raises SSDError; `--help` and `--version` exit by themselves."""
    values = vars(build_parser().parse_args(arguments))
    command = values.pop("command")
    if command == "words":
        return WordsOptions(**values)
    if command == "convert":
        return ConvertOptions(**values)
    if command == "inspect":
        return InspectOptions(**values)
    if command == "download":
        return DownloadOptions(**values)
    if command == "distill":
        return distill_options(values)
    if command == "bench":
        return bench_options(values)
    values["prompts"] = _prompts(values["prompts"])
    options = GenerateOptions(**values)
    _check(options)
    return options


def _prompts(words: list[str]) -> list[str]:
    """Each argument is a prompt; but unquoted words (`generate a red heart`) can only be meant as one prompt."""
    if len(words) > 1 and not any(" " in word.strip() for word in words):
        return [" ".join(words)]
    return words


def _check(options: GenerateOptions) -> None:
    """Options that would be ignored are mistakes: say so instead of drawing something else than was asked for."""
    given = {
        "--mode": options.mode,
        "--window-rows": options.window_rows,
        "--tolerance": options.tolerance,
        "--rounds": options.rounds,
        "--rows-per-block": options.rows_per_block,
        "--commit": options.commit,
    }
    useful: tuple[str, ...]
    if options.decoder == "ar":
        which, useful, remedy = "--decoder ar", (), "use --decoder ssd"
    elif options.mode == "rounds":
        which, remedy = "--mode rounds", "use --mode rolling"
        useful = ("--mode", "--rounds", "--rows-per-block", "--commit")
    else:
        which, useful, remedy = "--mode rolling", ("--mode", "--window-rows", "--tolerance"), "use --mode rounds"
    for option, value in given.items():
        if value is not None and option not in useful:
            raise SSDError(f"{option} has no meaning with {which}; drop it or {remedy}")
    if options.compare and options.decoder == "ar":
        raise SSDError("--compare sets SSD against ar, got --decoder ar; drop one of them")
    if len(options.prompts) > 1 and options.batch > 1:
        raise SSDError(
            f"got {len(options.prompts)} prompts and --batch {options.batch}; "
            "--batch draws one prompt several times, so give one prompt or drop --batch"
        )
