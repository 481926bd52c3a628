"""How much memory a piece of work needs at its peak, beyond what was there before."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def peak_bytes(work: Callable[[], object], device: torch.device) -> int | None:
    """Runs ``work`` and returns the bytes its peak lay above the start: of the GPU's allocator, or, on Linux, of this
    process's resident set. None where neither can be asked."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    if not _CLEAR.exists():
        work()
        return None
    _return_free_memory()
    _CLEAR.write_text("5")  # the peak starts anew from what is resident now
    before = _kilobytes("VmRSS")
    work()
    return (_kilobytes("VmHWM") - before) * 1024


def _return_free_memory() -> None:
    """Gives what malloc keeps back to the system, so that the next use of it shows again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _kilobytes(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1])
