"""Packages whose public names are imported when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """A package's ``__getattr__``. ``homes``: module of the package -> public names that it defines.

    Importing torch takes seconds, in which Ctrl-C must work, and ``python -m`` imports the package before anything
    of it can run.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{home[name]}", package), name)

    return find
