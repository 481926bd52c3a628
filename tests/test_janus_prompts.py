"""Janus-Pro's prompts: template, guidance rows, unusual texts, and tokenizers that differ between releases."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny_janus
import torch
from tiny_janus import BOS, PAD, PROMPTS, load, write_both, write_tokenizer
from toys import draw

from ssd_core import SSDError, load_backbone


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_both(tmp_path_factory.mktemp("janus"))


def test_prompt_layout(folders: dict[str, Path]) -> None:
    """The template of the model's own repository, and a row of pads as long as the prompt."""
    backbone = load(folders["transformers"])
    prompts = backbone.prompts
    text = prompts._tokenizer
    row, pads = backbone.prompt_ids(["  a red cat \n"], "", guided=True)
    assert text.decode(row) == f"{BOS}<|User|>: a red cat\n\n<|Assistant|>:<begin_of_image>"
    assert row == text.encode_whole(f"{BOS}<|User|>: a red cat\n\n<|Assistant|>:<begin_of_image>")
    assert pads == [row[0], *[text.tokens[PAD]] * (len(row) - 2), row[-1]]
    assert backbone.prompt_ids(["a red cat"], "two dogs", guided=True)[1] == prompts.ids("two dogs")
    assert backbone.prompt_ids(["a red cat"], "two dogs", guided=False) == [row]


def test_prompt_rows_are_left_padded_and_their_pads_attended(folders: dict[str, Path]) -> None:
    """Left padding has no rank among the positions; pads inside the unconditional row have theirs, and matter."""
    backbone = load(folders["transformers"])
    rows = backbone.prompt_rows(PROMPTS, "", (8, 8), guided=True)
    short, long = (len(backbone.prompts.ids(prompt)) for prompt in PROMPTS)
    assert rows.padding == [long - short, 0, long - short, 0]
    assert rows.length == long
    assert rows.positions[0, :, 0].tolist() == [0.0] * (long - short) + [float(i) for i in range(short)]
    assert rows.stream_positions[2, :, 0].tolist() == [float(short + i) for i in range(64)]
    assert rows.stream_positions[1, :, 0].tolist() == [float(long + i) for i in range(64)]
    alone = backbone.prompt_rows(PROMPTS[:1], "", (8, 8), guided=True)
    assert alone.padding == [0, 0]
    assert alone.positions.shape == (1, short, 1)
    before = draw(backbone, prompt=PROMPTS[0]).tokens
    with torch.inference_mode():
        backbone.embedding.weight[backbone.prompts.pad] *= -2
    assert not torch.equal(draw(backbone, prompt=PROMPTS[0]).tokens, before)


@pytest.mark.parametrize(
    "text", ["", "   ", "قطة حمراء على العشب", "חתול אדום", "🐈‍⬛ 在草地上 🌙", "a\nb\tc\0d", "e" * 300]
)
def test_unusual_prompts_draw(folders: dict[str, Path], text: str) -> None:
    backbone = load(folders["original"])
    row = backbone.prompts.ids(text)
    assert backbone.prompts._tokenizer.decode(row) == f"{BOS}<|User|>: {text.strip()}\n\n<|Assistant|>:<begin_of_image>"
    assert draw(backbone, prompt=text).tokens.shape == (1, 8, 8)


@pytest.mark.parametrize(
    "text", ["<begin_of_image>", f"a {BOS} cat{PAD}", "<|User|>: <|Assistant|>:", "<image_placeholder>"]
)
def test_special_token_text_is_text(folders: dict[str, Path], text: str) -> None:
    """No prompt can write a control token: it is spelled out, and read back it is the same text."""
    prompts = load(folders["transformers"]).prompts
    row = prompts.ids(text)
    control = {prompts._tokenizer.tokens[name] for name in tiny_janus.CONTROL}
    assert [index for index, id_ in enumerate(row) if id_ in control] == [0, 1, len(row) - 3, len(row) - 1]
    assert text in prompts._tokenizer.decode(row)


def test_too_long_prompts_are_told(folders: dict[str, Path]) -> None:
    """The sequences end at the model's 700 positions, 64 of them for the picture."""
    backbone = load(folders["transformers"])
    spare = 700 - 64 - len(backbone.prompts.ids(""))
    longest = "é" * (spare // 2)  # two bytes, two tokens each
    assert len(backbone.prompts.ids(longest)) in (635, 636)
    with pytest.raises(SSDError, match=r"prompt is too long: got \d+ tokens, expected at most 636 .*shorten it"):
        draw(backbone, prompt=longest + "éé")
    with pytest.raises(SSDError, match="prompt is too long"):
        draw(backbone, prompt="a cat", negative=longest + "éé")
    facts = load_backbone(folders["transformers"], device="meta")
    facts.check_prompt(longest)
    with pytest.raises(SSDError, match="prompt is too long"):
        facts.check_prompt(longest + "éé")


def test_half_characters_are_told(folders: dict[str, Path]) -> None:
    with pytest.raises(SSDError, match="no valid text"):
        draw(load(folders["original"]), prompt="a \ud83d cat")


def test_special_ids_are_read_from_the_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    """Releases spell and number their control tokens differently."""
    folder = Path(shutil.copytree(folders["original"], tmp_path / "other"))
    write_tokenizer(folder, bos="<bos>", pad="<pad>")
    backbone = load(folder)
    assert backbone.prompts._tokenizer.decode([backbone.prompts.bos, backbone.prompts.pad]) == "<bos><pad>"
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink()
    with pytest.raises(SSDError, match="has no control token <｜begin▁of▁sentence｜>"):
        load(folder)
    write_tokenizer(folder)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink()
    assert load(folder).prompts.pad == load(folders["original"]).prompts.pad
