"""Chameleon's tokenizer and vocabulary: prompts to ids, and which image token stands for which VQGAN index."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..errors import SSDError
from .text import TextTokenizer

_PROBE = "Generate an image of 768x768 according to the following prompt:\nblue."
_IMAGE_NAME = re.compile(r"IMGIMG([A-J]{1,4})Z")
_DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")
# A place inside every spelling of an image token or a control token.
_INSIDE_A_NAME = re.compile(
    r"(?<=IMGIMG)(?=[A-J]{1,4}Z)"
    r"|(?<=<)(?=(?:/?s|pad|unk|eoss|racm3:break|image|\|image\||reserved\d{5}|sentinel:\d+)>)"
)


class ChameleonTokenizer(TextTokenizer):
    """``tokenizer.json``, in which image tokens and some controls may be listed as ordinary tokens."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        """Raises SSDError when the file is missing, damaged, of another model, or does not give back its own text."""
        # The authors' code puts <|image|>, a placeholder that never reaches the model, behind the vocabulary.
        super().__init__(folder, vocabulary + 1)
        given_back = self.decode(self.encode(_PROBE))
        if given_back.strip() != _PROBE:
            raise SSDError(
                f"{self.file} turns {_PROBE!r} into {given_back!r} and back; it is not Chameleon's tokenizer, "
                "download it from the model's page"
            )

    def encode(self, text: str) -> list[int]:
        """Ids of a text; names of image and control tokens in it are cut in two first, and so are text."""
        return [
            number for piece in _INSIDE_A_NAME.split(text) for number in super(ChameleonTokenizer, self).encode(piece)
        ]


def require_ids(known: Mapping[str, int], wanted: Mapping[str, int], folder: Path) -> None:
    """Raises SSDError unless ``known`` (name -> id) has exactly the ids that the model was trained with."""
    wrong = [
        f"{name} is {known.get(name)}, expected {number}"
        for name, number in wanted.items()
        if known.get(name) != number
    ]
    if wrong:
        more = f" … ({len(wrong)} in all)" if len(wrong) > 4 else ""
        raise SSDError(
            f"{folder}: tokenizer.json and config.json have other control tokens than Lumina-mGPT: "
            f"{'; '.join(wrong[:4])}{more}; download both from the model's page"
        )


def image_order(vocabulary: Mapping[str, int], first: int, codes: int, folder: Path) -> Tensor:
    """The VQGAN's index of every code, int64 [codes]: the image tokens' names spell it, ``IMGIMGBFHZ`` is 157.

    Code c is the image token with id ``first`` + c. Raises SSDError unless every code has one index of its own.
    """
    found = {
        int(number) - first: int(match.group(1).translate(_DIGITS))
        for name, number in vocabulary.items()
        if (match := _IMAGE_NAME.fullmatch(name))
    }
    if sorted(found) != list(range(codes)) or sorted(found.values()) != list(range(codes)):
        raise SSDError(
            f"{folder / 'config.json'}: vocabulary_map has {len(found)} image tokens (IMGIMG…Z), expected ids {first} "
            f"to {first + codes - 1} that spell every index from 0 to {codes - 1} once; this is not Lumina-mGPT"
        )
    return torch.tensor([found[code] for code in range(codes)])
