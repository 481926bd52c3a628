"""Janus-Pro (1B, 7B): a Llama with separate embedding, aligner and output head for picture codes.

Two layouts of the same weights are read: the original one of ``deepseek-ai`` and transformers' of
``deepseek-community``. Facts are from the original repository (github.com/deepseek-ai/Janus) and its paper. The vision
tower and the text head, which only reading pictures needs, are not loaded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checkpoint import Checkpoint, Source, fill, fingerprint_of
from ..errors import ShouldStop, SSDError
from ..sampling import Sampling
from ..stream import Stream
from ..transformer import Decoder, RMSNorm
from .base import Backbone, PromptRows, read_config
from .janus_prompt import JanusPrompts
from .llama import LlamaShape, llama_plan, read_llama
from .vqgan import VQGAN, VQGANSpec

ORIGINAL, TRANSFORMERS = "multi_modality", "janus"
"""``model_type`` of the two layouts."""

_PIXELS = "pixels."
_NAMES = {(2048, 24): "janus-pro-1b", (4096, 30): "janus-pro-7b"}  # by hidden size and layers


@dataclass(frozen=True)
class JanusSpec:
    """``code_dim``: width of the codes' embedding; ``aligner_layers``: linear layers from there to the decoder's
    width; ``head_width``: inner width of the output head; ``side``: rows and columns of a picture."""

    llama: LlamaShape
    codes: int
    code_dim: int
    aligner_layers: int
    head_width: int
    side: int
    pixels: VQGANSpec


class JanusBackbone(Backbone):
    """The network and its prompts."""

    def __init__(self, spec: JanusSpec, prompts: JanusPrompts, fingerprint: str) -> None:
        super().__init__()
        shape = spec.llama.decoder
        self.name = _NAMES.get((shape.hidden, shape.layers), "janus")
        self.fingerprint = fingerprint
        self.codes = spec.codes
        self.grids = ((spec.side, spec.side),)
        self.default_sampling = Sampling(guidance=5.0, temperature=1.0)
        self.rope_theta = spec.llama.rope_theta
        self.prompts = prompts
        self.embedding = _embedding(spec.llama.vocabulary, shape.hidden)
        self.code_embedding = _embedding(spec.codes, spec.code_dim)
        widths = [spec.code_dim, *[shape.hidden] * spec.aligner_layers]
        self.aligner = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.decoder = Decoder(shape)
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.head_in = nn.Linear(shape.hidden, spec.head_width)
        self.head_out = nn.Linear(spec.head_width, spec.codes)
        self.pixels = VQGAN(spec.pixels)
        self.patch = spec.pixels.patch

    def check_prompt(self, prompt: str) -> None:
        self.prompts.ids(prompt)

    def stream(self, grid: tuple[int, int]) -> Stream:
        rows, cols = self.check_grid(grid)
        return Stream(rows, cols, end_of_line=None)

    def prompt_ids(self, prompts: Sequence[str], negative: str, guided: bool) -> list[list[int]]:
        """One row of ids per guidance row, conditional rows first, not padded.

        An empty ``negative`` gives each picture a row of pads as long as its prompt, anything else that prompt's row.
        """
        rows = [self.prompts.ids(text) for text in prompts]
        if not guided:
            return rows
        if negative.strip():
            return rows + [self.prompts.ids(negative)] * len(prompts)
        return rows + [self.prompts.unconditional(len(row)) for row in rows]

    def prompt_rows(self, prompts: Sequence[str], negative: str, grid: tuple[int, int], guided: bool) -> PromptRows:
        rows = self.prompt_ids(prompts, negative, guided)
        length = max(map(len, rows))
        padding = [length - len(row) for row in rows]
        ids = [[self.prompts.pad] * pad + row for pad, row in zip(padding, rows, strict=True)]
        distinct = torch.tensor(padding if any(padding) else [0], device=self.device)[:, None, None]
        line = torch.arange(length + self.stream(grid).length, device=self.device)[None, :, None]
        positions = (line - distinct).clamp(min=0).float()  # [R or 1, P + stream length, 1]
        return PromptRows(
            embeddings=self.embedding(torch.tensor(ids, device=self.device)),
            padding=padding,
            positions=positions[:, :length],
            stream_positions=positions[:, length:],
        )

    def embed(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.code_embedding(tokens)
        for index, layer in enumerate(self.aligner):
            x = layer(F.gelu(x) if index else x)
        return x

    def logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head_out(F.gelu(self.head_in(self.norm(features))))
        return logits

    def decode_pixels(self, codes: Tensor) -> Tensor:
        return self.pixels.decode(codes)

    def encode_pixels(self, images: Tensor) -> Tensor:
        return self.pixels.encode(images)


def _embedding(rows: int, width: int) -> nn.Embedding:
    """Not initialised: normal numbers on the meta device make torch import its compiler, which takes seconds."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


