"""Janus-Pro against transformers' own implementation, on tiny checkpoints in both published layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_janus import CODES, LAYOUTS, PROMPTS, load, write_both
from torch import Tensor
from toys import draw, randomise

from ssd_core import AR, Rolling, Rounds, Sampling, SSDError
from ssd_core.draft import NoDrafter
from ssd_core.engine import Engine
from ssd_core.families.janus import JanusBackbone
from ssd_core.heads import HeadsSpec, SpatialHeads
from ssd_core.report import Meter

BIG = 18  # 324 codes: room for a window of 270


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_both(tmp_path_factory.mktemp("janus"))


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """18x18 codes, other weights."""
    return write_both(tmp_path_factory.mktemp("big-janus"), side=BIG, seed=6)


def oracle(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' model; its special ids set as the released generation_config.json sets them."""
    from transformers import JanusForConditionalGeneration

    model = JanusForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()
    stored = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    model.generation_config.generation_kwargs = stored["generation_kwargs"]
    return model


@pytest.fixture
def precise_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes transformers' RMSNorm compute in the dtype of its input: it rounds float64 to float32 by itself."""
    from transformers.models.llama import modeling_llama

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", forward)


@pytest.fixture
def _maybe_precise(request: pytest.FixtureRequest) -> None:
    if request.getfixturevalue("dtype") == torch.float64:
        request.getfixturevalue("precise_norms")


