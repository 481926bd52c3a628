"""Emu3 on disk: both layouts, every name that transformers uses, damaged and foreign files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from emu3_checkpoints import CODES, Folders, load, plain_name
from safetensors.torch import load_file, save_file

from ssd_core import SSDError
from ssd_core.families.emu3 import load_emu3
from ssd_core.families.emu3_files import emu3_config, pixels_plan, text_plan
from ssd_core.families.emu3_pixels import Emu3Pixels
from ssd_core.transformer import DecoderSpec

CPU = torch.device("cpu")


def test_published_sizes(tmp_path: Path) -> None:
    """A config.json that leaves everything out is the 8B model; the plan names what transformers' model holds."""
    from transformers import Emu3Config, Emu3ForConditionalGeneration

    for model_type in ("Emu3", "emu3"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
        config = emu3_config(tmp_path, tmp_path)
        assert config.text.decoder == DecoderSpec(4096, 32, 32, 8, 128, 14336, 1e-5)
        assert (config.text.vocabulary, config.text.positions, config.text.rope_theta) == (184622, 9216, 1e6)
        assert (config.image_area, config.pixels.codes) == (518400, 32768)
    with torch.device("meta"):
        model = Emu3ForConditionalGeneration(Emu3Config(vocabulary_map={"<image>": 1}))
        pixels = Emu3Pixels(config.pixels)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if "num_batches" not in name}
    plan = text_plan(config.text.decoder.layers, shapes, 151854, pixels.spec.codes)
    used = [key for item in plan.values() for key in ([item] if isinstance(item, str) else item.keys)]
    plan = pixels_plan(pixels, shapes, original=False)
    assert {*used, *plan.values()} == shapes.keys()
    plain = {plain_name(name): shape for name, shape in shapes.items()}
    assert plain["lm_head.weight"] == (184622, 4096)
    assert plain["model.layers.31.self_attn.k_proj.weight"] == (8 * 128, 4096)
    assert all(shapes[str(plan[name])] == tensor.shape for name, tensor in pixels.state_dict().items())


@pytest.mark.parametrize("prefix", ["text_model.model.", "model.text_model."])
def test_names_of_all_transformers_versions(emu3_folders: Folders, tmp_path: Path, prefix: str) -> None:
    """The published names, and those that transformers uses inside since 4.52."""
    copy = Path(shutil.copytree(emu3_folders.hf, tmp_path / "model"))
    tensors = load_file(copy / "model.safetensors")
    inside = prefix == "model.text_model."
    renamed = {}
    for name, tensor in tensors.items():
        new = name.replace("text_model.model.", prefix).replace("text_model.lm_head.", "lm_head.") if inside else name
        renamed[f"model.{new}" if inside and new.startswith("vqmodel.") else new] = tensor
    save_file(renamed, copy / "model.safetensors")
    got = load_emu3(copy, CPU, torch.float32)
    state = load(emu3_folders).state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in got.state_dict().items())


@pytest.fixture
def hf_copy(emu3_folders: Folders, tmp_path: Path) -> Path:
    return Path(shutil.copytree(emu3_folders.hf, tmp_path / "hf"))


