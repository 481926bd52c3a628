"""Lumina-mGPT on a tiny random folder in the original layout, against transformers' Chameleon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lumina_files import SMALL, VQGAN_SHAPES, index_of_code, load_tiny, random_codes, write_tiny_lumina
from lumina_reference import Oracle, greedy, prompt_ids
from torch import Tensor
from toys import make_engine
from vqgan_reference import decode, random_vqgan

from ssd_core import AR, Rolling, Rounds, Sampling, SSDError, generate
from ssd_core.draft import CopyDrafter, NoDrafter
from ssd_core.families.lumina import LuminaBackbone, trained_grids
from ssd_core.heads import HeadsSpec, SpatialHeads
from ssd_core.stream import Stream
from ssd_core.transformer import rope_table

PROMPTS = ["a red cat", "", "red red red of a cat at a red cat of red, of a cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("Lumina-mGPT-7B-768")
    write_tiny_lumina(folder)
    return folder


@pytest.fixture(scope="module")
def state(folder: Path) -> dict[str, Tensor]:
    return write_tiny_lumina(folder)


@pytest.fixture(scope="module")
def lumina(folder: Path) -> LuminaBackbone:
    return load_tiny(folder)


@pytest.fixture(scope="module")
def precise(folder: Path) -> LuminaBackbone:
    return load_tiny(folder, torch.float64)


# --- what it is ----------------------------------------------------------------------------------------------------


def test_what_a_loaded_backbone_says(folder: Path) -> None:
    lumina = load_tiny(folder, small=False)
    assert (lumina.name, lumina.codes, lumina.hidden) == ("lumina-mgpt", 8192, 32)
    assert lumina.default_sampling == Sampling(guidance=4.0, temperature=1.0, top_k=2000)
    assert lumina.default_grid == (48, 48)
    assert lumina.stream((48, 48)) == Stream(48, 48, 8803 - 4)
    assert lumina.stream((48, 48)).length == 48 * 49
    assert lumina.head.weight.shape == (8192, 32)  # the image codes' rows alone
    assert (lumina.dtype, lumina.device.type, lumina.training) == (torch.float32, "cpu", False)
    assert not any(p.requires_grad for p in lumina.parameters())
    assert not any(t.is_meta for t in lumina.state_dict().values())
    assert len(lumina.fingerprint) == 64
    assert lumina.patch == 16


def crop_sizes(area: int) -> set[tuple[int, int]]:
    """The authors' walk over widths and heights in units of 32 pixels, as (rows, cols) of codes."""
    sizes, width, height = set(), area, 1
    while width > 0:
        if max(width, height) / min(width, height) <= 4.0:
            sizes.add((height * 2, width * 2))
        if (height + 1) * width <= area:
            height += 1
        else:
            width -= 1
    return sizes


