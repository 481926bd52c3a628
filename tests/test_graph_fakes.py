"""The stand-in for CUDA graphs is as strict as a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from graph_fakes import FakeCapture, NotCapturableError, storage_of
from torch import Tensor


@pytest.fixture
def numbers() -> Iterator[Tensor]:
    with torch.inference_mode():
        yield torch.tensor([0, 1, 2])


REFUSALS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a number read": lambda x, n: x[0].item(),
    "a list": lambda x, n: x.tolist(),
    "a condition": lambda x, n: 1 if x[0] > 0 else 2,
    "an index from the host": lambda x, n: x[int(n[1])],
    "positions of true": lambda x, n: (x > 0).nonzero(),
    "a mask": lambda x, n: x[x > 0],
    "a masked write": lambda x, n: x.__setitem__(x > 0, n[:1].double()),
    "a new tensor of numbers": lambda x, n: x + torch.tensor([1.0, 2.0, 3.0]),
    "a random number": lambda x, n: torch.rand(3),
    "a summing write": lambda x, n: x.index_put_((n,), x, accumulate=True),
    "two ways": lambda x, n: torch.equal(x, x),
    "a bare number written by index": lambda x, n: x.__setitem__(n, 4.0),
    "unique": lambda x, n: n.unique(),
}


@pytest.mark.parametrize("step", REFUSALS.values(), ids=REFUSALS)
def test_the_stand_in_refuses_what_a_device_does(step: Callable[[Tensor, Tensor], object], numbers: Tensor) -> None:
    """So steps that it takes wait for nobody: every run above goes through it."""
    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(NotCapturableError, match="stream is capturing"):
        FakeCapture().capture(lambda n: step(x, n), numbers)  # type: ignore[arg-type,return-value]


def test_the_stand_in_sees_tensors_that_nobody_keeps(numbers: Tensor) -> None:
    fake, x, y = FakeCapture(), torch.zeros(3), torch.ones(3)
    fake.static = lambda: {storage_of(x)}
    fake.capture(lambda n: x.add_(n), numbers)
    with pytest.raises(pytest.fail.Exception, match="tensors that nobody keeps"):
        fake.capture(lambda n: x.add_(y), numbers)


def test_the_stand_in_frees_the_workspace_with_the_first_graph(numbers: Tensor) -> None:
    fake, x = FakeCapture(), torch.zeros(3)
    one, two = (fake.capture(lambda n: x.add_(n), numbers) for _ in range(2))
    two()
    del one
    with pytest.raises(AssertionError, match="another graph of this stream was destroyed"):
        two()
    del two
    three = fake.capture(lambda n: x.add_(n), numbers)
    three()
    with pytest.raises(NotCapturableError):
        fake.capture(lambda n: x.tolist(), numbers)  # type: ignore[arg-type,return-value]
    with pytest.raises(AssertionError, match="another graph of this stream was destroyed"):
        three()
    assert x.tolist() == [0, 2, 4]


def test_the_stand_in_replays_memory_and_not_python(numbers: Tensor) -> None:
    """What a replay does not do: run Python, follow a name to another tensor, keep temporaries, act when captured."""
    fake = FakeCapture()
    names, calls, leaked = {"x": torch.zeros(3)}, [], []
    first = names["x"]

    def step(n: Tensor) -> None:
        calls.append(1)
        leaked.append(names["x"] + n)
        names["x"].copy_(leaked[-1] * len(calls))

    replay = fake.capture(step, numbers)
    assert first.tolist() == [0, 0, 0]
    names["x"] = torch.full((3,), 100.0)
    numbers.add_(1)
    replay()
    replay()
    assert first.tolist() == [2, 4, 6]
    assert names["x"].tolist() == [100.0] * 3
    assert len(calls) == 1
    assert bool(leaked[0].isnan().all())
