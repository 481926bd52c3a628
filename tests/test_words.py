"""The word tokenizer: known words become ids, unknown ones are named with the nearest known word."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_core import SSDError
from ssd_core.words import WordTokenizer

WORDS = ("cat", "dog", "red", "o'clock", "éclair")
tokenizer = WordTokenizer(WORDS, {"cats": "cat", "dogs": "dog"}, ["a", "the", "on"], first_id=100, slots=4)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("cat", [100]),
        ("a red cat on the dog", [102, 100, 101]),
        ("RED, Dog!", [102, 101]),
        ("cats dogs", [100, 101]),
        ("  dog...\n\tcat ", [101, 100]),
        ("cat cat cat cat", [100] * 4),
        ("o'clock", [103]),
        ("ÉCLAIR", [104]),
        ("red_cat", [102, 100]),
        ("", []),
        ("a, the; on?", []),
    ],
)
def test_known_prompts(prompt: str, ids: list[int]) -> None:
    assert tokenizer.encode(prompt) == ids


@pytest.mark.parametrize("symbol", ["\U0001f408", "\u2605", "\u20ac", "\x07", "\ud800"])
def test_symbols_are_named_like_words(symbol: str) -> None:
    with pytest.raises(SSDError) as caught:
        tokenizer.encode(f"a cat {symbol}")
    assert repr(symbol) in str(caught.value)


def test_punctuation_of_any_script_is_no_symbol() -> None:
    assert tokenizer.encode("\u201ccat\u201d \u2014 \u00abred\u00bb\u3001 dog\u2026 + $1"[:-2]) == [100, 102, 101]


def test_words_are_listed_in_id_order() -> None:
    assert [tokenizer.encode(word)[0] for word in tokenizer.words] == list(range(100, 100 + len(tokenizer.words)))


@pytest.mark.parametrize(
    ("prompt", "match"),
    [
        ("a zebra", r"does not know the word 'zebra'"),
        ("zebra quagga zebra", r"the words 'zebra', 'quagga'"),
        ("rde cta", r"'rde'"),
        ("catt", r"'catt' \(did you mean 'cats?'\?\)"),
        ("猫", r"the word '猫'"),
        ("cat 7", r"the word '7'"),
    ],
)
def test_unknown_words_are_named(prompt: str, match: str) -> None:
    """Each unknown word once, in the order it stands, with the command that lists the known ones."""
    with pytest.raises(SSDError, match=match) as caught:
        tokenizer.encode(prompt)
    assert "words" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_known_words_are_not_blamed() -> None:
    with pytest.raises(SSDError) as caught:
        tokenizer.encode("red zebra on the cat")
    assert "'red'" not in str(caught.value)
    assert "'cat'" not in str(caught.value)


def test_too_many_words() -> None:
    with pytest.raises(SSDError, match=r"prompt has 5 words.*reads 4.*shorten"):
        tokenizer.encode("cat cat a cat the cat on cat")


@given(st.text(max_size=60))
def test_any_text_encodes_or_is_refused_clearly(text: str) -> None:
    ids: list[int] = []
    with contextlib.suppress(SSDError):
        ids = tokenizer.encode(text)
    assert all(100 <= i < 105 for i in ids)
    assert len(ids) <= 4
