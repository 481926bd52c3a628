"""Named schedules: what most people want, and the paper's own settings."""

from __future__ import annotations

from dataclasses import replace

from .auto import Auto
from .errors import SSDError
from .schedule import Rounds, Schedule, default_schedule

PRESETS = ("auto", "exact", "balanced", "draft only", "Janus (paper)", "Lumina (paper)", "Emu3 (paper)")
"""``auto``: plain decoding's picture with a window that follows the device and the drafts. ``exact``: the same promise
with a fixed window. ``balanced``: also keeps drafts a quarter as likely as the drawn code. ``draft only``: no
verification, the fastest and the least faithful. The others are the paper's (section 4): Janus r = 2; Lumina two rows
a block, b = 5, i = 4; Emu3 r = 6; commit in a forward of its own."""

BALANCED_TOLERANCE = 4.0


def preset_schedule(name: str, device_type: str) -> Schedule:
    """The schedule of a preset on a device type ("cpu", "cuda", ...). Raises SSDError for an unknown name."""
    if name == "auto":
        return Auto()
    if name == "exact":
        return default_schedule(device_type)
    if name == "balanced":
        return replace(default_schedule(device_type), tolerance=BALANCED_TOLERANCE)
    rounds = {
        "draft only": Rounds(rounds=0),
        "Janus (paper)": Rounds(rounds=2, commit="separate"),
        "Lumina (paper)": Rounds(rounds=5, rows_per_block=2, incremental_rounds=4, commit="separate"),
        "Emu3 (paper)": Rounds(rounds=6, commit="separate"),
    }
    if name not in rounds:
        raise SSDError(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}")
    return rounds[name]
