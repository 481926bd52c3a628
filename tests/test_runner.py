"""The plain runner."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_core.runner import Eager


def test_steps_get_their_numbers() -> None:
    runner, seen = Eager(torch.device("cpu")), []
    runner.run("key", lambda numbers: seen.append(numbers), [3, 1])  # type: ignore[arg-type,return-value]
    assert seen[0].tolist() == [3, 1]
    assert seen[0].dtype == torch.int64
    assert runner.unsettled == 0


def test_the_host_does_not_wait_for_a_gpu_to_have_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from memory that is not pinned would hold it up until all work before is done."""
    told: list[Any] = []

    class Pinned:
        def to(self, device: torch.device, **options: Any) -> Tensor:
            told.append((device, options))
            return torch.zeros(2)

    def make(numbers: list[int], **options: Any) -> Pinned:
        told.append((numbers, options))
        return Pinned()

    monkeypatch.setattr(torch, "tensor", make)
    device = torch.device("cuda", 0)
    Eager(device).run("key", lambda numbers: told.append("step"), [3, 1])  # type: ignore[arg-type,return-value]
    assert told == [
        ([3, 1], {"dtype": torch.int64, "pin_memory": True}), (device, {"non_blocking": True}), "step"
    ]  # fmt: skip
