"""Text to token ids through ``tokenizer.json``. A prompt is only ever text: it cannot write a control token."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..errors import SSDError

_BRACKETED = re.compile(r"<.+>", re.DOTALL)


class TextTokenizer:
    """The tokenizer of one model folder. ``tokens``: the text of every added token (control tokens mostly) -> id."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        """Reads ``tokenizer.json``; ids must lie below ``vocabulary``, the rows of the model's text embedding.

        Raises SSDError when the file is missing, damaged, or of a model with more ids.
        """
        from tokenizers import Tokenizer

        self.file = folder / "tokenizer.json"
        try:
            data = json.loads(self.file.read_text(encoding="utf-8"))
            data.update(truncation=None, padding=None)
            self._whole = Tokenizer.from_str(json.dumps(data))
            added: list[dict[str, Any]] = data.get("added_tokens") or []
            self.tokens = {str(item["content"]): int(item["id"]) for item in added}
            for item in added:
                # Files do not mark all of their control tokens as special.
                item["special"] = item.get("special") or _BRACKETED.fullmatch(item["content"]) is not None
            self._control = {int(item["id"]) for item in added if item["special"]}
            self._plain = Tokenizer.from_str(json.dumps(data))
            self._plain.encode_special_tokens = True  # their spelling is text like any other
        except FileNotFoundError as error:
            raise SSDError(f"{self.file} is missing; download it from the model's page into the folder") from error
        except Exception as error:  # the library raises bare Exception for a file it cannot use
            raise SSDError(f"cannot read {self.file} ({type(error).__name__}: {error}); download it again") from error
        most = max(self._whole.get_vocab(with_added_tokens=True).values(), default=-1)
        if most >= vocabulary:
            raise SSDError(
                f"{self.file} has ids up to {most}, the model knows {vocabulary}; it belongs to another model"
            )

    def control(self, *texts: str) -> int:
        """The id of the control token that is spelled like the first of ``texts`` that the tokenizer knows."""
        for text in texts:
            if self.tokens.get(text) in self._control:
                return self.tokens[text]
        raise SSDError(f"{self.file} has no control token {' or '.join(texts)}; it belongs to another model")

    def encode(self, text: str) -> list[int]:
        """Ids of a text; spellings of control tokens in it are text."""
        try:
            ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeError) as error:
            raise SSDError(
                f"got a prompt that is no valid text ({error}); expected Unicode without halves of surrogate pairs"
            ) from error
        if not self._control.isdisjoint(ids):
            raise SSDError(f"the prompt spells a control token of {self.file.name}; word it differently")
        return ids

    def encode_whole(self, text: str) -> list[int]:
        """Ids of a text in which spellings of control tokens *are* these tokens, as model repositories encode."""
        ids: list[int] = self._whole.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of ids, control tokens included."""
        text: str = self._whole.decode(ids, skip_special_tokens=False)
        return text


def special_names(folder: Path) -> dict[str, str]:
    """``bos_token``, ``pad_token`` … -> their spelling, by ``tokenizer_config.json`` and ``special_tokens_map.json``.

    Both files are optional and either may leave a token out; SSDError when one is damaged.
    """
    names: dict[str, str] = {}
    for file in (folder / "tokenizer_config.json", folder / "special_tokens_map.json"):
        if not file.is_file():
            continue
        try:
            items = json.loads(file.read_text(encoding="utf-8")).items()
        except (OSError, ValueError, AttributeError) as error:
            raise SSDError(f"cannot read {file}: {error}; download it again") from error
        for name, value in items:
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                names[name] = text
    return names
