"""CUDA graphs without a GPU: a step's operations are written down once and carried out again, as a device would.

What a real replay would not do, this one does not do either: no line of Python runs, every operation reads and writes
the very tensors of the capture, a capture changes nothing, and temporaries hold garbage before and after. What a real
capture refuses (waiting for the host, copies from it, shapes that hang on values, generators) is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ssd_core.capture import CaptureBackend, Replay
from ssd_core.graphs import Graphs, graphs_of, hang
from ssd_core.runner import StepFunction

REFUSED = {
    "_local_scalar_dense": "reads a value on the host",
    "nonzero": "has a shape that hangs on values",
    "masked_select": "has a shape that hangs on values",
    "_unique2": "has a shape that hangs on values",
    "unique_dim": "has a shape that hangs on values",
    "repeat_interleave": "may have a shape that hangs on values",
    "bincount": "has a shape that hangs on values",
    "equal": "reads a value on the host",
    "is_nonzero": "reads a value on the host",
    "item": "reads a value on the host",
    "lift_fresh": "copies from the host",
    "_pin_memory": "copies from the host",
    "multinomial": "advances a generator",
    "uniform_": "advances a generator",
    "normal_": "advances a generator",
    "bernoulli_": "advances a generator",
    "exponential_": "advances a generator",
    "random_": "advances a generator",
    "rand": "advances a generator",
    "randn": "advances a generator",
    "randint": "advances a generator",
}
"""Operation -> why no capture takes it."""


class NotCapturableError(RuntimeError):
    """As CUDA's "operation not permitted when stream is capturing"."""


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors_in(values: Any) -> list[Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, Tensor)]


def refusal(func: Any, args: Any, kwargs: Any) -> str | None:
    """Why a capture would fail at this operation, or None."""
    name = func.overloadpacket.__name__
    if name in REFUSED:
        return REFUSED[name]
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return "has a mask for an index"
        if name != "index":
            accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
            if accumulate:
                return "sorts on the host's behalf"
    return None


class HostCalls(TorchFunctionMode):
    """Refuses what needs no operation on a CPU, and waits for the device on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("tolist", "numpy", "cpu", "cuda", "pin_memory", "__array__"):
            raise NotCapturableError(f"operation not permitted when stream is capturing: {name} reads on the host")
        return func(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):
    """Writes down operations. ``outside``: tensors that were there before; ``made``: storages of temporaries."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.outside: dict[int, Tensor] = {}
        self.made: dict[int, Tensor] = {}
        self.saved: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if reason := refusal(func, args, kwargs):
            raise NotCapturableError(f"operation not permitted when stream is capturing: {func} {reason}")
        if func._can_decompose():  # in inference mode operations come whole; what they are made of counts
            with self:
                return func.decompose(*args, **kwargs)
        given = tensors_in((args, kwargs))
        for tensor in given:
            if storage_of(tensor) not in self.made:
                self.outside.setdefault(storage_of(tensor), tensor)
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.is_out or (argument.alias_info is not None and argument.alias_info.is_write):
                self._save(value)
        known = {storage_of(tensor) for tensor in given}
        result = func(*args, **kwargs)
        fresh = [tensor for tensor in tensors_in(result) if storage_of(tensor) not in known]
        for tensor in fresh:
            self.made[storage_of(tensor)] = tensor
        view = not fresh and not func._schema.is_mutable
        if not view:
            self.operations.append((func, args, kwargs, fresh))
        return result

    def _save(self, written: Tensor) -> None:
        """The whole storage, before the first write to what was there before."""
        place = storage_of(written)
        if place in self.outside and place not in self.saved:
            whole = torch.empty(0, dtype=torch.uint8).set_(written.untyped_storage())
            self.saved[place] = whole, whole.clone()

    def undo(self) -> None:
        for whole, before in self.saved.values():
            whole.copy_(before)
        self.saved.clear()

    def poison(self) -> None:
        for tensor in self.made.values():
            spoil(tensor)

    def play(self) -> None:
        for func, args, kwargs, fresh in self.operations:
            result = func(*args, **kwargs)
            known = {storage_of(tensor) for tensor in tensors_in((args, kwargs))}
            again = [tensor for tensor in tensors_in(result) if storage_of(tensor) not in known]
            for tensor, now in zip(fresh, again, strict=True):
                tensor.copy_(now)
        self.poison()


