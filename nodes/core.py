"""The way from the nodes to the decoder.

The decoder is imported when a node first needs it. If it or something it needs is missing or broken, the nodes are
there all the same, and the first use says what is wrong.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from .errors import NodeError

ROOT = Path(__file__).resolve().parent.parent
_PARENT = (__package__ or "").rpartition(".")[0]


def core(module: str = "") -> ModuleType:
    """``ssd_core``, or with a name one of its modules. Raises NodeError that says how to mend a broken installation."""
    name = f"{_PARENT}.ssd_core" if _PARENT else "ssd_core"
    try:
        import_module(f"{name}.generation")  # what ``ssd_core`` offers is imported when it is first used
        return import_module(f"{name}.{module}" if module else name)
    except Exception as error:  # a broken wheel may raise anything: OSError, RuntimeError, SyntaxError
        raise NodeError(_how_to_mend(error)) from error


def _how_to_mend(error: Exception) -> str:
    missing = error.name if isinstance(error, ImportError) else None
    ours = missing is not None and _PARENT != "" and missing.startswith(_PARENT)
    what = f"the module {missing!r}" if missing and not ours else "its decoder (ssd_core)"
    if ours or not (ROOT / "ssd_core" / "__init__.py").is_file():
        remedy = f"files are missing from {ROOT}: install the extension again"
    else:
        requirements = ROOT / "requirements.txt"
        remedy = (
            "install the extension's requirements into the Python that runs ComfyUI, then restart ComfyUI: "
            f'"{sys.executable}" -m pip install -r "{requirements}"'
        )
    return (
        f"Spatial Speculative Decoding cannot run: {what} could not be imported "
        f"({type(error).__name__}: {error}); {remedy}"
    )
