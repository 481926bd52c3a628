"""Loading backbones: the embedded model's layout, its files, and every damage that must be told clearly."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ssd_core import Rolling, Sampling, SSDError, StopRequested, generate, load_backbone, load_heads
from ssd_core.families.emoji import EmojiBackbone
from ssd_core.stream import Stream

CODES, EOL, IMAGE, PAD, SIDE_4, SIDE_6 = 12, 12, 13, 14, 15, 16
CAT, DOG, RED = 17, 18, 20


@pytest.fixture
def tiny(tiny_model: Path) -> EmojiBackbone:
    backbone = load_backbone(tiny_model)
    assert isinstance(backbone, EmojiBackbone)
    return backbone


@pytest.fixture
def copy(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def test_what_a_loaded_backbone_says(tiny: EmojiBackbone, tiny_model: Path) -> None:
    assert tiny.name == "emoji-scenes"
    assert tiny.fingerprint == hashlib.sha256((tiny_model / "model.safetensors").read_bytes()).hexdigest()
    assert (tiny.codes, tiny.hidden, tiny.default_grid) == (CODES, 16, (6, 6))
    assert tiny.default_sampling == Sampling(guidance=2.0)
    assert tiny.words() == ("cat", "dog", "heart", "red", "blue", "grass", "two")
    assert (tiny.dtype, tiny.device.type) == (torch.float32, "cpu")
    assert tiny.patch == 8
    tiny.check_prompt("a red cat")
    with pytest.raises(SSDError, match="does not know the word 'zebra'"):
        tiny.check_prompt("a zebra")
    assert not tiny.training
    assert not any(p.requires_grad for p in tiny.parameters())
    assert tiny.stream((4, 6)) == Stream(4, 6, EOL)


def test_prompt_layout(tiny: EmojiBackbone) -> None:
    """Words right-aligned in their slots, then rows, columns and begin of image; unconditional rows come last."""
    ids = tiny.prompt_ids(["a red cat", "dogs"], "", (6, 4), guided=True)
    tail = [SIDE_6, SIDE_4, IMAGE]
    assert ids.tolist() == [
        [PAD, PAD, RED, CAT, *tail],
        [PAD, PAD, PAD, DOG, *tail],
        [PAD] * 4 + tail,
        [PAD] * 4 + tail,
    ]
    assert tiny.prompt_ids(["cat"], "red", (6, 4), guided=False).tolist() == [[PAD] * 3 + [CAT, *tail]]
    assert tiny.prompt_ids(["cat"], "red", (6, 4), guided=True)[1].tolist() == [PAD] * 3 + [RED, *tail]
    rows = tiny.prompt_rows(["a red cat", "dogs"], "", (6, 4), guided=True)
    assert torch.equal(rows.embeddings, tiny.embed(ids))
    assert rows.padding == [0] * 4  # padding is attended


def test_positions(tiny: EmojiBackbone) -> None:
    """Codes sit at (row, column); the image token and the end-of-line tokens left of the row they open."""
    rows = tiny.prompt_rows(["cat"], "", (4, 6), guided=True)
    assert rows.positions[0].tolist() == [[-2, 0], [-2, 1], [-2, 2], [-2, 3], [-1, 0], [-1, 1], [0, -1]]
    places = rows.stream_positions[0].view(4, 7, 2)
    for y in range(4):
        assert places[y].tolist() == [*([y, x] for x in range(6)), [y + 1, -1]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", torch.bfloat16])
def test_half_precision_keeps_pixels_in_float32(tiny_model: Path, dtype: str | torch.dtype) -> None:
    backbone = load_backbone(tiny_model, dtype=dtype)
    assert backbone.dtype == (getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    assert {p.dtype for n, p in backbone.named_parameters() if n.startswith("pixels.")} == {torch.float32}
    heads = load_heads(backbone, tiny_model / "heads.safetensors")
    got = generate(backbone, "cat", heads=heads, schedule=Rolling(2))
    assert got.images.dtype == torch.float32
    assert got.report.settings["dtype"] == str(backbone.dtype).removeprefix("torch.")


def test_wrong_requests_are_told(tiny: EmojiBackbone, tiny_model: Path, tmp_path: Path) -> None:
    requests: list[tuple[Callable[[], Any], str]] = [
        (lambda: load_backbone(tmp_path / "nowhere"), "no backbone at .*nowhere.*config.json"),
        (lambda: load_backbone(tiny_model, dtype="int8"), "dtype must be 'auto' or one of .*got 'int8'"),
        (lambda: generate(tiny, "cat", grid=(5, 6)), "cannot draw 5x6 codes.*6x6, 4x4, 4x6, 6x4"),
        (lambda: generate(tiny, "zebra"), "does not know the word 'zebra'"),
        (lambda: generate(tiny, "cat", negative="zebra"), "does not know the word 'zebra'"),
        (lambda: generate(tiny, ["cat", "dog"], batch=2), "list of prompts"),
        (lambda: generate(tiny, []), "list of prompts"),
        (lambda: generate(tiny, "cat", batch=0), "batch must be at least 1, got 0"),
        (lambda: generate(tiny, "cat", seed=-1), "seed must be from 0"),
    ]
    for request, match in requests:
        with pytest.raises(SSDError, match=match):
            request()


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def change_tensors(file: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no model": (lambda f: (f / "model.safetensors").unlink(), "lacks weights: expected model.safetensors"),
    "no pixels": (lambda f: (f / "pixels.safetensors").unlink(), "lacks weights: expected pixels.safetensors, got"),
    "truncated model": (lambda f: cut(f / "model.safetensors", 1000), "model.safetensors .1000 bytes. is not a"),
    "empty pixels": (lambda f: cut(f / "pixels.safetensors", 0), "pixels.safetensors .0 bytes. is not a complete"),
    "a folder for a file": (lambda f: as_folder(f / "model.safetensors"), "model.safetensors"),
    "missing tensor": (
        lambda f: change_tensors(f / "model.safetensors", lambda t: t.pop("norm.weight")), r"missing norm.weight; unexp"
    ),
    "extra tensor": (
        lambda f: change_tensors(f / "model.safetensors", lambda t: t.update(x=torch.zeros(1))), "nothing; unexpected x"
    ),
    "wrong shape": (
        lambda f: change_tensors(f / "model.safetensors", lambda t: t.update({"norm.weight": torch.ones(3)})),
        r"got norm.weight \[3\], expected \[16\]",
    ),
    "another size": (lambda f: change_config(f, codes=13), r"got embed.weight \[24, 16\], expected \[25, 16\]"),
    "more words": (lambda f: change_config(f, words=["cat"] * 9), r"got embed.weight \[24, 16\], expected \[26, 16\]"),
    "another model": (lambda f: change_config(f, model_type="llama"), "model_type 'llama'; supported"),
    "no model type": (lambda f: change_config(f, model_type=None), "model_type None; supported"),
    "newer format": (lambda f: change_config(f, format=2), "format 2, this release reads format 1"),
    "not JSON": (lambda f: (f / "config.json").write_text("{"), "cannot read .*config.json"),
    "JSON list": (lambda f: (f / "config.json").write_text("[]"), "holds list, expected a JSON object"),
    "no codes": (lambda f: change_config(f, codes=None), "config.json"),
    "no decoder": (lambda f: change_config(f, decoder=None), "config.json"),
    "bad decoder": (lambda f: change_config(f, decoder={"hidden": 16}), "config.json"),
    "bad codes": (lambda f: change_config(f, codes="many"), "config.json"),
    "bad defaults": (lambda f: change_config(f, defaults={"temperature": "hot"}), "config.json"),
}  # fmt: skip


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told(copy: Path, damage: str) -> None:
    """One clear SSDError that names the file, whatever is broken; nothing is half loaded."""
    change, match = DAMAGE[damage]
    change(copy)
    with pytest.raises(SSDError, match=match):
        load_backbone(copy)


def test_facts_without_weights(tiny: EmojiBackbone, tiny_model: Path) -> None:
    """On the device "meta" everything that a graph is checked against is there, and no random number is drawn."""
    before = torch.get_rng_state()
    facts = load_backbone(tiny_model, device="meta")
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.is_meta for parameter in facts.parameters())
    for name in ("name", "fingerprint", "codes", "hidden", "grids", "patch", "default_sampling"):
        assert getattr(facts, name) == getattr(tiny, name)
    with pytest.raises(SSDError, match="does not know the word 'zebra'"):
        facts.check_prompt("zebra")


def test_loading_can_be_stopped(tiny_model: Path) -> None:
    """Asked before every tensor; a stop leaves nothing, the next load works."""
    asked = 0

    def after(count: int) -> Callable[[], bool]:
        nonlocal asked
        asked = 0

        def stop() -> bool:
            nonlocal asked
            asked += 1
            return asked > count

        return stop

    tensors = len(load_backbone(tiny_model, should_stop=after(10**6)).state_dict())
    assert asked == tensors
    for count in (0, tensors // 2, tensors - 1):
        with pytest.raises(StopRequested, match="was stopped before it finished"):
            load_backbone(tiny_model, should_stop=after(count))
        assert asked == count + 1


def test_heads_of_other_weights_are_refused(copy: Path) -> None:
    """The fingerprint is the hash of the weights: one changed number and heads made for the old ones do not fit."""
    change_tensors(copy / "model.safetensors", lambda t: t["norm.weight"].add_(1))
    changed = load_backbone(copy)
    heads = load_heads(changed, copy / "heads.safetensors")  # these carry no fingerprint
    assert heads.spec.fingerprint == ""
    assert changed.fingerprint == hashlib.sha256((copy / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("grid", [(6, 6), (4, 6), (6, 4)])
def test_pictures_have_the_grids_shape(tiny: EmojiBackbone, grid: tuple[int, int]) -> None:
    got = generate(tiny, ["cat", "two dogs on grass"], grid=grid)
    rows, cols = grid
    assert got.tokens.shape == (2, rows, cols)
    assert got.images.shape == (2, rows * 8, cols * 8, 3)
    assert got.images.dtype == torch.float32
    assert float(got.images.min()) >= 0
    assert float(got.images.max()) <= 1
    codes = tiny.encode_pixels(got.images)
    assert codes.shape == got.tokens.shape
    assert codes.dtype == torch.int64
    assert int(codes.min()) >= 0
    assert int(codes.max()) < CODES


def test_a_patch_has_one_code_wherever_it_stands(tiny: EmojiBackbone) -> None:
    patches = torch.rand(4, 8, 8, 3, generator=torch.Generator().manual_seed(0))
    picture = torch.cat([torch.cat([patches[0], patches[1]], 1), torch.cat([patches[2], patches[3]], 1)], 0)
    together = tiny.encode_pixels(picture[None])
    assert together.flatten().tolist() == [int(tiny.encode_pixels(patch[None])) for patch in patches]
    for shape in ((1, 9, 8, 3), (1, 8, 8, 4), (8, 8, 3)):
        with pytest.raises(ValueError, match=r"expected \[B, H, W, 3\]"):
            tiny.encode_pixels(torch.zeros(shape))
