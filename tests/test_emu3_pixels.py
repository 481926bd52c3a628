"""Emu3's picture tokenizer against transformers' Emu3VQVAE, which computes all four frames of a clip."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from emu3_checkpoints import CODES, LAYOUTS, Folders, load
from torch import Tensor

from ssd_core.families.emu3_pixels import Emu3Pixels, MoVQSpec

GRIDS = [(4, 4), (3, 5), (6, 2), (1, 1)]


@pytest.fixture(scope="module")
def reference(emu3_folders: Folders) -> Any:
    from transformers import Emu3ForConditionalGeneration

    model = Emu3ForConditionalGeneration.from_pretrained(emu3_folders.hf).eval()
    return next(module for name, module in model.named_modules() if name.endswith("vqmodel"))


def some_codes(grid: tuple[int, int], batch: int = 2) -> Tensor:
    return torch.randint(CODES, (batch, *grid), generator=torch.Generator().manual_seed(grid[0]))


def some_images(grid: tuple[int, int], batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(grid[1])
    return torch.rand(batch, 8 * grid[0], 8 * grid[1], 3, generator=generator)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("grid", GRIDS)
def test_decoder_equals_transformers(emu3_folders: Folders, reference: Any, layout: str, grid: tuple[int, int]) -> None:
    """Also from a backbone in bfloat16: the picture tokenizer stays in float32."""
    codes = some_codes(grid)
    with torch.no_grad():
        raw = reference.decode(codes)  # [2, 3, H, W]
    expected = ((raw.clamp(-1, 1) + 1) / 2).permute(0, 2, 3, 1)
    assert (raw.abs() < 1).float().mean() > 0.8  # not all clamped
    assert raw.std() > 0.1
    for dtype in (torch.float32, torch.bfloat16):
        got = load(emu3_folders, layout, dtype).decode_pixels(codes)
        assert got.shape == (2, 8 * grid[0], 8 * grid[1], 3)
        assert got.dtype == torch.float32
        assert (got - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("grid", GRIDS)
def test_encoder_equals_transformers(emu3_folders: Folders, reference: Any, layout: str, grid: tuple[int, int]) -> None:
    images = some_images(grid)
    sizes = torch.tensor([[8 * grid[0], 8 * grid[1]]] * 2)
    with torch.no_grad():
        found = reference.encode(images.permute(0, 3, 1, 2) * 2 - 1, sizes)
    expected = torch.stack(getattr(found, "image_tokens", found))  # transformers 4 returns the list itself
    got = load(emu3_folders, layout).encode_pixels(images)
    assert got.shape == (2, *grid)
    assert expected.shape == got.shape
    assert grid == (1, 1) or expected.unique().numel() > 3
    assert torch.equal(got, expected.to(got.dtype))


def test_training_mode_changes_nothing(emu3_folders: Folders) -> None:
    """BatchNorm keeps the file's statistics whatever mode a module is set to."""
    pixels = deepcopy(load(emu3_folders).pixels)
    codes, images = some_codes((3, 4)), some_images((3, 4))
    expected = pixels.decode(codes), pixels.encode(images)
    state = {name: tensor.clone() for name, tensor in pixels.state_dict().items()}
    pixels.train()
    assert torch.equal(pixels.decode(codes), expected[0])
    assert torch.equal(pixels.encode(images), expected[1])
    assert all(torch.equal(tensor, state[name]) for name, tensor in pixels.state_dict().items())


def test_each_picture_of_a_batch_is_its_own(emu3_folders: Folders) -> None:
    backbone = load(emu3_folders)
    codes = some_codes((3, 4), batch=3)
    whole = backbone.decode_pixels(codes)
    assert all(torch.equal(whole[i : i + 1], backbone.decode_pixels(codes[i : i + 1])) for i in range(3))
    images = some_images((3, 4), batch=3)
    assert all(
        torch.equal(backbone.encode_pixels(images)[i], backbone.encode_pixels(images[i : i + 1])[0]) for i in (0, 2)
    )


@pytest.mark.parametrize("frames", [1, 2, 8])
@pytest.mark.parametrize("attention", [(), (0, 1)])
def test_other_sizes(frames: int, attention: tuple[int, ...]) -> None:
    """Other clip lengths and attention levels against transformers' modules, weights copied by name."""
    from transformers import Emu3VQVAE, Emu3VQVAEConfig

    from ssd_core.families.emu3_files import pixels_plan

    spec = MoVQSpec(
        codes=16, code_dim=3, channels=32, multiplier=(1, 1), blocks=1, attention_levels=attention, frames=frames
    )
    torch.manual_seed(0)
    theirs = Emu3VQVAE(
        Emu3VQVAEConfig(
            codebook_size=16,
            embed_dim=3,
            latent_channels=3,
            base_channels=32,
            channel_multiplier=[1, 1],
            num_res_blocks=1,
            attn_resolutions=list(attention),
            hidden_size=32,
            num_attention_heads=1,
            temporal_downsample_factor=frames,
        )
    ).eval()
    ours = Emu3Pixels(spec)
    weights = theirs.state_dict()
    plan = pixels_plan(ours, [], original=False)
    ours.load_state_dict({name: weights[str(key).removeprefix("vqmodel.")] for name, key in plan.items()})
    codes = torch.randint(16, (1, 5, 3))
    with torch.no_grad():
        raw = theirs.decode(codes)
        images = torch.rand(1, 10, 6, 3)
        found = theirs.encode(images.permute(0, 3, 1, 2) * 2 - 1, torch.tensor([[10, 6]]))
    expected = ((raw.clamp(-1, 1) + 1) / 2).permute(0, 2, 3, 1)
    assert (ours.decode(codes) - expected).abs().max() <= 1e-4
    assert torch.equal(ours.encode(images)[0], getattr(found, "image_tokens", found)[0])


def test_nearest_code_in_chunks(emu3_folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = load(emu3_folders).pixels
    features = torch.randn(7, 5, 4, generator=torch.Generator().manual_seed(0))
    expected = torch.cdist(features.reshape(-1, 4), pixels.codebook).argmin(1).view(7, 5)
    for chunk in (1, 4, 100):
        monkeypatch.setattr("ssd_core.families.emu3_pixels._CHUNK", chunk)
        assert torch.equal(pixels._nearest(features), expected)


def test_wrong_shapes(emu3_folders: Folders) -> None:
    backbone = load(emu3_folders)
    with pytest.raises(ValueError, match=r"got codes of shape \(4, 4\), expected \[B, rows, cols\]"):
        backbone.decode_pixels(torch.zeros(4, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="H and W multiples of 8"):
        backbone.encode_pixels(torch.zeros(1, 12, 16, 3))
