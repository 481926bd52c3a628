"""`distill`: the options of its three steps, as argparse reads them and as the code gets them."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..distill.samples import Part
from ..distill.settings import TrainSettings
from ..errors import SSDError
from .values import batch, not_negative, pictures, positive, share, size, threads, whole

EPILOG = """\
examples:
  python -m ssd_core distill collect -o samples/ --pictures 64
  python -m ssd_core distill train samples/ -o my-heads.safetensors --minutes 15 --lr 1e-3 --kl 1
  python -m ssd_core distill evaluate my-heads.safetensors
  torchrun --nproc-per-node 4 -m ssd_core distill collect --model models/ar_backbones/Janus-Pro-7B --device cuda
"""


@dataclass(frozen=True)
class _Model:
    model: str
    device: str
    dtype: str
    threads: int | None


@dataclass(frozen=True)
class CollectOptions(_Model):
    """One checked `distill collect` call."""

    output: Path
    prompts: Path | None
    pictures: int
    size: list[tuple[int, int]]
    batch: int
    empty: float
    seed: int
    mode: Literal["ar", "exact"]
    heads: str | None
    guidance: float | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    shard: Part | None
    estimate: bool


@dataclass(frozen=True)
class TrainOptions(_Model):
    """One checked `distill train` call."""

    samples: list[Path]
    output: Path
    work: Path
    horizontal: tuple[int, ...]
    vertical: tuple[int, ...]
    neighbours: int
    start_from: Path | None
    restart: bool
    held_out: Path | None
    licence: str
    author: str
    settings: TrainSettings
    autocast: Literal["auto", "on", "off"]
    estimate: bool


@dataclass(frozen=True)
class EvaluateOptions(_Model):
    """One checked `distill evaluate` call."""

    heads: Path
    prompts: Path | None
    pictures: int
    size: tuple[int, int] | None
    seed: int
    json: bool
    write: bool


DistillOptions = CollectOptions | TrainOptions | EvaluateOptions


def add_distill(commands: Any) -> None:
    """Adds `distill` with its steps to the parser's commands."""
    command = commands.add_parser(
        "distill",
        help="make spatial heads for a model from pictures that it draws itself",
        description="Three steps: collect pictures, train heads on them, evaluate the heads.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    steps = command.add_subparsers(dest="step", required=True, metavar="STEP")
    _add_collect(steps)
    _add_train(steps)
    _add_evaluate(steps)


def distill_options(values: dict[str, Any]) -> DistillOptions:
    """The options of a parsed `distill` call. Raises SSDError for combinations that make no sense."""
    step = values.pop("step")
    if step == "collect":
        collect = CollectOptions(**values)
        if collect.heads is not None and collect.mode == "ar":
            raise SSDError("--heads has no meaning with --mode ar; drop it or use --mode exact")
        return collect
    if step == "evaluate":
        return EvaluateOptions(**values)
    return _train_options(values)


def _train_options(values: dict[str, Any]) -> TrainOptions:
    given = {name: values.pop(name) for name in _SETTINGS}
    settings = TrainSettings(**{name: value for name, value in given.items() if value is not None})
    output = values["output"]
    if values["work"] is None:
        values["work"] = output.with_name(output.name.removesuffix(".safetensors") + ".training")
    for way in ("horizontal", "vertical"):
        values[way] = tuple(sorted(set(values[way])))
    if not values["horizontal"] and not values["vertical"]:
        raise SSDError("there are no heads to train; give offsets to --horizontal or --vertical")
    return TrainOptions(**values, settings=settings)


_SETTINGS = (
    "epochs", "steps", "minutes", "batch", "micro_batch", "learning_rate", "last_learning_rate", "decay",
    "weight_decay", "warmup", "unconditional", "horizontal_rows", "kl_weight", "checkpoint_minutes", "seed",
)  # fmt: skip


def _add_collect(steps: Any) -> None:
    add = _step(steps, "collect", "draw pictures with the frozen model; a killed call goes on where it was")
    add("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the shards of tokens")
    add("--prompts", type=Path, metavar="FILE", help=".txt, .jsonl or .csv (default: starter prompts)")
    add("--pictures", type=pictures, default=64, metavar="N", help="pictures of each size (default: 64)")
    add("--size", type=size, action="append", metavar="ROWSxCOLS", help="repeatable (default: the model's own)")
    add("--batch", type=batch, default=8, metavar="N", help="pictures at once, which make one shard (default: 8)")
    add("--empty", type=share, default=0.1, metavar="SHARE", help="pictures with an empty prompt (default: 0.1)")
    add("--seed", type=whole(0), default=0, help="picture k of a size uses seed + k (default: 0)")
    add("--mode", choices=("ar", "exact"), default="ar", help="plain decoding, or exact mode: the same distribution, "
        "faster once there are heads (default: ar)")  # fmt: skip
    add("--heads", metavar="FILE|none", help="exact: heads that draft (default: the model's own, or none)")
    add("--cfg", dest="guidance", type=not_negative, metavar="W", help="guidance (default: the model's own)")
    add("--temperature", type=not_negative, metavar="T", help="default: the model's own")
    add("--top-k", type=whole(0), metavar="K", help="default: the model's own")
    add("--top-p", type=positive, metavar="P", help="default: the model's own")
    add("--shard", type=_part, metavar="I/N", help="draw part I of N, for N machines (torchrun sets this by itself)")
    add("--estimate", action="store_true", help="only say how long it would take and how much disk")


def _add_train(steps: Any) -> None:
    default = TrainSettings()
    add = _step(steps, "train", "train heads on collected pictures; a killed call goes on where it was")
    add("samples", type=Path, nargs="+", metavar="DIR", help="folders of `collect`")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="the heads file, overwritten")
    add("--work", type=Path, metavar="DIR", help="state, log and plot of the run (default: FILE.training)")
    add("--horizontal", type=whole(1, 64), nargs="*", default=[1, 2, 3, 4, 5], metavar="OFFSET",
        help="horizontal heads (default: 1 2 3 4 5)")  # fmt: skip
    add("--vertical", type=whole(1, 64), nargs="*", default=[1, 2, 3, 4, 5], metavar="OFFSET",
        help="vertical heads (default: 1 2 3 4 5)")  # fmt: skip
    add("--neighbours", type=int, choices=(0, 1), default=0,
        help="columns on each side that vertical heads read (default: 0, as published)")  # fmt: skip
    add("--start-from", type=Path, metavar="FILE", help="begin with these heads; those not trained now stay in FILE")
    add("--restart", action="store_true", help="forget an unfinished run in the work folder")
    add("--held-out", type=Path, metavar="DIR", help="pictures that only measure (default: a tenth is set aside)")
    add("--licence", default="", metavar="TEXT", help="for the file's metadata")
    add("--author", default="", metavar="TEXT", help="for the file's metadata")
    add("--epochs", type=positive, metavar="E", help=f"times through the pictures (default: {default.epochs:g})")
    add("--steps", type=whole(1), metavar="N", help="optimizer steps, instead of epochs")
    add("--minutes", type=positive, metavar="M", help="time of training, instead of epochs")
    add("--batch", type=batch, metavar="N", help=f"pictures of a step, all processes (default: {default.batch})")
    add("--micro-batch", type=batch, default=1, metavar="N", help="pictures of a forward; memory (default: 1)")
    add("--lr", dest="learning_rate", type=positive, help=f"first learning rate (default: {default.learning_rate:g})")
    add("--last-lr", dest="last_learning_rate", type=not_negative,
        help=f"last one (default: {default.last_learning_rate:g})")  # fmt: skip
    add("--decay", choices=("cosine", "linear"), help="way from the first to the last (default: cosine)")
    add("--weight-decay", type=not_negative, help=f"default: {default.weight_decay:g}")
    add("--warmup", type=whole(0), metavar="N", help=f"steps (default: {default.warmup})")
    add("--drop", dest="unconditional", type=share, metavar="SHARE",
        help=f"pictures seen without their prompt (default: {default.unconditional:g})")  # fmt: skip
    add("--horizontal-rows", type=share, metavar="SHARE", help="rows horizontal heads learn from (default: 1)")
    add("--kl", dest="kl_weight", type=not_negative, metavar="W",
        help="weight of a KL term through the model's output head (default: 0, as published)")  # fmt: skip
    add("--checkpoint-minutes", type=positive, metavar="M", help="between saved states (default: 5)")
    add("--seed", type=whole(0), help="order of pictures and choices (default: 0)")
    add("--autocast", choices=("auto", "on", "off"), default="auto",
        help="heads compute in bfloat16 (default: with a bfloat16 model)")  # fmt: skip
    add("--estimate", action="store_true", help="only say how much memory it would need; weights are not read")


def _add_evaluate(steps: Any) -> None:
    add = _step(steps, "evaluate", "measure heads and write the recommended preset into their file")
    add("heads", type=Path, metavar="FILE", help="the heads file")
    add("--prompts", type=Path, metavar="FILE", help=".txt, .jsonl or .csv (default: starter prompts)")
    add("--pictures", type=pictures, default=4, metavar="N", help="pictures of each schedule (default: 4)")
    add("--size", type=size, metavar="ROWSxCOLS", help="default: the model's own")
    add("--seed", type=whole(0), default=10**9, help="of the first picture; not those of training (default: 10^9)")
    add("--json", action="store_true", help="print one JSON object")
    add("--no-write", dest="write", action="store_false", help="leave the heads file as it is")


def _step(steps: Any, name: str, text: str) -> Any:
    """Adds a step with the options that all have; returns its `add_argument`."""
    step = steps.add_parser(name, help=text, description=text, allow_abbrev=False)
    step.add_argument("--model", "--backbone", default="emoji-scenes", metavar="NAME|DIR", help="model name or folder")
    step.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    step.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    step.add_argument("--threads", type=threads, metavar="N", help="CPU threads (default: measured)")
    return step.add_argument


def _part(text: str) -> Part:
    match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a part such as 1/4 to 4/4")
    return Part(int(match[1]), int(match[2]))
