"""Janus-Pro's folders: what is refused and how it is told, published sizes, facts without weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_janus import LAYOUTS, load, write_both

from ssd_core import SSDError, load_backbone
from ssd_core.cli import main
from ssd_core.families.janus import load_janus
from ssd_core.families.vqgan import VQGANSpec

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_both(tmp_path_factory.mktemp("janus"))


@pytest.fixture(params=LAYOUTS)
def copies(request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders[request.param], tmp_path / request.param))


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config") or config["language_config"]


CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "layers": (lambda c: text_part(c).update(num_hidden_layers=3), "missing .*layers.2.*; unexpected nothing"),
    "fewer layers": (lambda c: text_part(c).update(num_hidden_layers=1), "missing nothing; unexpected .*layers.1."),
    "width": (lambda c: text_part(c).update(intermediate_size=64), r"expected \[128, 32\] for decoder"),
    "vocabulary": (lambda c: text_part(c).update(vocab_size=100), "has ids up to 308, the model knows 100"),
    "bad number": (lambda c: text_part(c).update(hidden_size="wide"), "missing or wrong field"),
    "no heads": (lambda c: text_part(c).update(num_attention_heads=0), "missing or wrong field"),
    "odd heads": (lambda c: text_part(c).update(num_key_value_heads=3), "multiple of kv_heads"),
    "scaled rope": (
        lambda c: text_part(c).update(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters=None),
        "rope_type 'linear', which is not supported",
    ),
    "activation": (lambda c: text_part(c).update(hidden_act="relu"), "hidden_act 'relu'"),
    "bias": (lambda c: text_part(c).update(attention_bias=True), "attention_bias True"),
    "no text part": (lambda c: [c.pop("text_config", 0), c.pop("language_config", 0)], "missing or wrong field"),
    "no rows": (
        lambda c: (c["vision_config"].get("params") or c["vision_config"]).update(image_size=1), "and 0 rows"
    ),
    "codes": (
        lambda c: [c.get("vq_config", {}).update(num_embeddings=9),
                   c.get("gen_vision_config", {"params": {}})["params"].update(image_token_size=9)],
        "got 9 codes of width 8, .* the weights have 50 codes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CONFIGS)
def test_wrong_configs_are_told(copies: Path, change: str) -> None:
    edit, match = CONFIGS[change]
    edit_json(copies / "config.json", edit)
    with pytest.raises(SSDError, match=match):
        load(copies)


def test_another_activation_of_the_codes_is_told(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["transformers"], tmp_path / "relu"))
    edit_json(folder / "config.json", lambda c: c["vq_config"].update(hidden_act="relu"))
    with pytest.raises(SSDError, match="hidden_act 'relu', expected 'gelu'"):
        load(folder)


def test_unknown_model_types_are_refused_with_the_list(copies: Path) -> None:
    edit_json(copies / "config.json", lambda c: c.update(model_type="llama"))
    with pytest.raises(SSDError, match=r"model_type 'llama'; supported: .*'janus', 'multi_modality'"):
        load_backbone(copies)


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer\.json is missing; download it"),
    "tokenizer pointer": (
        lambda f: (f / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1"),
        r"cannot read .*tokenizer\.json",
    ),
    "empty tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), r"cannot read .*tokenizer\.json"),
    "no image token": (
        lambda f: edit_json(f / "tokenizer.json", lambda t: t["added_tokens"].pop(4)),
        "has no control token <begin_of_image>; it belongs to another model",
    ),
    "tokenizer strips": (
        lambda f: edit_json(f / "tokenizer.json", lambda t: t.update(normalizer={"type": "Lowercase"})),
        "does not write and read Janus-Pro's template",
    ),
    "token names": (lambda f: (f / "special_tokens_map.json").write_text("["), "cannot read .*special_tokens_map"),
    "no config": (lambda f: (f / "config.json").unlink(), "no backbone at"),
}


@pytest.mark.parametrize("damage", FILES)
def test_damaged_folders_are_told(copies: Path, damage: str) -> None:
    break_it, match = FILES[damage]
    break_it(copies)
    with pytest.raises(SSDError, match=match):
        load(copies)


def test_missing_and_unexpected_tensors(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["transformers"], tmp_path / "changed"))
    weights = load_file(folder / "model.safetensors")
    for name, match in {
        "model.generation_head.vision_head.bias": "missing model.generation_head.vision_head.bias; unexpected nothing",
        "model.vqmodel.decoder.conv_out.bias": "missing model.vqmodel.decoder.conv_out.bias",
        "model.vqmodel.encoder.conv_in.weight": "no pixel decoder in these weights: got none for encoder.conv_in",
        "model.vqmodel.quantize.embedding.weight": "got none for codebook",
    }.items():
        save_file({key: tensor for key, tensor in weights.items() if key != name}, folder / "model.safetensors")
        with pytest.raises(SSDError, match=match):
            load(folder)
    save_file({**weights, "model.language_model.extra": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(SSDError, match=r"unexpected model\.language_model\.extra"):
        load(folder)


def test_the_original_weights_as_pickle_are_explained(folders: dict[str, Path], tmp_path: Path) -> None:
    """deepseek-ai publishes `pytorch_model.bin`; the error says where safetensors are."""
    folder = Path(shutil.copytree(folders["original"], tmp_path / "bin"))
    for path in folder.glob("model*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    with pytest.raises(SSDError, match=r"only pytorch_model\.bin: .* revisions and pull requests"):
        load(folder)


# --- published sizes -----------------------------------------------------------------------------------------------


def test_published_7b_config_leaves_out_the_defaults(folders: dict[str, Path]) -> None:
    """Janus-Pro-7B's language_config names layers and vocabulary only; the rest is LlamaConfig's default."""
    from transformers import LlamaConfig

    from ssd_core.families.llama import read_llama

    given = {"max_position_embeddings": 16384, "num_hidden_layers": 30, "vocab_size": 102400}
    shape, theirs = read_llama(given, Path("config.json")), LlamaConfig(**given)
    decoder = shape.decoder
    assert (decoder.hidden, decoder.intermediate) == (theirs.hidden_size, theirs.intermediate_size) == (4096, 11008)
    assert (decoder.heads, decoder.kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads) == (32, 32)
    assert (decoder.layers, decoder.head_dim, decoder.norm_eps) == (30, 128, theirs.rms_norm_eps)
    assert (shape.rope_theta, shape.vocabulary, shape.positions) == (10000.0, 102400, 16384)


def test_published_pixel_decoder_has_the_published_names() -> None:
    """transformers' default JanusVQVAE is VQ-16: its tensors are exactly those our spec of these sizes asks for."""
    from transformers import JanusVQVAEConfig
    from transformers.models.janus.modeling_janus import JanusVQVAE

    from ssd_core.families.janus import _LAYOUTS, TRANSFORMERS
    from ssd_core.families.vqgan import VQGAN

    with torch.device("meta"):
        theirs = JanusVQVAE(JanusVQVAEConfig()).state_dict()
        spec = VQGANSpec(128, (1, 1, 2, 2, 4), 2, 256, 16384, 8, coarse_attention=True, unit_codes=True)
        ours = VQGAN(spec).state_dict()
    names = {_LAYOUTS[TRANSFORMERS].pixel(name, 5): tensor.shape for name, tensor in ours.items()}
    assert names == {f"model.vqmodel.{name}": tensor.shape for name, tensor in theirs.items()}
    assert spec.patch == 16


