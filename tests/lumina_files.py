"""A tiny Lumina-mGPT: random weights in the original folder's layout, with its true ids and names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from vqgan_reference import Shapes, random_vqgan, vqgan_shapes

from ssd_core import load_backbone
from ssd_core.families.lumina import LuminaBackbone

SMALL = [(4, 6), (6, 2), (2, 2)]  # sizes for quick tests; the real ones hold about 2300 codes
HIDDEN, LAYERS, HEADS, HEAD_DIM, INTERMEDIATE = 32, 2, 4, 8, 48
RESERVED_END = 8904  # the first id that is text
VOCABULARY = 9216
MERGES = ["Ġ a", "a t", "c at", "Ġ cat", "r e", "re d", "Ġ red", "o f", "Ġ of"]
VQGAN_SHAPES: Shapes = vqgan_shapes(32, (1, 1, 2, 2, 4), 1, 32, 8192, 16)


def index_of_code(code: int) -> int:
    """The VQGAN index of a code: not the same number, to show that the vocabulary map is read."""
    return (code * 5 + 3) % 8192


def control_names() -> dict[str, int]:
    """Every token that is no text, with its id."""
    names = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<eoss>": 8196, "<racm3:break>": 8197}
    for code in range(8192):
        letters = "".join("ABCDEFGHIJ"[int(digit)] for digit in str(index_of_code(code)))
        names[f"IMGIMG{letters}Z"] = code + 4
    names |= {f"<reserved{number - 4:05d}>": number for number in range(8198, RESERVED_END)}
    names["<image>"] = names.pop("<reserved08707>")  # as transformers' conversion of Chameleon does
    return names


def vocabulary() -> dict[str, int]:
    """All tokens: controls, the byte alphabet, a few merged words."""
    from tokenizers import pre_tokenizers

    names = control_names()
    text = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge.split()) for merge in MERGES)]
    return names | {token: RESERVED_END + i for i, token in enumerate(text)}


def tokenizer_json() -> dict[str, Any]:
    """A byte-level BPE in the file format of the tokenizers library.

    Some image tokens are listed as added tokens that are not special, the others (8,000 would be slow) not at all.
    """
    added = [
        {"id": number, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": not name.startswith("IMGIMG")}
        for name, number in sorted(control_names().items(), key=lambda item: item[1])
        if number < 100 or number >= 8196
    ]  # fmt: skip
    begin = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*begin, {"Sequence": {"id": "B", "type_id": 1}}]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing", "single": begin, "pair": pair,
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary(),
            "merges": MERGES,
        },
    }  # fmt: skip


def config_json(kv_heads: int = HEADS) -> dict[str, Any]:
    return {
        "architectures": ["ChameleonXLLMXForConditionalGeneration"],
        "model_type": "chameleon",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "swin_norm": False,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocabulary_map": vocabulary(),
        "torch_dtype": "float32",
    }


def random_weights(kv_heads: int = HEADS, norm_rows: int = 1, seed: int = 1) -> dict[str, Tensor]:
    """The decoder's tensors by their names on disk; query/key norms have ``norm_rows`` rows (1: heads share)."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.25

    def around_one(*shape: int) -> Tensor:
        return 1 + matrix(*shape)

    state = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN) * 4,
        "model.norm.weight": around_one(HIDDEN),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        for part, heads in (("q", HEADS), ("k", kv_heads)):
            state[f"{name}self_attn.{part}_norm.weight"] = around_one(min(norm_rows, heads), HEAD_DIM)
            state[f"{name}self_attn.{part}_norm.bias"] = matrix(min(norm_rows, heads), HEAD_DIM)
        for part, rows in (("q", HIDDEN), ("k", kv_heads * HEAD_DIM), ("v", kv_heads * HEAD_DIM), ("o", HIDDEN)):
            state[f"{name}self_attn.{part}_proj.weight"] = matrix(rows, HIDDEN)
        state[f"{name}mlp.gate_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        state[f"{name}mlp.up_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        state[f"{name}mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
        state[f"{name}input_layernorm.weight"] = around_one(HIDDEN)
        state[f"{name}post_attention_layernorm.weight"] = around_one(HIDDEN)
    return state


def write_tiny_lumina(
    folder: Path, *, kv_heads: int = HEADS, norm_rows: int = 1, dtype: torch.dtype = torch.float32, pixels: bool = True
) -> dict[str, Tensor]:
    """Writes config, tokenizer, two shards with their index and, with ``pixels``, the VQGAN. Returns the tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(kv_heads)), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()), encoding="utf-8")
    state = {name: t.to(dtype) for name, t in random_weights(kv_heads, norm_rows).items()}
    write_shards(folder, state)
    if pixels:
        save_file(random_vqgan(VQGAN_SHAPES), folder / "vqgan.safetensors")
    return state


def write_shards(folder: Path, state: dict[str, Tensor]) -> None:
    """Two shards and ``model.safetensors.index.json``."""
    names = sorted(state)
    shard_of = {}
    for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: state[name] for name in part}, folder / file, metadata={"format": "pt"})
        shard_of |= dict.fromkeys(part, file)
    size = sum(t.numel() * t.element_size() for t in state.values())
    index = {"metadata": {"total_size": size}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def load_tiny(folder: Path, dtype: str | torch.dtype = "auto", small: bool = True) -> LuminaBackbone:
    """Loads it; with ``small`` it draws the sizes of SMALL too, the first of them by default."""
    backbone = load_backbone(folder, dtype=dtype)
    assert isinstance(backbone, LuminaBackbone)
    if small:
        backbone.grids = (*SMALL, *backbone.grids)
    return backbone


def random_codes(*shape: int, seed: int = 0) -> Tensor:
    """Codes of that shape."""
    return torch.randint(8192, shape, generator=torch.Generator().manual_seed(seed))
