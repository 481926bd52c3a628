"""Codes as a value and as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ssd_core import SSDError, generate, load_backbone
from ssd_core.tokens import ARTokens, encode_image, read_tokens, save_tokens, tokens_of


def test_a_file_holds_codes_and_settings(tmp_path: Path, tiny_model: Path) -> None:
    backbone = load_backbone(tiny_model)
    result = generate(backbone, ["cat", "two dogs"], seed=2**64 - 1, grid=(4, 6))
    tokens = tokens_of(result)
    path = save_tokens(tmp_path / "tokens.safetensors", tokens)
    again = read_tokens(path)
    assert torch.equal(again.codes, result.tokens)
    assert again.info == json.loads(json.dumps(tokens.info))
    assert again.info["prompts"] == ["cat", "two dogs"]
    assert again.info["seed"] == 2**64 - 1
    assert again.grid == (4, 6)
    again.check_fits(backbone)
    assert list(load_file(path)) == ["tokens"]


def test_tokens_of_another_backbone_are_refused(tiny_model: Path) -> None:
    backbone = load_backbone(tiny_model)
    codes = torch.zeros(1, 4, 4, dtype=torch.int64)
    with pytest.raises(SSDError, match=r"made with janus.* mean nothing to emoji"):
        ARTokens(codes, {"backbone": "janus"}).check_fits(backbone)
    with pytest.raises(SSDError, match=r"hold code 12, .* has codes 0 to 11"):
        ARTokens(codes + 12).check_fits(backbone)
    with pytest.raises(SSDError, match="cannot draw 5x4"):
        ARTokens(torch.zeros(1, 5, 4, dtype=torch.int64)).check_fits(backbone)


def test_pictures_become_tokens(tiny_model: Path) -> None:
    backbone = load_backbone(tiny_model)
    images = torch.rand(2, 32, 48, 3, generator=torch.Generator().manual_seed(0))
    tokens = encode_image(backbone, images)
    assert tokens.codes.shape == (2, 4, 6)
    tokens.check_fits(backbone)
    with pytest.raises(SSDError, match="cannot draw 2x2"):
        encode_image(backbone, images[:, :16, :16])


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(SSDError, match="there is no tokens file"):
        read_tokens(path)
    path.write_bytes(b"no safetensors at all")
    with pytest.raises(SSDError, match="is it complete"):
        read_tokens(path)
    save_file({"weights": torch.zeros(3)}, path, {"ssd": "{}"})
    with pytest.raises(SSDError, match="is no tokens file"):
        read_tokens(path)
    save_file({"tokens": torch.zeros(1, 2, 2, dtype=torch.int64)}, path)
    with pytest.raises(SSDError, match="is no tokens file"):
        read_tokens(path)
    save_file({"tokens": torch.zeros(1, 2, 2, dtype=torch.int64)}, path, {"ssd": "not json"})
    with pytest.raises(SSDError, match="cannot read the tokens file"):
        read_tokens(path)
    one = torch.ones(1, 2, 2, dtype=torch.int64)
    for bad in (one.float(), one.to(torch.uint64), one[0], -one, one[:0]):
        save_file({"tokens": bad}, path, {"ssd": "{}"})
        with pytest.raises(SSDError, match="must hold whole numbers of at least 0"):
            read_tokens(path)
