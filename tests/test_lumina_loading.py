"""Lumina-mGPT's files: what is read, and every damage that must be told clearly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lumina_files import (
    VOCABULARY,
    config_json,
    load_tiny,
    tokenizer_json,
    vocabulary,
    write_shards,
    write_tiny_lumina,
)
from torch import Tensor

from ssd_core import AR, SSDError, generate, load_backbone
from ssd_core.families.lumina import LuminaBackbone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("Lumina-mGPT-7B-768")
    write_tiny_lumina(folder)
    return folder


@pytest.fixture(scope="module")
def lumina(folder: Path) -> LuminaBackbone:
    return load_tiny(folder)


def change_config(folder: Path, **changes: Any) -> None:
    config = {**config_json(), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def change_vocabulary(folder: Path, **changes: int) -> None:
    change_config(folder, vocabulary_map={**vocabulary(), **changes})


def change_tokenizer(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = tokenizer_json()
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))


def change_state(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    state = write_tiny_lumina(folder)
    change(state)
    write_shards(folder, state)


def rename_token(content: dict[str, Any], old: str, new: str) -> None:
    for token in content["added_tokens"]:
        token["content"] = new if token["content"] == old else token["content"]


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no pixel decoder": (lambda f: (f / "vqgan.safetensors").unlink(), "vqgan.safetensors is missing.*core convert"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing; download it"),
    "broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), "cannot read .*tokenizer.json"),
    "a tokenizer without text": (
        lambda f: change_tokenizer(f, lambda t: t.update(decoder=None, pre_tokenizer=None)), "not Chameleon's tokenizer"
    ),
    "another newline token": (
        lambda f: (change_vocabulary(f, **{"<reserved08799>": 8804}),
                   change_tokenizer(f, lambda t: rename_token(t, "<reserved08799>", "<x>"))),
        "<reserved08799> is 8804, expected 8803",
    ),
    "no separator": (
        lambda f: (change_config(f, vocabulary_map={k: v for k, v in vocabulary().items() if k != "<reserved08706>"}),
                   change_tokenizer(f, lambda t: rename_token(t, "<reserved08706>", "<x>"))),
        "<reserved08706> is None, expected 8710",
    ),
    "no vocabulary map": (lambda f: change_config(f, vocabulary_map=None), "no vocabulary_map"),
    "an image token twice": (lambda f: change_vocabulary(f, IMGIMGDZ=5000), "8192 image tokens|8191 image tokens"),
    "an image token too many": (lambda f: change_vocabulary(f, IMGIMGJJJJZ=9000), "8193 image tokens"),
    "no image tokens": (
        lambda f: change_config(f, vocabulary_map={k: v for k, v in vocabulary().items() if k[:3] != "IMG"}),
        "has 0 image tokens",
    ),
    "Chameleon 30B": (lambda f: change_config(f, swin_norm=True), "swin_norm True, which is not supported"),
    "scaled rope": (lambda f: change_config(f, rope_scaling={"type": "linear", "factor": 2.0}), "rope_type 'linear'"),
    "biases": (lambda f: change_config(f, attention_bias=True), "attention_bias True"),
    "missing shard": (
        lambda f: (f / "model-00002-of-00002.safetensors").unlink(), "lacks model-00002-of-00002.safetensors of the 2"
    ),
    "missing tensor": (lambda f: change_state(f, lambda s: s.pop("model.norm.weight")), "missing model.norm.weight"),
    "unknown tensor": (lambda f: change_state(f, lambda s: s.update(x=torch.ones(1))), "unexpected x"),
    "wrong shape": (
        lambda f: change_state(f, lambda s: s.update({"model.norm.weight": torch.ones(7)})), r"\[7\], expected \[32\]"
    ),
    "a norm for three heads": (
        lambda f: change_state(f, lambda s: s.update({"model.layers.1.self_attn.q_norm.bias": torch.ones(3, 8)})),
        r"q_norm.bias \[3, 8\], expected \[4, 8\]",
    ),
    "a flat norm": (
        lambda f: change_state(f, lambda s: s.update({"model.layers.1.self_attn.q_norm.bias": torch.ones(8)})),
        r"q_norm.bias \[8\], expected \[4, 8\]",
    ),
    "a short output head": (
        lambda f: change_state(f, lambda s: s.update({"lm_head.weight": torch.ones(8000, 32)})), "lm_head.weight"
    ),
    "another size": (lambda f: change_config(f, intermediate_size=64), "the weights are not those of this config.json"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told(damage: str, tmp_path: Path) -> None:
    change, match = DAMAGE[damage]
    write_tiny_lumina(tmp_path)
    change(tmp_path)
    with pytest.raises(SSDError, match=match) as told:
        load_backbone(tmp_path)
    assert str(tmp_path) in str(told.value)


def test_files_that_say_less_or_more_are_read_too(tmp_path: Path, lumina: LuminaBackbone) -> None:
    """Defaults left out, transformers 5's rope field, the encoder that Meta's layout carries, a placeholder token."""
    write_tiny_lumina(tmp_path)
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    change_config(tmp_path, rope_theta=..., rope_scaling=..., rope_parameters=rope, rms_norm_eps=..., hidden_act=...)
    change_state(tmp_path, lambda s: s.update({"model.vqmodel.encoder.conv_in.weight": torch.ones(2)}))
    change_tokenizer(
        tmp_path,
        lambda t: t["added_tokens"].append(
            {**t["added_tokens"][0], "id": VOCABULARY, "content": "<|image|>", "special": False}
        ),
    )
    change_config(tmp_path, rope_theta=..., rope_scaling=..., rope_parameters=rope, rms_norm_eps=..., hidden_act=...)
    loaded = load_tiny(tmp_path)
    assert (loaded.rope_theta, loaded.decoder.spec) == (lumina.rope_theta, lumina.decoder.spec)
    want = generate(lumina, "a <|image|> cat", grid=(2, 2), schedule=AR())
    assert torch.equal(generate(loaded, "a <|image|> cat", grid=(2, 2), schedule=AR()).tokens, want.tokens)


def test_fingerprint_is_of_the_decoder(tmp_path: Path, lumina: LuminaBackbone) -> None:
    """The same for other pixels, another for one changed norm: what heads depend on."""
    write_tiny_lumina(tmp_path)
    assert load_tiny(tmp_path).fingerprint == lumina.fingerprint
    change_state(tmp_path, lambda s: s["model.norm.weight"].add_(1))
    assert load_tiny(tmp_path).fingerprint != lumina.fingerprint


def test_loading_leaves_the_random_state_alone(folder: Path) -> None:
    before = torch.random.get_rng_state()
    load_tiny(folder)
    assert torch.equal(before, torch.random.get_rng_state())
