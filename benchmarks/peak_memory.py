"""How much memory a piece of work needs at its peak, beyond what was there before."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .live_bytes import LiveBytes


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Runs ``work`` and returns the bytes its peak lay above the start: of CUDA's allocator, elsewhere of the tensors
    that this thread made. The process's resident set would not do: it also holds what malloc keeps of earlier work."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    with LiveBytes() as live:
        work()
    return live.peak
