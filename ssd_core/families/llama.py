"""What the Llama-shaped families share: reading the decoder's part of a ``config.json``, and where its weights lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint import Source
from ..errors import SSDError
from ..transformer import DecoderSpec

# transformers' LlamaConfig: files leave out what equals it (Janus-Pro-7B's names little more than its layers).
LLAMA_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
}


@dataclass(frozen=True)
class LlamaShape:
    """``positions`` is the longest sequence the model was made for, ``vocabulary`` the rows of its text embedding."""

    decoder: DecoderSpec
    rope_theta: float
    vocabulary: int
    positions: int


def read_llama(
    config: Mapping[str, Any], file: Path, defaults: Mapping[str, Any] = LLAMA_DEFAULTS, qk_norm: bool = False
) -> LlamaShape:
    """The decoder that ``config`` describes; ``file`` is named in errors.

    Raises SSDError for a missing or wrong field, and for variants this decoder does not compute: scaled rope, biases,
    another activation.
    """
    given = {**defaults, **{key: value for key, value in config.items() if value is not None}}
    # transformers 5 keeps rope's settings in one dict, version 4 in two fields.
    rope = {"rope_theta": given["rope_theta"], **(given.get("rope_parameters") or given.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    unusual = {
        "rope_type": kind != "default" and kind,
        "hidden_act": given["hidden_act"] != "silu" and given["hidden_act"],
        "attention_bias": given.get("attention_bias"),
        "mlp_bias": given.get("mlp_bias"),
    }
    for field, value in unusual.items():
        if value:
            raise SSDError(
                f"{file} has {field} {value!r}, which is not supported; use the model's original config.json"
            )
    try:
        heads = int(given["num_attention_heads"])
        hidden = int(given["hidden_size"])
        return LlamaShape(
            DecoderSpec(
                hidden=hidden,
                layers=int(given["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(given.get("num_key_value_heads", heads)),
                head_dim=int(given.get("head_dim", hidden // heads)),
                intermediate=int(given["intermediate_size"]),
                norm_eps=float(given["rms_norm_eps"]),
                qk_norm=qk_norm,
            ),
            float(rope["rope_theta"]),
            int(given["vocab_size"]),
            int(given["max_position_embeddings"]),
        )
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise SSDError(
            f"{file} has a missing or wrong field ({type(error).__name__}: {error}); download it again"
        ) from error


def llama_plan(prefix: str, layers: int) -> dict[str, Source | str]:
    """Our parameter names -> tensors of a Llama checkpoint under ``prefix`` (such as ``model.``): decoder and norm."""
    plan: dict[str, Source | str] = {"norm.weight": f"{prefix}norm.weight"}
    for layer in range(layers):
        ours, theirs = f"decoder.layers.{layer}", f"{prefix}layers.{layer}"
        attention = tuple(f"{theirs}.self_attn.{part}_proj.weight" for part in "qkv")
        plan |= {
            f"{ours}.attention_norm.weight": f"{theirs}.input_layernorm.weight",
            f"{ours}.attention.qkv.weight": Source(attention),
            f"{ours}.attention.out.weight": f"{theirs}.self_attn.o_proj.weight",
            f"{ours}.mlp_norm.weight": f"{theirs}.post_attention_layernorm.weight",
            f"{ours}.mlp.gate_up.weight": Source((f"{theirs}.mlp.gate_proj.weight", f"{theirs}.mlp.up_proj.weight")),
            f"{ours}.mlp.down.weight": f"{theirs}.mlp.down_proj.weight",
        }
    return plan