def spoil(tensor: Tensor) -> None:
    """Garbage that no correct step survives."""
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.logical_not_()
    else:
        tensor.fill_(-(2**30))


class Workspace:
    """What the matrix library keeps for a stream. Every graph of it has its address; with the first one destroyed it
    is freed."""

    freed = False

    def free(self) -> None:
        self.freed = True


class FakeCapture(CaptureBackend):
    """Captures on the CPU. ``log``: what was asked of it. ``fail``: called before each capture, may raise; ``launch``:
    called before each replay with its number from 1, may refuse it; ``damage``: called after it, may spoil its work.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.log: list[str] = []
        self.captures = self.replays = 0
        self.fail: Callable[[int], None] = lambda number: None
        self.damage: Callable[[int], None] = lambda number: None
        self.launch: Callable[[int], None] = lambda number: None
        self.tapes: list[Tape] = []
        self.workspace = Workspace()
        self.static: Callable[[], set[int]] | None = None
        """Storages that stay; with it a capture that reads anything else is refused."""

    def buffer(self, count: int) -> Tensor:
        with torch.inference_mode(False):
            return torch.zeros(count, dtype=torch.int64)

    def fill(self, buffer: Tensor, numbers: list[int]) -> None:
        buffer.copy_(torch.tensor(numbers, dtype=torch.int64))

    def aside(self, step: StepFunction, numbers: Tensor) -> None:
        self.log.append("aside")
        step(numbers)

    def capture(self, step: StepFunction, numbers: Tensor) -> Replay:
        assert torch.is_inference_mode_enabled()
        self.captures += 1
        self.log.append("capture")
        if self.workspace.freed:
            self.workspace = Workspace()
        workspace = self.workspace
        tape = Tape()
        try:
            with HostCalls(), tape:
                step(numbers)
                self.fail(self.captures)
        except BaseException:
            workspace.free()
            raise
        finally:
            tape.undo()
        tape.poison()
        if self.static is not None:
            stray = set(tape.outside) - self.static() - {storage_of(numbers)}
            found = [f"{tuple(tape.outside[place].shape)} {tape.outside[place].dtype}" for place in stray]
            if stray:  # no Exception, which would only turn graphs off
                pytest.fail(f"steps read tensors that nobody keeps: {found}")
        self.tapes.append(tape)

        def replay() -> None:
            assert not workspace.freed, "another graph of this stream was destroyed, and the workspace of all with it"
            self.replays += 1
            self.launch(self.replays)
            self.log.append("replay")
            tape.play()
            self.damage(self.replays)

        weakref.finalize(replay, workspace.free)
        return replay

    def wait(self) -> None:
        self.log.append("wait")

    def trim(self) -> None:
        self.log.append("trim")


def allow(fake: FakeCapture, backbone: nn.Module, *heads: nn.Module) -> Graphs:
    """Graphs on the stand-in for a backbone; captures may read weights and kept tensors, nothing else."""
    kept = hang(backbone, Graphs(fake))
    fake.static = lambda: {
        storage_of(tensor)
        for tensor in [
            *(weight for module in (backbone, *heads) for weight in [*module.parameters(), *module.buffers()]),
            *(each.tensor for each in kept._tensors.values()),
        ]
    }
    return kept


def kept_tensor(backbone: nn.Module, name: str) -> Tensor:
    """The tensor of that name which is kept between runs."""
    tensors = graphs_of(backbone)._tensors.items()
    return next(each.tensor for (kind, *_), each in tensors if kind == name)  # type: ignore[misc]


def spoil_scratch(kept: Graphs) -> None:
    """Other sound values where steps may leave anything: no step can be blamed for an index that is none."""
    for (name, *_), each in kept._tensors.items():  # type: ignore[misc]
        if each.scratch is None:
            continue
        scratch = each.tensor.select(each.scratch, -1)
        if name in ("keys", "values"):
            scratch.fill_(torch.nan)
        elif each.tensor.is_floating_point():
            scratch.fill_(7.5)
        else:
            scratch.fill_(1)
