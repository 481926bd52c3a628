"""The three big models' shapes with random weights, made on the device itself: no files, no copy on the CPU.

The backbones are the library's own classes, so every step is the one that users run; what they usually read from files
(tokenizer, vocabulary) is replaced by letters, and the picture decoder by nothing, because pixels are not measured.
Weights are normal with standard deviation 0.02 (at width 4096; toys are narrower, so theirs are larger) and the two
matrices that write to the residual stream smaller by sqrt(2 * layers), as GPT-2 does it: activations stay of order one
and logits spread by about one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ssd_core import Backbone, Rounds, SpatialHeads
from ssd_core.families.emu3 import Emu3Backbone
from ssd_core.families.emu3_files import Emu3Config
from ssd_core.families.emu3_pixels import MoVQSpec
from ssd_core.families.emu3_tokens import SpecialIds
from ssd_core.families.janus import JanusBackbone, JanusSpec
from ssd_core.families.llama import LlamaShape
from ssd_core.families.lumina import LuminaBackbone
from ssd_core.families.vqgan import VQGAN, VQGANSpec
from ssd_core.heads import HeadsSpec
from ssd_core.presets import preset_schedule
from ssd_core.transformer import DecoderSpec

PROMPT = "a lighthouse on a cliff above a stormy sea, a small boat, low sun behind dark clouds, oil on canvas"
_STD, _WIDTH = 0.02, 4096


@dataclass(frozen=True)
class Shape:
    """One model's sizes. ``paper``: the published schedule; ``target``: how many times as fast as our own graphed AR
    it is to be; ``target_transformers``: the same against transformers' loop, None where none is set."""

    name: str
    title: str
    llama: LlamaShape
    codes: int
    grid: tuple[int, int]
    check_grid: tuple[int, int]
    preset: str
    target: float
    target_transformers: float | None = None

    @property
    def paper(self) -> Rounds:
        schedule = preset_schedule(self.preset, "cuda")
        assert isinstance(schedule, Rounds)
        return schedule

    def with_layers(self, layers: int) -> Shape:
        """The same model with fewer decoder layers."""
        return replace(self, llama=replace(self.llama, decoder=replace(self.llama.decoder, layers=layers)))


def _llama(rows: int, positions: int, theta: float, *decoder: int, eps: float, qk_norm: bool = False) -> LlamaShape:
    return LlamaShape(DecoderSpec(*decoder, eps, qk_norm), theta, rows, positions)


# In the order in which they are measured: the headline target is Emu3's, so nothing starves it.
# DecoderSpec: hidden, layers, heads, kv_heads, head_dim, intermediate.
FULL = {
    "emu3": Shape(
        "emu3", "Emu3-Gen-8B", _llama(184622, 9216, 1e6, 4096, 32, 32, 8, 128, 14336, eps=1e-5),
        32768, (90, 90), (12, 12), "Emu3 (paper)", 11.0, 40.0,
    ),
    "lumina": Shape(
        "lumina", "Lumina-mGPT-7B-768", _llama(65536, 4096, 1e4, 4096, 32, 32, 32, 128, 11008, eps=1e-5, qk_norm=True),
        8192, (48, 48), (12, 12), "Lumina (paper)", 8.0,
    ),
    "janus": Shape(
        "janus", "Janus-Pro-7B", _llama(102400, 16384, 1e4, 4096, 30, 32, 32, 128, 11008, eps=1e-6),
        16384, (24, 24), (12, 12), "Janus (paper)", 8.0,
    ),
}  # fmt: skip
TOY = {
    "emu3": replace(
        FULL["emu3"], title="toy Emu3", llama=_llama(400, 700, 1e6, 32, 3, 4, 2, 8, 48, eps=1e-5),
        codes=64, grid=(8, 8), check_grid=(4, 4),
    ),
    "lumina": replace(  # its codes and control ids are part of the library
        FULL["lumina"], title="toy Lumina", llama=_llama(9216, 700, 1e4, 32, 3, 4, 4, 8, 48, eps=1e-5, qk_norm=True),
        grid=(8, 8), check_grid=(4, 4),
    ),
    "janus": replace(
        FULL["janus"], title="toy Janus", llama=_llama(320, 700, 1e4, 32, 3, 4, 2, 8, 48, eps=1e-6),
        codes=50, grid=(8, 8), check_grid=(4, 4),
    ),
}  # fmt: skip


