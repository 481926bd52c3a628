"""Reports in words that fit one screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .compare import Comparison
from .generation import Generation

SHOWN_OF_SCHEDULE: dict[str, tuple[str, ...]] = {
    "auto": (),
    "rolling": ("window_rows", "tolerance"),
    "rounds": ("rounds", "rows_per_block", "commit", "coupling"),
    "jacobi": ("window_tokens", "coupling"),
    "mtp": ("tokens", "rounds", "coupling"),
}


def report_text(result: Generation, files: Sequence[Path] = ()) -> str:
    """One run: what was drawn, how, with how many forwards and in what time."""
    report = result.report
    seconds = report.seconds
    phases = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items() if name != "total")
    kinds = ", ".join(f"{name} {count}" for name, count in report.forwards.items() if count)
    codes = (report.grid[0] - report.settings["keep_rows"]) * report.grid[1]
    lines = [
        *_prompts(result),
        _row("picture", _picture(result)),
        _row("decoder", _decoder(result)),
        _row("forwards", f"{report.total_forwards} for {codes} codes{_kept(result)} ({kinds})"),
        _row("seconds", f"{seconds['total']:.2f} ({phases})"),
        _row("speed", f"{report.tokens_per_second:.0f} codes/s"),
    ]
    if report.acceptance is not None:
        ways = ", ".join(f"{name} {share:.2f}" for name, share in report.acceptance_by_direction.items())
        lines.append(_row("acceptance", f"{report.acceptance:.2f}" + (f" (first check: {ways})" if ways else "")))
    lines += _auto(result)
    return "\n".join([*lines, *_graphs(result), *_files(files)])


def comparison_text(comparison: Comparison, files: Sequence[Path] = ()) -> str:
    """Plain decoding and the chosen settings on the same seed."""
    figures, result, repeats = comparison.to_dict(), comparison.ssd, comparison.repeats
    ar, ssd = figures["ar"], figures["ssd"]
    acceptance = "" if ssd["acceptance"] is None else f"   acceptance {ssd['acceptance']:.2f}"
    runs = "one run each" if repeats == 1 else f"median of {repeats} runs each, taken in turn"
    lines = [
        *_prompts(result),
        _row("picture", _picture(result)),
        _row("decoder", _decoder(result)),
        *_auto(result),
        _row("ar", f"{ar['seconds']:8.2f} s {ar['forwards']:6d} forwards"),
        _row(_label(result.report.decoder), f"{ssd['seconds']:8.2f} s {ssd['forwards']:6d} forwards{acceptance}"),
        _row("speed-up", f"{figures['speedup']:8.2f} x {figures['forwards_ratio']:6.2f} x fewer forwards"),
        _row("equal", f"{figures['equal_tokens']:8.1%} of the codes are those of plain decoding"),
        _row("timing", f"{runs}, after a warm-up of both"),
        *_graphs(result),
    ]
    return "\n".join([*lines, *_files(files)])


def _picture(result: Generation) -> str:
    report = result.report
    height, width = result.images.shape[1:3]
    many = f"{report.batch} of " if report.batch > 1 else ""
    seeds = f"seed {report.seed}" + (f" … {(report.seed + report.batch - 1) % 2**64}" if report.batch > 1 else "")
    return f"{many}{width}×{height} pixels, {report.grid[0]}×{report.grid[1]} codes (rows × columns), {seeds}"


def _kept(result: Generation) -> str:
    kept = result.report.settings["keep_rows"]
    return f" behind {kept} kept row{'s' if kept > 1 else ''}" if kept else ""


def _decoder(result: Generation) -> str:
    """The schedule and the sampling settings that are on."""
    name, settings = result.report.decoder, result.report.settings
    off = {"guidance": 1, "top_k": 0, "top_p": 1}
    sampling = [_setting(key, value) for key, value in settings["sampling"].items() if off.get(key) != value]
    if name == "ar":
        return ", ".join(["ar", *sampling, *_machine(settings)])
    schedule = settings["schedule"]
    keys = SHOWN_OF_SCHEDULE[name]
    if schedule.get("window_tokens") is not None:  # a rolling window that is not counted in rows
        keys = tuple("window_tokens" if key == "window_rows" else key for key in keys)
    shown = [_setting(key, schedule[key]) for key in keys]
    if name in ("auto", "rolling") and schedule["tolerance"] == 0 and schedule["coupling"] == "gumbel":
        shown.append("exact" if settings["dtype"] in ("float32", "float64") else "exact up to rounding")
    label = f"ssd {name}" if _label(name) == "ssd" else _label(name)
    return ", ".join([label, *shown, *sampling, f"drafts by {settings['drafts']}", *_machine(settings)])


def _label(name: str) -> str:
    """What a decoder is called beside ar."""
    return {"jacobi": "sjd", "mtp": "mtp"}.get(name, "ssd")


def _auto(result: Generation) -> list[str]:
    """What the schedule chose by itself, if it is one that does."""
    chosen = result.report.auto
    return [] if chosen is None else [_row("auto", chosen["why"])]


def _machine(settings: dict[str, Any]) -> list[str]:
    """What the figures depend on besides the settings."""
    threads = torch.get_num_threads()
    where = f"{threads} thread{'s' if threads > 1 else ''}" if settings["device"] == "cpu" else settings["device"]
    return [settings["dtype"], where]


def _setting(name: str, value: float | str) -> str:
    return f"{name.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"


def _prompts(result: Generation) -> list[str]:
    """Each prompt once, in order."""
    return list(dict.fromkeys(result.report.settings["prompts"]))


def _graphs(result: Generation) -> list[str]:
    """On a CPU there is nothing to tell."""
    on_cpu = result.report.settings["device"] == "cpu"
    return [] if on_cpu else [_row("graphs", result.report.graphs)]


def _files(files: Sequence[Path]) -> list[str]:
    return [_row("files" if number == 0 else "", str(file)) for number, file in enumerate(files)]


def _row(name: str, value: str) -> str:
    return f"  {name:<11}{value}"
