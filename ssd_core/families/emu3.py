"""Emu3-Gen 8B (BAAI): a Llama-like decoder that draws a picture row by row with a 32768-code picture tokenizer.

Prompt of a row: ``<begin> text <begin of image> ROWS*COLS <image>``, where text is the user's prompt and the quality
words that the model's own example adds; the unconditional row holds the negative prompt instead, without quality
words. When the user gives no negative prompt, the one of the model's own example is used (``NEGATIVE``); whoever wants
next to none gives a single space. Rows are left-padded to one length and padding is never attended.

The picture: after each row of codes an end-of-line token, after the last one end of frame, end of image and end of
text. Those last three carry nothing, so the stream ends with the last end of line; ``full_stream`` adds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ..checkpoint import Checkpoint, Plan, fill, fingerprint_of
from ..errors import ShouldStop, SSDError
from ..sampling import Sampling
from ..stream import Stream
from ..transformer import Decoder, RMSNorm
from .base import Backbone, PromptRows, read_config
from .emu3_files import (
    ORIGINAL,
    Emu3Config,
    emu3_config,
    find_pixels,
    pixels_plan,
    text_plan,
    training_counters,
)
from .emu3_pixels import Emu3Pixels
from .emu3_tokens import Emu3Tokenizer, read_tokenizer

QUALITY = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
RATIOS = ((1, 1), (4, 3), (3, 4), (3, 2), (2, 3), (16, 9), (9, 16), (2, 1), (1, 2))
"""Width to height of the grids that are offered; each has about the area that the model was trained with."""

_MOST_STRETCHED = 5  # the picture tokenizer's own limit, width to height or height to width
_AFTER_LAST_ROW = 3  # end of frame, end of image, end of text


class Emu3Backbone(Backbone):
    """The network and its vocabulary. Stream ids: the codes in order, then ``codes`` for the end of a line."""

    def __init__(self, config: Emu3Config, tokenizer: Emu3Tokenizer, folder: Path) -> None:
        super().__init__()
        shape, hidden = config.text, config.text.decoder.hidden
        self.name = "emu3-gen"
        self.fingerprint = ""
        self.codes = config.pixels.codes
        self.patch = config.pixels.patch
        self.rope_theta = shape.rope_theta
        self.default_sampling = Sampling(guidance=3.0, temperature=1.0, top_k=2048)
        self.grids = tuple(dict.fromkeys(_grid(config.image_area, self.patch, *ratio) for ratio in RATIOS))
        self.ids = tokenizer.special_ids(self.codes, config.ids, folder)
        self._tokenizer = tokenizer
        self._positions = shape.positions
        # Not initialised: normal numbers on the meta device make torch import its compiler.
        self.embedding = nn.Embedding(shape.vocabulary, hidden, _weight=torch.empty(shape.vocabulary, hidden))
        self.decoder = Decoder(shape.decoder)
        self.norm = RMSNorm(hidden, shape.decoder.norm_eps)
        self.head = nn.Linear(hidden, self.codes, bias=False)
        self.pixels = Emu3Pixels(config.pixels)

    def check_grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Any size that is not too stretched and leaves room for a prompt; ``grids`` are those to be offered."""
        rows, cols = grid
        if rows < 1 or cols < 1 or max(grid) > _MOST_STRETCHED * min(grid) or self._room(grid) < 1:
            known = ", ".join(f"{rows}x{cols}" for rows, cols in self.grids)
            raise SSDError(
                f"{self.name} cannot draw {rows}x{cols} codes (rows x columns): one side may be {_MOST_STRETCHED} "
                f"times the other at most, and picture and prompt share {self._positions} tokens; good ones: {known}"
            )
        return grid

    def check_prompt(self, prompt: str) -> None:
        """Raises SSDError for a prompt that is no valid text, or too long whatever the size of the picture."""
        self.prompt_ids([prompt], "", min(self.grids, key=lambda grid: self.stream(grid).length), False)

    def _room(self, grid: tuple[int, int]) -> int:
        """Tokens that a prompt may have."""
        rows, cols = grid
        return self._positions - rows * (cols + 1) - _AFTER_LAST_ROW

    def stream(self, grid: tuple[int, int]) -> Stream:
        rows, cols = self.check_grid(grid)
        return Stream(rows, cols, self.codes)

    def prompt_ids(self, prompts: Sequence[str], negative: str, grid: tuple[int, int], guided: bool) -> list[list[int]]:
        """Vocabulary ids of the guidance rows, each of its own length, conditional rows first.

        Raises SSDError for a prompt that is too long for the model beside the picture.
        """
        rows, cols = self.check_grid(grid)
        ids, room = self.ids, self._room(grid)
        size = [ids.begin_of_image, *self._tokenizer.encode(f"{rows}*{cols}"), ids.image]
        texts = [prompt + QUALITY for prompt in prompts]
        if guided:
            texts += [negative or NEGATIVE] * len(prompts)
        found = []
        for text in texts:
            row = [ids.begin, *self._tokenizer.encode(text), *size]
            if len(row) > room:
                raise SSDError(
                    f"the prompt is too long: got {len(row)} tokens, {self.name} has room for {room} beside "
                    f"{rows}x{cols} codes; shorten the text that begins {text[:40]!r}"
                )
            found.append(row)
        return found

    def prompt_rows(self, prompts: Sequence[str], negative: str, grid: tuple[int, int], guided: bool) -> PromptRows:
        rows = self.prompt_ids(prompts, negative, grid, guided)
        longest = max(len(row) for row in rows)
        padding = [longest - len(row) for row in rows]
        ids = [[self.ids.pad] * pad + row for pad, row in zip(padding, rows, strict=True)]
        lengths = torch.tensor([[len(row)] for row in rows], device=self.device)
        prompt, stream = (torch.arange(n, device=self.device) for n in (longest, self.stream(grid).length))
        return PromptRows(
            embeddings=self.embedding(torch.tensor(ids, device=self.device)),
            padding=padding,
            positions=(prompt + lengths - longest).clamp(min=0).float()[..., None],
            stream_positions=(stream + lengths).float()[..., None],
        )

    def vocabulary_ids(self, tokens: Tensor) -> Tensor:
        """Stream ids int64 [...] -> vocabulary ids [...]."""
        return (tokens + self.ids.first_code).masked_fill(tokens >= self.codes, self.ids.end_of_line)

    def full_stream(self, codes: Tensor) -> Tensor:
        """Codes int64 [batch, rows, cols] -> the vocabulary ids of the whole picture as the model writes it.

        [batch, rows * (cols + 1) + 3]: each row and its end of line, then end of frame, end of image, end of text.
        """
        lines = nn.functional.pad(codes, (0, 1), value=self.codes).flatten(1)
        ids = self.ids
        end = torch.tensor([ids.end_of_frame, ids.end_of_image, ids.end], device=codes.device)
        return torch.cat((self.vocabulary_ids(lines), end.expand(len(codes), -1)), dim=1)

    def embed(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.vocabulary_ids(tokens))
        return embeddings

    def logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(features))
        return logits

    def decode_pixels(self, codes: Tensor) -> Tensor:
        return self.pixels.decode(codes)

    def encode_pixels(self, images: Tensor) -> Tensor:
        return self.pixels.encode(images)


