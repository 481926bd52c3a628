"""Which of PyTorch's attention kernels the decoder may get."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_switch = threading.Lock()
_inside = 0
_before = True


@contextmanager
def without_cudnn_attention(device: torch.device) -> Iterator[None]:
    """On a CUDA device no ``scaled_dot_product_attention`` in here is cuDNN's.

    By PyTorch's sources several of its releases prefer that on Hopper and later, and build a plan for every new shape:
    users of other programs report some tenths of a second each, and without graphs keys become longer with every step.
    A call cannot ask for its kernel, only PyTorch's own switch can, which all threads share: the first one in turns it,
    the last one out turns it back.
    """
    global _inside, _before
    if device.type != "cuda":
        yield
        return
    with _switch:
        if _inside == 0:
            _before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
            torch.backends.cuda.enable_cudnn_sdp(False)
        _inside += 1
    try:
        yield
    finally:
        with _switch:
            _inside -= 1
            if _inside == 0:
                torch.backends.cuda.enable_cudnn_sdp(_before)
