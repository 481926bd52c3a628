"""`bench`: what it prints in the end. Medians of each decoder, and ratios to plain decoding picture by picture."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

Pictures = dict[tuple[int, int], dict[str, Any]]
"""Prompt number and image -> what the timings file has of that picture."""

PLAIN = "ar"
CONDITIONS = ("batch", "threads", "torch")
"""What must be alike for two seconds of a pair to be compared."""


def figures(decoders: dict[str, Pictures]) -> dict[str, dict[str, Any]]:
    """By each decoder's folder: its medians; beside plain decoding's also the ratios of their pairs."""
    plain = decoders.get(PLAIN)
    return {
        name: {**_medians(own), **({} if plain is None or name == PLAIN else _ratios(plain, own))}
        for name, own in decoders.items()
    }


def _medians(own: Pictures) -> dict[str, Any]:
    """``warm``: over pictures that no warm-up slowed; False where there are only others, and it is over those."""
    warm = [picture for picture in own.values() if picture["warm"]]
    timed = warm or list(own.values())
    return {
        "pictures": len(own),
        "warm": bool(warm),
        "seconds": median(picture["seconds"] for picture in timed),
        "forwards": median(picture["forwards"] for picture in timed),
    }


def _ratios(plain: Pictures, own: Pictures) -> dict[str, Any]:
    """Medians over pairs: one prompt, one image, timed under the same conditions. ``pairs``: how many."""
    pairs = [(plain[at], own[at]) for at in own if at in plain and _conditions(plain[at]) == _conditions(own[at])]
    warm = [(slow, fast) for slow, fast in pairs if slow["warm"] and fast["warm"]]
    timed = warm or pairs
    if not timed:
        return {"pairs": 0}
    return {
        "pairs": len(timed),
        "pairs_warm": bool(warm),
        "speedup": round(median(slow["seconds"] / fast["seconds"] for slow, fast in timed), 4),
        "forwards_ratio": round(median(slow["forwards"] / fast["forwards"] for slow, fast in timed), 4),
    }


def _conditions(picture: dict[str, Any]) -> list[Any]:
    return [picture.get(name) for name in CONDITIONS]  # older files have no threads and torch


def summary_text(found: dict[str, dict[str, Any]], output: Path) -> str:
    """``figures`` as a line a decoder."""
    lines = []
    for name, own in found.items():
        line = f"  {name:<36}{own['pictures']:>6} pictures {own['seconds']:9.3f} s {own['forwards']:7.0f} forwards"
        if own.get("pairs"):
            line += f"   {own['speedup']:.2f} x faster, {own['forwards_ratio']:.1f} x fewer forwards"
        elif "pairs" in own:
            line += f"   no picture timed as {PLAIN}'s was ({', '.join(CONDITIONS)})"
        if not (own["warm"] and own.get("pairs_warm", True)):
            line += "   (first pictures, warm-up included)"
        lines.append(line)
    return "\n".join([*lines, f"  medians a picture, ratios picture by picture; pictures and timings are in {output}"])
