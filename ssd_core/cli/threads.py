"""How many CPU threads to use: measured, not guessed.

torch starts one thread a core and every step waits for the slowest. On a machine that does something else too, a step
can then take many times as long as with one thread; on a free machine more threads are faster.
"""

from __future__ import annotations

import time

import torch

WORTH_IT = 0.9  # more threads must need less than this share of one thread's time
PROBE_SECONDS = 0.02


def choose_threads() -> int:
    """One thread, or torch's own number if that is clearly faster now (the setting itself stays). Takes some 50 ms."""
    many = torch.get_num_threads()
    if many == 1:
        return 1
    try:
        return many if _seconds(many) < WORTH_IT * _seconds(1) else 1
    finally:
        torch.set_num_threads(many)


def _seconds(threads: int) -> float:
    """Mean seconds of a matrix product as in a small model's step on a window of rows."""
    torch.set_num_threads(threads)
    window, weight = torch.ones(150, 384), torch.ones(384, 2048)
    torch.mm(window, weight)
    start, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < PROBE_SECONDS:
        torch.mm(window, weight)
        count += 1
    return (time.perf_counter() - start) / count
