"""A model folder of the embedded model's kind, a few kilobytes, random weights: the real files and the real loader."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from ssd_core.families.emoji import EmojiBackbone
from ssd_core.heads import HeadsSpec, SpatialHeads, save_heads

CONFIG = {
    "model_type": "emoji-scenes",
    "format": 1,
    "decoder": {
        "hidden": 16,
        "layers": 2,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 8,
        "intermediate": 24,
        "norm_eps": 1e-6,
        "qk_norm": False,
    },
    "rope_theta": 100.0,
    "codes": 12,
    "words": ["cat", "dog", "heart", "red", "blue", "grass", "two"],
    "sides": [4, 6],
    "grids": [[6, 6], [4, 4], [4, 6], [6, 4]],
    "prompt_words": 4,
    "patch": 8,
    "pixels": {"codes": 12, "code_dim": 4, "encoder_width": 8, "decoder_widths": [8, 8, 8]},
    "plurals": {"cats": "cat", "dogs": "dog"},
    "stop_words": ["a", "on"],
    "defaults": {"guidance": 2.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
}


def write_tiny_model(folder: Path) -> Path:
    """Write config, model, pixels and heads into `folder`; the same bytes every time."""
    torch.manual_seed(0)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    backbone = EmojiBackbone(CONFIG, fingerprint="")
    with torch.no_grad():
        backbone.head.weight.normal_(std=1.0)  # sharper than the default, so that pictures differ by seed and prompt
    state = {name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}
    pixels = {name.removeprefix("pixels."): state.pop(name) for name in list(state) if name.startswith("pixels.")}
    save_file({name.replace("embedding.", "embed.", 1): t for name, t in state.items()}, folder / "model.safetensors")
    save_file(pixels, folder / "pixels.safetensors")
    heads = SpatialHeads(HeadsSpec(hidden=16, horizontal=(1, 2, 3, 4, 5), vertical=(1, 2, 3)))
    save_heads(heads, folder / "heads.safetensors")
    return folder