# --- loading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """Where a layout keeps the tensors. ``text``: prefix of the Llama; ``pixel``: our name, levels -> name on disk."""

    text: str
    codes: str
    aligner: Callable[[int], str]
    head_in: str
    head_out: str
    pixel: Callable[[str, int], str]
    ignorable: tuple[str, ...]


def _transformers_aligner(layer: int) -> str:
    inner = f"hidden_layers.{layer - 1}" if layer else "fc1"
    return f"model.generation_aligner.{inner}"


def _transformers_pixel(name: str, levels: int) -> str:
    """transformers numbers the decoder's levels in the order they run, coarsest first."""
    if name == "codebook":
        return "model.vqmodel.quantize.embedding.weight"
    parts = name.split(".")
    if parts[:2] == ["decoder", "up"]:
        parts[2] = str(levels - 1 - int(parts[2]))
    return "model.vqmodel." + ".".join(parts)


def _original_pixel(name: str, levels: int) -> str:
    if name == "codebook":
        return "gen_vision_model.quantize.embedding.weight"
    parts = _transformers_pixel(name, levels).removeprefix("model.vqmodel.").split(".")
    others = {"down": "conv_blocks", "up": "conv_blocks", "block": "res", "block_1": "0", "attn_1": "1", "block_2": "2"}
    return "gen_vision_model." + ".".join(others.get(part, part) for part in parts)


_LAYOUTS = {
    TRANSFORMERS: _Layout(
        text="model.language_model.",
        codes="model.generation_embeddings.weight",
        aligner=_transformers_aligner,
        head_in="model.generation_head.proj_out",
        head_out="model.generation_head.vision_head",
        pixel=_transformers_pixel,
        ignorable=("model.vision_model.", "model.aligner.", "lm_head."),
    ),
    ORIGINAL: _Layout(
        text="language_model.model.",
        codes="gen_embed.weight",
        aligner=lambda layer: f"gen_aligner.layers.{2 * layer}",
        head_in="gen_head.output_mlp_projector",
        head_out="gen_head.vision_head",
        pixel=_original_pixel,
        ignorable=("vision_model.", "aligner.", "language_model.lm_head.", "gen_vision_model.quantize.codebook_used"),
    ),
}


def load_janus(
    folder: Path, device: torch.device, dtype: torch.dtype, should_stop: ShouldStop | None = None
) -> JanusBackbone:
    """Loads either layout. Raises SSDError for what is missing, damaged or of another model."""
    config = read_config(folder)
    layout = _LAYOUTS[config["model_type"]]
    checkpoint = Checkpoint.open(folder)
    spec = janus_spec(folder, config, checkpoint)
    prompts = JanusPrompts(folder, spec.llama.vocabulary, spec.llama.positions - spec.side**2)
    with torch.device("meta"):
        backbone = JanusBackbone(spec, prompts, fingerprint="")
    plan = _plan(backbone, layout)
    fill(
        backbone,
        checkpoint,
        plan,
        dtype=dtype,
        device=device,
        keep_float32=(_PIXELS,),
        ignorable=layout.ignorable,
        should_stop=should_stop,
    )
    backbone.fingerprint = fingerprint_of(
        checkpoint, {name: source for name, source in plan.items() if not name.startswith(_PIXELS)}
    )
    return backbone.requires_grad_(False).eval()


