"""Readers of option values, for argparse's `type`: what they refuse becomes one clear line."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers in a range, for argparse's `type`."""
    wanted = f"a whole number from {least}" + (f" to {most}" if most is not None else " up")

    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text) or not least <= int(text) <= (
            most if most is not None else int(text)
        ):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {wanted}")
        return int(text)

    return read


def real(wanted: str, holds: Callable[[float], bool]) -> Callable[[str], float]:
    """A parser of finite numbers that satisfy `holds`, for argparse's `type`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not holds(value):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {wanted}")
        return value

    return read


def size(text: str) -> tuple[int, int]:
    """`24x32`: rows and columns of codes."""
    match = re.fullmatch(r"([1-9][0-9]{0,3})[x×]([1-9][0-9]{0,3})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected rows x columns of codes such as 24x24")
    return int(match.group(1)), int(match.group(2))


# More are a slip of the finger, which should not have to run out of memory to be noticed.
batch, pictures = whole(1, 10_000), whole(1, 10_000_000)
threads = whole(1, max(64, os.cpu_count() or 1))  # torch does not survive thousands
not_negative = real("a number from 0 up", lambda value: value >= 0)
positive = real("a number above 0", lambda value: value > 0)
share = real("a share from 0 to 1", lambda value: 0 <= value <= 1)