@pytest.fixture
def original_copy(emu3_folders: Folders, tmp_path: Path) -> Path:
    return Path(shutil.copytree(emu3_folders.original, tmp_path / "models" / "Emu3-Gen"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        place = config
        *parents, leaf = name.split("__")
        for parent in parents:
            place = place[parent]
        place[leaf] = value
    path.write_text(json.dumps(config), encoding="utf-8")


def test_vision_tokenizer_may_lie_beside_the_model(original_copy: Path) -> None:
    shutil.move(original_copy / "Emu3-VisionTokenizer", original_copy.parent / "Emu3-VisionTokenizer")
    (original_copy.parent / "another").mkdir()
    (original_copy.parent / "another" / "config.json").write_text("{broken", encoding="utf-8")
    assert load_emu3(original_copy, CPU, torch.float32).pixels.spec.codes == CODES


def test_missing_vision_tokenizer(original_copy: Path) -> None:
    shutil.rmtree(original_copy / "Emu3-VisionTokenizer")
    with pytest.raises(
        SSDError, match=r"download BAAI/Emu3-VisionTokenizer .*Emu3-VisionTokenizer or a folder beside Emu3-Gen"
    ):
        load_emu3(original_copy, CPU, torch.float32)


def test_missing_and_unexpected_tensors(hf_copy: Path, original_copy: Path) -> None:
    tensors = load_file(hf_copy / "model.safetensors")
    lost = "text_model.model.layers.1.mlp.up_proj.weight"
    rest = {name: tensor for name, tensor in tensors.items() if name != lost}
    save_file({**rest, "adapter.weight": torch.zeros(2)}, hf_copy / "model.safetensors")
    with pytest.raises(SSDError, match=rf"missing {lost}; unexpected adapter\.weight"):
        load_emu3(hf_copy, CPU, torch.float32)
    pixels = original_copy / "Emu3-VisionTokenizer" / "model.safetensors"
    tensors = load_file(pixels)
    save_file({n: t for n, t in tensors.items() if n != "decoder.mid.attn_1.q.weight"}, pixels)
    with pytest.raises(SSDError, match=r"missing decoder\.mid\.attn_1\.q\.weight; unexpected nothing"):
        load_emu3(original_copy, CPU, torch.float32)


def test_missing_shard(original_copy: Path) -> None:
    (original_copy / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(SSDError, match=r"lacks model-00002-of-00002\.safetensors of the 2 files"):
        load_emu3(original_copy, CPU, torch.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_config__hidden_act": "gelu"}, "hidden_act 'gelu', which is not supported"),
        ({"text_config__rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn', which is not supported"),
        ({"text_config__num_key_value_heads": 3}, "must be a multiple of kv_heads"),
        ({"text_config__hidden_size": "wide"}, "ValueError"),
        ({"text_config": [1]}, "missing or wrong field"),
        ({"image_area": "large"}, "missing or wrong field"),
        ({"vq_config": [1]}, "missing or wrong field"),
        ({"text_config__hidden_size": 128}, r"expected \["),
        ({"vq_config__base_channels": 48}, "multiple of 32, got 48"),
        ({"vq_config__temporal_downsample_factor": 3}, "power of two, got 3"),
        ({"vq_config__latent_channels": 8}, "latent channels must equal embed_dim"),
        ({"vq_config__codebook_size": CODES + 1}, r"lacks 1 special tokens, the first is '<\|visual token 000064\|>'"),
        ({"text_config__bos_token_id": 7}, r"does not fit the model's config.json .*extra_203\|> 527 / 7"),
        ({"vocabulary_map__<|image start|>": 5}, r"does not fit .*<\|image start\|> 530 / 5"),
    ],
)
def test_wrong_config(hf_copy: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(hf_copy, **changes)
    with pytest.raises(SSDError, match=message):
        load_emu3(hf_copy, CPU, torch.float32)


def test_older_config_fields(emu3_folders: Folders, hf_copy: Path) -> None:
    """transformers 4 keeps theta beside ``rope_scaling``; a changed theta must matter."""
    text = json.loads((hf_copy / "config.json").read_text(encoding="utf-8"))["text_config"]
    text.pop("rope_parameters", None)
    edit_config(hf_copy, text_config={**text, "rope_theta": 1e6, "rope_scaling": {"rope_type": "default"}})
    assert load_emu3(hf_copy, CPU, torch.float32).rope_theta == 1e6
    edit_config(hf_copy, text_config__rope_theta=5000.0, text_config__rope_scaling=None)
    assert load_emu3(hf_copy, CPU, torch.float32).rope_theta == 5000.0


def test_loading_draws_no_random_numbers(emu3_folders: Folders) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load_emu3(emu3_folders.original, CPU, torch.float32)
    assert torch.equal(torch.rand(2), expected)