def padded(backbone: JanusBackbone, prompts: list[str] = PROMPTS) -> tuple[Tensor, Tensor]:
    """Ids and attention mask [guidance rows, longest], left-padded as transformers' processor does it."""
    rows = backbone.prompt_ids(prompts, "", guided=True)
    longest = max(map(len, rows))
    ids = torch.tensor([[backbone.prompts.pad] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def true_features(model: Any, ids: Tensor, mask: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """transformers' features before the final norm and its logits, of prompt and codes [rows, n], without a cache."""
    kept: list[Tensor] = []
    handle = model.model.language_model.norm.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    with torch.no_grad():
        text = model.get_input_embeddings()(ids)
        embeddings = torch.cat((text, model.prepare_embeddings_for_image_generation(codes)), dim=1)
        whole = torch.cat((mask, torch.ones_like(codes)), dim=1)
        positions = (whole.cumsum(-1) - 1).clamp(min=0)
        normed = model.model.language_model(
            inputs_embeds=embeddings, attention_mask=whole, position_ids=positions, use_cache=False
        ).last_hidden_state
        logits = model.model.generation_head(normed)
    handle.remove()
    return kept[0], logits


class Fed:
    """The engine's own prefill and forward over given codes."""

    def __init__(self, backbone: JanusBackbone) -> None:
        grid, seeds = backbone.default_grid, list(range(len(PROMPTS)))
        self.engine = Engine(backbone, backbone.stream(grid), AR(), NoDrafter(), Sampling(guidance=5), seeds, Meter())
        with torch.inference_mode():
            self.engine._prefill(backbone.prompt_rows(PROMPTS, "", grid, guided=True))

    def feed(self, tokens: Tensor, start: int, end: int) -> None:
        with torch.inference_mode():
            self.engine.state.tokens[:] = tokens
            self.engine._feed([start] * len(PROMPTS), [end] * len(PROMPTS), "verify")

    @property
    def features(self) -> Tensor:
        """[guidance rows * images, stream length, hidden]."""
        return self.engine.state.features.flatten(0, 1).clone()


def random_codes(count: int, seed: int) -> Tensor:
    return torch.randint(CODES, (len(PROMPTS), count), generator=torch.Generator().manual_seed(seed))


# --- the decoder ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_maybe_precise")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("width", [1, 8, 64, 270])
def test_features_and_logits_equal_transformers(
    big: dict[str, Path], layout: str, dtype: torch.dtype, most: float, width: int
) -> None:
    """Rows of different length, windows of ``width`` codes, after wrong codes were fed and rolled back."""
    backbone = load(big[layout], dtype)
    length = BIG * BIG
    wrong, right = random_codes(length, 1), random_codes(length, 2)
    ids, mask = padded(backbone)
    features, logits = true_features(oracle(big["transformers"], dtype), ids, mask, right[:, :-1].repeat(2, 1))
    fed, keep = Fed(backbone), 40  # the first codes are right at once, what follows is overwritten
    fed.feed(torch.cat((right[:, :keep], wrong[:, keep:]), dim=1), 0, length - 1)
    for start in range(keep, length - 1, width):
        fed.feed(right, start, min(start + width, length - 1))
    want, wanted = features[:, ids.shape[1] - 1 :], logits[:, ids.shape[1] - 1 :]
    got = fed.features
    assert got.dtype == want.dtype == dtype
    assert got.shape == want.shape
    apart = float((got - want).abs().max()), float((backbone.logits(got) - wanted).abs().max())
    print(f"{layout}, {dtype}, windows of {width}: features differ by {apart[0]:.1e}, logits by {apart[1]:.1e}")
    assert max(apart) < most
    assert wanted.std() > 0.3  # not all alike


def test_layouts_are_one_model(folders: dict[str, Path]) -> None:
    """Same parameters, same fingerprint (heads made with one layout fit the other), same pictures."""
    one, other = (load(folders[layout]) for layout in LAYOUTS)
    assert one.fingerprint == other.fingerprint
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, one.state_dict()[name]), name
    first, second = (draw(backbone, prompt=PROMPTS) for backbone in (one, other))
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.images, second.images)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_load_is_transformers(folders: dict[str, Path], layout: str) -> None:
    """Every parameter of the decoder has the bits of transformers' own bfloat16 load; the pixels stay in float32."""
    from transformers import JanusForConditionalGeneration

    backbone = load(folders[layout], torch.bfloat16)
    model = JanusForConditionalGeneration.from_pretrained(folders["transformers"], dtype=torch.bfloat16).model
    text = model.language_model
    assert torch.equal(backbone.embedding.weight, text.embed_tokens.weight)
    assert torch.equal(backbone.norm.weight, text.norm.weight)
    for ours, theirs in zip(backbone.decoder.layers, text.layers, strict=True):
        attention, mlp = theirs.self_attn, theirs.mlp
        qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        assert torch.equal(ours.attention.qkv.weight, qkv)
        assert torch.equal(ours.attention.out.weight, attention.o_proj.weight)
        assert torch.equal(ours.mlp.gate_up.weight, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        assert torch.equal(ours.mlp.down.weight, mlp.down_proj.weight)
        assert torch.equal(ours.attention_norm.weight, theirs.input_layernorm.weight)
        assert torch.equal(ours.mlp_norm.weight, theirs.post_attention_layernorm.weight)
    assert torch.equal(backbone.code_embedding.weight, model.generation_embeddings.weight)
    assert torch.equal(backbone.aligner[0].bias, model.generation_aligner.fc1.bias)
    assert torch.equal(backbone.aligner[1].weight, model.generation_aligner.hidden_layers[0].weight)
    assert torch.equal(backbone.head_in.weight, model.generation_head.proj_out.weight)
    assert torch.equal(backbone.head_out.weight, model.generation_head.vision_head.weight)
    kinds = {name.split(".")[0]: tensor.dtype for name, tensor in backbone.state_dict().items()}
    assert kinds.pop("pixels") == torch.float32
    assert set(kinds.values()) == {torch.bfloat16}


# --- pictures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("guidance", [5.0, 2.0])
def test_greedy_pictures_equal_transformers_generate(folders: dict[str, Path], layout: str, guidance: float) -> None:
    """Two prompts of different length in one batch, guided: every code is the one of transformers' ``generate``."""
    backbone, model = load(folders[layout]), oracle(folders["transformers"])
    ids, mask = (rows[: len(PROMPTS)] for rows in padded(backbone))
    wanted = model.generate(ids, attention_mask=mask, generation_mode="image", do_sample=False, guidance_scale=guidance)
    sampling = Sampling(guidance=guidance, temperature=0)
    for schedule in (AR(), Rolling(window_rows=2)):
        got = draw(backbone, schedule, prompt=PROMPTS, sampling=sampling)
        assert torch.equal(got.tokens.flatten(1), wanted)
    assert len(wanted.unique()) > 8  # a picture, not one colour
    assert not torch.equal(wanted[0], wanted[1])
    pixels = model.decode_image_tokens(wanted)
    assert (got.images - (pixels.clamp(-1, 1) + 1) / 2).abs().max() <= 1e-4


@pytest.mark.parametrize("prompt", ["a red cat", PROMPTS])
@pytest.mark.parametrize("guidance", [1.0, 5.0])
@pytest.mark.parametrize("with_heads", [True, False])
def test_exact_mode_equals_plain_decoding(
    folders: dict[str, Path], prompt: str | list[str], guidance: float, with_heads: bool
) -> None:
    backbone = load(folders["original"])
    heads = None
    if with_heads:
        heads = SpatialHeads(HeadsSpec(backbone.hidden, (1, 2, 3), (1, 2)))
        randomise(heads, 4, 0.3)
        heads.eval().requires_grad_(False)
    options = {"prompt": prompt, "sampling": Sampling(guidance=guidance), "seed": 3}
    plain = draw(backbone, AR(), **options)
    assert plain.report.total_forwards == 64
    for window in (1, 2, 4):
        exact = draw(backbone, Rolling(window_rows=window), heads=heads, **options)
        assert torch.equal(exact.tokens, plain.tokens)


def test_a_batch_is_its_single_pictures(folders: dict[str, Path]) -> None:
    """Left padding, which is not attended, changes nothing; picture k of a batch is the picture of seed + k."""
    backbone = load(folders["transformers"])
    together = draw(backbone, prompt=PROMPTS, seed=9).tokens
    for number, prompt in enumerate(PROMPTS):
        assert torch.equal(draw(backbone, prompt=prompt, seed=9 + number).tokens[0], together[number])


def test_the_published_schedule_runs(folders: dict[str, Path]) -> None:
    """No end-of-line tokens: rounds cost what the paper's formula says for a stream of codes alone."""
    backbone = load(folders["original"])
    heads = SpatialHeads(HeadsSpec(backbone.hidden, (1, 2, 3, 4, 5), (1,)))
    randomise(heads, 4, 0.3)
    heads.eval().requires_grad_(False)
    report = draw(backbone, Rounds(rounds=2, rows_per_block=1, commit="separate"), heads=heads).report
    assert report.total_forwards == 1 + 2 * 2 + 7 * 3


def test_the_stream_is_codes_alone(folders: dict[str, Path]) -> None:
    backbone = load(folders["transformers"])
    stream = backbone.stream((8, 8))
    assert (stream.length, stream.codes, stream.stride) == (64, 64, 8)
    assert not stream.forced_mask.any()
    tokens = draw(backbone, seed=2).tokens
    assert tokens.shape == (1, 8, 8)
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < CODES
    for grid in ((24, 24), (8, 4)):
        with pytest.raises(SSDError, match=rf"cannot draw {grid[0]}x{grid[1]} codes .*choose one of 8x8"):
            draw(backbone, grid=grid)


def test_defaults(folders: dict[str, Path]) -> None:
    backbone = load(folders["transformers"])
    assert backbone.default_sampling == Sampling(guidance=5.0, temperature=1.0, top_k=0, top_p=1.0)
    assert backbone.grids == ((8, 8),)
    assert backbone.codes == CODES
    assert backbone.rope_theta == 10000.0


# --- pixels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(8, 8), (4, 12), (9, 5)])
def test_pixel_decoder_equals_transformers(folders: dict[str, Path], grid: tuple[int, int]) -> None:
    rows, cols = grid
    codes = torch.randint(CODES, (2, rows, cols), generator=torch.Generator().manual_seed(3))
    theirs = oracle(folders["transformers"]).model.vqmodel
    with torch.no_grad():
        theirs.quantize.quant_state_dims = [rows, cols]  # theirs is tied to one square
        pixels = theirs.decode(codes.flatten(1)).permute(0, 2, 3, 1)
    assert pixels.abs().median() < 1  # most of it is not clamped away
    for layout in LAYOUTS:
        ours = load(folders[layout], torch.bfloat16).decode_pixels(codes)
        assert ours.shape == (2, rows * 2, cols * 2, 3)
        assert ours.dtype == torch.float32
        assert (ours - (pixels.clamp(-1, 1) + 1) / 2).abs().max() <= 1e-4


@pytest.mark.parametrize("size", [(16, 16), (8, 24)])
def test_pixel_encoder_equals_transformers(folders: dict[str, Path], size: tuple[int, int]) -> None:
    """Features as transformers computes them; the nearest code by direction, as the original repository picks it."""
    images = torch.rand(2, *size, 3, generator=torch.Generator().manual_seed(4))
    theirs = oracle(folders["transformers"]).model.vqmodel
    with torch.no_grad():
        features = theirs.quant_conv(theirs.encoder(images.permute(0, 3, 1, 2) * 2 - 1)).permute(0, 2, 3, 1)
        book = F.normalize(theirs.quantize.embedding.weight, dim=-1)
        nearest = torch.cdist(F.normalize(features, dim=-1).flatten(0, 2), book).argmin(-1)
    wanted = nearest.view(2, size[0] // 2, size[1] // 2)
    assert len(wanted.unique()) > 5
    for layout in LAYOUTS:
        assert torch.equal(load(folders[layout]).encode_pixels(images), wanted)


def test_the_codebook_counts_by_direction(folders: dict[str, Path]) -> None:
    backbone = load(folders["original"])
    codes = torch.arange(16).view(1, 4, 4)
    before = backbone.decode_pixels(codes)
    backbone.pixels.codebook.mul_(3.0)
    assert (backbone.decode_pixels(codes) - before).abs().max() < 1e-5


def test_pictures_of_no_grid_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(SSDError, match=r"got images of shape \[1, 9, 8, 3\], expected .* multiples of 2"):
        load(folders["original"]).encode_pixels(torch.zeros(1, 9, 8, 3))
