"""From widget values to what ``ssd_core`` takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .core import core
from .errors import NodeError

OWN = -1
"""A number widget at this value means the backbone's own setting."""
CUSTOM = "custom"
PRESETS = ("auto", "exact", "balanced", "draft only", "Janus (paper)", "Lumina (paper)", "Emu3 (paper)")
"""``ssd_core.presets.PRESETS``, written out because a broken decoder must not keep the nodes from registering."""
PRECISIONS = ("auto", "float32", "bfloat16", "float16")
FITS = ("crop", "stretch")
MODES = ("rolling", "rounds")
COMMITS = ("fused", "separate")
GRAPHS = ("auto", "off")
SEED_MAX = 2**64 - 1
NOTHING = "nothing"
"""Train SSD Heads: new heads, not a file's."""


@dataclass(frozen=True)
class Verification:
    """What travels along an SSD_VERIFICATION link: a preset, or with ``custom`` the other values."""

    preset: str = "auto"
    mode: str = "rolling"
    window_rows: int = 1
    tolerance: float = 0.0
    rounds: int = 2
    rows_per_block: int = 1
    incremental_rounds: int = 0
    commit: str = "fused"

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, (CUSTOM, *PRESETS))
        check_choice("mode", self.mode, MODES)
        check_choice("commit", self.commit, COMMITS)

    def schedule(self, device_type: str) -> Any:
        """The ``ssd_core`` schedule for a device type; raises SSDError for settings that cannot work."""
        if self.preset != CUSTOM:
            return core("presets").preset_schedule(self.preset, device_type)
        if self.mode == "rolling":
            return core().Rolling(window_rows=self.window_rows, tolerance=self.tolerance)
        return core().Rounds(
            rounds=self.rounds,
            rows_per_block=self.rows_per_block,
            incremental_rounds=self.incremental_rounds,
            commit=self.commit,
        )


def sampling(backbone: Any, cfg: float, temperature: float, top_k: int, top_p: float) -> Any:
    """The backbone's ``Sampling`` with what the widgets change. Raises NodeError for values that cannot work."""
    checks = {
        "cfg": (cfg >= 0, "at least 0 (1 is off)"),
        "temperature": (temperature >= 0, "at least 0 (0 always takes the likeliest code)"),
        "top_k": (top_k >= 0, "at least 0 (0 is off)"),
        "top_p": (0 < top_p <= 1, "above 0 and at most 1 (1 is off)"),
    }
    values = {"cfg": cfg, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    for name, (fine, expected) in checks.items():
        if values[name] != OWN and not fine:
            raise NodeError(f"{name} must be {OWN} (the backbone's own) or {expected}; got {values[name]}")
    values["guidance"] = values.pop("cfg")
    return replace(backbone.default_sampling, **{name: value for name, value in values.items() if value != OWN})


def check_choice(name: str, value: Any, options: tuple[str, ...]) -> None:
    """Raises NodeError when a combo holds a value that is not among its options (an old or hand-written graph)."""
    if value not in options:
        raise NodeError(f"{name} must be one of {', '.join(options)}; got {value!r}")


def prompt_lines(text: str) -> list[str]:
    """The prompts of a text, one a line, empty lines left out."""
    return [line.strip() for line in text.split("\n") if line.strip()]
