"""The embedded backbone "emoji scenes": a small closed-vocabulary text-to-image model that ships in ``assets/``.

Vocabulary, in id order: image codes, ``<eol>``, ``<image>``, ``<pad>``, one size token per grid side, the words. A
prompt is a fixed number of word slots (left-padded with ``<pad>``, which is attended), the size tokens of rows and
columns, and ``<image>``; its unconditional row keeps the size tokens and has ``<pad>`` in every word slot. Positions
are two-dimensional: half of the rope frequencies turn with the row, half with the column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoint import Checkpoint, fill
from ..errors import ShouldStop, SSDError
from ..sampling import Sampling
from ..stream import Stream
from ..transformer import Decoder, DecoderSpec, RMSNorm
from ..words import WordTokenizer
from .base import Backbone, PromptRows, read_config
from .emoji_pixels import PATCH, EmojiPixels

MODEL_TYPE = "emoji-scenes"
_EXTRA_TOKENS = 3  # <eol>, <image>, <pad>
_WORD_ROW, _SIZE_ROW = -2.0, -1.0


class EmojiBackbone(Backbone):
    """The network and its vocabulary; ``config`` is the content of ``config.json``."""

    def __init__(self, config: dict[str, Any], fingerprint: str) -> None:
        super().__init__()
        self.name = MODEL_TYPE
        self.fingerprint = fingerprint
        self.codes = int(config["codes"])
        self.grids = tuple((int(rows), int(cols)) for rows, cols in config["grids"])
        self.default_sampling = Sampling(**config["defaults"])
        self.rope_theta = float(config["rope_theta"])
        self.end_of_line = self.codes
        self._image, self._pad = self.codes + 1, self.codes + 2
        sides = [int(side) for side in config["sides"]]
        self._size_ids = {side: self.codes + _EXTRA_TOKENS + i for i, side in enumerate(sides)}
        self._slots = int(config["prompt_words"])
        first_word = self.codes + _EXTRA_TOKENS + len(sides)
        self._tokenizer = WordTokenizer(
            config["words"], config["plurals"], config["stop_words"], first_word, self._slots
        )
        spec = DecoderSpec(**config["decoder"])
        self.embedding = nn.Embedding(first_word + len(config["words"]), spec.hidden)
        self.decoder = Decoder(spec)
        self.norm = RMSNorm(spec.hidden, spec.norm_eps)
        self.head = nn.Linear(spec.hidden, self.codes, bias=False)
        self.pixels = EmojiPixels(**config.get("pixels", {}))
        self.patch = PATCH

    def words(self) -> tuple[str, ...]:
        """Every word a prompt may use, plurals and ignored words aside."""
        return self._tokenizer.words

    def check_prompt(self, prompt: str) -> None:
        self._tokenizer.encode(prompt)

    def stream(self, grid: tuple[int, int]) -> Stream:
        rows, cols = self.check_grid(grid)
        return Stream(rows, cols, self.end_of_line)

    def prompt_ids(self, prompts: Sequence[str], negative: str, grid: tuple[int, int], guided: bool) -> Tensor:
        """Prompt ids int64 [guidance rows, slots + 3], conditional rows first."""
        tail = [self._size_ids[grid[0]], self._size_ids[grid[1]], self._image]
        texts = [self._tokenizer.encode(prompt) for prompt in prompts]
        if guided:
            texts += [self._tokenizer.encode(negative)] * len(prompts)
        rows = [[self._pad] * (self._slots - len(ids)) + ids + tail for ids in texts]
        return torch.tensor(rows, dtype=torch.int64, device=self.device)

    def prompt_rows(self, prompts: Sequence[str], negative: str, grid: tuple[int, int], guided: bool) -> PromptRows:
        ids = self.prompt_ids(prompts, negative, self.check_grid(grid), guided)
        return PromptRows(
            embeddings=self.embedding(ids),
            padding=[0] * len(ids),
            positions=self.prompt_positions()[None],
            stream_positions=self.stream_positions(grid)[None],
        )

    def prompt_positions(self) -> Tensor:
        """Rope positions (row, column) of the prompt, float32 [slots + 3, 2]; ``<image>`` is left of the first code."""
        words = [(_WORD_ROW, float(slot)) for slot in range(self._slots)]
        return torch.tensor([*words, (_SIZE_ROW, 0.0), (_SIZE_ROW, 1.0), (0.0, -1.0)], device=self.device)

    def stream_positions(self, grid: tuple[int, int]) -> Tensor:
        """Rope positions of the stream, float32 [rows * (cols + 1), 2]; an ``<eol>`` sits left of the row it opens."""
        rows, cols = grid
        cells = [[(float(y), float(x)) for x in range(cols)] + [(float(y + 1), -1.0)] for y in range(rows)]
        return torch.tensor(cells, device=self.device).view(-1, 2)

    def embed(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(tokens)
        return embeddings

    def logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(features))
        return logits

    def decode_pixels(self, codes: Tensor) -> Tensor:
        return self.pixels.decode(codes)

    def encode_pixels(self, images: Tensor) -> Tensor:
        return self.pixels.encode(images)


def load_emoji(
    folder: Path, device: torch.device, dtype: torch.dtype, should_stop: ShouldStop | None = None
) -> EmojiBackbone:
    """Loads the backbone from a folder with ``config.json``, ``model.safetensors`` and ``pixels.safetensors``."""
    config = read_config(folder)
    if config.get("format") != 1:
        raise SSDError(f"{folder} has emoji-scenes format {config.get('format')}, this release reads format 1")
    model, pixels = Checkpoint.open(folder, "model.safetensors"), Checkpoint.open(folder, "pixels.safetensors")
    try:
        with torch.device("meta"):
            backbone = EmojiBackbone(config, hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise SSDError(
            f"{folder / 'config.json'} has a missing or wrong field ({type(error).__name__}: {error}); "
            "reinstall the extension or fetch its repository again"
        ) from error
    own = {name: name for name in backbone.pixels.state_dict()}
    # Pixels stay in float32, whatever the backbone computes in.
    fill(backbone.pixels, pixels, own, dtype=torch.float32, device=device, should_stop=should_stop)
    names = [name for name in backbone.state_dict() if not name.startswith("pixels.")]
    plan = {name: name.replace("embedding.", "embed.", 1) for name in names}
    fill(backbone, model, plan, dtype=dtype, device=device, should_stop=should_stop)
    return backbone.requires_grad_(False).eval()
