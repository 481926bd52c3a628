"""Emu3's two tokenizers: the original's tiktoken files and the ``-hf`` layout's ``tokenizer.json``.

Both turn a text into ids and know the special tokens by name. Text never becomes a special token: a prompt that spells
``<|extra_204|>`` is encoded letter by letter.
"""

from __future__ import annotations

import base64
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path

from ..errors import SSDError
from .text import TextTokenizer

VOCABULARY, SPECIALS, JSON = "emu3.tiktoken", "emu3_vision_tokens.txt", "tokenizer.json"

NAMES = {
    "pad": "<|endoftext|>",
    "end_of_line": "<|extra_200|>",
    "end_of_frame": "<|extra_201|>",
    "begin": "<|extra_203|>",
    "end": "<|extra_204|>",
    "image": "<|image token|>",
    "begin_of_image": "<|image start|>",
    "end_of_image": "<|image end|>",
}
"""The special tokens that drawing needs: our name for each, and the tokenizer's."""

# How the original cuts a text before merging; the pattern is part of its vocabulary.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PROBE = "A red cat, 90*90 don't\n  مرحبا 你好 🙂"


@dataclass(frozen=True)
class SpecialIds:
    """Vocabulary ids; ``first_code`` is image code 0, the other codes follow it without a gap."""

    pad: int
    end_of_line: int
    end_of_frame: int
    begin: int
    end: int
    image: int
    begin_of_image: int
    end_of_image: int
    first_code: int


class Emu3Tokenizer(ABC):
    """Text to ids and back. ``special`` maps the name of every special token to its id."""

    special: Mapping[str, int]

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, all of it taken for plain text. Raises SSDError for half a character (a lone surrogate)."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise SSDError(
                f"the prompt holds half a character ({text[error.start]!r} at position {error.start}); "
                "delete it or type it again"
            ) from error
        return self._encode(text)

    @abstractmethod
    def _encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """The text of ids that ``encode`` gave."""

    def special_ids(self, codes: int, expected: Iterable[tuple[str, int]], where: Path) -> SpecialIds:
        """The ids that drawing with ``codes`` image codes needs.

        ``expected`` are (token name, id) as the model's ``config.json`` gives them. Raises SSDError when tokenizer
        and config differ, when tokens are missing, or when a text does not survive encoding and decoding.
        """
        visual = [_visual(code) for code in range(codes)]
        missing = [name for name in [*NAMES.values(), *visual] if name not in self.special]
        if missing:
            raise SSDError(f"{_the_files(where)} lacks {len(missing)} special tokens, the first is {missing[0]!r}")
        first = self.special[visual[0]]
        if [self.special[name] for name in visual] != list(range(first, first + codes)):
            raise SSDError(f"{_the_files(where)}: the ids of the {codes} visual tokens must follow each other")
        wrong = [f"{name} {self.special.get(name)} / {id_}" for name, id_ in expected if self.special.get(name) != id_]
        if wrong:
            raise SSDError(
                f"{_the_files(where)} does not fit the model's config.json (token, its id there / here): {wrong[:8]}"
            )
        if (back := self.decode(self.encode(_PROBE))) != _PROBE:
            raise SSDError(f"{_the_files(where)}: encoding and decoding {_PROBE!r} gives {back!r}")
        named = {ours: self.special[theirs] for ours, theirs in NAMES.items()}
        return SpecialIds(**named, first_code=first)


