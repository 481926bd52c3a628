"""Graphs are replayed under the settings of torch that they were captured under, whatever torch calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from graph_toys import same, setup, used
from toys import draw

from ssd_core import AR

MATMUL = torch.backends.cuda.matmul
SETTINGS: dict[str, Callable[[Any], None]] = {
    "bf16 sums": lambda value: setattr(MATMUL, "allow_bf16_reduced_precision_reduction", value),
    "fp16 sums": lambda value: setattr(MATMUL, "allow_fp16_reduced_precision_reduction", value),
    "flash": torch.backends.cuda.enable_flash_sdp,
    "memory-efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "math": torch.backends.cuda.enable_math_sdp,
}


@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS)
def test_changed_settings_have_graphs_of_their_own(change: Callable[[Any], None]) -> None:
    backbone, _, fake = setup(end_of_line=False)
    draw(backbone, AR())
    captures = fake.captures
    change(False)
    try:
        draw(backbone, AR())
    finally:
        change(True)
    assert fake.captures == 2 * captures
    draw(backbone, AR())
    assert fake.captures == 2 * captures


@pytest.fixture
def new_precision() -> Iterator[None]:
    """Torch's new way to allow TensorFloat-32, after which it refuses to answer the old question."""
    before = getattr(MATMUL, "fp32_precision", None)
    if before is None:
        pytest.skip("this torch has the old way alone")
    MATMUL.fp32_precision = "tf32"
    with pytest.raises(RuntimeError):
        torch.get_float32_matmul_precision()
    yield
    MATMUL.fp32_precision = before


def test_the_new_name_of_a_setting_is_followed(new_precision: None) -> None:
    backbone, _, fake = setup(end_of_line=False)
    assert used(draw(backbone, AR()))
    captures = fake.captures
    MATMUL.fp32_precision = "ieee"
    assert used(draw(backbone, AR()))
    assert fake.captures == 2 * captures


def test_an_older_torch_lacks_some_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        def __getattr__(self, name: str) -> Any:
            if name in ("allow_fp16_accumulation", "fp32_precision"):
                raise AttributeError(f"Unknown attribute {name}")
            return getattr(MATMUL, name)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "matmul", Older())
    monkeypatch.delattr(torch.backends.cuda, "cudnn_sdp_enabled")
    backbone, _, _ = setup(end_of_line=False)
    plain, graphed = draw(backbone, AR(), graphs="off"), draw(backbone, AR())
    assert same(plain, graphed)
    assert used(graphed)
