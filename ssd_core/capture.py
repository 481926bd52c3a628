"""The device's side of captured steps: a stream to capture on, a pool of memory, graphs that are replayed.

It knows neither pictures nor when to capture what (``graphs.py``).
"""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from .runner import StepFunction

Replay = Callable[[], None]
"""Does a captured step again, with the numbers that its buffer holds by now."""

_log = logging.getLogger(__name__)
_one_capture = threading.Lock()
"""PyTorch takes one capture at a time, of all in the process, and nobody waits for the device during one."""
_STREAMS = 32
"""PyTorch hands so many streams of a device out, over and over."""


class CaptureBackend(ABC):
    """Captures steps on one device. Not for two threads at a time.

    A capture carries nothing out. A replay reads and writes the very addresses that the step used while it was
    captured, whatever lies there by then, and no line of Python runs.
    """

    device: torch.device

    @abstractmethod
    def buffer(self, count: int) -> Tensor:
        """Static room for a step's numbers, int64 [count]."""

    @abstractmethod
    def fill(self, buffer: Tensor, numbers: list[int]) -> None:
        """Puts numbers there, after whatever was asked of the device before and ahead of what comes next."""

    @abstractmethod
    def aside(self, step: StepFunction, numbers: Tensor) -> None:
        """Carries a step out where captures are made, so that what happens once only does not fall into a capture."""

    @abstractmethod
    def capture(self, step: StepFunction, numbers: Tensor) -> Replay:
        """Captures a step that was carried out aside before. Raises RuntimeError for what the device refuses.

        No replay of this backend may be used any more once one of them was dropped or a capture failed: graphs of a
        stream share the matrix library's workspace, and PyTorch lets it go with the first that is destroyed.
        """

    @abstractmethod
    def wait(self) -> None:
        """Until the device has done what steps asked of it: no replay may be dropped earlier."""

    @abstractmethod
    def trim(self) -> None:
        """Gives the device the memory back that dropped replays had, where that does not happen by itself."""


class CudaCapture(CaptureBackend):
    """CUDA graphs that share one memory pool: they run one after the other and leave nothing in it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with _choosing:
            self._stream = _stream_of_its_own(device)
            _captures.add(self)
        self._asked = torch.cuda.current_stream(device)
        """Where steps were last asked for: runs may have different streams, and the device's others are no business."""
        self._pool: Any = None
        self._alive: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    def buffer(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int64, device=self.device)

    def fill(self, buffer: Tensor, numbers: list[int]) -> None:
        self._asked = torch.cuda.current_stream(self.device)
        # PyTorch keeps pinned memory from being used again until the copy is done, so the host can run ahead.
        buffer.copy_(torch.tensor(numbers, dtype=torch.int64, pin_memory=True), non_blocking=True)

    def aside(self, step: StepFunction, numbers: Tensor) -> None:
        with self._on_stream():
            step(numbers)

    def capture(self, step: StepFunction, numbers: Tensor) -> Replay:
        first = not self._alive
        if first:  # the memory of a pool without graphs is given back, and its name is used up
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # torch.cuda.graph would also collect garbage and empty the allocator's cache, a tenth of a second each time.
        # Thread-local: what other threads do on the device meanwhile is none of this capture's business.
        with _one_capture, _no_collection():
            self._synchronize()
            if first:  # in a capture the allocator cannot fall back on what it has cached, as what steps aside left
                torch.cuda.empty_cache()
            try:
                with self._on_stream():
                    graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                    try:
                        step(numbers)
                    except BaseException:
                        with suppress(RuntimeError):  # what went wrong is known, and more telling
                            graph.capture_end()
                        raise
                    graph.capture_end()
            except BaseException:
                self._mend()
                raise
        self._alive.add(graph)
        return graph.replay

    def _mend(self) -> None:
        """After a failed capture PyTorch's allocator and, up to some version, its generator take it to go on.

        Random numbers that anybody in the process draws on the device would then fail; a capture that ends well sets
        the generator right.
        """
        with suppress(RuntimeError):  # where the capture did end, PyTorch has done both
            _end_allocation(self.device.index, self._pool)
            torch._C._cuda_releasePool(self.device.index, self._pool)
        spot = torch.zeros(1, device=self.device)
        with _choosing:
            stream = _stream_of_its_own(self.device)
        graph = torch.cuda.CUDAGraph()
        with suppress(RuntimeError), torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            spot.add_(1)
            graph.capture_end()

    def wait(self) -> None:
        with _one_capture:
            self._synchronize()

    def trim(self) -> None:
        if torch.cuda.get_allocator_backend() == "cudaMallocAsync":
            trim_graph_memory(self.device.index)

    def _synchronize(self) -> None:
        """Not for the whole device, which would break captures by others, who do not know of this lock."""
        for stream in (self._asked, self._stream):
            stream.synchronize()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """The capture stream, in order with the current one before and after."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)


_captures: weakref.WeakSet[CudaCapture] = weakref.WeakSet()
_choosing = threading.Lock()


def _stream_of_its_own(device: torch.device) -> torch.cuda.Stream:
    """One that no living backend captures on: a graph destroyed there would take the others' workspace along."""
    taken = [each._stream for each in _captures]
    for _ in range(_STREAMS):
        stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if stream not in taken:
            break
    return stream


def _end_allocation(device: int, pool: Any) -> None:
    """No public call does this. Raises RuntimeError where nothing is being allocated to the pool."""
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is None:  # before torch 2.8
        end = torch._C._cuda_endAllocateCurrentStreamToPool  # type: ignore[attr-defined]
    end(device, pool)


def trim_graph_memory(ordinal: int) -> None:
    """Asks the driver to let go of what it keeps for graphs whose memory is the driver's own, which PyTorch cannot.

    With cudaMallocAsync a graph allocates by itself, from memory that stays mapped after the graph is destroyed.
    """
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as error:
        _log.warning("memory of dropped CUDA graphs stays reserved: %s", error)
        return
    device = ctypes.c_int()
    failed = driver.cuDeviceGet(ctypes.byref(device), ordinal) or driver.cuDeviceGraphMemTrim(device)
    if failed:
        _log.warning("memory of dropped CUDA graphs stays reserved: the driver answers %d", failed)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage that holds device memory or events must not be collected in the middle of a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