@pytest.mark.parametrize("layout", LAYOUTS)
def test_facts_need_no_weights(folders: dict[str, Path], layout: str) -> None:
    """On the meta device nothing is read; names, sizes and fingerprint are those of the loaded model."""
    facts, loaded = load_backbone(folders[layout], device="meta", dtype=torch.bfloat16), load(folders[layout])
    assert {tensor.device.type for tensor in facts.state_dict().values()} == {"meta"}
    assert facts.fingerprint == loaded.fingerprint
    assert (
        (facts.name, facts.grids, facts.patch) == (loaded.name, loaded.grids, loaded.patch) == ("janus", ((8, 8),), 2)
    )
    assert facts.decode_pixels(torch.zeros(1, 8, 8, dtype=torch.int64, device="meta")).shape == (1, 16, 16, 3)


def test_loading_and_drawing_import_no_transformers(folders: dict[str, Path], repository: Path) -> None:
    """Nor torch's compiler, which takes seconds."""
    code = (
        "import sys; from ssd_core import load_backbone, generate\n"
        f"generate(load_backbone({str(folders['original'])!r}), 'a red cat')\n"
        "print(sorted({'transformers', 'torch._dynamo', 'huggingface_hub'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_loading_leaves_the_random_state_alone(folders: dict[str, Path]) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    load_janus(folders["original"], CPU, torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_command_line_draws(folders: dict[str, Path], tmp_path: Path) -> None:
    picture = tmp_path / "cat.png"
    assert main(["generate", "a red cat", "--backbone", str(folders["original"]), "-o", str(picture)]) == 0
    assert Image.open(picture).size == (16, 16)
