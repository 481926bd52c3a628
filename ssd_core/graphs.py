"""A run's steps as CUDA graphs: captured once for a loaded backbone, replayed in every run that does the same work.

The plain path always works; this wraps it. A step is carried out plainly the first time its key comes up, captured the
second time, and the first replay of each graph is compared with the step itself. Whatever goes wrong, the run goes on
plainly, one line is logged, and this loaded copy of the backbone tries no graphs any more; its runs' reports say so.

A replay reads and writes the very addresses of the capture. So all that steps touch besides their numbers is kept here
between runs (``RunTensor``), and graphs are only replayed for a run with the same constants, the same tensors and the
same places of all weights (``Suite``). Graphs go all at once, for those that stay would share freed memory with the one
destroyed (``CaptureBackend.capture``). One run at a time uses them; another run on the same backbone, in another
thread, meanwhile goes plainly. A run that ends in an error, other than ``StopRequested``, lets everything go.

This file is what is kept; ``graph_runs.py`` is what a run does with it, ``capture.py`` the device's side.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .capture import CaptureBackend, CudaCapture, Replay
from .graph_check import RunTensor

GraphsChoice = Literal["auto", "off"]
GRAPHS: tuple[GraphsChoice, ...] = get_args(GraphsChoice)

MOST_GRAPHS = 128
"""Graphs that one backbone keeps; with one more all begin anew."""
MOST_SUITES = 4
"""Kinds of run (sampling, batch, decoder's rule, heads) whose graphs and tensors are kept; likewise."""

_log = logging.getLogger(__name__)


@dataclass
class Step:
    """One key's numbers, and its graph once it has one; ``checked``: a replay was compared with the step."""

    numbers: Tensor
    replay: Replay | None = None
    checked: bool = False


@dataclass
class Suite:
    """The steps of one kind of run. ``tensors``: the run's tensors that they were captured with, by ``place_of``."""

    tensors: frozenset[Hashable]
    steps: dict[Hashable, Step] = field(default_factory=dict)


class Graphs:
    """What one loaded copy of a backbone keeps between runs. It owns device memory until ``release``."""

    def __init__(self, backend: CaptureBackend | None = None) -> None:
        """``backend``: by default CUDA's, as soon as the backbone is on such a device."""
        self._backend = backend
        self._busy = threading.Lock()
        self._unwanted = threading.Event()
        self._suites: dict[Hashable, Suite] = {}
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
            self.close()

    def open(self, device: torch.device) -> CaptureBackend | str:
        """The backend for one run on ``device``, which has to ``close`` again; or why it can have none."""
        reason = self._unfit(device)
        if reason is not None:
            return reason
        if not self._busy.acquire(blocking=False):
            return "another run is using the graphs of this backbone"
        try:
            return self._backend_for(device)
        except RuntimeError as error:
            self.give_up(f"what is on {device}", f"the device takes no captures ({error})")
            self._busy.release()
            return f"the device takes no captures ({error})"

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

    def close(self, release: bool = False) -> None:
        """Ends a run's use; gives all memory back with ``release`` or where somebody wished that meanwhile."""
        try:
            if release or self._unwanted.is_set() or self.fault is not None:
                self._unwanted.clear()
                self.forget()
                self._tensors.clear()
                if self._backend is not None:
                    self._backend.trim()
        finally:
            self._busy.release()
        if self._unwanted.is_set():  # wished for between the question and the release
            self.release()

    def forget(self, keep: Suite | None = None) -> None:
        """Drops all graphs, not the tensors. ``keep``: a suite that its run goes on to fill."""
        if self._backend is not None and self.count:
            self._backend.wait()
        for suite in self._suites.values():
            for step in suite.steps.values():
                step.replay = None  # a run may hold its suite and the step it is at
            suite.steps.clear()
        self._suites = {key: suite for key, suite in self._suites.items() if suite is keep}

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

    def suite(self, key: Hashable, weights: Hashable, tensors: frozenset[Hashable]) -> Suite:
        """The steps of a kind of run. All begin anew where weights or tensors moved or there is a kind too many."""
        known = self._suites.get(key)
        moved = weights != self._weights or (known is not None and known.tensors != tensors)
        if moved or (known is None and len(self._suites) >= MOST_SUITES):
            self.forget()
            self._weights = weights
        suite = self._suites.setdefault(key, Suite(tensors))
        used = frozenset[Hashable]().union(*(each.tensors for each in self._suites.values()))
        for name, kept in list(self._tensors.items()):
            if place_of(name, kept.tensor) not in used:
                del self._tensors[name]
        return suite

    def make_room(self, suite: Suite) -> None:
        """Lets all begin anew where one more step of ``suite`` would be too many."""
        if sum(len(each.steps) for each in self._suites.values()) >= MOST_GRAPHS:
            self.forget(keep=suite)

    def make_memory(self, wanted: set[Hashable]) -> None:
        """Lets everything go but the tensors ``wanted``."""
        self.forget()
        for key in set(self._tensors) - wanted:
            del self._tensors[key]


def graphs_of(backbone: nn.Module) -> Graphs:
    """The graphs of this loaded copy. They hang on it, so that both go together; the backbone knows nothing of it."""
    kept: Graphs = backbone.__dict__.setdefault("_graphs", Graphs())
    return kept


def hang(backbone: nn.Module, graphs: Graphs) -> Graphs:
    """Puts graphs with a backend of one's own in the place of those of ``graphs_of``."""
    backbone.__dict__["_graphs"] = graphs
    return graphs


def place_of(name: Hashable, tensor: Tensor) -> Hashable:
    """Where and what a tensor is."""
    return name, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
