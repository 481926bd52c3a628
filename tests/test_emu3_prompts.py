"""What an Emu3 backbone offers: defaults, grids, prompt rows, odd and long prompts."""

from __future__ import annotations

import pytest
import torch
from emu3_checkpoints import (
    AREA,
    CODES,
    LAYOUTS,
    PROMPTS,
    Folders,
    load,
    padded_prompts,
    tiny_config,
    token_id,
)
from toys import draw

from ssd_core import AR, Sampling, SSDError, load_backbone
from ssd_core.families.emu3 import NEGATIVE, QUALITY, RATIOS, Emu3Backbone, _grid
from ssd_core.stream import Stream


def test_defaults(emu3_folders: Folders) -> None:
    backbone = load(emu3_folders)
    assert isinstance(load_backbone(emu3_folders.hf), Emu3Backbone)
    assert isinstance(load_backbone(emu3_folders.original), Emu3Backbone)
    assert backbone.name == "emu3-gen"
    assert backbone.patch == 8
    assert (backbone.codes, backbone.hidden, backbone.rope_theta) == (CODES, 64, 1e6)
    assert backbone.default_sampling == Sampling(guidance=3.0, temperature=1.0, top_k=2048)
    assert backbone.default_grid == (4, 4)  # AREA
    assert AREA == 32 * 32
    assert backbone.stream((4, 5)) == Stream(4, 5, CODES)


def test_published_grids() -> None:
    """Rounded as the model's own processor rounds them; all leave room for a long prompt."""

    grids = {f"{w}:{h}": _grid(720 * 720, 8, w, h) for w, h in RATIOS}
    assert grids["1:1"] == (90, 90)
    assert grids["16:9"] == (68, 120)
    assert grids["9:16"] == (120, 68)
    assert grids["4:3"] == (78, 104)
    assert all(9216 - rows * (cols + 1) > 900 for rows, cols in grids.values())


def test_prompt_layout(emu3_folders: Folders) -> None:
    """Begin, prompt and quality words, begin of image, rows*cols, image; the negative row without quality words."""
    for layout in LAYOUTS:
        backbone = load(emu3_folders, layout)
        encode = backbone._tokenizer.encode
        tail = [token_id("<|image start|>"), *encode("4*5"), token_id("<|image token|>")]
        begin = token_id("<|extra_203|>")
        rows = backbone.prompt_ids(["a red cat", ""], "", (4, 5), guided=True)
        assert rows == [
            [begin, *encode("a red cat masterpiece, film grained, best quality."), *tail],
            [begin, *encode(QUALITY), *tail],
            *([[begin, *encode(NEGATIVE), *tail]] * 2),
        ]
        assert backbone.prompt_ids(["a"], "ugly", (4, 5), guided=True)[1] == [begin, *encode("ugly"), *tail]
        assert backbone.prompt_ids(["a"], " ", (4, 5), guided=True)[1] == [begin, *encode(" "), *tail]
        assert len(backbone.prompt_ids(["a"], "ugly", (4, 5), guided=False)) == 1


def test_prompt_equals_transformers_processor(emu3_folders: Folders) -> None:
    """Its conversion of prompts for drawing, left-padded, also for another ratio."""
    from transformers import AutoTokenizer, Emu3ImageProcessor, Emu3Processor

    tokenizer = AutoTokenizer.from_pretrained(emu3_folders.hf, padding_side="left")
    processor = Emu3Processor(Emu3ImageProcessor(), tokenizer)
    backbone = load(emu3_folders)
    for ratio, grid in (("1:1", (4, 4)), ("3:2", (3, 5))):
        texts = [*(prompt + QUALITY for prompt in PROMPTS), NEGATIVE, NEGATIVE]
        theirs = processor(
            text=texts,
            return_for_image_generation=True,
            ratio=ratio,
            image_area=AREA,
            padding=True,
            return_tensors="pt",
        )
        ids, mask = padded_prompts(backbone, grid)
        assert torch.equal(theirs["input_ids"], ids)
        assert torch.equal(theirs["attention_mask"], mask)
        assert grid in backbone.grids


