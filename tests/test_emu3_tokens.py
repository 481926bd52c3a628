"""Emu3's tokenizers: tiktoken's merging rule, text that spells special tokens, ids that must fit, damaged files."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from emu3_checkpoints import CODES, SPECIALS, tiny_tokenizer, token_id, write_tiktoken
from hypothesis import given
from hypothesis import strategies as st

from ssd_core import SSDError
from ssd_core.families.emu3_tokens import Emu3Tokenizer, JsonFile, TiktokenFiles
from ssd_core.families.emu3_tokens import read_tokenizer as read

TEXTS = [
    "",
    " ",
    "a red cat",
    "don't  stop\n\n now",
    "90*90",
    "قطة حمراء",
    "红猫和狗",
    "🦊👩‍🚀",
    "é",
    "x" * 3000,
    "\x00\t",
]
VOCABULARY = 1000  # more than the tiny tokenizer has ids
SINGLE = {bytes([byte]): byte for byte in range(256)}


def read_tokenizer(folder: Path) -> Emu3Tokenizer:
    return read(folder, VOCABULARY)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    write_tiktoken(tmp_path)
    return tmp_path


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    folder.mkdir()
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def by_the_book(ranks: dict[bytes, int], piece: bytes) -> list[int]:
    """tiktoken's rule, as slow as it can be written."""
    if piece in ranks:
        return [ranks[piece]]
    parts = [bytes([byte]) for byte in piece]
    while True:
        joined = [ranks.get(parts[i] + parts[i + 1], 10**9) for i in range(len(parts) - 1)]
        if not joined or min(joined) == 10**9:
            return [ranks[part] for part in parts]
        at = joined.index(min(joined))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(st.lists(st.binary(min_size=2, max_size=5), max_size=30, unique=True), st.binary(max_size=40))
def test_merges_by_the_book(words: list[bytes], piece: bytes) -> None:
    few = bytes(b"abc"[byte % 3] for byte in piece)
    words = list(dict.fromkeys(bytes(b"abc"[byte % 3] for byte in word) for word in words))
    ranks = SINGLE | {word: 256 + i for i, word in enumerate(words)}
    assert TiktokenFiles(ranks, [])._merge(few) == by_the_book(ranks, few)


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(original: Path, hf: Path, text: str) -> None:
    for folder in (original, hf):
        tokenizer = read_tokenizer(folder)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_two_files_of_one_vocabulary_agree(original: Path, hf: Path) -> None:
    """Where both cut a text alike; digits are cut one by one by the original only, but none are merged here."""
    tiktoken, json_file = TiktokenFiles.read(original), JsonFile(hf, VOCABULARY)
    assert tiktoken.special.items() <= json_file.special.items()
    assert list(tiktoken.special) == SPECIALS
    for text in ["a red cat on the grass, a blue dog", "90*90", "masterpiece", "text قطة 🦊"]:
        assert tiktoken.encode(text) == json_file.encode(text)


def test_the_original_composes_letters_and_cuts_digits() -> None:
    ranks = SINGLE | {b"90": 256, "é".encode(): 257}
    tokenizer = TiktokenFiles(ranks, [])
    assert tokenizer.encode("90") == [ord("9"), ord("0")]
    assert tokenizer.encode("e\u0301") == [257]


@pytest.mark.parametrize(
    "name", ["<|endoftext|>", "<|extra_203|>", "<|image token|>", f"<|visual token {CODES - 1:06d}|>"]
)
def test_special_tokens_in_texts_are_letters(original: Path, hf: Path, name: str) -> None:
    for folder in (original, hf):
        tokenizer = read_tokenizer(folder)
        for text in (name, f"a {name} b", name * 2):
            ids = tokenizer.encode(text)
            assert not set(ids) & {token_id(special) for special in SPECIALS}
            assert tokenizer.decode(ids) == text


def test_half_a_character(original: Path, hf: Path) -> None:
    for folder in (original, hf):
        with pytest.raises(SSDError, match=r"half a character \('\\ud83d' at position 4\)"):
            read_tokenizer(folder).encode("cat \ud83d")


