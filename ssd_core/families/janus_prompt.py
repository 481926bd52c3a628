"""Janus-Pro's prompts: the chat template around a text, its control tokens, and the row without a prompt."""

from __future__ import annotations

from pathlib import Path

from ..errors import SSDError
from .text import TextTokenizer, special_names

_SAMPLE = "A red cat, 3 Birds"


class JanusPrompts:
    """``<bos><|User|>: {text}\\n\\n<|Assistant|>:<begin_of_image>`` as ids.

    ``bos`` and ``pad`` are read from the folder, they differ between releases. ``limit``: the longest prompt in
    tokens, template included.
    """

    def __init__(self, folder: Path, vocabulary: int, limit: int) -> None:
        """Raises SSDError when the tokenizer is not Janus-Pro's."""
        self._tokenizer = tokenizer = TextTokenizer(folder, vocabulary)
        self._limit = limit
        names = special_names(folder)
        bos = names.get("bos_token", "<｜begin▁of▁sentence｜>")
        self.bos = tokenizer.control(bos)
        self.pad = tokenizer.control(names.get("pad_token", "<｜▁pad▁｜>"))
        self.begin_of_image = tokenizer.control("<begin_of_image>")
        self._user, self._assistant = tokenizer.control("<|User|>"), tokenizer.control("<|Assistant|>")
        # The template is put together from ids; the whole text through the tokenizer must give the same ones.
        whole = f"{bos}<|User|>: {_SAMPLE}\n\n<|Assistant|>:<begin_of_image>"
        if tokenizer.encode_whole(whole) != self.ids(_SAMPLE) or _SAMPLE not in tokenizer.decode(self.ids(_SAMPLE)):
            raise SSDError(
                f"{tokenizer.file} does not write and read Janus-Pro's template as expected; download it again"
            )

    def ids(self, text: str) -> list[int]:
        """The ids of a prompt. Raises SSDError when it is too long."""
        encode = self._tokenizer.encode
        middle = [self._user, *encode(f": {text.strip()}\n\n"), self._assistant, *encode(":")]
        row = [self.bos, *middle, self.begin_of_image]
        if len(row) > self._limit:
            raise SSDError(
                f"the prompt is too long: got {len(row)} tokens, expected at most {self._limit} beside the picture; "
                "shorten it"
            )
        return row

    def unconditional(self, length: int) -> list[int]:
        """The row without a prompt: as long as its partner, with pads (which are attended) between the ends."""
        return [self.bos, *[self.pad] * (length - 2), self.begin_of_image]
