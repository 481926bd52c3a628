"""Where the recipe keeps its files. Everything under ``CACHE`` is git-ignored and can be rebuilt."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
CACHE = Path(os.environ.get("EMOJI_SCENES_CACHE", HERE / ".cache"))
PICTURES = CACHE / "pictures"
TOKENIZER_CHECKPOINT = CACHE / "tokenizer.pt"
MODEL_CHECKPOINT = CACHE / "model.pt"
ASSETS = REPOSITORY / "ssd_core" / "assets" / "emoji_scenes"
LOGS = HERE / "logs"
