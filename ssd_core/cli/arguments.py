"""What the command line accepts, checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..drafts import DraftsName
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
    decoder: Literal["ar", "ssd", "mtp", "sjd"]
    drafts: DraftsName | None
    mode: Literal["auto", "rolling", "rounds"] | None
    window_rows: int | None
    tolerance: float | None
    rounds: int | None
    rows_per_block: int | None
    commit: Literal["fused", "separate"] | None
    jacobi_window: int | None
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
    repeats: int | None
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


_DRAFTS, _MODE = "--drafts", "--mode"
_USEFUL: dict[str, tuple[tuple[str, ...], str]] = {
    "--decoder ar": ((), "use --decoder ssd"),
    "--decoder sjd": ((_DRAFTS, "--jacobi-window"), "use --decoder ssd"),
    "--decoder mtp": (("--rounds",), "use --decoder ssd"),
    "--mode auto": ((_DRAFTS, _MODE), "use --mode rolling or --mode rounds"),
    "--mode rolling": ((_DRAFTS, _MODE, "--window-rows", "--tolerance"), "use --mode rounds"),
    "--mode rounds": ((_DRAFTS, _MODE, "--rounds", "--rows-per-block", "--commit"), "use --mode rolling"),
}
"""Which of the decoders' options each choice takes, and what to do about the others."""


def _check(options: GenerateOptions) -> None:
    """Options that would be ignored are mistakes: say so instead of drawing something else than was asked for."""
    given = {
        "--mode": options.mode,
        "--window-rows": options.window_rows,
        "--tolerance": options.tolerance,
        "--rounds": options.rounds,
        "--rows-per-block": options.rows_per_block,
        "--commit": options.commit,
        "--jacobi-window": options.jacobi_window,
        "--drafts": options.drafts,
    }
    which = f"--mode {mode_of(options)}" if options.decoder == "ssd" else f"--decoder {options.decoder}"
    useful, remedy = _USEFUL[which]
    for option, value in given.items():
        if value is not None and option not in useful:
            if option == "--jacobi-window":
                remedy = "use --decoder sjd"
            raise SSDError(f"{option} has no meaning with {which}; drop it or {remedy}")
    if options.decoder == "ar" and options.heads not in (None, "none"):
        raise SSDError("--heads has no meaning with --decoder ar; drop it or use --decoder ssd")
    if options.repeats is not None and not options.compare:
        raise SSDError("--repeats has no meaning without --compare; drop it or add --compare")
    if options.drafts == "heads" and options.heads == "none":
        raise SSDError("--drafts heads needs heads, got --heads none; drop one of them")
    if options.compare and options.decoder == "ar":
        raise SSDError("--compare sets a decoder against ar, got --decoder ar; drop one of them")
    if len(options.prompts) > 1 and options.batch > 1:
        raise SSDError(
            f"got {len(options.prompts)} prompts and --batch {options.batch}; "
            "--batch draws one prompt several times, so give one prompt or drop --batch"
        )


def mode_of(options: GenerateOptions) -> Literal["auto", "rolling", "rounds"]:
    """SSD's schedule: the one that was asked for, or that the settings given belong to."""
    if options.mode is not None:
        return options.mode
    return "auto" if options.window_rows is None and options.tolerance is None else "rolling"