class TiktokenFiles(Emu3Tokenizer):
    """The original's files: byte strings with ranks, merged by tiktoken's rule (written here: tiktoken is not needed).

    ``ranks``: byte string -> id. The special tokens follow in the order of ``specials``.
    """

    def __init__(self, ranks: dict[bytes, int], specials: list[str]) -> None:
        from tokenizers import Regex, pre_tokenizers

        self._ranks = ranks
        self._bytes = {rank: token for token, rank in ranks.items()}
        self._cut = pre_tokenizers.Split(Regex(_PATTERN), "isolated")
        self.special = {name: len(ranks) + i for i, name in enumerate(specials)}

    @classmethod
    def read(cls, folder: Path) -> TiktokenFiles:
        vocabulary, specials = folder / VOCABULARY, folder / SPECIALS
        try:
            lines = [line.split() for line in vocabulary.read_bytes().splitlines() if line]
            ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
            names = [name for line in specials.read_text(encoding="utf-8").splitlines() if (name := line.strip())]
        except (OSError, ValueError) as error:
            raise SSDError(f"cannot read {_the_files(folder)}: {error}; download both files again") from error
        if sorted(ranks.values()) != list(range(len(ranks))) or not all(bytes([byte]) in ranks for byte in range(256)):
            raise SSDError(
                f"{vocabulary} is damaged: expected the ids 0, 1, 2 … and every single byte, got {len(ranks)} tokens; "
                "download it again"
            )
        built_in = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
        return cls(ranks, built_in + names)

    def _encode(self, text: str) -> list[int]:
        pieces = self._cut.pre_tokenize_str(unicodedata.normalize("NFC", text))
        return [token for piece, _ in pieces for token in self._merge(piece.encode("utf-8"))]

    def decode(self, ids: list[int]) -> str:
        return b"".join(self._bytes[i] for i in ids).decode("utf-8", errors="replace")

    def _merge(self, piece: bytes) -> list[int]:
        """Joins, again and again, the two neighbours whose union has the lowest rank, the leftmost of equals first."""
        if piece in self._ranks:
            return [self._ranks[piece]]
        size = len(piece)
        ends = list(range(1, size + 1))  # the end of the part that begins here; -1 once it is inside another
        left = list(range(-1, size))  # where the part to the left of this one begins
        heap: list[tuple[int, int, int]] = []  # (rank of the union, its begin, its end)

        def offer(begin: int) -> None:
            if begin >= 0 and ends[begin] < size:
                end = ends[ends[begin]]
                if (rank := self._ranks.get(piece[begin:end])) is not None:
                    heappush(heap, (rank, begin, end))

        for begin in range(size):
            offer(begin)
        while heap:
            _, begin, end = heappop(heap)
            middle = ends[begin]
            if not 0 <= middle < size or ends[middle] != end:
                continue  # one of the two has grown since
            ends[begin], ends[middle] = end, -1
            left[end] = begin
            offer(left[begin])
            offer(begin)
        return [self._ranks[piece[begin:end]] for begin, end in enumerate(ends) if end > 0]


class JsonFile(Emu3Tokenizer):
    """The ``-hf`` layout's ``tokenizer.json``; it cuts and merges as that file says, which is not quite as above."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self._text = TextTokenizer(folder, vocabulary)
        self.special = self._text.tokens

    def _encode(self, text: str) -> list[int]:
        return self._text.encode(text)

    def decode(self, ids: list[int]) -> str:
        return self._text.decode(ids)


def read_tokenizer(folder: Path, vocabulary: int) -> Emu3Tokenizer:
    """The tokenizer of a model folder; the original's files are preferred, being what the model was trained with.

    ``vocabulary``: rows of the model's embedding. Raises SSDError that says which file is missing or damaged.
    """
    have = {name for name in (VOCABULARY, SPECIALS, JSON) if (folder / name).is_file()}
    if {VOCABULARY, SPECIALS} <= have:
        return TiktokenFiles.read(folder)
    if JSON in have:
        return JsonFile(folder, vocabulary)
    missing = {VOCABULARY, SPECIALS} - have
    if len(missing) == 1:
        raise SSDError(f"{folder} lacks {missing.pop()}; download it from BAAI/Emu3-Gen into this folder")
    raise SSDError(
        f"{folder} has no tokenizer: download {VOCABULARY} and {SPECIALS} from BAAI/Emu3-Gen into this folder, "
        f"or {JSON} from the model's -hf repository"
    )


def _visual(code: int) -> str:
    return f"<|visual token {code:06d}|>"


def _the_files(folder: Path) -> str:
    original = (folder / VOCABULARY).is_file() and (folder / SPECIALS).is_file()
    return f"{folder / VOCABULARY} with {SPECIALS}" if original else str(folder / JSON)
