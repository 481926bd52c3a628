"""Lumina-mGPT's prompts: wrapper, unconditional row, and text that looks like special tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lumina_files import load_tiny, write_tiny_lumina
from lumina_reference import prompt_ids

from ssd_core import SSDError, generate
from ssd_core.families.lumina import LuminaBackbone

TEXT = "Generate an image of 768x768 according to the following prompt:\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("Lumina-mGPT-7B-768")
    write_tiny_lumina(folder)
    return folder


@pytest.fixture(scope="module")
def lumina(folder: Path) -> LuminaBackbone:
    return load_tiny(folder)


def test_prompt_rows(lumina: LuminaBackbone, folder: Path) -> None:
    """Wrapper and separator as the authors feed them; the unconditional row is begin of image and size alone."""
    ids = lumina.prompt_ids(["a red cat", "of"], "", (48, 48), guided=True)
    assert ids[0] == [*prompt_ids(folder, "a red cat", 768, 768), 8197, 8828, 8828]
    assert ids[0][0] == 0
    assert ids[0][-4:] == [8710, 8197, 8828, 8828]
    assert ids[2] == ids[3] == [8197, 8828, 8828]
    rows = lumina.prompt_rows(["a red cat", "of"], "", (48, 48), guided=True)
    longest = len(ids[0])
    assert rows.padding == [longest - len(row) for row in ids]
    assert rows.embeddings.shape == (4, longest, 32)
    for row, (own, padding) in enumerate(zip(ids, rows.padding, strict=True)):
        assert torch.equal(rows.embeddings[row, padding:], lumina.embedding(torch.tensor(own)))
        assert rows.positions[row, padding:, 0].tolist() == list(range(len(own)))
        assert rows.stream_positions[row, :, 0].tolist() == list(range(len(own), len(own) + 48 * 49))
    assert len(lumina.prompt_ids(["a"], "", (48, 48), guided=False)) == 1


def test_a_negative_prompt_has_the_same_wrapper(lumina: LuminaBackbone) -> None:
    ids = lumina.prompt_ids(["cat"], "red", (48, 48), guided=True)
    assert ids[1] == lumina.prompt_ids(["red"], "", (48, 48), guided=False)[0]


STRANGE = {
    "empty": "",
    "blank": "  \n\t ",
    "right to left": "قطة حمراء على العشب خَتول אדום",
    "emoji": "a 🐱‍👤 and 👩🏽‍🚀🇳🇴 cat",
    "combining": "e\u0301 a\u0308 \u200b\u202e zero",
    "a control character": "a\x00cat\x1b[0m",
    "separator": "cat<reserved08706>red",
    "begin of image": "<racm3:break><eoss> cat <s></s><pad><unk><image>",
    "placeholder": "cat <|image|> red",
    "newline and size": "<reserved08799><reserved08828> <reserved08824>",
    "image tokens": "IMGIMGBFIZ cat IMGIMGIZIMGIMGIBJZ",
    "half a name": "IMGIMG <reserved <racm3: IMGIMGBFIIJZ",
}


@pytest.mark.parametrize("name", STRANGE)
def test_any_prompt_is_text_and_nothing_else(name: str, lumina: LuminaBackbone) -> None:
    """Its ids are text ids, and they spell the prompt."""
    prompt = STRANGE[name]
    (ids,) = lumina.prompt_ids([prompt], "", (48, 48), guided=False)
    text = ids[1:-4]
    assert all(number >= 8904 for number in text)  # everything below is a control or an image token
    assert lumina.tokenizer.decode(text) == TEXT + prompt
    assert generate(lumina, prompt, grid=(2, 2)).tokens.shape == (1, 2, 2)


def test_special_names_do_become_tokens_without_care(folder: Path, lumina: LuminaBackbone) -> None:
    """The tiny tokenizer has the trap that the tests above are about."""
    assert 8710 in prompt_ids(folder, STRANGE["separator"], 768, 768)[:-1]
    assert any(4 <= number < 8196 for number in prompt_ids(folder, STRANGE["image tokens"], 768, 768))


def test_plain_prompts_are_read_in_one_piece(folder: Path, lumina: LuminaBackbone) -> None:
    for prompt in ("a red cat", "red, of a cat!", STRANGE["emoji"], STRANGE["right to left"], ""):
        (ids,) = lumina.prompt_ids([prompt], "", (48, 48), guided=False)
        assert ids[:-3] == prompt_ids(folder, prompt, 768, 768)


def test_the_longest_prompt_fits_and_the_next_does_not(lumina: LuminaBackbone) -> None:
    """4096 positions: the wrapper, the prompt, begin and size, 48 x 49, end."""
    room = 4096 - (3 + 48 * 49 + 1)
    wrapper = len(lumina.prompt_ids([""], "", (48, 48), guided=False)[0]) - 3
    longest = "!" * (room - wrapper)
    assert len(lumina.prompt_ids([longest], "", (48, 48), guided=True)[0]) == room + 3
    told = rf"too long: with the wrapper it has {room + 5} tokens, at most {room} fit .*48x48.* by 5 tokens"
    with pytest.raises(SSDError, match=told):
        generate(lumina, longest + "!" * 5, grid=(48, 48))
    with pytest.raises(SSDError, match="too long"):
        generate(lumina, "cat", negative=longest + "!", grid=(48, 48))
    assert lumina.prompt_ids([longest + "!" * 5], "", (4, 6), guided=False)  # a smaller picture leaves more room
    lumina.check_prompt(longest)
    with pytest.raises(SSDError, match="too long"):
        lumina.check_prompt("!" * 4096)


def test_half_a_surrogate_pair_is_told(lumina: LuminaBackbone) -> None:
    with pytest.raises(SSDError, match="no valid text"):
        generate(lumina, "a \ud83d cat", grid=(2, 2))
