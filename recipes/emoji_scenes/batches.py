"""Training batches of the token model: fresh scenes, rendered and tokenised on the fly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssd_core.families.emoji_pixels import EmojiPixels

from .model import CODES, PAD, encode_prompts
from .scene import SceneSource

CAPTION_DROPOUT = 0.12
CORRUPTED_SAMPLES = 0.6
"""Share of samples whose fed codes are disturbed."""
CORRUPTION = 0.12
"""The largest share of fed codes that is replaced in such a sample."""


@dataclass(frozen=True)
class Batch:
    """Scenes as tokens.

    Attributes:
        words: int64 [B, 16].
        codes: int64 [B, rows, cols].
        sprites: bool [B, rows, cols], cells that belong to sprites.
    """

    words: Tensor
    codes: Tensor
    sprites: Tensor


def draw_tokens(tokenizer: EmojiPixels, seed: int, count: int, grid: tuple[int, int]) -> Batch:
    """``count`` fresh scenes at ``grid``; the seed alone decides which."""
    source = SceneSource(seed)
    scenes = [source.draw(*grid) for _ in range(count)]
    images = torch.from_numpy(np.stack([scene.image for scene in scenes])).float() / 255
    return Batch(
        encode_prompts([scene.spec.caption for scene in scenes]),
        tokenizer.encode(images),
        torch.from_numpy(np.stack([scene.sprite_mask() for scene in scenes])),
    )


def drop_captions(words: Tensor, generator: torch.Generator) -> Tensor:
    """Empties the word slots of some samples, which trains the unconditional row of guidance."""
    dropped = torch.rand(len(words), 1, generator=generator) < CAPTION_DROPOUT
    return words.masked_fill(dropped, PAD)


def corrupt(codes: Tensor, generator: torch.Generator) -> Tensor:
    """Replaces some fed codes, so that the model learns to go on from a token it would not have chosen.

    Half of the replacements come from another picture of the batch at the same place, half are any code.
    """
    batch = len(codes)
    chosen = torch.rand(batch, 1, 1, generator=generator) < CORRUPTED_SAMPLES
    rate = CORRUPTION * torch.rand(batch, 1, 1, generator=generator) * chosen
    hit = torch.rand(codes.shape, generator=generator) < rate
    borrowed = torch.rand(codes.shape, generator=generator) < 0.5
    anything = torch.randint(0, CODES, codes.shape, generator=generator)
    return torch.where(hit, torch.where(borrowed, codes.roll(1, 0), anything), codes)
