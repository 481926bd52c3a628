"""The runner that captures a run's steps and replays them, and how a run gets one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .capture import CaptureBackend
from .errors import SSDError, StopRequested
from .graph_check import RunTensor, StepCheck
from .graphs import GRAPHS, Graphs, GraphsChoice, Step, Suite, graphs_of, place_of
from .runner import Eager, Runner, StepFunction

_FEW = 8
"""Up to so many entries a step is filled up to no more: what horizontal heads draft."""
_SLOTS = 64
"""Cache slots come in multiples of this, which also keeps attention's masks aligned."""
_REACHES = 8
"""In so many parts attention grows over the cache."""


@dataclass
class Lease:
    """A runner for one run, and why it uses no graphs."""

    runner: Runner
    reason: str | None = None

    @property
    def text(self) -> str:
        """For the report; begins with "off" where no graph was used or the run did not end with graphs."""
        if isinstance(self.runner, GraphRunner):
            return self.runner.text
        return f"off: {self.reason}"


class GraphRunner(Runner):
    """One run on :class:`Graphs`."""

    exact = False

    def __init__(
        self, graphs: Graphs, modules: Sequence[nn.Module], backend: CaptureBackend, constants: Hashable
    ) -> None:
        self._graphs = graphs
        self._modules = modules
        self._backend = backend
        self._constants = constants
        self._own: dict[str, tuple[Hashable, RunTensor]] = {}
        self._suite: Suite | None = None
        self._captured = 0
        self._replays = 0
        self._unsettled = 0

    @property
    def unsettled(self) -> int:
        return self._unsettled

    @property
    def text(self) -> str:
        if self._graphs.fault is not None:
            return f"off: {self._graphs.fault} (after {self._replays} replays)"
        if not self._replays:
            return "off: no step came up twice"
        used = 0 if self._suite is None else sum(step.replay is not None for step in self._suite.steps.values())
        return f"{used} graphs ({self._captured} of them new), {self._replays} replays"

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device,
        scratch: int | None = None, repeatable: bool = False,
    ) -> Tensor:  # fmt: skip
        assert name not in self._own, name
        assert self._suite is None, "the run's tensors must be there before its first step"
        key = (name, shape, dtype, device)
        kept = self._graphs.tensor(key)
        if kept is not None and kept.tensor.untyped_storage().nbytes() == 0:
            self._graphs.forget()  # somebody freed it: what comes in its place may lie at the same address
            kept = None
        if kept is None:
            made = RunTensor(self._zeros(shape, dtype, device), scratch, repeatable)
            kept = self._graphs.tensor(key, made) or made
        else:
            kept.tensor.zero_()
        self._own[name] = key, kept
        return kept.tensor

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        with torch.inference_mode(False):  # an inference tensor could not be written to outside of that mode
            try:
                return torch.zeros(shape, dtype=dtype, device=device)
            except torch.OutOfMemoryError:
                self._graphs.make_memory({key for key, _ in self._own.values()})
                return torch.zeros(shape, dtype=dtype, device=device)

    def keep(self, name: str, value: Tensor) -> Tensor:
        return self.tensor(name, tuple(value.shape), value.dtype, value.device).copy_(value)

    def widen(self, count: int, row: int) -> int:
        if count <= 1:
            return 1
        if count <= _FEW < row:
            return _FEW
        return -(-count // row) * row

    def slots(self, count: int) -> int:
        return -(-count // _SLOTS) * _SLOTS

    def reach(self, length: int, slots: int) -> int:
        part = max(2 * _SLOTS, -(-slots // (_REACHES * _SLOTS)) * _SLOTS)
        return min(slots, -(-length // part) * part)

    def warm(self, steps: Sequence[tuple[Hashable, StepFunction, list[int]]]) -> None:
        """Captures the widest steps first: what the others need then fits into the memory of these."""
        suite = self._start()
        for key, step, numbers in steps:
            if self._graphs.fault is None and (key not in suite.steps or suite.steps[key].replay is None):
                known = self._known(suite, key, numbers)
                self._backend.fill(known.numbers, numbers)
                try:
                    self._backend.aside(step, known.numbers)
                except torch.OutOfMemoryError as error:  # nothing but scratch was written
                    self._give_up(f"no memory for the widest step ({_line(error)})")
                    return
                self._capture(known, step)

    def run(self, key: Hashable, step: StepFunction, numbers: list[int], once: bool = False) -> None:
        if once:
            buffer = self._backend.buffer(len(numbers))
            self._backend.fill(buffer, numbers)
            step(buffer)
            return
        suite = self._start()
        first = key not in suite.steps
        known = self._known(suite, key, numbers)
        self._backend.fill(known.numbers, numbers)
        if self._graphs.fault is not None:
            step(known.numbers)
        elif first:
            self._unsettled += 1
            step(known.numbers)
        elif known.replay is not None and known.checked:
            try:
                known.replay()
            except RuntimeError as error:  # a launch that was refused did nothing
                self._give_up(f"a graph could not be replayed ({_line(error)})")
                step(known.numbers)
                return
            self._replays += 1
        else:
            self._unsettled += 1
            self._first_replay(known, step)

    def _start(self) -> Suite:
        """Finds the steps that fit this run, before its first one."""
        if self._suite is None:
            backbone, *others = self._modules
            tensors = frozenset(place_of(key, kept.tensor) for key, kept in self._own.values())
            names = frozenset(key for key, _ in self._own.values())
            places = tuple(_places(module) for module in others)
            constants = (self._constants, names, places, _flags())
            self._suite = self._graphs.suite(constants, _places(backbone), tensors)
        return self._suite

    def _known(self, suite: Suite, key: Hashable, numbers: list[int]) -> Step:
        known = suite.steps.get(key)
        if known is None:
            self._graphs.make_room(suite)
            known = suite.steps[key] = Step(self._backend.buffer(len(numbers)))
        return known

    def _capture(self, known: Step, step: StepFunction) -> bool:
        """Gives a step that was just carried out aside its graph; or gives up."""
        try:
            known.replay = self._backend.capture(step, known.numbers)
        except StopRequested:
            self._graphs.forget()  # a failed capture costs the other graphs, see there
            raise
        except Exception as error:  # the step itself was sound: whatever it is, it is about captures
            self._give_up(f"a step could not be captured ({_line(error)})")
            return False
        self._captured += 1
        return True

    def _first_replay(self, known: Step, step: StepFunction) -> None:
        """Carries the step out plainly, then by its graph, and goes on with either result if both are the same."""
        try:
            check = StepCheck({name: kept for name, (_, kept) in self._own.items()})
        except torch.OutOfMemoryError as error:
            self._give_up(f"no memory to check a graph ({_line(error)})")
            step(known.numbers)
            return
        self._backend.aside(step, known.numbers)
        if known.replay is None and not self._capture(known, step):
            return  # the step itself is done
        try:
            check.rewind()
        except torch.OutOfMemoryError as error:
            self._give_up(f"no memory to check a graph ({_line(error)})")
            return
        assert known.replay is not None
        try:
            known.replay()
            self._replays += 1
            problem = check.problem()
        except torch.OutOfMemoryError as error:
            reason = f"no memory to check a graph ({_line(error)})"
        except RuntimeError as error:  # some allocators find memory for a graph no earlier than at its launch
            reason = f"a graph could not be replayed ({_line(error)})"
        else:
            if problem is None:
                known.checked = True
                return
            reason = f"a replay was not what the step is: {problem}"
        self._give_up(reason)  # which gives memory back, in case that is what is missing
        if not check.restore():
            raise SSDError(
                f"a CUDA graph spoiled this run's keys and values ({reason}); draw again, now without graphs"
            )

    def _give_up(self, reason: str) -> None:
        self._graphs.give_up(type(self._modules[0]).__name__, reason)


@contextmanager
def lease(
    choice: GraphsChoice, backbone: nn.Module, heads: nn.Module | None, device: torch.device, constants: Hashable
) -> Iterator[Lease]:
    """A runner for one run of ``backbone``. Raises SSDError for a choice that there is not."""
    if choice not in GRAPHS:
        raise SSDError(f"graphs must be one of {', '.join(GRAPHS)}, got {choice!r}")
    if choice == "off":
        yield Lease(Eager(device), "switched off")
        return
    graphs = graphs_of(backbone)
    backend = graphs.open(device)
    if isinstance(backend, str):
        yield Lease(Eager(device), backend)
        return
    failed = False
    try:
        yield Lease(GraphRunner(graphs, [backbone] if heads is None else [backbone, heads], backend, constants))
    except StopRequested:
        backend.wait()  # the next run may be on another stream, and begins by clearing what steps may still write to
        raise
    except BaseException:
        failed = True
        raise
    finally:
        graphs.close(release=failed)


def _places(module: nn.Module) -> Hashable:
    return tuple(place_of(name, t) for name, t in [*module.named_parameters(), *module.named_buffers()])


_cuda: Any = torch.backends.cuda
_FLAGS: tuple[Callable[[], Hashable], ...] = (
    lambda: torch.get_float32_matmul_precision(),
    lambda: _cuda.matmul.fp32_precision,
    lambda: _cuda.matmul.allow_fp16_accumulation,
    lambda: _cuda.matmul.allow_fp16_reduced_precision_reduction,
    lambda: _cuda.matmul.allow_bf16_reduced_precision_reduction,
    lambda: torch.are_deterministic_algorithms_enabled(),
    lambda: torch.is_autocast_enabled("cuda"),
    lambda: _cuda.flash_sdp_enabled(),
    lambda: _cuda.mem_efficient_sdp_enabled(),
    lambda: _cuda.math_sdp_enabled(),
)
"""What of torch's own settings decides which kernels a step takes."""


def _flags() -> Hashable:
    return tuple(map(_setting, _FLAGS))


def _setting(read: Callable[[], Hashable]) -> Hashable:
    """None where this version has no such setting, or refuses to name it because its successor was set instead."""
    try:
        return read()
    except (AttributeError, RuntimeError):
        return None


def _line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
