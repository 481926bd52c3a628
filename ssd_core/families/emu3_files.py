"""Emu3 on disk: what the two published layouts call things.

* *original*: BAAI/Emu3-Gen (``model.layers…``, ``lm_head.weight``) with the picture tokenizer in a repository of its
  own, BAAI/Emu3-VisionTokenizer, which is looked for inside the model's folder and beside it;
* *-hf*: everything in one folder, under the names that transformers writes (4.48 and later: ``text_model.model…``,
  ``text_model.lm_head.weight``, ``vqmodel…``) or uses inside (``model.text_model…``, ``lm_head.weight``,
  ``model.vqmodel…``).

Values that a config.json leaves out are those of the published model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..checkpoint import Source
from ..errors import SSDError
from .base import read_config
from .emu3_pixels import MoVQSpec
from .emu3_tokens import NAMES
from .llama import LlamaShape, llama_plan, read_llama

ORIGINAL, TRANSFORMERS, PIXELS = "Emu3", "emu3", "Emu3VisionVQ"
"""The ``model_type`` of the original layout, of the -hf layout and of the original picture tokenizer."""

PIXELS_FOLDER = "Emu3-VisionTokenizer"

# What the published config.json may leave out (transformers' Emu3TextConfig; the original's own defaults are equal).
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 184622,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_position_embeddings": 9216,
    "hidden_act": "silu",
}
_ID_FIELDS = {
    "pad_token_id": "pad",
    "bos_token_id": "begin",
    "eos_token_id": "end",
    "img_token_id": "image",
    "boi_token_id": "begin_of_image",
    "eoi_token_id": "end_of_image",
    "eol_token_id": "end_of_line",
    "eof_token_id": "end_of_frame",
}


@dataclass(frozen=True)
class Emu3Config:
    """``image_area`` in pixels; ``ids``: (token name, id) wherever config.json tells one."""

    text: LlamaShape
    pixels: MoVQSpec
    image_area: int
    ids: tuple[tuple[str, int], ...]


def emu3_config(folder: Path, pixels_folder: Path) -> Emu3Config:
    """Reads the ``config.json`` of either layout; in the -hf layout both folders are the same.

    Raises SSDError for a missing or wrong field, and for variants that are not computed here.
    """
    config = read_config(folder)
    text = config if config["model_type"] == ORIGINAL else config.get("text_config") or {}
    with _fields_of(folder):
        shape = read_llama(dict(text), folder / "config.json", _DEFAULTS)
        area, ids = int(config.get("image_area", 720 * 720)), tuple(_told_ids(config, text))
    with _fields_of(pixels_folder):
        return Emu3Config(shape, pixels_config(read_config(pixels_folder)), area, ids)


@contextmanager
def _fields_of(folder: Path) -> Iterator[None]:
    """Words what goes wrong while the fields of ``config.json`` are read."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SSDError(
            f"{folder / 'config.json'} has a missing or wrong field ({type(error).__name__}: {error}); "
            "download it again"
        ) from error


