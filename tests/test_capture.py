"""The order in which CUDA's own calls are made, on stand-ins for them; that they work is for a GPU to show."""

from __future__ import annotations

import ctypes
import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_core.capture import CudaCapture

NUMBERS = torch.zeros(2, dtype=torch.int64)


class Stream:
    """A stream; ``log`` is the one log of all of them."""

    log: list[str]
    made = 0

    def __init__(self, device: Any = None) -> None:
        Stream.made += 1
        self.name = f"stream {Stream.made}"

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self.log.append(f"wait for {self.name}")


class Graph:
    """A CUDA graph. ``invalid``: the next end of a capture fails, as after a call that no capture takes."""

    invalid = False
    allocating: str | None = None
    """The pool that memory is being taken from."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        Stream.log.append(f"begin in {pool}, {capture_error_mode}")
        Graph.allocating = pool

    def capture_end(self) -> None:
        failed, Graph.invalid = Graph.invalid, False
        if not failed:
            Graph.allocating = None
        Stream.log.append("end fails" if failed else "end")
        if failed:
            raise RuntimeError("capture invalidated")

    def replay(self) -> None:
        Stream.log.append("replay")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was called, in order; the current stream is "main" until another one is entered."""
    calls: list[str] = []
    Stream.log, Stream.made, Graph.invalid, Graph.allocating = calls, 0, False, None
    main = Stream()
    main.name = "main"
    pools = iter(range(1, 99))

    @contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        calls.append(f"enter {stream.name}")
        yield
        calls.append(f"leave {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: f"pool {next(pools)}")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty the cache"))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end_allocation, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_releasePool", lambda device, pool: calls.append(f"release {pool}"), raising=False
    )
    return calls


def end_allocation(device: int, pool: str) -> None:
    """As PyTorch's: refuses where that pool is not being taken from."""
    if Graph.allocating != pool:
        raise RuntimeError("not currently recording to mempool_id")
    Graph.allocating = None
    Stream.log.append(f"close {pool}")


def backend() -> CudaCapture:
    return CudaCapture(torch.device("cpu"))  # the device of the tensors, which are real


def test_a_capture_is_made_on_its_own_stream_in_order_with_the_current_one(log: list[str]) -> None:
    def step(numbers: Tensor) -> None:
        assert not gc.isenabled()
        log.append("step")

    replay = backend().capture(step, NUMBERS)
    assert gc.isenabled()
    replay()
    assert log == [
        "wait for main", "wait for stream 2", "empty the cache", "stream 2 waits for main", "enter stream 2",
        "begin in pool 1, thread_local", "step", "end", "leave stream 2", "main waits for stream 2", "replay",
    ]  # fmt: skip


def test_what_happens_once_only_happens_aside_on_the_same_stream(log: list[str]) -> None:
    backend().aside(lambda numbers: log.append("step"), NUMBERS)
    assert log == [
        "stream 2 waits for main", "enter stream 2", "step", "leave stream 2", "main waits for stream 2"
    ]  # fmt: skip


def test_graphs_share_a_pool_as_long_as_there_are_any(log: list[str]) -> None:
    captures = backend()
    one = captures.capture(lambda numbers: None, NUMBERS)
    two = captures.capture(lambda numbers: None, NUMBERS)
    del one, two
    gc.collect()
    captures.capture(lambda numbers: None, NUMBERS)
    assert [line for line in log if line.startswith(("begin", "empty"))] == [
        "empty the cache", "begin in pool 1, thread_local", "begin in pool 1, thread_local",
        "empty the cache", "begin in pool 2, thread_local",
    ]  # fmt: skip


@pytest.mark.parametrize("error", [RuntimeError("not permitted"), KeyboardInterrupt("mine")])
@pytest.mark.parametrize("invalid", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_a_capture_that_fails_is_ended_and_mended(
    log: list[str], error: BaseException, invalid: bool, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first error is the one that is told; torch, old or new, is left as if no capture had been. Only a capture
    that PyTorch could not end still counts as a user of its pool."""
    if old:
        monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool")
        monkeypatch.setattr(torch._C, "_cuda_endAllocateCurrentStreamToPool", end_allocation, raising=False)

    def step(numbers: Tensor) -> None:
        Graph.invalid = invalid
        raise error

    with pytest.raises(type(error), match=str(error)):
        backend().capture(step, NUMBERS)
    assert gc.isenabled()
    after = log[log.index("begin in pool 1, thread_local") + 1 :]
    assert after == [
        *(["end fails", "close pool 1", "release pool 1"] if invalid else ["end"]),
        "enter stream 3", "begin in None, thread_local", "end", "leave stream 3",
    ]  # fmt: skip


def test_an_end_that_fails_is_told_and_mended(log: list[str]) -> None:
    def step(numbers: Tensor) -> None:
        Graph.invalid = True

    with pytest.raises(RuntimeError, match="capture invalidated"):
        backend().capture(step, NUMBERS)
    assert log[-1] == "leave stream 3"
    assert "close pool 1" in log


def test_no_two_backends_capture_on_one_stream(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's streams come round again; a graph that is destroyed takes its stream's workspace with it."""
    few = [Stream() for _ in range(3)]
    handed_out = itertools.cycle(few)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: next(handed_out))
    living = [backend() for _ in range(3)]
    assert {each._stream for each in living} == set(few)
    free = living.pop(1)._stream
    gc.collect()
    assert backend()._stream is free
    assert len([backend() for _ in range(5)]) == 5  # more than there are streams


def test_a_wait_is_for_the_streams_that_steps_run_on(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a thread whose current stream is another one: whoever releases graphs is not who used them."""
    captures, runs = backend(), Stream()
    buffer = captures.buffer(2)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", lambda device: runs)
        patch.setattr(torch, "tensor", lambda numbers, **options: torch.ones(2))
        captures.fill(buffer, [1, 1])
    log.clear()
    captures.wait()
    assert log == [f"wait for {runs.name}", "wait for stream 2"]


class Driver:
    """CUDA's driver library. ``answer``: what it says to the second call."""

    def __init__(self, log: list[str], answer: int) -> None:
        self.log, self.answer = log, answer

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802 - the driver's name
        device._obj.value = 70 + ordinal
        return 0

    def cuDeviceGraphMemTrim(self, device: Any) -> int:  # noqa: N802
        self.log.append(f"trim {device.value}")
        return self.answer


@pytest.mark.parametrize("answer", [0, 3])
def test_the_drivers_memory_of_graphs_is_given_back(
    answer: int, log: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(log, answer))
    captures = backend()
    captures.device = torch.device("cuda", 1)
    for allocator in ("native", "cudaMallocAsync"):
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda allocator=allocator: allocator)
        captures.trim()
    assert log == ["trim 71"]
    assert bool(answer) == ("the driver answers 3" in caplog.text)


@pytest.mark.parametrize("second", ["wait", "capture"])
def test_nobody_waits_or_captures_while_another_thread_captures(log: list[str], second: str) -> None:
    one, two = backend(), backend()
    inside, go_on = threading.Event(), threading.Event()

    def step(numbers: Tensor) -> None:
        inside.set()
        assert go_on.wait(20)

    do: Callable[[], object] = two.wait if second == "wait" else lambda: two.capture(lambda numbers: None, NUMBERS)
    with ThreadPoolExecutor(2) as pool:
        capturing = pool.submit(one.capture, step, NUMBERS)
        assert inside.wait(20)
        log.append("the other thread begins")
        other = pool.submit(do)
        with pytest.raises(TimeoutError):
            other.result(0.2)
        go_on.set()
        capturing.result(20)
        other.result(20)
    begun = log.index("the other thread begins")
    assert log[begun + 1] == "end"  # of the first capture, before anything else
    assert "wait for stream 3" in log[begun:]