def janus_spec(folder: Path, config: Mapping[str, Any], checkpoint: Checkpoint) -> JanusSpec:
    """The sizes: decoder and head from ``config.json``, the pixel decoder's off its tensors (the original layout's
    config does not tell them)."""
    file = folder / "config.json"
    layout = _LAYOUTS[config["model_type"]]

    def shape_of(name: str) -> tuple[int, ...] | None:
        info = checkpoint.tensors.get(layout.pixel(name, 0))
        return None if info is None else info.shape

    pixels = VQGANSpec.of_shapes(shape_of, coarse_attention=True, unit_codes=True)
    try:
        if config["model_type"] == TRANSFORMERS:
            llama = read_llama(config["text_config"], file)
            codes, code_dim, layers, head_width, side = _transformers_sizes(config, file)
        else:
            llama = read_llama(config["language_config"], file)
            codes, code_dim, layers, head_width = _original_sizes(config)
            side = int(config["vision_config"]["params"]["image_size"]) // pixels.patch
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise SSDError(
            f"{file} has a missing or wrong field ({type(error).__name__}: {error}); download it again"
        ) from error
    if (pixels.codes, pixels.code_dim) != (codes, code_dim) or min(layers, side) < 1:
        raise SSDError(
            f"{file}: got {codes} codes of width {code_dim}, {layers} aligner layers and {side} rows, the weights "
            f"have {pixels.codes} codes of width {pixels.code_dim}; config.json and weights are of different models"
        )
    return JanusSpec(llama, codes, code_dim, layers, head_width, side, pixels)


def _transformers_sizes(config: Mapping[str, Any], file: Path) -> tuple[int, int, int, int, int]:
    """(codes, code width, aligner layers, head width, side); transformers leaves out what equals its defaults."""
    vq, vision = config.get("vq_config") or {}, config.get("vision_config") or {}
    if vq.get("hidden_act", "gelu") != "gelu":
        raise SSDError(f"{file} has hidden_act {vq['hidden_act']!r}, expected 'gelu'; use the original config.json")
    return (
        int(vq.get("num_embeddings", 16384)),
        int(vq.get("embed_dim", 8)),
        int(vq.get("num_hidden_layers", 2)),
        int(vq.get("projection_dim", 2048)),
        int(vision.get("image_size", 384)) // int(vision.get("patch_size", 16)),
    )


def _original_sizes(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """(codes, code width, aligner layers, head width)."""
    vision, head = config["gen_vision_config"]["params"], config["gen_head_config"]["params"]
    return (
        int(vision["image_token_size"]),
        int(vision["n_embed"]),
        int(config["gen_aligner_config"]["params"]["depth"]),
        int(head["image_token_embed"]),
    )


def _plan(backbone: JanusBackbone, layout: _Layout) -> dict[str, Source | str]:
    """Parameter -> tensors on disk."""
    plan = llama_plan(layout.text, backbone.decoder.spec.layers)
    plan["embedding.weight"] = f"{layout.text}embed_tokens.weight"
    plan["code_embedding.weight"] = layout.codes
    modules = {f"aligner.{layer}": layout.aligner(layer) for layer in range(len(backbone.aligner))}
    modules |= {"head_in": layout.head_in, "head_out": layout.head_out}
    plan |= {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in modules.items() for kind in ("weight", "bias")}
    levels = len(backbone.pixels.spec.multipliers)
    plan |= {_PIXELS + name: layout.pixel(name, levels) for name in backbone.pixels.state_dict()}
    return plan
