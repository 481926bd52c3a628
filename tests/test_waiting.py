"""How often a run waits for the device: once a step, for one small tensor."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from toys import ToyBackbone, make_engine, toy_heads

from ssd_core import AR, Auto, HorizontalMTP, Jacobi, Rolling, Rounds, Sampling
from ssd_core.draft import CopyDrafter, Drafter, HeadsDrafter, LeftDrafter, NoDrafter, RandomDrafter
from ssd_core.schedule import Schedule

WAITING_CALLS = ("tolist", "item", "numpy", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__")
WAITING_OPERATIONS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero")


class Calls(TorchFunctionMode):
    """Counts what a program asks of tensors; ``sizes``: how many numbers each list had."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.sizes: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in WAITING_CALLS:
            self.counts[name] += 1
        if name == "tolist":
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Counts the operations whose result the host needs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put_") and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in WAITING_OPERATIONS or masked:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def drafters(backbone: ToyBackbone) -> dict[str, Drafter]:
    return {
        "none": NoDrafter(),
        "heads": HeadsDrafter(backbone, toy_heads(backbone)),
        "copy": CopyDrafter(),
        "left": LeftDrafter(),
        "random": RandomDrafter(backbone.codes),
    }


@pytest.mark.parametrize(
    ("schedule", "drafts"),
    [
        (AR(), "none"),
        (AR("maximal"), "none"),
        (Rolling(2), "heads"),
        (Rolling(2, tolerance=3.0), "left"),
        (Rolling(2, coupling="maximal"), "copy"),
        (Rounds(2), "heads"),
        (Rounds(1, commit="separate"), "heads"),
        (Rounds(2, 2, 1), "copy"),
        (Rounds(0), "heads"),
        (Jacobi(7), "random"),
        (HorizontalMTP(3), "heads"),
        (Auto(), "left"),
    ],
)
@pytest.mark.parametrize("end_of_line", [True, False])
def test_a_run_waits_once_a_step(schedule: Schedule, drafts: str, end_of_line: bool) -> None:
    """One list of two numbers and one for each image; nothing else is read, and no shape hangs on a value."""
    backbone = ToyBackbone(3, 5, end_of_line=end_of_line)
    sampling = Sampling(2.0, 0.9, 5, 0.9)
    engine, meter = make_engine(backbone, drafters(backbone)[drafts], schedule, batch=2, sampling=sampling)
    rows = backbone.prompt_rows(["a", "bc"], "", (3, 5), True)
    with Calls() as calls, Operations() as operations:
        engine.run(rows)
    assert operations.counts == {}
    assert set(calls.counts) <= {"tolist"}
    assert 0 < calls.counts["tolist"] <= meter.forwards["verify"] + meter.forwards["commit"] + 1
    assert set(calls.sizes) == {4}
