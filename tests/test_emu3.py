"""Emu3 against transformers' own implementation, on tiny checkpoints in both published layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from emu3_checkpoints import CODES, LAYOUTS, PROMPTS, Folders, load, oracle, padded_prompts, parts_of, token_id
from torch import Tensor, nn
from toys import draw, randomise

from ssd_core import AR, Rolling, Sampling
from ssd_core.draft import NoDrafter
from ssd_core.engine import Engine
from ssd_core.families.emu3 import Emu3Backbone
from ssd_core.heads import HeadsSpec, SpatialHeads
from ssd_core.report import Meter

WIDE = (17, 18)  # rows, cols: 323 stream positions


@pytest.fixture
def precise_norms(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes transformers' RMSNorm compute in the dtype of its input: it rounds float64 to float32 by itself."""
    from transformers.models.emu3 import modeling_emu3

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    return lambda: monkeypatch.setattr(modeling_emu3.Emu3RMSNorm, "forward", forward)


def true_features(model: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """transformers' features before the final norm and its logits, by one forward without a cache."""
    kept: list[Tensor] = []
    text_model = next(module for name, module in model.named_modules() if name.endswith("text_model"))
    norm = next(module for name, module in text_model.named_modules() if name in ("norm", "model.norm"))
    handle = norm.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    handle.remove()
    return kept[0], logits


class Fed:
    """The engine's own prefill and forward over a stream of given tokens."""

    def __init__(self, backbone: Emu3Backbone, grid: tuple[int, int]) -> None:
        sampling = Sampling(guidance=3.0)
        seeds = list(range(len(PROMPTS)))
        self.engine = Engine(backbone, backbone.stream(grid), AR(), NoDrafter(), sampling, seeds, Meter())
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


def random_stream(backbone: Emu3Backbone, grid: tuple[int, int], seed: int) -> Tensor:
    """Stream ids [images, length]: random codes, the forced tokens in place."""
    stream = backbone.stream(grid)
    tokens = stream.blank(len(PROMPTS))
    generator = torch.Generator().manual_seed(seed)
    tokens[:, ~stream.forced_mask] = torch.randint(CODES, (len(PROMPTS), stream.codes), generator=generator)
    return tokens


def codes_of(backbone: Emu3Backbone, grid: tuple[int, int], tokens: Tensor) -> Tensor:
    return backbone.stream(grid).to_grid(tokens)


# --- the decoder ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-9), (torch.float32, 5e-4)])
@pytest.mark.parametrize("width", [1, 8, 64, 270])
def test_features_and_logits_equal_transformers(
    emu3_folders: Folders,
    layout: str,
    dtype: torch.dtype,
    most: float,
    width: int,
    precise_norms: Callable[[], None],
) -> None:
    """Rows of different length, windows of ``width`` tokens, after wrong tokens were fed and rolled back."""
    if dtype == torch.float64:
        precise_norms()
    backbone = load(emu3_folders, layout, dtype)
    wrong, right = (random_stream(backbone, WIDE, seed) for seed in (1, 2))
    ids, mask = padded_prompts(backbone, WIDE)
    tail = backbone.full_stream(codes_of(backbone, WIDE, right))[:, : right.shape[1]].repeat(2, 1)
    whole = torch.cat((ids, tail), dim=1)
    features, logits = true_features(
        oracle(emu3_folders, dtype), whole, torch.cat((mask, torch.ones_like(tail)), dim=1)
    )
    begin, first = ids.shape[1] - 1, token_id("<|visual token 000000|>")

    fed = Fed(backbone, WIDE)
    length = right.shape[1]
    keep = 40  # the first tokens are right at once, what follows is overwritten
    fed.feed(torch.cat((right[:, :keep], wrong[:, keep:]), dim=1), 0, length - 1)
    for start in range(keep, length - 1, width):
        fed.feed(right, start, min(start + width, length - 1))
    got, expected = fed.features, features[:, begin:-1]
    assert (got - expected).abs().max() < most
    ours, wanted = backbone.logits(got), logits[:, begin:-1, first : first + CODES]
    assert ours.shape == wanted.shape == (4, length, CODES)
    assert wanted.std() > 0.5  # not all alike
    assert (ours - wanted).abs().max() < most


def test_layouts_are_one_model(emu3_folders: Folders) -> None:
    """Same logits, same pictures, same fingerprint: heads made with one layout fit the other."""
    hf, original = load(emu3_folders, "hf"), load(emu3_folders, "original")
    assert hf.fingerprint == original.fingerprint
    names = dict(original.state_dict())
    assert names.keys() == hf.state_dict().keys()
    assert all(torch.equal(tensor, names[name]) for name, tensor in hf.state_dict().items())
    tokens = random_stream(hf, (4, 5), seed=3)
    features = []
    for backbone in (hf, original):
        fed = Fed(backbone, (4, 5))
        fed.feed(tokens, 0, tokens.shape[1] - 1)
        features.append(backbone.logits(fed.features))
    assert torch.equal(*features)


def test_bfloat16_load_is_transformers(emu3_folders: Folders) -> None:
    """Every weight has the bits that transformers' bfloat16 load has; the picture tokenizer stays in float32."""
    state = {name.removeprefix("model."): t for name, t in parts_of(oracle(emu3_folders, torch.bfloat16))[0].items()}
    for layout in LAYOUTS:
        backbone = load(emu3_folders, layout, torch.bfloat16)
        first = token_id("<|visual token 000000|>")
        assert torch.equal(backbone.embedding.weight, state["embed_tokens.weight"])
        assert torch.equal(backbone.norm.weight, state["norm.weight"])
        assert torch.equal(backbone.head.weight, state["lm_head.weight"][first : first + CODES])
        for i, layer in enumerate(backbone.decoder.layers):
            theirs = {
                name.removeprefix(f"layers.{i}."): t for name, t in state.items() if name.startswith(f"layers.{i}.")
            }
            qkv = torch.cat([theirs[f"self_attn.{part}_proj.weight"] for part in "qkv"])
            gate_up = torch.cat([theirs["mlp.gate_proj.weight"], theirs["mlp.up_proj.weight"]])
            assert torch.equal(layer.attention.qkv.weight, qkv)
            assert torch.equal(layer.mlp.gate_up.weight, gate_up)
            assert torch.equal(layer.attention.out.weight, theirs["self_attn.o_proj.weight"])
            assert torch.equal(layer.mlp.down.weight, theirs["mlp.down_proj.weight"])
            assert torch.equal(layer.attention_norm.weight, theirs["input_layernorm.weight"])
            assert torch.equal(layer.mlp_norm.weight, theirs["post_attention_layernorm.weight"])
        assert {t.dtype for t in backbone.pixels.state_dict().values()} == {torch.float32}
        assert backbone.dtype == torch.bfloat16
        assert not backbone.training
        assert not any(p.requires_grad for p in backbone.parameters())


# --- drawing -------------------------------------------------------------------------------------------------------


def allowed_tokens(rows: int, cols: int) -> Callable[[int, Tensor], list[int]]:
    """The prefix function of the model's documentation: what may follow at each place of a picture."""
    visual = list(range(token_id("<|visual token 000000|>"), token_id("<|visual token 000000|>") + CODES))
    ends = {1: "<|extra_201|>", 2: "<|image end|>", 3: "<|extra_204|>"}

    def allowed(_: int, ids: Tensor) -> list[int]:
        offset = len(ids) - int(torch.nonzero(ids == token_id("<|image token|>"))[0])
        beyond = offset - (cols + 1) * rows
        if beyond > 3:
            return [token_id("<|endoftext|>")]
        if beyond > 0:
            return [token_id(ends[beyond])]
        return [token_id("<|extra_200|>")] if offset % (cols + 1) == 0 else visual

    return allowed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("grid", [(4, 4), (3, 7), (6, 2)])
@pytest.mark.parametrize("negative", ["", "ugly"])
def test_greedy_pictures_equal_transformers_generate(
    emu3_folders: Folders, dtype: torch.dtype, grid: tuple[int, int], negative: str
) -> None:
    """Token for token, end tokens included, with transformers' guidance processor and a prefix function."""
    backbone = load(emu3_folders, "hf", dtype)
    ids, mask = padded_prompts(backbone, grid, negative)
    images = len(PROMPTS)
    expected = oracle(emu3_folders, dtype).generate(
        input_ids=ids[:images],
        attention_mask=mask[:images],
        negative_prompt_ids=ids[images:],
        negative_prompt_attention_mask=mask[images:],
        guidance_scale=3.0,
        prefix_allowed_tokens_fn=allowed_tokens(*grid),
        do_sample=False,
        max_new_tokens=400,
    )[:, ids.shape[1] :]
    sampling = Sampling(guidance=3.0, temperature=0.0)
    got = draw(backbone, AR(), PROMPTS, grid=grid, negative=negative, sampling=sampling)
    assert got.tokens.unique().numel() > 4
    assert torch.equal(backbone.full_stream(got.tokens), expected)


@pytest.mark.parametrize("grid", [(6, 6), (4, 9)])
def test_exact_mode_equals_plain_decoding(emu3_folders: Folders, grid: tuple[int, int]) -> None:
    """With row-above drafts and with heads; few codes to choose from, so that drafts are kept and dropped."""
    backbone = load(emu3_folders)
    heads = SpatialHeads(HeadsSpec(backbone.hidden, (1, 2, 3), (1, 2)))
    randomise(heads, seed=1)
    heads.requires_grad_(False)
    saved = 0
    for seed, sampling in enumerate(
        (backbone.default_sampling, Sampling(3.0, 1.0, top_k=2), Sampling(3.0, 0.5, 4, 0.9))
    ):
        options: dict[str, Any] = {"seed": seed, "grid": grid, "prompt": PROMPTS, "sampling": sampling}
        plain = draw(backbone, AR(), **options)
        for schedule, drafts in ((Rolling(1), None), (Rolling(2), heads), (Rolling(4), None)):
            fast = draw(backbone, schedule, heads=drafts, **options)
            assert torch.equal(plain.tokens, fast.tokens)
            assert torch.equal(plain.images, fast.images)
            saved += plain.report.forwards["verify"] - fast.report.forwards["verify"]
    assert saved >= 10


@pytest.mark.parametrize("schedule", [AR(), Rolling(3, tolerance=4.0)])
@pytest.mark.parametrize("grid", [(4, 5), (5, 4), (1, 3)])
def test_forced_tokens(emu3_folders: Folders, schedule: Any, grid: tuple[int, int]) -> None:
    """Whatever the logits say: rows x cols codes, every end of line, then the three end tokens."""
    backbone = load(emu3_folders)
    got = draw(backbone, schedule, PROMPTS, grid=grid, seed=5).tokens
    rows, cols = grid
    assert got.shape == (len(PROMPTS), rows, cols)
    assert int(got.min()) >= 0
    assert int(got.max()) < CODES
    whole = backbone.full_stream(got)
    assert whole.shape == (len(PROMPTS), rows * (cols + 1) + 3)
    first, eol = token_id("<|visual token 000000|>"), token_id("<|extra_200|>")
    for picture, codes in zip(whole.tolist(), got.tolist(), strict=True):
        lines = [picture[y * (cols + 1) : (y + 1) * (cols + 1)] for y in range(rows)]
        assert lines == [[first + code for code in row] + [eol] for row in codes]
        assert picture[-3:] == [token_id("<|extra_201|>"), token_id("<|image end|>"), token_id("<|extra_204|>")]


def test_stream_ids_embed_as_vocabulary_ids(emu3_folders: Folders) -> None:
    backbone = load(emu3_folders)
    tokens = torch.arange(CODES + 1)
    first = token_id("<|visual token 000000|>")
    expected = [*range(first, first + CODES), token_id("<|extra_200|>")]
    assert torch.equal(backbone.embed(tokens), backbone.embedding.weight[expected])