class Letters:
    """Stands for a tokenizer: one id a letter, control ids in front of them and the codes at the vocabulary's end."""

    pad, bos, begin_of_image = 1, 0, 2
    _CONTROLS = 16

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        return [self._CONTROLS + ord(letter) % 128 for letter in text]

    def ids(self, text: str) -> list[int]:
        return [self.bos, *self.encode(text), self.begin_of_image]

    def unconditional(self, length: int) -> list[int]:
        return [self.bos, *[self.pad] * (length - 2), self.begin_of_image]

    def special_ids(self, codes: int, expected: Sequence[tuple[str, int]], where: Path) -> SpecialIds:
        names = SpecialIds.__dataclass_fields__.keys() - {"first_code"}
        return SpecialIds(**{name: i for i, name in enumerate(sorted(names))}, first_code=self._vocabulary - codes)


class NoPixels(nn.Module):
    """Black pictures of one pixel a code: the picture decoder is no part of what is measured."""

    def decode(self, codes: Tensor) -> Tensor:
        return torch.zeros(*codes.shape, 3, device=codes.device)


def empty_backbone(shape: Shape) -> Backbone:
    """The library's backbone of that shape on the meta device, with both grids of ``shape``."""
    letters = Letters(shape.llama.vocabulary)
    vqgan = VQGANSpec(32, (1, 1, 1, 1, 1), 1, 32, shape.codes, 8, coarse_attention=False, unit_codes=False)
    backbone: Backbone
    with torch.device("meta"):
        if shape.name == "janus":
            wide = shape.llama.decoder.hidden
            spec = JanusSpec(shape.llama, shape.codes, 8, 2, wide, shape.grid[0], vqgan)
            backbone = JanusBackbone(spec, letters, "random")  # type: ignore[arg-type]
        elif shape.name == "lumina":
            backbone = LuminaBackbone(shape.llama, letters, VQGAN(vqgan))  # type: ignore[arg-type]
        else:
            movq = MoVQSpec(shape.codes, 4, 32, (1, 1, 1, 1), 1, (), 1)
            config = Emu3Config(shape.llama, movq, (shape.grid[0] * movq.patch) ** 2, ())
            backbone = Emu3Backbone(config, letters, Path("random"))  # type: ignore[arg-type]
        backbone.pixels = NoPixels()
    backbone.grids = (shape.grid, shape.check_grid)
    return backbone.requires_grad_(False).eval()


def random_backbone(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Backbone:
    """``empty_backbone`` with random weights on ``device``; repeatable on one kind of device."""
    backbone = empty_backbone(shape)
    _randomise(backbone, device, dtype, seed, backbone.hidden, residual=(2 * shape.llama.decoder.layers) ** -0.5)
    backbone.fingerprint = f"random-{shape.name}-{shape.llama.decoder.layers}-{seed}"
    return backbone


def heads_spec(shape: Shape) -> HeadsSpec:
    """The paper's heads that its schedule uses: five horizontal, k_v vertical."""
    paper = shape.paper
    horizontal = tuple(range(1, paper.first_row_block + 1))
    return HeadsSpec(shape.llama.decoder.hidden, horizontal, tuple(range(1, paper.rows_per_block + 1)))


def random_heads(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int = 0) -> SpatialHeads:
    """Heads of the paper's size (inner width twice the decoder's). They predict little more than the feature they
    read, as new heads do: acceptance on random weights says nothing, time does."""
    with torch.device("meta"):
        heads = SpatialHeads(heads_spec(shape))
    heads.requires_grad_(False).eval()
    _randomise(heads, device, dtype, seed + 1, heads.spec.hidden, residual=0.5)
    for name, parameter in heads.named_parameters():
        if name.endswith("mix.weight"):
            parameter.mul_(0.1)[:, : parameter.shape[0]].diagonal().add_(1.0)
    return heads


def _randomise(
    module: nn.Module, device: torch.device, dtype: torch.dtype, seed: int, width: int, residual: float
) -> None:
    generator = torch.Generator(device).manual_seed(seed)
    spread = _STD * (_WIDTH / width) ** 0.5
    for owner in module.modules():
        for leaf, parameter in list(owner.named_parameters(recurse=False)):
            value = torch.empty(parameter.shape, dtype=dtype, device=device)
            name = type(owner).__name__
            if parameter.dim() > 1 and "Norm" not in name:
                value.normal_(0.0, spread, generator=generator)
            else:
                value.fill_(1.0 if "Norm" in name and leaf == "weight" else 0.0)
            owner._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.down.weight", "down.weight")):
                parameter.mul_(residual)


def weight_bytes(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in module.parameters())
