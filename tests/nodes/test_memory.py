"""Precision and the estimate of what a run needs."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def memory(pack):
    return pack("host.memory")


def test_auto_is_exact_on_a_cpu_and_what_suits_the_device_elsewhere(memory, comfy):
    assert memory.compute_dtype("auto") == torch.float32
    comfy.device = torch.device("cuda", 0)
    assert memory.compute_dtype("auto") == torch.bfloat16
    comfy.bf16 = False
    assert memory.compute_dtype("auto") == torch.float16
    comfy.fp16 = False
    assert memory.compute_dtype("auto") == torch.float32


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_named_precision_is_taken_at_its_word(memory, name):
    assert memory.compute_dtype(name) == getattr(torch, name)


def test_the_widget_offers_what_is_known(pack, memory):
    assert set(pack("settings").PRECISIONS) == {"auto", *memory.DTYPES}


def test_outputs_are_float32(memory):
    assert memory.to_output(torch.zeros(1, 2, 2, 3, dtype=torch.bfloat16)).dtype == torch.float32
