"""Draws pictures from a checkpoint for inspection, plainly: one code a forward, keys and values cached.

Run: ``python -m recipes.emoji_scenes.sample --grid 24 24 --guidance 2``. Writes a contact sheet to the cache. This is
the training side's own sampler; the runtime's is ``ssd_core.generate``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ssd_core.transformer import CacheWindow, KVCache

from .model import EOL, IMAGE, PAD, PROMPT_WORDS, SPEC, SceneModel, encode_prompts, rotary_of, stream_tokens
from .paths import CACHE, MODEL_CHECKPOINT
from .sheet import save_sheet
from .tokenizer import load_tokenizer

INSPECTION: tuple[str, ...] = (
    "a cat",
    "a dog on grass",
    "a red heart on a blue background",
    "three bananas",
    "two apples on a beach",
    "a rocket at night",
    "a dog left of a car",
    "a star above a tree",
    "a fish underwater",
    "a green balloon in the sky",
    "four stars at night",
    "a house and a tree on grass",
    "a duck below a ball",
    "a blue car right of a house",
    "a flower on a yellow background",
    "a mushroom on a black background",
    "a cat and a duck",
    "two green hearts on a white background",
    "a green car",
    "a balloon above a house",
    "a ball on a beach",
    "three mushrooms on grass",
    "a blue star left of a flower",
    "a yellow star right of a rocket at night",
)


@torch.no_grad()
def sample(
    model: SceneModel,
    prompts: Sequence[str],
    grid: tuple[int, int],
    guidance: float,
    seed: int,
    temperature: float = 1.0,
) -> Tensor:
    """Samples one picture per prompt with classifier-free guidance: int64 [B, rows, cols]."""
    rows, cols = grid
    batch = len(prompts)
    words = encode_prompts(prompts)
    words = torch.cat([words, torch.full_like(words, PAD)])  # conditional rows, then unconditional ones
    prompt = stream_tokens(words, torch.zeros(2 * batch, rows, cols, dtype=torch.long))[:, : PROMPT_WORDS + 2]
    cos, sin = rotary_of(rows, cols)
    generator = torch.Generator().manual_seed(seed)
    cache = KVCache(SPEC, 2 * batch, len(cos), torch.float32, torch.device("cpu"))
    starts = torch.arange(2 * batch)[:, None] * (cache.slots + 1)
    used = 0

    def feed(tokens: Tensor) -> Tensor:
        """Feeds int64 [2B, q] and returns the last feature's logits [2B, V]."""
        nonlocal used
        count = tokens.shape[1]
        slots = torch.arange(used, used + count)
        used += count
        mask = (torch.arange(used) <= slots[:, None])[None, None] if count > 1 else None
        window = CacheWindow((starts + slots).flatten(), used, mask)
        features = model.decoder(model.embed(tokens), (cos[slots], sin[slots]), cache, window)
        return model.logits(features[:, -1])

    feed(prompt)
    codes = torch.empty(batch, rows, cols, dtype=torch.long)
    for row in range(rows):
        logits = feed(torch.full((2 * batch, 1), EOL if row else IMAGE))
        for col in range(cols):
            with_words, without = logits.chunk(2)
            guided = without + guidance * (with_words - without)
            chances = (guided / temperature).softmax(-1)
            codes[:, row, col] = torch.multinomial(chances, 1, generator=generator)[:, 0]
            if col + 1 < cols:
                logits = feed(codes[:, row, col].repeat(2)[:, None])
            elif row + 1 < rows:
                feed(codes[:, row, col].repeat(2)[:, None])
    return codes


def load_average(checkpoint: Path = MODEL_CHECKPOINT) -> SceneModel:
    """The averaged weights of a training checkpoint."""
    model = SceneModel()
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["average"])
    return model.eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=MODEL_CHECKPOINT)
    parser.add_argument("--grid", type=int, nargs=2, default=(24, 24))
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", nargs="*", default=list(INSPECTION))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=CACHE / "samples.png")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    model = load_average(options.checkpoint)
    codes = sample(model, options.prompts, tuple(options.grid), options.guidance, options.seed)
    pictures = (load_tokenizer().decode(codes) * 255).round().byte().numpy()
    save_sheet(options.out, list(pictures), options.prompts, 8)


if __name__ == "__main__":
    main()
