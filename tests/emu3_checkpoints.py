"""Tiny random Emu3 checkpoints in both published layouts.

transformers writes the -hf folder. The original pair of folders is written by hand from the same weights: the names
and shapes here follow the original repository's code, not the loader.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

from ssd_core.families.emu3 import Emu3Backbone, load_emu3

CODES = 64
AREA = 32 * 32
"""Default picture area in pixels: 4x4 codes."""

TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 600,
}
VQ = {
    "codebook_size": CODES,
    "embed_dim": 4,
    "latent_channels": 4,
    "base_channels": 32,
    "channel_multiplier": [1, 1, 2, 2],
    "num_res_blocks": 2,
    "attn_resolutions": [2, 3],
    "hidden_size": 64,
    "num_attention_heads": 1,
    "temporal_downsample_factor": 4,
}
VISION_TOKENS = [
    "<|image token|>",
    "<|image start|>",
    "<|image end|>",
    *(f"<|visual token {i:06d}|>" for i in range(CODES)),
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)), *VISION_TOKENS]
CORPUS = ["a red cat on the grass, a blue dog", "masterpiece, film grained, best quality.", "lowres, bad anatomy, text"]


@cache
def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE with all single bytes and a few dozen merges; the special tokens follow its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    return tokenizer


def token_id(name: str) -> int:
    found = tiny_tokenizer().token_to_id(name)
    assert found is not None
    return found


TOKENIZER_CONFIG = {
    "tokenizer_class": "GPT2Tokenizer",
    "add_prefix_space": False,
    "bos_token": "<|extra_203|>",
    "eos_token": "<|extra_204|>",
    "pad_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
    "extra_special_tokens": {
        "image_token": "<|extra_0|>",
        "boi_token": "<|image start|>",
        "eoi_token": "<|image end|>",
        "image_wrapper_token": "<|image token|>",
        "eof_token": "<|extra_201|>",
    },
}
"""What transformers' own conversion of Emu3 writes beside ``tokenizer.json``."""

LAYOUTS = ("hf", "original")
PROMPTS = ["a red cat", "two dogs on a beach at night, a lighthouse far away"]


@dataclass(frozen=True)
class Folders:
    """``hf``: what transformers wrote; ``original``: the hand-written model, its picture tokenizer in a sub-folder."""

    hf: Path
    original: Path

    def of(self, layout: str) -> Path:
        return self.hf if layout == "hf" else self.original


def tiny_config() -> Any:
    """A transformers Emu3Config with true names and small numbers."""
    from transformers import Emu3Config

    vocabulary = {**tiny_tokenizer().get_vocab(with_added_tokens=True), "<image>": token_id("<|extra_0|>")}
    ids = {"pad_token_id": "<|endoftext|>", "bos_token_id": "<|extra_203|>", "eos_token_id": "<|extra_204|>"}
    text = {**TEXT, **{field: token_id(name) for field, name in ids.items()}, "vocab_size": len(vocabulary) - 1}
    return Emu3Config(vq_config=VQ, text_config=text, vocabulary_map=vocabulary, image_area=AREA)


def tiny_model(seed: int = 1) -> Any:
    """transformers' own model, every weight drawn anew: its initial values would hide norm and scale bugs."""
    from transformers import Emu3ForConditionalGeneration

    model = Emu3ForConditionalGeneration(tiny_config()).eval()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and "inv_freq" not in name:
            # By name, which makes the same weights in every version of transformers whatever it calls its parts.
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {plain_name(name)}".encode()))
            tensor.data = _values(name, tensor.shape, generator)
    return model


def plain_name(name: str) -> str:
    """The original's name of the language model's tensors; ``vqmodel.`` in front of the picture tokenizer's."""
    if "vqmodel." in name:
        return "vqmodel." + name.split("vqmodel.")[1]
    return re.sub(r"^(model\.text_model\.|text_model\.model\.)", "model.", name).removeprefix("text_model.")


def _values(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if "vqmodel" not in name:
        return 0.25 * noise if len(shape) > 1 else 1 + 0.2 * noise
    if name.endswith("running_var"):
        return 0.5 + noise.abs()
    if name.endswith("quantize.embedding.weight"):
        return noise
    if len(shape) > 1:
        # Pixels mostly inside -1..1, features spread over many codes.
        scale = {"decoder.conv_out.weight": 1.0, "encoder.conv_out.weight": 5.0, "quant_conv.conv.weight": 5.0}
        return scale.get(name.partition("vqmodel.")[2], 1.0) * noise / noise[0].numel() ** 0.5
    return 0.2 * noise + (1.0 if "norm" in name and name.endswith("weight") else 0.0)


def write_both(folder: Path, seed: int = 1) -> Folders:
    """Writes one model in both layouts."""
    model = tiny_model(seed)
    hf, original = folder / "Emu3-Gen-hf", folder / "original" / "Emu3-Gen"
    model.save_pretrained(hf)
    tiny_tokenizer().save(str(hf / "tokenizer.json"))
    (hf / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG), encoding="utf-8")
    write_original(original, model)
    write_vision_tokenizer(original / "Emu3-VisionTokenizer", model)
    return Folders(hf, original)


