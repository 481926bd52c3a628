"""Lumina-mGPT-7B-768 (Liu et al. 2024, arXiv 2408.02657), a Chameleon decoder that draws 768x768 pixels.

One vocabulary holds words, image tokens (ids 4 to 8195) and controls. A row of the transformer is the prompt, then the
picture: begin of image, one token for its height and one for its width (in units of 32 pixels), the codes row by row
with a newline token after each row, end of image. The unconditional row has no prompt at all: it starts at begin of
image, with positions of its own from 0. Stream ids are the model's ids minus 4, so that code 0 is stream id 0.

``config.json`` does not say for which size a checkpoint was trained (Lumina-mGPT-7B-512 and -1024 have the same file);
the sizes here are those of the 768 model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoint import Checkpoint, Plan, Source, fill, fingerprint_of
from ..errors import ShouldStop, SSDError
from ..sampling import Sampling
from ..stream import Stream
from ..transformer import Decoder, DecoderSpec, RMSNorm
from .base import Backbone, PromptRows, read_config
from .chameleon_pixels import PIXELS_FILE, load_chameleon_pixels
from .chameleon_text import ChameleonTokenizer, image_order, require_ids
from .llama import LLAMA_DEFAULTS, LlamaShape, llama_plan, read_llama
from .text import TextTokenizer
from .vqgan import VQGAN

MODEL_TYPE = "chameleon"
NAME = "lumina-mgpt"
CODES = 8192
FIRST_IMAGE_ID = 4
BEGIN_OF_TEXT, END_OF_IMAGE, BEGIN_OF_IMAGE, END_OF_TURN, NEWLINE = 0, 8196, 8197, 8710, 8803
_SIZE = 8804  # plus the side in units of 32 pixels
_PIXELS_PER_CODE = 16
_CODES_PER_SIZE = 2
_TRAINED_PIXELS, _MOST_STRETCH = 768, 4
# Encoder and codebook that checkpoints of Meta's own layout carry along; the pixel decoder is not among them.
_IGNORABLE = ("model.vqmodel.",)
# transformers' ChameleonConfig: files leave out what equals it.
_DEFAULTS: dict[str, Any] = {
    **LLAMA_DEFAULTS,
    "vocab_size": 65536,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
}


class LuminaBackbone(Backbone):
    """The network, its tokenizer and its pixel decoder. ``context``: tokens of the longest row it was made for."""

    def __init__(self, shape: LlamaShape, tokenizer: TextTokenizer, pixels: VQGAN) -> None:
        super().__init__()
        spec = shape.decoder
        self.name = NAME
        self.fingerprint = ""
        self.codes = CODES
        self.grids = trained_grids(_TRAINED_PIXELS)
        self.default_sampling = Sampling(guidance=4.0, temperature=1.0, top_k=2000)
        self.rope_theta = shape.rope_theta
        self.patch = _PIXELS_PER_CODE
        self.context = shape.positions
        self.tokenizer = tokenizer
        # Not initialised: torch's normal_ on the meta device would import its compiler, which takes seconds.
        unset = torch.empty(shape.vocabulary, spec.hidden)
        self.embedding = nn.Embedding(shape.vocabulary, spec.hidden, _weight=unset)
        self.decoder = Decoder(spec)
        self.norm = RMSNorm(spec.hidden, spec.norm_eps)
        self.head = nn.Linear(spec.hidden, CODES, bias=False)
        self.pixels = pixels

    def check_grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Returns ``grid`` or raises SSDError with the sizes that are nearest to it."""
        if tuple(grid) in self.grids:
            return grid
        rows, cols = grid
        nearest = sorted(self.grids, key=lambda g: (g[0] - rows) ** 2 + (g[1] - cols) ** 2)[:4]
        raise SSDError(
            f"{self.name} cannot draw {rows}x{cols} codes (rows x columns); it knows {len(self.grids)} sizes of about "
            f"48x48 codes, both sides even, none more than four times the other; the nearest are "
            + ", ".join(f"{r}x{c}" for r, c in nearest)
        )

    def check_prompt(self, prompt: str) -> None:
        """Raises SSDError for a prompt that is no valid text, or too long whatever the size of the picture."""
        self._text_ids(prompt, min(self.grids, key=lambda grid: self.stream(grid).length))

    def stream(self, grid: tuple[int, int]) -> Stream:
        rows, cols = self.check_grid(grid)
        return Stream(rows, cols, NEWLINE - FIRST_IMAGE_ID)

    def prompt_ids(self, prompts: Sequence[str], negative: str, grid: tuple[int, int], guided: bool) -> list[list[int]]:
        """The model's ids of every guidance row, up to the width token, without padding; conditional rows first.

        A ``negative`` prompt takes the place of the unconditional row, in the same wrapper as a prompt.
        """
        rows = [self._text_ids(prompt, grid) for prompt in prompts]
        if guided:
            rows += [self._text_ids(negative, grid) if negative else []] * len(prompts)
        return [row + self._image_ids(grid) for row in rows]

    def prompt_rows(self, prompts: Sequence[str], negative: str, grid: tuple[int, int], guided: bool) -> PromptRows:
        rows = self.prompt_ids(prompts, negative, self.check_grid(grid), guided)
        longest = max(map(len, rows))
        padding = [longest - len(row) for row in rows]
        ids = [[BEGIN_OF_TEXT] * pad + row for pad, row in zip(padding, rows, strict=True)]
        pads = torch.tensor(padding, device=self.device)[:, None]
        slots = torch.arange(longest + self.stream(grid).length, device=self.device)
        positions = (slots - pads).clamp(min=0).float()[..., None]  # [R, P + stream length, 1]
        return PromptRows(
            embeddings=self.embedding(torch.tensor(ids, device=self.device)),
            padding=padding,
            positions=positions[:, :longest],
            stream_positions=positions[:, longest:],
        )

    def full_stream(self, codes: Tensor) -> Tensor:
        """The model's ids of whole pictures, begin and end of image included.

        Codes int64 [batch, rows, cols] -> int64 [batch, 3 + rows * (cols + 1) + 1].
        """
        batch, rows, cols = codes.shape
        head = codes.new_tensor(self._image_ids((rows, cols))).expand(batch, -1)
        lines = torch.cat((codes + FIRST_IMAGE_ID, codes.new_full((batch, rows, 1), NEWLINE)), dim=2)
        return torch.cat((head, lines.flatten(1), codes.new_full((batch, 1), END_OF_IMAGE)), dim=1)

    def embed(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(tokens + FIRST_IMAGE_ID)
        return embeddings

    def logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(features))
        return logits

    def decode_pixels(self, codes: Tensor) -> Tensor:
        return self.pixels.decode(codes)

    def encode_pixels(self, images: Tensor) -> Tensor:
        return self.pixels.encode(images)

    def _text_ids(self, prompt: str, grid: tuple[int, int]) -> list[int]:
        height, width = (side * _PIXELS_PER_CODE for side in grid)
        text = f"Generate an image of {width}x{height} according to the following prompt:\n{prompt}"
        ids = [BEGIN_OF_TEXT, *self.tokenizer.encode(text), END_OF_TURN]
        picture = len(self._image_ids(grid)) + self.stream(grid).length + 1
        if len(ids) + picture > self.context:
            raise SSDError(
                f"the prompt is too long: with the wrapper it has {len(ids)} tokens, at most {self.context - picture} "
                f"fit beside a picture of {grid[0]}x{grid[1]} codes; shorten it by "
                f"{len(ids) + picture - self.context} tokens"
            )
        return ids

    @staticmethod
    def _image_ids(grid: tuple[int, int]) -> list[int]:
        """Begin of image, height, width."""
        return [BEGIN_OF_IMAGE, *(_SIZE + side // _CODES_PER_SIZE for side in grid)]


def trained_grids(pixels: int) -> tuple[tuple[int, int], ...]:
    """The (rows, cols) that a model for ``pixels`` x ``pixels`` was trained on, the square first.

    The authors cut training pictures to h x w tiles of 32 pixels (their ``generate_crop_size_list``): for every w the
    largest h that keeps h x w at most the square's number of tiles, down to the largest h of w + 1; then those whose
    longer side is at most four times the shorter. 73 sizes for 768 pixels, of 2112 to 2304 codes.
    """
    side = pixels // (_PIXELS_PER_CODE * _CODES_PER_SIZE)
    tiles = side * side
    sizes = [
        (h, w)
        for w in range(1, tiles + 1)
        for h in range(max(1, tiles // (w + 1)), tiles // w + 1)
        if max(h, w) <= _MOST_STRETCH * min(h, w)
    ]
    sizes.sort(key=lambda size: (size != (side, side), size))
    return tuple((h * _CODES_PER_SIZE, w * _CODES_PER_SIZE) for h, w in sizes)


def load_lumina(
    folder: Path, device: torch.device, dtype: torch.dtype, should_stop: ShouldStop | None = None
) -> LuminaBackbone:
    """Loads the original folder (config.json, tokenizer.json, shards and index) with vqgan.safetensors in it.

    Raises SSDError for what is missing, damaged or of another model.
    """
    config = read_config(folder)
    file = folder / "config.json"
    for field in ("swin_norm", "tie_word_embeddings"):  # Chameleon 30B, and no known model
        if config.get(field):
            raise SSDError(f"{file} has {field} {config[field]!r}, which is not supported; use Lumina-mGPT-7B-768")
    shape = read_llama(config, file, _DEFAULTS, qk_norm=True)
    tokenizer = ChameleonTokenizer(folder, shape.vocabulary)
    vocabulary = config.get("vocabulary_map")
    if not isinstance(vocabulary, dict):
        raise SSDError(f"{file} has no vocabulary_map, which tells the image tokens; download it again")
    known = {**vocabulary, **tokenizer.tokens}
    require_ids(known, _control_ids(), folder)
    order = image_order(vocabulary, FIRST_IMAGE_ID, CODES, folder)
    checkpoint = Checkpoint.open(folder)
    pixels = load_chameleon_pixels(folder, device, order, should_stop)
    if pixels.spec.patch != _PIXELS_PER_CODE:
        raise SSDError(f"{folder / PIXELS_FILE} has patches of {pixels.spec.patch} pixels, expected {_PIXELS_PER_CODE}")
    plan = _plan(shape.decoder)
    with torch.device("meta"):
        backbone = LuminaBackbone(shape, tokenizer, pixels)
    fill(backbone, checkpoint, plan, dtype=dtype, device=device, ignorable=_IGNORABLE, should_stop=should_stop)
    backbone.fingerprint = fingerprint_of(checkpoint, plan)
    return backbone.requires_grad_(False).eval()


def _control_ids() -> dict[str, int]:
    """Names and ids of the control tokens; a reserved token's number is its id minus 4."""
    sizes = {_SIZE + side // _CODES_PER_SIZE for grid in trained_grids(_TRAINED_PIXELS) for side in grid}
    reserved = {f"<reserved{number - 4:05d}>": number for number in sorted({END_OF_TURN, NEWLINE, *sizes})}
    return {"<s>": BEGIN_OF_TEXT, "<eoss>": END_OF_IMAGE, "<racm3:break>": BEGIN_OF_IMAGE, **reserved}


def _plan(spec: DecoderSpec) -> Plan:
    """Parameter -> tensors on disk. Query/key norms are stored once for all heads, or once a head."""
    plan = llama_plan("model.", spec.layers)
    plan["embedding.weight"] = "model.embed_tokens.weight"
    plan["head.weight"] = Source(("lm_head.weight",), rows=slice(FIRST_IMAGE_ID, FIRST_IMAGE_ID + CODES))
    for layer in range(spec.layers):
        for letter, heads in (("q", spec.heads), ("k", spec.kv_heads)):
            for kind in ("weight", "bias"):
                key = f"model.layers.{layer}.self_attn.{letter}_norm.{kind}"
                spread = partial(_spread_over_heads, heads=heads)
                plan[f"decoder.layers.{layer}.attention.{letter}_norm.{kind}"] = Source((key,), transform=spread)
    return plan


def _spread_over_heads(rows: Tensor, heads: int) -> Tensor:
    """[groups, head_dim] -> [heads, head_dim], each group's row for its share of the heads; others stay as they are."""
    if rows.ndim != 2 or heads % max(rows.shape[0], 1):
        return rows
    return rows.repeat_interleave(heads // rows.shape[0], dim=0)