def test_prompt_rows_are_left_padded(emu3_folders: Folders) -> None:
    backbone = load(emu3_folders)
    ids, mask = padded_prompts(backbone, (4, 5))
    rows = backbone.prompt_rows(PROMPTS, "", (4, 5), guided=True)
    assert rows.padding == (mask == 0).sum(1).tolist()
    assert len(set(rows.padding)) == 3  # two prompts and one negative
    assert torch.equal(rows.embeddings, backbone.embedding(ids))
    lengths = mask.sum(1)
    assert torch.equal(rows.positions[..., 0] * mask, (mask.cumsum(1) - 1) * mask.float())
    assert torch.equal(rows.stream_positions[..., 0], (torch.arange(24) + lengths[:, None]).float())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "text", ["", "<|extra_204|><|image token|> <|visual token 000001|>", "قطة حمراء", "🦊👩‍🚀 a fox"]
)
def test_unusual_prompts_draw(emu3_folders: Folders, layout: str, text: str) -> None:
    """They change the picture, and not one of their characters becomes a special token."""
    backbone = load(emu3_folders, layout)
    special = set(range(token_id("<|endoftext|>"), token_id("<|endoftext|>") + 600))
    row = backbone.prompt_ids([text], "", (4, 4), guided=False)[0]
    assert [i for i in row if i in special] == [
        token_id(name) for name in ("<|extra_203|>", "<|image start|>", "<|image token|>")
    ]
    got, plain = (draw(backbone, AR(), prompt, grid=(4, 4), seed=1).tokens for prompt in (text, "a red cat"))
    assert not torch.equal(got, plain)


def test_too_long_prompts_are_told(emu3_folders: Folders) -> None:
    backbone = load(emu3_folders)
    room = 600 - 4 * 5 - 3
    short = len(backbone.prompt_ids([""], "", (4, 4), guided=False)[0])
    fits = "\n" * (room - short)
    assert len(backbone.prompt_ids([fits], "", (4, 4), guided=True)[0]) == room
    message = f"got {room + 1} tokens, emu3-gen has room for {room} beside 4x4 codes; shorten"
    with pytest.raises(SSDError, match=message):
        backbone.prompt_ids([fits + "\n"], "", (4, 4), guided=True)
    with pytest.raises(SSDError, match="too long: got"):
        backbone.prompt_ids(["cat"], "\n" * 100_000, (4, 4), guided=True)


def test_prompts_are_checked_without_weights(emu3_folders: Folders) -> None:
    facts = load_backbone(emu3_folders.original, device="meta")
    facts.check_prompt("a cat \u05d7\u05ea\u05d5\u05dc")
    for wrong in ("cat " * 600, "\ud800"):
        with pytest.raises(SSDError):
            facts.check_prompt(wrong)


@pytest.mark.parametrize("grid", [(0, 4), (1, 6), (20, 3), (24, 24), (25, 25)])
def test_impossible_grids(emu3_folders: Folders, grid: tuple[int, int]) -> None:
    backbone = load(emu3_folders)
    if grid == (24, 24):  # 24 * 25 = 600 = all positions
        assert backbone.check_grid((24, 23)) == (24, 23)
    with pytest.raises(SSDError, match=rf"cannot draw {grid[0]}x{grid[1]} codes .*share 600 tokens; good ones: 4x4"):
        backbone.stream(grid)


def test_config_of_the_fixture_is_transformers_own() -> None:
    """The tiny vocabulary's ids are those of the tokenizer, so that the id checks above mean something."""
    config = tiny_config()
    assert config.vocabulary_map["<|extra_200|>"] == token_id("<|extra_200|>")
    assert config.text_config.bos_token_id == token_id("<|extra_203|>") == 527