def parts_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The language model's tensors under plain names (``model.layers…``), and the picture tokenizer's."""
    text, pixels = {}, {}
    for name, tensor in model.state_dict().items():
        plain = plain_name(name)
        if plain.startswith("vqmodel."):
            pixels[plain.removeprefix("vqmodel.")] = tensor.contiguous()
        else:
            text[plain] = tensor
    return text, pixels


def write_original(folder: Path, model: nn.Module) -> None:
    """The language model in two shards with an index, its config.json and tiktoken files."""
    folder.mkdir(parents=True)
    text, _ = parts_of(model)
    names = sorted(text)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, chosen in shards.items():
        save_file({name: text[name].clone() for name in chosen}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, chosen in shards.items() for name in chosen}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    config = {
        "model_type": "Emu3",
        "architectures": ["Emu3ForCausalLM"],
        **TEXT,
        "vocab_size": len(text["lm_head.weight"]),
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "image_area": AREA,
        "pad_token_id": token_id("<|endoftext|>"),
        "bos_token_id": token_id("<|extra_203|>"),
        "eos_token_id": token_id("<|extra_204|>"),
        "img_token_id": token_id("<|image token|>"),
        "boi_token_id": token_id("<|image start|>"),
        "eoi_token_id": token_id("<|image end|>"),
        "eol_token_id": token_id("<|extra_200|>"),
        "eof_token_id": token_id("<|extra_201|>"),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_tiktoken(folder)


def write_tiktoken(folder: Path) -> None:
    """The tiny tokenizer as ``emu3.tiktoken`` and ``emu3_vision_tokens.txt``."""
    letters = {letter: byte for byte, letter in _byte_letters().items()}
    vocabulary = tiny_tokenizer().get_vocab(with_added_tokens=False)
    lines = [
        f"{base64.b64encode(bytes(letters[c] for c in token)).decode()} {id_}\n"
        for token, id_ in sorted(vocabulary.items(), key=lambda item: item[1])
    ]
    (folder / "emu3.tiktoken").write_text("".join(lines), encoding="utf-8")
    (folder / "emu3_vision_tokens.txt").write_text("\n".join(VISION_TOKENS) + "\n", encoding="utf-8")


def _byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def write_vision_tokenizer(folder: Path, model: nn.Module) -> None:
    """The picture tokenizer under the original's names: attention as 1x1 convolutions, norms inside the attention."""
    folder.mkdir(parents=True)
    _, pixels = parts_of(model)
    renamed = {}
    for name, tensor in pixels.items():
        new = name.replace("down_block.", "").replace("up_block.", "").replace("middle_block.", "mid.")
        new = re.sub(r"attn_norms\.(\d+)\.", r"attn.\1.norm.", new).replace("mid.attn_norm.", "mid.attn_1.norm.")
        new = re.sub(r"\.([qkv])_proj\.", r".\1.", new).replace(".out_proj.", ".proj_out.")
        is_matrix = re.search(r"\.(q|k|v|proj_out)\.weight$", new)
        renamed[new] = tensor[:, :, None, None].contiguous() if is_matrix else tensor
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "Emu3VisionVQ",
        "codebook_size": CODES,
        "embed_dim": VQ["embed_dim"],
        "z_channels": VQ["latent_channels"],
        "double_z": False,
        "in_channels": 3,
        "out_channels": 3,
        "temporal_downsample_factor": VQ["temporal_downsample_factor"],
        "ch": VQ["base_channels"],
        "ch_mult": VQ["channel_multiplier"],
        "num_res_blocks": VQ["num_res_blocks"],
        "attn_resolutions": VQ["attn_resolutions"],
        "dropout": 0.0,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@cache
def load(folders: Folders, layout: str = "hf", dtype: torch.dtype = torch.float32) -> Emu3Backbone:
    """A backbone that no test changes."""
    return load_emu3(folders.of(layout), torch.device("cpu"), dtype)


@cache
def oracle(folders: Folders, dtype: torch.dtype) -> Any:
    """transformers' model of the -hf folder."""
    from transformers import Emu3ForConditionalGeneration

    return Emu3ForConditionalGeneration.from_pretrained(folders.hf, torch_dtype=dtype).eval()


def padded_prompts(backbone: Emu3Backbone, grid: tuple[int, int], negative: str = "") -> tuple[Tensor, Tensor]:
    """Ids and attention mask [rows, longest] of the guidance rows, left-padded as transformers does it."""
    rows = backbone.prompt_ids(PROMPTS, negative, grid, guided=True)
    longest = max(map(len, rows))
    pad = token_id("<|endoftext|>")
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask
