"""A closed vocabulary of words: splitting a prompt into word ids and telling which words are unknown."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Mapping, Sequence

from .errors import SSDError


class WordTokenizer:
    """Maps a prompt to word ids.

    ``words``: the vocabulary in id order, ids start at ``first_id``. ``plurals``: plural form -> word. ``ignored``:
    words that carry no meaning here (articles, prepositions). ``slots``: the most words a prompt may use.
    """

    def __init__(
        self, words: Sequence[str], plurals: Mapping[str, str], ignored: Sequence[str], first_id: int, slots: int
    ) -> None:
        self.words = tuple(words)
        self._ids = {word: first_id + i for i, word in enumerate(words)}
        self._plurals = dict(plurals)
        self._ignored = frozenset(ignored)
        self._slots = slots

    def encode(self, prompt: str) -> list[int]:
        """Word ids of the prompt; raises SSDError that names the unknown words or says how many are too many."""
        ids: list[int] = []
        unknown: list[str] = []
        for word in re.findall(r"[^\W_]+(?:'[^\W_]+)?", prompt.lower()):
            base = self._plurals.get(word, word)
            if base in self._ids:
                ids.append(self._ids[base])
            elif word not in self._ignored:
                unknown.append(word)
        unknown += [character for character in prompt if _is_symbol(character)]
        if unknown:
            raise SSDError(self._unknown_text(list(dict.fromkeys(unknown))))
        if len(ids) > self._slots:
            raise SSDError(
                f"the prompt has {len(ids)} words with a meaning, this model reads {self._slots}; shorten it"
            )
        return ids

    def _unknown_text(self, unknown: list[str]) -> str:
        known = [*self._ids, *self._plurals]
        near = {word: difflib.get_close_matches(word, known, n=1, cutoff=0.75) for word in unknown}
        hints = [f"{word!r} (did you mean {match[0]!r}?)" if match else repr(word) for word, match in near.items()]
        count = "word" if len(unknown) == 1 else "words"
        return (
            f"the built-in model does not know the {count} {', '.join(hints)}; it has {len(self._ids)} words, "
            "listed by `python -m ssd_core words`"
        )


def _is_symbol(character: str) -> bool:
    """Whether a character means something without being part of a word, such as an emoji; or means nothing at all."""
    kind = unicodedata.category(character)
    if kind.startswith("C"):
        return kind != "Cf" and not character.isspace()  # Cf: joiners and marks of direction between others
    return kind.startswith("S") and not character.isascii()
