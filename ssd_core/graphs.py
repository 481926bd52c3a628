"""A run's steps as CUDA graphs: captured once for a loaded backbone, replayed in every run that does the same work.

The plain path always works; this wraps it. A step is carried out plainly the first time its key comes up, captured the
second time, and the first replay of each graph is compared with the step itself. Whatever goes wrong, the run goes on
plainly, one line is logged, and this loaded copy of the backbone tries no graphs any more; its runs' reports say so.

A replay reads and writes the very addresses of the capture. So all that steps touch besides their numbers is kept here
between runs (``RunTensor``), and graphs are only replayed for a run with the same constants, the same tensors and the
same places of all weights (``_Suite``). One run at a time uses them; another run on the same backbone, in another
thread, meanwhile goes plainly. A run that ends in an error, other than ``StopRequested``, lets everything go.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .capture import CaptureBackend, CudaCapture, Replay
from .errors import SSDError, StopRequested
from .graph_check import RunTensor, StepCheck
from .runner import Eager, Runner, StepFunction

GraphsChoice = Literal["auto", "off"]
GRAPHS: tuple[GraphsChoice, ...] = get_args(GraphsChoice)

MOST_GRAPHS = 128
"""Graphs that one backbone keeps; the one that was used longest ago goes first."""
MOST_SUITES = 4
"""Kinds of run (sampling, batch, decoder's rule, heads) whose graphs and tensors are kept."""

_FEW = 8
"""Up to so many entries a step is filled up to no more: what horizontal heads draft."""
_SLOTS = 64
"""Cache slots come in multiples of this, which also keeps attention's masks aligned."""
_REACHES = 8
"""In so many parts attention grows over the cache."""

_log = logging.getLogger(__name__)


@dataclass
class _Step:
    """One key's numbers, and its graph once it has one; ``checked``: a replay was compared with the step."""

    numbers: Tensor
    replay: Replay | None = None
    checked: bool = False


@dataclass
class _Suite:
    """The steps of one kind of run. ``tensors``: the run's tensors that they were captured with, by ``_place``."""

    tensors: frozenset[Hashable]
    steps: OrderedDict[Hashable, _Step] = field(default_factory=OrderedDict)


class Graphs:
    """What one loaded copy of a backbone keeps between runs. It owns device memory until ``release``."""

    def __init__(self, backend: CaptureBackend | None = None) -> None:
        """``backend``: by default CUDA's, as soon as the backbone is on such a device."""
        self._backend = backend
        self._busy = threading.Lock()
        self._unwanted = threading.Event()
        self._suites: OrderedDict[Hashable, _Suite] = OrderedDict()
        self._tensors: dict[Hashable, RunTensor] = {}
        self._weights: Hashable = None
        self.fault: str | None = None
        """Why this copy tries no graphs any more."""
        self.barred: str | None = None
        """Why runs from now on shall use none: for whoever has the weights in their care, and may move them."""

    def __deepcopy__(self, memo: object) -> Graphs:
        return Graphs()  # a copied backbone lies elsewhere: nothing of this holds for it

    def __reduce__(self) -> tuple[type[Graphs], tuple[()]]:
        return Graphs, ()

    @property
    def count(self) -> int:
        """Graphs that are there."""
        return sum(step.replay is not None for suite in self._suites.values() for step in suite.steps.values())

    def release(self) -> None:
        """Gives all device memory back, at once or, while a run uses it, when that ends."""
        self._unwanted.set()
        if self._busy.acquire(blocking=False):
            self._close()

    @contextmanager
    def run(self, modules: Sequence[nn.Module], device: torch.device, constants: Hashable) -> Iterator[Lease]:
        """A runner for one run. ``modules``: backbone and heads; ``constants``: what else decides what steps do."""
        reason = self._unfit(device)
        if reason is None and not self._busy.acquire(blocking=False):
            reason = "another run is using the graphs of this backbone"
        if reason is not None:
            yield Lease(Eager(device), reason)
            return
        try:
            runner = _GraphRunner(self, modules, self._backend_for(device), constants)
            yield Lease(runner)
        except StopRequested:
            raise
        except BaseException:
            self._unwanted.set()
            raise
        finally:
            self._close()

    def _unfit(self, device: torch.device) -> str | None:
        if self.barred is not None or self.fault is not None:
            return self.barred or self.fault
        served = "cuda" if self._backend is None else self._backend.device.type
        return None if device.type == served else f"the device is {device.type}"

    def _backend_for(self, device: torch.device) -> CaptureBackend:
        if self._backend is None or self._backend.device != device:
            self.forget()
            self._tensors.clear()
            self._backend = CudaCapture(device)
        return self._backend

    def _close(self) -> None:
        """Ends the use of what is here; forgets it where somebody wished that meanwhile."""
        try:
            if self._unwanted.is_set() or self.fault is not None:
                self._unwanted.clear()
                self.forget()
                self._tensors.clear()
        finally:
            self._busy.release()
        if self._unwanted.is_set():  # wished for between the question and the release
            self.release()

    def forget(self) -> None:
        """Drops the graphs, not the tensors."""
        if self._backend is not None and self.count:
            self._backend.wait()
        for suite in self._suites.values():
            suite.steps.clear()  # a run may hold its suite
        self._suites.clear()
        self._weights = None

    def give_up(self, name: str, reason: str) -> None:
        """No graphs from now on."""
        self.fault = reason
        _log.warning("CUDA graphs are off for %s from now on: %s", name, reason)
        self.forget()

    def tensor(self, key: Hashable, make: RunTensor | None = None) -> RunTensor | None:
        """The kept tensor of a key, or None; with ``make`` it is kept from now on."""
        if make is not None:
            self._tensors[key] = make
        return self._tensors.get(key)

    def suite(self, key: Hashable, weights: Hashable, tensors: frozenset[Hashable]) -> _Suite:
        """The steps of a kind of run, empty where weights or tensors moved; room is made for them."""
        if weights != self._weights:
            self.forget()
            self._weights = weights
        suite = self._suites.pop(key, None)
        if suite is None or suite.tensors != tensors:
            suite = _Suite(tensors)
        while len(self._suites) >= MOST_SUITES:
            self._drop(self._suites.popitem(last=False)[1])
        self._suites[key] = suite
        used = frozenset[Hashable]().union(*(each.tensors for each in self._suites.values()))
        for name, kept in list(self._tensors.items()):
            if _place(name, kept.tensor) not in used:
                del self._tensors[name]
        return suite

    def make_room(self) -> None:
        """Drops what was used longest ago where there is too much."""
        while sum(len(suite.steps) for suite in self._suites.values()) > MOST_GRAPHS:
            oldest = next(suite for suite in self._suites.values() if suite.steps)
            if self._backend is not None:
                self._backend.wait()
            oldest.steps.popitem(last=False)

    def make_memory(self, wanted: set[Hashable]) -> None:
        """Lets everything go but the tensors ``wanted``."""
        self.forget()
        for key in set(self._tensors) - wanted:
            del self._tensors[key]

    def _drop(self, suite: _Suite) -> None:
        if self._backend is not None and suite.steps:
            self._backend.wait()
        suite.steps.clear()


@dataclass
class Lease:
    """A runner for one run, and why it uses no graphs."""

    runner: Runner
    reason: str | None = None

    @property
    def text(self) -> str:
        """For the report; begins with "off" where no graph was used or the run did not end with graphs."""
        if isinstance(self.runner, _GraphRunner):
            return self.runner.text
        return f"off: {self.reason}"


class _GraphRunner(Runner):
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
        self._suite: _Suite | None = None
        self._captured = 0
        self._replays = 0

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
        if kept is None or kept.tensor.untyped_storage().nbytes() == 0:
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
                self._backend.aside(step, known.numbers)
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
        if first or self._graphs.fault is not None:
            step(known.numbers)
        elif known.replay is not None and known.checked:
            known.replay()
            self._replays += 1
        else:
            self._first_replay(known, step)

    def _start(self) -> _Suite:
        """Finds the steps that fit this run, before its first one."""
        if self._suite is None:
            backbone, *others = self._modules
            tensors = frozenset(_place(key, kept.tensor) for key, kept in self._own.values())
            names = frozenset(key for key, _ in self._own.values())
            places = tuple(_places(module) for module in others)
            constants = (self._constants, names, places, _flags())
            self._suite = self._graphs.suite(constants, _places(backbone), tensors)
        return self._suite

    def _known(self, suite: _Suite, key: Hashable, numbers: list[int]) -> _Step:
        known = suite.steps.get(key)
        if known is None:
            known = suite.steps[key] = _Step(self._backend.buffer(len(numbers)))
            self._graphs.make_room()
        suite.steps.move_to_end(key)
        return known

    def _capture(self, known: _Step, step: StepFunction) -> bool:
        """Gives a step that was just carried out aside its graph; or gives up."""
        try:
            known.replay = self._backend.capture(step, known.numbers)
        except RuntimeError as error:  # what CUDA raises for anything, lack of memory included
            self._give_up(f"a step could not be captured ({_line(error)})")
            return False
        self._captured += 1
        return True

    def _first_replay(self, known: _Step, step: StepFunction) -> None:
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
        known.replay()
        self._replays += 1
        problem = check.problem()
        if problem is None:
            known.checked = True
            return
        whole = check.restore()
        self._give_up(f"a replay was not what the step is: {problem}")
        if not whole:
            raise SSDError(
                f"a CUDA graph spoiled this run's keys and values ({problem}); draw again, now without graphs"
            )

    def _give_up(self, reason: str) -> None:
        self._graphs.give_up(type(self._modules[0]).__name__, reason)


def graphs_of(backbone: nn.Module) -> Graphs:
    """The graphs of this loaded copy. They hang on it, so that both go together; the backbone knows nothing of it."""
    kept: Graphs = backbone.__dict__.setdefault("_graphs", Graphs())
    return kept


def hang(backbone: nn.Module, graphs: Graphs) -> Graphs:
    """Puts graphs with a backend of one's own in the place of those of ``graphs_of``."""
    backbone.__dict__["_graphs"] = graphs
    return graphs


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
    modules = [backbone] if heads is None else [backbone, heads]
    with graphs_of(backbone).run(modules, device, constants) as found:
        yield found


def _place(name: Hashable, tensor: Tensor) -> Hashable:
    """Where and what a tensor is."""
    return name, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _places(module: nn.Module) -> Hashable:
    return tuple(_place(name, t) for name, t in [*module.named_parameters(), *module.named_buffers()])


def _flags() -> Hashable:
    """What of torch's own settings decides which kernels a step takes."""
    return (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cuda"),
        torch.backends.cuda.matmul.allow_fp16_accumulation if torch.cuda.is_available() else None,
    )


def _line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
