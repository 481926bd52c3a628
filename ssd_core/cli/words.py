"""`words`: what the embedded model understands."""

from __future__ import annotations

import json
import shutil
import textwrap

from ..errors import SSDError
from ..families.emoji import EmojiBackbone
from ..families.loaders import load_backbone
from .arguments import WordsOptions


def list_words(options: WordsOptions) -> None:
    """Print the known words, or a JSON list of them."""
    backbone = load_backbone(options.model)
    if not isinstance(backbone, EmojiBackbone):
        raise SSDError(f"{options.model} reads free text and has no word list; the words command is for emoji-scenes")
    words = sorted(backbone.words())
    if options.json:
        print(json.dumps(words))
        return
    width = min(100, shutil.get_terminal_size().columns)
    print(textwrap.fill("  ".join(words), width, break_on_hyphens=False))
