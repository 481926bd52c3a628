"""What the comparison of a replay with its step costs."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ssd_core.graph_check import RunTensor

LAYERS, SEQUENCES, SLOTS, HEADS, SIZE = 8, 2, 500, 2, 32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_digests_tell_every_slot_of_every_sequence(dtype: torch.dtype) -> None:
    keys = torch.randn(3, 2, 5, 2, 4).to(dtype)
    each = RunTensor(keys, scratch=2, repeatable=True)
    before = each.digest()
    assert before.shape == (2, 4)
    assert before.dtype == torch.int64
    for layer in range(3):
        for sequence in range(2):
            for slot in range(5):
                changed = keys.clone()
                changed[layer, sequence, slot, 1, 2] += 1
                found = (RunTensor(changed, scratch=2, repeatable=True).digest() != before).nonzero().tolist()
                assert found == ([[sequence, slot]] if slot < 4 else [])


def test_digests_need_memory_for_one_layer() -> None:
    """Keys of a big model are a good part of the device's memory; torch sums small integers in a copy of 64 bits."""
    keys = torch.zeros(LAYERS, SEQUENCES, SLOTS + 1, HEADS, SIZE, dtype=torch.bfloat16)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        RunTensor(keys, scratch=2, repeatable=True).digest()
    most = max(event.cpu_memory_usage for event in profiler.events())
    assert 0 < most <= 1.1 * SEQUENCES * SLOTS * HEADS * SIZE * 8
