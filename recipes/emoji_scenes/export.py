"""Step 6: writes the shipped files from the checkpoints, in float16, each replaced whole.

Run: ``python -m recipes.emoji_scenes.export --guidance 2 --top-p 0.985``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from .model import CODES, PROMPT_WORDS, ROPE_THETA, SIDES, SPEC
from .paths import ASSETS, MODEL_CHECKPOINT
from .sample import load_average
from .scene import GRIDS
from .sprites import CELL
from .tokenizer import SHAPE, load_tokenizer
from .words import PLURALS, STOP_WORDS, WORDS


def write_weights(module: nn.Module, path: Path) -> None:
    """Writes a module's weights as float16 safetensors."""
    tensors = {name: tensor.half().contiguous() for name, tensor in module.state_dict().items()}
    fresh = path.with_suffix(".new")
    save_file(tensors, fresh, metadata={"format": "pt"})
    fresh.chmod(0o644)  # safetensors writes files for their owner alone
    fresh.replace(path)
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")


def write_config(path: Path, guidance: float, temperature: float, top_p: float) -> None:
    """Writes ``config.json``: the model's shape, its vocabulary and the sampling defaults."""
    config = {
        "model_type": "emoji-scenes",
        "format": 1,
        "decoder": asdict(SPEC),
        "rope_theta": ROPE_THETA,
        "codes": CODES,
        "words": list(WORDS),
        "sides": list(SIDES),
        "grids": [list(grid) for grid in GRIDS],
        "prompt_words": PROMPT_WORDS,
        "patch": CELL,
        "pixels": SHAPE,
        "plurals": PLURALS,
        "stop_words": list(STOP_WORDS),
        "defaults": {"guidance": guidance, "temperature": temperature, "top_k": 0, "top_p": top_p},
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=MODEL_CHECKPOINT)
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=0.985)
    options = parser.parse_args()
    ASSETS.mkdir(parents=True, exist_ok=True)
    write_config(ASSETS / "config.json", options.guidance, options.temperature, options.top_p)
    write_weights(load_average(options.checkpoint), ASSETS / "model.safetensors")
    write_weights(load_tokenizer(), ASSETS / "pixels.safetensors")


if __name__ == "__main__":
    main()
