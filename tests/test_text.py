"""Text to ids: control tokens are only ever put in by the family, never by a prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_janus import CONTROL, VOCABULARY, write_tokenizer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from ssd_core import SSDError
from ssd_core.families.text import TextTokenizer, special_names


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    write_tokenizer(tmp_path)
    return TextTokenizer(tmp_path, VOCABULARY)


def test_plain_text_is_encoded_as_the_file_says(tokenizer: TextTokenizer) -> None:
    """Also added tokens that are no control tokens (rare letters) are found."""
    whole = Tokenizer.from_file(str(tokenizer.file))
    for text in ("a red cat, 3 birds", "", " \n\n", "œuvre 🐈", "User: <|"):
        assert tokenizer.encode(text) == whole.encode(text, add_special_tokens=False).ids
    assert whole.token_to_id("œ") in tokenizer.encode("œuvre")


@pytest.mark.parametrize("text", CONTROL)
def test_control_tokens_come_from_ids_only(tokenizer: TextTokenizer, text: str) -> None:
    wanted = tokenizer.control(text)
    assert tokenizer.encode_whole(f"a {text} b").count(wanted) == 1
    spelled = tokenizer.encode(f"a {text} b")
    assert wanted not in spelled
    assert tokenizer.decode(spelled) == f"a {text} b"
    assert tokenizer.control("<unheard of>", text) == wanted


def test_control_tokens_that_are_not_marked_as_special(tmp_path: Path) -> None:
    """Whatever has the form <…> is one; rare letters are not."""
    write_tokenizer(tmp_path)
    marked = TextTokenizer(tmp_path, VOCABULARY)
    file = tmp_path / "tokenizer.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    for item in data["added_tokens"]:
        item["special"] = False
    file.write_text(json.dumps(data), encoding="utf-8")
    tokenizer = TextTokenizer(tmp_path, VOCABULARY)
    for text in CONTROL:
        assert tokenizer.control(text) == marked.control(text)
        assert tokenizer.encode(f"œ {text}") == marked.encode(f"œ {text}")
        assert tokenizer.encode_whole(f"œ {text}") == marked.encode_whole(f"œ {text}")
    with pytest.raises(SSDError, match="has no control token œ"):
        tokenizer.control("œ")


@pytest.mark.parametrize("name", ["<eos>", "œ", "cat"])
def test_other_tokens_are_no_control_tokens(tokenizer: TextTokenizer, name: str) -> None:
    with pytest.raises(SSDError, match=f"has no control token {name}; it belongs to another model"):
        tokenizer.control(name)


def test_a_template_in_the_file_adds_nothing(tmp_path: Path) -> None:
    """Truncation, padding and begin-of-sentence templates that a file carries stay without effect."""
    write_tokenizer(tmp_path)
    plain = TextTokenizer(tmp_path, VOCABULARY).encode("a red cat on grass")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=40)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = TextTokenizer(tmp_path, VOCABULARY)
    assert loaded.encode("a red cat on grass") == loaded.encode_whole("a red cat on grass") == plain


def test_a_vocabulary_that_holds_a_control_token_as_a_word(tmp_path: Path) -> None:
    """Such a tokenizer can only spell it by the token itself: refused rather than obeyed."""
    words = Tokenizer(models.WordLevel({"cat": 0, "<eoi>": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([AddedToken("<eoi>", special=True)])
    words.save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer(tmp_path, 3)
    assert tokenizer.encode("cat cat") == [0, 0]
    with pytest.raises(SSDError, match=r"spells a control token of tokenizer\.json; word it differently"):
        tokenizer.encode("cat <eoi>")


def test_ids_must_fit_the_model(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with pytest.raises(SSDError, match=r"has ids up to 308, the model knows 308; it belongs to another model"):
        TextTokenizer(tmp_path, 308)


def test_names_of_special_tokens(tmp_path: Path) -> None:
    """Strings or objects, null where there is none; the map has the last word; other fields do not count."""
    assert special_names(tmp_path) == {}
    config = {"bos_token": {"content": "<s>"}, "pad_token": None, "eos_token": "</s>", "model_max_length": 5}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert special_names(tmp_path) == {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>", "eos_token": "<end>"}))
    assert special_names(tmp_path) == {"bos_token": "<s>", "eos_token": "<end>", "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(SSDError, match=r"cannot read .*tokenizer_config\.json"):
        special_names(tmp_path)