def load_emu3(
    folder: Path, device: torch.device, dtype: torch.dtype, should_stop: ShouldStop | None = None
) -> Emu3Backbone:
    """Loads either layout (see ``emu3_files``); the picture tokenizer stays in float32.

    Raises SSDError for a config.json with wrong fields, for missing or damaged files and for tensors that do not fit.
    """
    original = read_config(folder).get("model_type") == ORIGINAL
    pixels_folder = find_pixels(folder) if original else folder
    checkpoint = Checkpoint.open(folder)
    config = emu3_config(folder, pixels_folder)
    tokenizer = read_tokenizer(folder, config.text.vocabulary)
    with torch.device("meta"):
        backbone = Emu3Backbone(config, tokenizer, folder)
    keys = list(checkpoint.tensors)
    plan: Plan = text_plan(config.text.decoder.layers, keys, backbone.ids.first_code, backbone.codes)
    if original:
        own = Checkpoint.open(pixels_folder)
        counters = training_counters(own.tensors)
        names = pixels_plan(backbone.pixels, own.tensors, original)
        fill(
            backbone.pixels, own, names, dtype=torch.float32, device=device, ignorable=counters,
            should_stop=should_stop,
        )  # fmt: skip
        fill(backbone, checkpoint, plan, dtype=dtype, device=device, should_stop=should_stop)
    else:
        names = {f"pixels.{name}": key for name, key in pixels_plan(backbone.pixels, keys, original).items()}
        fill(
            backbone,
            checkpoint,
            {**plan, **names},
            dtype=dtype,
            device=device,
            keep_float32=("pixels.",),
            ignorable=training_counters(keys),
            should_stop=should_stop,
        )
    backbone.fingerprint = fingerprint_of(checkpoint, plan)
    return backbone.requires_grad_(False).eval()


def _grid(area: int, patch: int, width: int, height: int) -> tuple[int, int]:
    """(rows, cols) of about ``area`` pixels, rounded as the model's own processor does."""
    unit = (area / (width * height)) ** 0.5
    return round(height * unit / patch), round(width * unit / patch)
