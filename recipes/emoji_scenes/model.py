"""The token model of the emoji scenes: what surrounds the decoder, and how a scene becomes a stream.

The vocabulary is one table: the image codes, ``<eol>``, ``<image>``, ``<pad>``, one size token per supported
side, then the words. A prompt is 16 word slots (left-padded), the size tokens of rows and columns and ``<image>``;
every image row is followed by ``<eol>``. In the grid of fed tokens, cell (y, 0) is the row's opener, ``<image>``
or the previous row's ``<eol>``, and cell (y, x + 1) is code (y, x); the feature of a cell predicts the code that
follows it, so the last column predicts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssd_core.transformer import Decoder, DecoderSpec, Rotary, rope_table
from ssd_core.words import WordTokenizer

from .words import PLURALS, STOP_WORDS, WORDS

CODES = 512
EOL, IMAGE, PAD = CODES, CODES + 1, CODES + 2
SIDES: tuple[int, ...] = (16, 24, 32)
FIRST_SIDE = CODES + 3
FIRST_WORD = FIRST_SIDE + len(SIDES)
VOCABULARY = FIRST_WORD + len(WORDS)
PROMPT_WORDS = 16
ROPE_THETA = 100.0
TOKENIZER = WordTokenizer(WORDS, PLURALS, STOP_WORDS, FIRST_WORD, PROMPT_WORDS)
SPEC = DecoderSpec(hidden=256, layers=6, heads=4, kv_heads=4, head_dim=64, intermediate=640, norm_eps=1e-6)


def encode_prompts(prompts: Sequence[str]) -> Tensor:
    """Word slots of prompts: int64 [B, 16], left-padded."""
    encoded = [TOKENIZER.encode(prompt) for prompt in prompts]
    return torch.tensor([[PAD] * (PROMPT_WORDS - len(ids)) + ids for ids in encoded])


def stream_positions(rows: int, cols: int) -> Tensor:
    """(row, column) of every fed token: int64 [18 + rows * (cols + 1), 2]."""
    words = torch.stack([torch.full((PROMPT_WORDS,), -2), torch.arange(PROMPT_WORDS)], -1)
    sizes = torch.tensor([[-1, 0], [-1, 1]])
    grid = torch.cartesian_prod(torch.arange(rows), torch.arange(-1, cols))
    return torch.cat([words, sizes, grid])


def stream_tokens(words: Tensor, codes: Tensor) -> Tensor:
    """Everything the model is fed for whole pictures.

    Args:
        words: int64 [B, 16] from ``encode_prompts``.
        codes: int64 [B, rows, cols].

    Returns:
        int64 [B, 18 + rows * (cols + 1)].
    """
    batch, rows, cols = codes.shape
    sizes = torch.tensor([FIRST_SIDE + SIDES.index(rows), FIRST_SIDE + SIDES.index(cols)]).expand(batch, 2)
    openers = torch.full((batch, rows, 1), EOL)
    openers[:, 0] = IMAGE
    return torch.cat([words, sizes, torch.cat([openers, codes], 2).flatten(1)], 1)


class SceneModel(nn.Module):
    """Embedding, decoder, final norm and output head, named as the shipped file names them."""

    def __init__(self, spec: DecoderSpec = SPEC) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, spec.hidden)
        self.decoder = Decoder(spec)
        self.norm = nn.RMSNorm(spec.hidden, eps=spec.norm_eps)
        self.head = nn.Linear(spec.hidden, CODES, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                out = name.endswith(("attention.out.weight", "mlp.down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * spec.layers) ** 0.5 if out else 0.02)

    def forward(self, tokens: Tensor, rows: int, cols: int, rotary: Rotary) -> Tensor:
        """Logits of every code of whole pictures: tokens [B, n] from ``stream_tokens`` -> [B, rows, cols, V]."""
        features = self.decoder(self.embed(tokens), rotary)[:, PROMPT_WORDS + 2 :]
        return self.logits(features.unflatten(1, (rows, cols + 1))[:, :, :cols])

    def logits(self, features: Tensor) -> Tensor:
        """Output head over pre-norm features [..., hidden] -> [..., V]."""
        return self.head(self.norm(features))


def rotary_of(rows: int, cols: int) -> Rotary:
    """Rotary tables of a whole stream at a grid."""
    return rope_table(stream_positions(rows, cols), SPEC.head_dim, ROPE_THETA)


def cross_entropy(logits: Tensor, codes: Tensor) -> Tensor:
    """Loss of each code: logits [B, rows, cols, V], codes [B, rows, cols] -> [B, rows, cols]."""
    return F.cross_entropy(logits.flatten(0, 2), codes.flatten(), reduction="none").view_as(codes)
