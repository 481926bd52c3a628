"""Tiny Janus-Pro checkpoints with random weights in both layouts, and a tokenizer in Janus-Pro's style.

transformers writes its own layout; the original one is written by hand from the same weights, names as in
deepseek-ai/Janus. Weights are drawn anew, norms included: with fresh ones (all 1) a forgotten norm would go
unnoticed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ssd_core import load_backbone
from ssd_core.families.janus import JanusBackbone

LAYOUTS = ("transformers", "original")
PROMPTS = ["a red cat", "two dogs near a river at night, 3 birds"]

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
CONTROL = [BOS, EOS, PAD, "<image_placeholder>", "<begin_of_image>", "<end_of_image>", "<|User|>", "<|Assistant|>"]
CODES, VOCABULARY = 50, 320
CORPUS = ["a red cat, 3 birds on grass", "two dogs near a river at night", "User: Assistant: hello world, <|User|>\n\n"]


def write_tokenizer(folder: Path, bos: str = BOS, pad: str = PAD) -> None:
    """A byte-level BPE with Janus-Pro's control tokens as added tokens, and what names them beside it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    texts = [{BOS: bos, PAD: pad}.get(text, text) for text in CONTROL]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in texts])
    tokenizer.add_tokens([AddedToken("œ", normalized=True)])  # rare letters are added tokens there too, not control
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos, "pad_token": None, "unk_token": None}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": bos}, "pad_token": pad}))


def transformers_config(side: int = 8, **text: Any) -> Any:
    """A JanusConfig: two layers, grouped heads, ``side`` x ``side`` codes of 2x2 pixels."""
    from transformers import JanusConfig

    llama = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 700,
    }
    vision = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 2 * side,
        "patch_size": 2,
        "projection_dim": 32,
        "num_image_tokens": side * side,
    }
    vq = {
        "embed_dim": 8,
        "num_embeddings": CODES,
        "latent_channels": 24,
        "base_channels": 32,
        "channel_multiplier": [1, 2],
        "num_res_blocks": 1,
        "projection_dim": 32,
        "image_token_embed_dim": 32,
    }
    return JanusConfig(text_config={"model_type": "llama", **llama, **text}, vision_config=vision, vq_config=vq)


def write_transformers(folder: Path, side: int = 8, seed: int = 5, dtype: torch.dtype = torch.float32) -> Path:
    """Writes the layout of ``deepseek-community`` with transformers' own ``save_pretrained``."""
    from tokenizers import Tokenizer
    from transformers import JanusForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    token = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id
    model = JanusForConditionalGeneration(transformers_config(side)).eval()
    redraw(model, seed)
    settings = model.generation_config
    settings.bos_token_id, settings.eos_token_id, settings.pad_token_id = token(BOS), token(EOS), token(PAD)
    settings.generation_kwargs = {"boi_token_id": token("<begin_of_image>")}
    model.to(dtype).save_pretrained(folder)
    return folder


def redraw(model: torch.nn.Module, seed: int) -> None:
    """Normal numbers of standard deviation 0.25 in matrices (less in convolutions), ones with noise in the norms."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        wide = parameter.dim() > 1 or name.endswith("bias")
        scale = 0.25 if parameter.dim() < 4 else parameter[0].numel() ** -0.5
        parameter.data = scale * noise if wide else 1 + 0.25 * noise


def write_both(folder: Path, side: int = 8, seed: int = 5) -> dict[str, Path]:
    """One model in both layouts; the original one in three shards. Skips the test without a Janus in transformers."""
    pytest.importorskip("transformers.models.janus", reason="this transformers has no Janus to compare with")
    ours = write_transformers(folder / "transformers", side, seed)
    return {"transformers": ours, "original": write_original(folder / "original", ours, shards=3)}


def load(folder: Path, dtype: torch.dtype = torch.float32) -> JanusBackbone:
    backbone = load_backbone(folder, dtype=dtype)
    assert isinstance(backbone, JanusBackbone)
    return backbone


def write_original(folder: Path, source: Path, shards: int = 1) -> Path:
    """Writes the layout of ``deepseek-ai`` with the weights of ``source``, a folder in transformers' layout."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_text((source / name).read_text(encoding="utf-8"), encoding="utf-8")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    text, vq = config["text_config"], config["vq_config"]
    keep = ("hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers")
    language = {key: text[key] for key in (*keep, "num_key_value_heads", "vocab_size")}
    params = {
        "aligner_config": {"depth": 2, "input_dim": 16, "n_embed": 32, "projector_type": "mlp_gelu"},
        "gen_aligner_config": {"depth": 2, "input_dim": 8, "n_embed": 32, "projector_type": "mlp_gelu"},
        "gen_head_config": {"image_token_embed": 32, "image_token_size": CODES, "n_embed": 32},
        "gen_vision_config": {"image_token_size": CODES, "n_embed": vq["embed_dim"]},
        "vision_config": {"image_size": config["vision_config"]["image_size"], "model_name": "siglip"},
    }
    original = {name: {"model_type": name.removesuffix("_config"), "params": value} for name, value in params.items()}
    original |= {"model_type": "multi_modality", "language_config": {"model_type": "llama", **language}}
    (folder / "config.json").write_text(json.dumps(original))
    tensors = {original_name(name): tensor for name, tensor in load_file(source / "model.safetensors").items()}
    tensors.setdefault("language_model.lm_head.weight", tensors["language_model.model.embed_tokens.weight"].clone())
    tensors["gen_vision_model.quantize.codebook_used"] = torch.zeros(16)
    save_sharded(tensors, folder, shards)
    return folder


def original_name(name: str) -> str:
    """transformers' name of a tensor -> the original one."""
    rules = [
        (r"^lm_head", "language_model.lm_head"),
        (r"^model\.language_model", "language_model.model"),
        (r"^model\.generation_embeddings", "gen_embed"),
        (r"^model\.generation_aligner\.fc1", "gen_aligner.layers.0"),
        (r"^model\.generation_aligner\.hidden_layers\.0", "gen_aligner.layers.2"),
        (r"^model\.generation_head\.proj_out", "gen_head.output_mlp_projector"),
        (r"^model\.generation_head\.vision_head", "gen_head.vision_head"),
        (r"^model\.vqmodel\.(.*)\.block_1\.", r"model.vqmodel.\1.0."),
        (r"^model\.vqmodel\.(.*)\.attn_1\.", r"model.vqmodel.\1.1."),
        (r"^model\.vqmodel\.(.*)\.block_2\.", r"model.vqmodel.\1.2."),
        (r"^model\.vqmodel\.(.*)\.block\.", r"model.vqmodel.\1.res."),
        (r"^model\.vqmodel\.(encoder|decoder)\.(down|up)\.", r"model.vqmodel.\1.conv_blocks."),
        (r"^model\.vqmodel", "gen_vision_model"),
        (r"^model\.vision_model", "vision_model.vision_tower"),
        (r"^model\.aligner", "aligner"),
    ]
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def save_sharded(tensors: dict[str, Tensor], folder: Path, shards: int) -> None:
    """One ``model.safetensors``, or several shards with their index."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = [f"model-{number + 1:05d}-of-{shards:05d}.safetensors" for number in range(shards)]
    shard_of = {key: names[index % shards] for index, key in enumerate(tensors)}
    for name in names:
        save_file({key: tensors[key].clone() for key in tensors if shard_of[key] == name}, folder / name)
    index = {"metadata": {}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