def test_published_ids(tmp_path: Path) -> None:
    """With as many text tokens as published, the special tokens have the published ids."""
    fillers = {b"\xff" + i.to_bytes(3, "big"): i for i in range(256, 151643)}
    visual = [f"<|visual token {i:06d}|>" for i in range(32768)]
    names = [*SPECIALS[: 3 + 205], "<|image token|>", "<|image start|>", "<|image end|>", *visual]
    tokenizer = TiktokenFiles(SINGLE | fillers, names)
    ids = tokenizer.special_ids(32768, [("<|extra_204|>", 151850)], tmp_path)
    assert (ids.pad, ids.end_of_line, ids.end_of_frame, ids.begin, ids.end) == (151643, 151846, 151847, 151849, 151850)
    assert (ids.image, ids.begin_of_image, ids.end_of_image, ids.first_code) == (151851, 151852, 151853, 151854)
    assert tokenizer.special[visual[-1]] == 184621


def test_prefers_the_original_files(original: Path) -> None:
    tiny_tokenizer().save(str(original / "tokenizer.json"))
    assert isinstance(read_tokenizer(original), TiktokenFiles)
    (original / "emu3.tiktoken").unlink()
    assert isinstance(read_tokenizer(original), JsonFile)


def test_missing_files(original: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SSDError, match=r"download emu3.tiktoken and emu3_vision_tokens.txt .*or tokenizer.json"):
        read_tokenizer(empty)
    (original / "emu3_vision_tokens.txt").unlink()
    with pytest.raises(SSDError, match=r"lacks emu3_vision_tokens.txt; download it from BAAI/Emu3-Gen"):
        read_tokenizer(original)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("version https://git-lfs.github.com/spec/v1\n", "cannot read"),
        ("!!! 1\n", "cannot read"),
        ("YQ== zero\n", "cannot read"),
        ("YQ== 0\n", "is damaged: expected the ids 0, 1, 2"),
        ("".join(f"{base64.b64encode(bytes([b])).decode()} {b + 1}\n" for b in range(256)), "is damaged"),
    ],
)
def test_damaged_tiktoken(original: Path, content: str, message: str) -> None:
    (original / "emu3.tiktoken").write_text(content, encoding="utf-8")
    with pytest.raises(SSDError, match=message):
        read_tokenizer(original)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"model": {"type": "BPE"}}', '{"model": {"vocab": {}, "type": "What"}}']
)
def test_damaged_json(hf: Path, content: str) -> None:
    (hf / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(SSDError, match=r"cannot read .*tokenizer.json .*download it again"):
        read_tokenizer(hf)


def test_ids_that_do_not_fit(original: Path, hf: Path) -> None:
    tokenizer = read_tokenizer(original)
    with pytest.raises(SSDError, match=r"emu3.tiktoken with emu3_vision_tokens.txt does not fit .*321 / 0"):
        tokenizer.special_ids(CODES, [("<|endoftext|>", 0)], original)
    with pytest.raises(SSDError, match=r"lacks 2 special tokens, the first is '<\|visual token 000064"):
        tokenizer.special_ids(CODES + 2, [], original)
    gap = json.loads((hf / "tokenizer.json").read_text(encoding="utf-8"))
    for token in gap["added_tokens"]:
        if token["content"] == "<|visual token 000007|>":
            token["id"] += 1000
    (hf / "tokenizer.json").write_text(json.dumps(gap), encoding="utf-8")
    with pytest.raises(SSDError, match=r"tokenizer.json: the ids of the 64 visual tokens must follow each other"):
        read(hf, 10_000).special_ids(CODES, [], hf)


def test_a_tokenizer_that_loses_letters(hf: Path) -> None:
    """A vocabulary without some byte drops it silently: told when the model is loaded, not seen in pictures."""
    content = json.loads((hf / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"].pop("Ł")  # a byte of the Arabic letters
    content["model"]["merges"] = []
    (hf / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(SSDError, match=r"encoding and decoding .A red cat.* gives"):
        read_tokenizer(hf).special_ids(CODES, [], hf)