@pytest.mark.parametrize("pixels", [512, 768, 1024])
def test_grids_are_those_of_the_training_pictures(pixels: int) -> None:
    grids = trained_grids(pixels)
    assert grids[0] == (pixels // 16, pixels // 16)
    assert len(set(grids)) == len(grids)
    assert set(grids) == crop_sizes((pixels // 32) ** 2)


def test_other_grids_are_refused_with_the_nearest(folder: Path) -> None:
    lumina = load_tiny(folder, small=False)
    assert len(lumina.grids) == 73
    for grid in ((47, 49), (50, 50), (24, 24), (96, 96), (0, 0)):
        with pytest.raises(
            SSDError, match=rf"cannot draw {grid[0]}x{grid[1]} codes.*73 sizes.*the nearest are \d+x\d+"
        ):
            generate(lumina, "cat", grid=grid)
    with pytest.raises(SSDError, match="nearest are 48x48"):
        lumina.check_grid((47, 49))


# --- logits and features -------------------------------------------------------------------------------------------

LAYOUTS: dict[str, dict[str, Any]] = {
    "one norm for all heads": {},
    "a norm for each head": {"norm_rows": 4},
    "grouped key heads": {"kv_heads": 2},
    "grouped, a norm for each head": {"kv_heads": 2, "norm_rows": 4},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_equals_transformers(layout: str, tmp_path: Path) -> None:
    """Features before the last norm and logits of the image codes, prompts of three lengths in one padded batch."""
    pytest.importorskip("transformers")
    state = write_tiny_lumina(tmp_path, **LAYOUTS[layout])
    kv_heads = LAYOUTS[layout].get("kv_heads", 4)
    for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        backbone, oracle = load_tiny(tmp_path, dtype), Oracle(state, dtype, kv_heads)
        assert worst_difference(backbone, oracle, (4, 6), width=28) < limit


def worst_difference(
    backbone: LuminaBackbone, oracle: Oracle, grid: tuple[int, int], width: int, limit: int | None = None
) -> float:
    """Feeds the stream of random codes ``width`` at a time, after a wrong draft that is then taken back.

    Returns the largest difference to the oracle over features and logits, as a share of the largest value.
    """
    stream = backbone.stream(grid)
    length = min(stream.length, limit or stream.length)
    tokens, wrong = stream.blank(len(PROMPTS)), stream.blank(len(PROMPTS))
    for into, seed in ((tokens, 1), (wrong, 2)):
        into[:, stream.code_positions] = random_codes(len(PROMPTS), stream.codes, seed=seed)
    first = min(17, length // 2)  # what the wrong draft left right
    wrong[:, :first] = tokens[:, :first]
    rows = backbone.prompt_rows(PROMPTS, "", grid, guided=True)
    assert rows.padding[0] > 0 or rows.padding[1] > 0
    backbone_grids, backbone.grids = backbone.grids, (grid,)
    try:
        engine, _ = make_engine(backbone, NoDrafter(), AR(), batch=len(PROMPTS), sampling=Sampling(4.0))
    finally:
        backbone.grids = backbone_grids
    with torch.inference_mode():
        engine._prefill(rows)
        engine.state.tokens[:] = wrong
        engine._feed([0] * 3, [length - 1] * 3, "verify")
        engine.state.tokens[:] = tokens
        engine.state.features[:, :, first + 1 :] = 7.0  # what is not computed again would be seen
        for start in range(first, length - 1, width):
            engine._feed([start] * 3, [min(start + width, length - 1)] * 3, "verify")
        features = engine.state.features[:, :, :length].flatten(0, 1)  # [6, length, hidden]
        logits = backbone.logits(features)
    worst = 0.0
    for row, ids in enumerate(backbone.prompt_ids(PROMPTS, "", grid, guided=True)):
        want, want_logits = oracle(ids + (tokens[row % 3, : length - 1] + 4).tolist())
        for got, right in ((features[row], want), (logits[row], want_logits[:, 4:8196])):
            right = right[-length:]
            worst = max(worst, float((got - right).abs().max() / right.abs().max()))
    return worst


@pytest.mark.parametrize("width", [1, 8, 64, 270])
def test_windows_of_any_width_equal_transformers(
    width: int, precise: LuminaBackbone, lumina: LuminaBackbone, state: dict[str, Tensor]
) -> None:
    """48x48 codes, the first seven rows: windows with newlines in them, after a wrong draft was taken back."""
    pytest.importorskip("transformers")
    assert worst_difference(precise, Oracle(state, torch.float64), (48, 48), width, limit=7 * 49) < 1e-9
    assert worst_difference(lumina, Oracle(state, torch.float32), (48, 48), width, limit=7 * 49) < 1e-4


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_bfloat16_is_transformers_bfloat16_bit_by_bit(stored: torch.dtype, tmp_path: Path) -> None:
    """Weights, features and logits."""
    pytest.importorskip("transformers")
    state = write_tiny_lumina(tmp_path, dtype=stored)
    backbone, oracle = load_tiny(tmp_path, torch.bfloat16), Oracle(state, torch.bfloat16)
    theirs = oracle.model.state_dict()
    assert torch.equal(backbone.embedding.weight, theirs["embed_tokens.weight"])
    assert torch.equal(backbone.head.weight, oracle.head[4:8196])
    assert torch.equal(backbone.norm.weight, theirs["norm.weight"])
    for index, layer in enumerate(backbone.decoder.layers):
        ours = dict(layer.named_parameters())
        own = {name.removeprefix(f"layers.{index}."): t for name, t in theirs.items()}
        assert torch.equal(ours["attention.qkv.weight"], torch.cat([own[f"self_attn.{p}_proj.weight"] for p in "qkv"]))
        assert torch.equal(ours["mlp.gate_up.weight"], torch.cat([own[f"mlp.{p}_proj.weight"] for p in ("gate", "up")]))
        for name, their_name in {
            "attention.out.weight": "self_attn.o_proj.weight",
            "mlp.down.weight": "mlp.down_proj.weight",
            "attention_norm.weight": "input_layernorm.weight",
            "mlp_norm.weight": "post_attention_layernorm.weight",
            **{f"attention.{p}_norm.{k}": f"self_attn.{p}_norm.{k}" for p in "qk" for k in ("weight", "bias")},
        }.items():
            assert torch.equal(ours[name], own[their_name]), name
    ids = backbone.prompt_ids(["a red cat"], "", (4, 6), guided=False)[0] + [17, 900, 8195, 8803, 4]
    want, want_logits = oracle(ids)
    rope = rope_table(torch.arange(len(ids))[:, None], 8, 10000.0)
    features = backbone.decoder(backbone.embedding(torch.tensor([ids])), rope)
    assert torch.equal(features[0], want)
    assert torch.equal(backbone.logits(features)[0], want_logits[:, 4:8196])


# --- decoding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guidance", [4.0, 1.0])
@pytest.mark.parametrize("prompt", PROMPTS[:2])
def test_greedy_pictures_are_the_reference_token_by_token(
    guidance: float, prompt: str, precise: LuminaBackbone, folder: Path, state: dict[str, Tensor]
) -> None:
    """Against transformers without a cache, choosing from the whole vocabulary; newlines and end of image included."""
    pytest.importorskip("transformers")
    oracle = Oracle(state, torch.float64)
    sampling = Sampling(guidance, temperature=0.0, top_k=2000)
    for rows, cols in SMALL:
        want = greedy(oracle, prompt_ids(folder, prompt, cols * 16, rows * 16), rows, cols, guidance)
        for schedule in (AR(), Rolling(2)):
            got = generate(precise, prompt, grid=(rows, cols), sampling=sampling, schedule=schedule)
            assert precise.full_stream(got.tokens)[0].tolist() == want


@pytest.mark.parametrize("grid", [(48, 48), (24, 96), *SMALL])
def test_stream_layout_for_random_logits(
    grid: tuple[int, int], lumina: LuminaBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every size token, newline and end token in its place, and rows x cols codes, whatever is drawn."""
    rows, cols = grid
    generator = torch.Generator().manual_seed(3)
    monkeypatch.setattr(type(lumina), "logits", lambda self, f: torch.randn(*f.shape[:-1], 8192, generator=generator))
    monkeypatch.setattr(lumina, "grids", (grid,))
    engine, _ = make_engine(lumina, CopyDrafter(), Rolling(1, tolerance=1e9))
    codes = engine.run(lumina.prompt_rows(["cat"], "", grid, guided=False))
    assert codes.shape == (1, rows, cols)
    whole = lumina.full_stream(codes)[0].tolist()
    assert len(whole) == 3 + rows * (cols + 1) + 1
    assert whole[:3] == [8197, 8804 + rows // 2, 8804 + cols // 2]
    assert whole[-1] == 8196
    for place, number in enumerate(whole[3:-1]):
        row, column = divmod(place, cols + 1)
        assert number == (8803 if column == cols else int(codes[0, row, column]) + 4)
    assert (engine.state.tokens[0] + 4).tolist() == whole[3:-1]  # what the engine feeds from


def test_what_is_fed_is_the_stream(lumina: LuminaBackbone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain decoding embeds the stream's ids one by one, newlines included; end of image tells nothing more."""
    fed: list[int] = []
    embedding = lumina.embedding

    def spy(ids: Tensor) -> Tensor:
        fed.extend(ids.flatten().tolist())
        return embedding(ids)

    monkeypatch.setitem(lumina._modules, "embedding", spy)
    for grid in SMALL:
        fed.clear()
        codes = generate(lumina, "cat", grid=grid, sampling=Sampling(), schedule=AR()).tokens
        (prompt,) = lumina.prompt_ids(["cat"], "", grid, guided=False)
        whole = prompt[:-3] + lumina.full_stream(codes)[0].tolist()
        assert fed == whole[:-3]  # not the last code, newline and end, which are followed by no code


def test_size_tokens(lumina: LuminaBackbone) -> None:
    """768 pixels are 8828, height before width; the prompt's words say width before height."""
    ids = lumina.prompt_ids(["cat"], "", (48, 48), guided=True)
    assert ids[0][-3:] == ids[1] == [8197, 8828, 8828]
    (wide,) = lumina.prompt_ids(["cat"], "", (24, 96), guided=False)
    assert wide[-3:] == [8197, 8816, 8852]
    assert "image of 1536x384 acc" in lumina.tokenizer.decode(wide)


def random_heads(backbone: LuminaBackbone) -> SpatialHeads:
    heads = SpatialHeads(HeadsSpec(backbone.hidden, (1, 2, 3), (1, 2), 0))
    generator = torch.Generator().manual_seed(2)
    for parameter in heads.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return heads.to(backbone.dtype).eval().requires_grad_(False)


def test_exact_mode_equals_plain_decoding(lumina: LuminaBackbone) -> None:
    """Default sampling, three prompts of different lengths, with heads and without, windows in rows and tokens."""
    want = generate(lumina, PROMPTS, grid=(4, 6), schedule=AR(), seed=3)
    assert len(want.tokens.unique()) > 40  # no two codes alike, nearly
    assert want.images.shape == (3, 64, 96, 3)
    for heads in (None, random_heads(lumina)):
        for schedule in (Rolling(1), Rolling(2), Rolling(4), Rolling(window_tokens=5)):
            got = generate(lumina, PROMPTS, grid=(4, 6), schedule=schedule, seed=3, heads=heads)
            assert torch.equal(got.tokens, want.tokens)
            assert torch.equal(got.images, want.images)


def test_published_rounds_run(lumina: LuminaBackbone) -> None:
    schedule = Rounds(1, rows_per_block=2, first_row_block=3)
    got = generate(lumina, "cat", grid=(4, 6), schedule=schedule, heads=random_heads(lumina))
    assert got.tokens.shape == (1, 4, 6)
    assert got.report.total_forwards < 24


@pytest.mark.parametrize("negative", ["", "a red cat of red of red"])
def test_a_batch_is_its_singles(negative: str, lumina: LuminaBackbone) -> None:
    """Padding and the short unconditional row change nothing."""
    for schedule in (AR(), Rolling(2)):
        batch = generate(lumina, PROMPTS, grid=(4, 6), schedule=schedule, seed=8, negative=negative)
        for image, prompt in enumerate(PROMPTS):
            single = generate(lumina, prompt, grid=(4, 6), schedule=schedule, seed=8 + image, negative=negative)
            assert torch.equal(batch.tokens[image], single.tokens[0])


def test_pictures_and_codes(lumina: LuminaBackbone) -> None:
    """Codes go through the vocabulary map: the pixels of code c are those of the VQGAN index its token spells."""
    codes = random_codes(1, 3, 2)
    indices = torch.tensor([[index_of_code(int(code)) for code in row] for row in codes[0]])
    want = (decode(random_vqgan(VQGAN_SHAPES), indices).clamp(-1, 1) + 1) / 2
    assert (lumina.decode_pixels(codes)[0] - want).abs().max() < 1e-4
    images = torch.rand(1, 32, 48, 3, generator=torch.Generator().manual_seed(4))
    assert lumina.encode_pixels(images).shape == (1, 2, 3)