def _told_ids(config: Mapping[str, Any], text: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for field, ours in _ID_FIELDS.items():
        if isinstance(text.get(field), int):
            yield NAMES[ours], text[field]
    known = config.get("vocabulary_map") or {}
    for name in sorted({*NAMES.values(), *(name for name in known if name.startswith("<|visual token"))}):
        if name in known:
            yield name, int(known[name])


def pixels_config(config: Mapping[str, Any]) -> MoVQSpec:
    """Reads the picture tokenizer's part. Raises KeyError, TypeError or ValueError for wrong fields."""
    if config["model_type"] == PIXELS:
        vq, latent, double = config, config.get("z_channels", 4), config.get("double_z", False)
        channels, multiplier = config.get("ch", 256), config.get("ch_mult", (1, 2, 2, 4))
    else:
        vq = config.get("vq_config") or {}
        latent, double = vq.get("latent_channels", 4), vq.get("double_latent", False)
        channels, multiplier = vq.get("base_channels", 256), vq.get("channel_multiplier", (1, 2, 2, 4))
    code_dim = int(vq.get("embed_dim", 4))
    if latent != code_dim or double or int(vq.get("num_attention_heads", 1)) != 1:
        raise ValueError(
            f"latent channels must equal embed_dim, undoubled, with one attention head; got {latent}, {code_dim}, "
            f"{double}, {vq.get('num_attention_heads', 1)}"
        )
    return MoVQSpec(
        codes=int(vq.get("codebook_size", 32768)),
        code_dim=code_dim,
        channels=int(channels),
        multiplier=tuple(int(factor) for factor in multiplier),
        blocks=int(vq.get("num_res_blocks", 2)),
        attention_levels=tuple(int(level) for level in vq.get("attn_resolutions", (3,)) or ()),
        frames=int(vq.get("temporal_downsample_factor", 4)),
    )


def find_pixels(folder: Path) -> Path:
    """The folder of the original picture tokenizer: inside ``folder``, else beside it; known by its config.json."""
    for place in (folder, folder.resolve().parent):
        for path in sorted(place.glob("*/config.json")):
            try:
                if read_config(path.parent).get("model_type") == PIXELS:
                    return path.parent
            except SSDError:
                continue  # a neighbour that is none of our business
    raise SSDError(
        f"{folder} has Emu3's original layout, whose picture tokenizer is a repository of its own: download "
        f"BAAI/Emu3-VisionTokenizer (config.json, model.safetensors) into {folder / PIXELS_FOLDER} or a folder beside "
        f"{folder.name}"
    )


def text_plan(layers: int, keys: Iterable[str], first_code: int, codes: int) -> dict[str, Source | str]:
    """Where the decoder, the embeddings, the final norm and the image rows of the output head come from.

    ``keys``: the checkpoint's names, which tell the layout; with none known, transformers' own are expected.
    """
    have = set(keys)
    inside, head = "text_model.model.", "text_model.lm_head.weight"
    for prefix in ("model.", "model.text_model."):
        if f"{prefix}embed_tokens.weight" in have:
            inside, head = prefix, "lm_head.weight"
    plan: dict[str, Source | str] = {
        "embedding.weight": f"{inside}embed_tokens.weight",
        "head.weight": Source((head,), rows=slice(first_code, first_code + codes)),
    }
    return plan | llama_plan(inside, layers)


def pixels_plan(pixels: nn.Module, keys: Iterable[str], original: bool) -> dict[str, Source | str]:
    """Where the picture tokenizer's parameters and statistics come from; ``keys``: the checkpoint's names."""
    names = list(pixels.state_dict())
    if original:
        return {name: _as_matrix(name, _original_name(name)) for name in names}
    prefix = "model.vqmodel." if any(key.startswith("model.vqmodel.") for key in keys) else "vqmodel."
    return {name: f"{prefix}{_transformers_name(name)}" for name in names}


def training_counters(keys: Iterable[str]) -> tuple[str, ...]:
    """The checkpoint's counters of BatchNorm's training steps, which drawing has no use for."""
    return tuple(key for key in keys if key.endswith(".num_batches_tracked"))


def _original_name(name: str) -> str:
    if name == "codebook":
        return "quantize.embedding.weight"
    return name.replace(".resample.", ".downsample." if name.startswith("encoder.") else ".upsample.")


def _transformers_name(name: str) -> str:
    parts = _original_name(name).split(".")
    if parts[1] in ("down", "up"):
        parts.insert(1, f"{parts[1]}_block")
    elif parts[1] == "mid":
        parts[1] = "middle_block"
    if "attn" in parts:  # attn.0.norm.weight, attn.0.q.weight
        at = parts.index("attn")
        if parts[at + 2] == "norm":
            parts[at : at + 3] = ["attn_norms", parts[at + 1]]
    elif "attn_1" in parts:
        at = parts.index("attn_1")
        if parts[at + 1] == "norm":
            parts[at : at + 2] = ["attn_norm"]
    projections = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "proj_out": "out_proj"}
    return ".".join(projections.get(part, part) for part in parts)


def _as_matrix(name: str, key: str) -> Source | str:
    """The original keeps the attention's matrices as 1x1 convolutions."""
    if name.endswith((".q.weight", ".k.weight", ".v.weight", ".proj_out.weight")):
        return Source((key,), transform=_flatten)
    return key


def _flatten(weight: Tensor) -> Tensor:
    return weight.flatten(1)
