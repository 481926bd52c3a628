"""Speed and correctness on a GPU: the three big models' shapes with random weights, one table, under eight minutes.

On a machine with a GPU, from the repository's root, with nothing to download:

    python -m benchmarks.gpu --json benchmarks/results/gpu-NAME.json

Everything measured is in the JSON file at once; ``--resume`` goes on where a run was cut off, ``--resume SECTION``
measures from that section on anew, ``--section SECTION`` measures nothing else. ``--device cpu --toy`` runs the same
code with toy models in seconds; its figures mean nothing. What is short of time or memory is measured in shorter spans
or with fewer layers, and the table says so. Random weights tell time, not acceptance: forwards are those of schedules
that fix them. Exit status: 0, 1 when a check or a section failed, 2 when it cannot run.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from ssd_core import SSDError
from ssd_core.attention_kernels import without_cudnn_attention

from .gpu_allocators import check_allocators
from .gpu_budget import Allowance, Budget, Clock, NoTimeError
from .gpu_checks import check_model, check_moves
from .gpu_models import Models
from .gpu_parts import measure_parts, own_bandwidth
from .gpu_record import Data, Record, facts_of
from .gpu_shapes import FULL, TOY
from .gpu_speed import measure_speed
from .gpu_table import checks_table, parts_table, speed_table
from .gpu_targets import targets

BUDGET = 440.0
"""Seconds by default, below eight minutes with the start of Python and of the device."""

_SPEED_WEIGHTS = {"emu3": 20.0, "lumina": 13.0, "janus": 9.0}  # by the length of their pictures
_SMALLEST = "janus"
"""The model that stands for all where one is as good a proof as three."""
WEIGHTS = {
    "device": 1.0,
    **{
        f"{name}-{part}": weight
        for name in FULL
        for part, weight in {"checks": 4.0, "parts": 3.0, "speed": _SPEED_WEIGHTS[name]}.items()
    },
    "moves": 3.0,
    "allocators": 12.0,
}
"""Section -> share of the time, in the order in which they run."""


class Bench:
    """Runs sections and keeps the record."""

    def __init__(self, models: Models, record: Record, toy: bool, clock: Clock = time.perf_counter) -> None:
        self.models, self.record, self.toy, self.clock = models, record, toy, clock

    def run(self, sections: Iterable[str], budget: Budget) -> None:
        """Runs the sections in turn; one that fails is noted and does not keep the others from running."""
        for name in sections:
            print(f"{name}: {budget.left:.0f} s left", file=sys.stderr, flush=True)
            allowed = budget.open(name)
            if self._try(name, allowed) and (model := name.partition("-")[0]) in self.models.shapes:
                self.models.reduce(model)
                self._try(name, allowed)

    def _try(self, name: str, allowed: Allowance) -> bool:
        """Runs a section and notes how it ended; returns whether the device ran out of memory."""
        try:
            self._run(name, allowed)
        except NoTimeError as error:
            self.record.put(name, "skipped", self.record.data(name), 0, f"{error}; --resume measures it")
        except Exception as error:  # whatever it was, the sections to come may still tell something
            if not isinstance(error, SSDError):
                traceback.print_exc()
            told = " ".join(f"{type(error).__name__}: {error}".split())
            self.record.put(name, "failed", self.record.data(name), 0, told)
            return isinstance(error, torch.OutOfMemoryError)
        return False

    def _run(self, name: str, allowed: Allowance) -> None:
        start = self.clock()

        def save(data: Data) -> None:
            self.record.put(name, "partial", data, self.clock() - start)

        if allowed.left == 0:
            raise NoTimeError("no time was left")
        save({})
        self.record.put(name, "done", self._section(name)(allowed, save), self.clock() - start)

    def _section(self, name: str) -> Callable[[Allowance, Callable[[Data], None]], Data]:
        models = self.models
        if name == "device":
            return lambda allowed, save: {"bandwidth": own_bandwidth(models.device, self.toy, allowed.left)}
        if name == "allocators":
            models.free()
            return lambda allowed, save: check_allocators(_SMALLEST, models.device, self.toy, allowed.left)
        if name == "moves":
            models.free()
            return lambda allowed, save: check_moves(models.shapes[_SMALLEST], models.device, models.dtype)
        model, _, part = name.partition("-")
        shape, layers = models.shapes[model], models.layers(model)
        if part == "checks":
            models.free()
            return lambda allowed, save: check_model(shape, lambda: models.build(model, layers), models.device, allowed)
        if part == "parts":
            bandwidth = self.record.data("device").get("bandwidth")
            return lambda allowed, save: measure_parts(shape, *models.build(model, layers), bandwidth, allowed)
        return lambda allowed, save: measure_speed(
            shape, lambda count: models.build(model, count), layers, allowed, save
        )

    def report(self) -> list[str]:
        """All tables as lines of text."""
        record = self.record
        facts = ", ".join(f"{key} {value}" for key, value in record.facts.items() if value is not None)
        lines = [facts]
        if "bandwidth" in record.data("device"):
            lines.append(f"Copy bandwidth: {record.data('device')['bandwidth'] / 1e9:.0f} GB/s read and written.")
        for name, shape in self.models.shapes.items():
            speed, parts, checks = (record.data(f"{name}-{part}") for part in ("speed", "parts", "checks"))
            if speed.get("lines"):
                lines += ["", *speed_table(shape, speed, parts, checks)]
            if parts:
                lines += ["", *parts_table(shape, parts)]
            lines += [] if self.toy else [target.text() for target in targets(shape, speed, parts)]
            lines += ["", *checks_table(checks)] if checks else []
        for name in ("moves", "allocators"):
            lines += ["", f"{name}:", *checks_table(record.data(name))] if record.data(name) else []
        lines += [
            f"section {name} {entry['status']}: {entry['reason']}"
            for name, entry in record.sections.items()
            if entry["status"] != "done"
        ]
        return lines

    @property
    def failed(self) -> bool:
        """Whether a section failed or a check did not pass."""
        entries = self.record.sections.values()
        checks = [check for entry in entries for check in entry["data"].get("checks", {}).values()]
        return any(entry["status"] == "failed" for entry in entries) or not all(check["passed"] for check in checks)


def check_names(only: list[str], resume: str | None) -> None:
    """Raises SSDError for a section that there is not, and for two ways at once to say which to run."""
    unknown = [name for name in [*only, *([resume] if resume else [])] if name not in WEIGHTS]
    if unknown:
        raise SSDError(f"there is no section {unknown[0]!r}; choose from {', '.join(WEIGHTS)}")
    if only and resume:
        raise SSDError("--section and --resume SECTION exclude each other; give --resume alone to add one section")


def choose(only: list[str], resume: str | None, record: Record) -> list[str]:
    """The sections to run. ``resume``: None, "" (those that are not done), or the section from which on."""
    names = list(WEIGHTS)
    if only:
        return [name for name in names if name in only]
    if resume:
        return names[names.index(resume) :]
    return [name for name in names if record.status(name) != "done"]


def check_device(device: torch.device, toy: bool) -> None:
    """Raises SSDError for a device that cannot run the benchmark."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SSDError(
            f"torch {torch.__version__} sees no CUDA device; run this on a machine with a GPU and a CUDA build of "
            "torch, or try the code with --device cpu --toy"
        )
    if device.type not in ("cuda", "cpu"):
        raise SSDError(f"got device {device}, expected cuda, or cpu with --toy; times of others are not comparable")
    if device.type == "cpu" and not toy:
        raise SSDError("7B models on a CPU would take hours; use --device cuda, or add --toy")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("gpu-benchmark.json"), help="where the figures go")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu with --toy")
    parser.add_argument("--toy", action="store_true", help="tiny models: tries the code, measures nothing")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for everything (default %(default)g)")
    parser.add_argument("--layers", type=int, help="at most so many decoder layers; times are extrapolated to all")
    parser.add_argument("--section", action="append", default=[], help="only this one; may be given again")
    parser.add_argument("--resume", nargs="?", const="", metavar="SECTION", help="go on with an earlier --json")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except SSDError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    try:
        device = torch.device(options.device)
    except RuntimeError as error:
        raise SSDError(f"got device {options.device!r}, expected cuda, cuda:1 or cpu") from error
    check_device(device, options.toy)
    if options.layers is not None and options.layers < 2:
        raise SSDError(f"got --layers {options.layers}, expected at least 2, so that a line can be drawn to all layers")
    check_names(options.section, options.resume)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    facts: dict[str, Any] = facts_of(device, options.toy, dtype)
    budget = Budget(options.budget, WEIGHTS)
    record = (Record.start if options.resume is None else Record.resume)(options.json, facts)
    names = choose(options.section, options.resume, record)
    bench = Bench(Models(TOY if options.toy else FULL, device, dtype, options.layers), record, options.toy)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with without_cudnn_attention(device):  # transformers' loop too: its keys grow with every step, and plans with them
        bench.run(names, budget)
    print("\n".join(bench.report()))
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
