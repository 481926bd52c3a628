"""The embedded model as shipped: it loads, its cache is exact, and exact mode draws plain decoding's picture."""

from __future__ import annotations

import functools

import pytest
import torch

from ssd_core import AR, Rolling, Rounds, Sampling, generate, load_backbone, load_heads
from ssd_core.distill.losses import each_head, head_name
from ssd_core.families.emoji import EmojiBackbone
from ssd_core.families.loaders import ASSETS
from ssd_core.heads import HeadsSpec, SpatialHeads
from ssd_core.transformer import CacheWindow, Decoder, KVCache, rope_table

SMALLEST = (16, 16)


@functools.cache
def embedded() -> EmojiBackbone:
    backbone = load_backbone()
    assert isinstance(backbone, EmojiBackbone)
    return backbone


@functools.cache
def built_in_heads() -> SpatialHeads:
    return load_heads(embedded())


def prompt() -> str:
    """A prompt that the vocabulary holds, whatever it is."""
    known = [word for word in ("red", "heart", "grass") if word in embedded().words()]
    return " ".join(known or embedded().words()[:2])


def test_it_loads_and_fits_its_promises() -> None:
    backbone = embedded()
    assert (24, 24) in backbone.grids
    assert SMALLEST in backbone.grids
    assert backbone.dtype == torch.float32
    assert sum(file.stat().st_size for file in ASSETS.iterdir()) < 30 * 2**20
    words = backbone.words()
    assert len(set(words)) == len(words) > 20
    for word in words:
        backbone.prompt_ids([word], "", backbone.default_grid, guided=False)


def test_heads_fit_the_weights() -> None:
    spec = built_in_heads().spec
    assert spec.fingerprint == embedded().fingerprint
    assert spec.horizontal[:1] == (1,)
    assert spec.vertical[:1] == (1,)


class Stretch:
    """Prompt and the first ``length`` random stream tokens in float64, fed piece by piece into a cache."""

    def __init__(self, length: int, seed: int = 0) -> None:
        backbone = embedded()
        rows = backbone.prompt_rows([prompt()], "", SMALLEST, guided=False)
        stream = backbone.stream(SMALLEST)
        tokens = stream.blank(1)[:, :length]
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(backbone.codes, tokens.shape, generator=generator)
        tokens = torch.where(stream.forced_mask[:length], tokens, drawn)
        self.decoder = exact_decoder()
        self.x = torch.cat((rows.embeddings, backbone.embed(tokens)), 1).double()
        places = torch.cat((rows.positions, rows.stream_positions[:, :length]), 1)[0]
        self.rope = rope_table(places, self.decoder.spec.head_dim, backbone.rope_theta)
        self.cache = KVCache(self.decoder.spec, 1, self.x.shape[1], torch.float64, torch.device("cpu"))

    def whole(self) -> torch.Tensor:
        """One causal pass over everything, without a cache."""
        return self.decoder(self.x, self.rope)

    def feed(self, start: int, end: int) -> torch.Tensor:
        """Features of positions start .. end - 1, every query seeing the slots up to its own."""
        cos, sin = self.rope
        slots = torch.arange(start, end)
        window = CacheWindow(slots, end, (torch.arange(end) <= slots[:, None])[None, None])
        return self.decoder(self.x[:, start:end], (cos[slots], sin[slots]), self.cache, window)


@functools.cache
def exact_decoder() -> Decoder:
    return load_backbone(dtype=torch.float64).decoder


@pytest.mark.parametrize("width", [1, 17, 40])
def test_cached_windows_equal_one_pass(width: int) -> None:
    """K-wide cached features of the real weights in float64 equal one uncached causal pass, below 1e-9."""
    fed = Stretch(60 if width == 1 else 17 * 12)
    whole, length = fed.whole(), fed.x.shape[1]
    for start in range(0, length, width):
        end = min(start + width, length)
        assert float((fed.feed(start, end) - whole[:, start:end]).abs().max()) < 1e-9


@pytest.mark.parametrize(("keep", "width"), [(30, 1), (30, 17), (47, 40)])
def test_rolled_back_windows_equal_one_pass(keep: int, width: int) -> None:
    """Drafts that were fed and replaced leave nothing behind: features are those of the new tokens, below 1e-9."""
    right = Stretch(100)
    whole, length = right.whole(), right.x.shape[1]
    wrong = Stretch(100, seed=1).x
    truth, right.x = right.x, torch.cat((right.x[:, :keep], wrong[:, keep:]), 1)
    right.feed(0, length)
    right.x = truth
    for start in range(keep, length, width):
        end = min(start + width, length)
        assert float((right.feed(start, end) - whole[:, start:end]).abs().max()) < 1e-9


@pytest.mark.parametrize("rows", [1, 2])
def test_exact_mode_with_hopeless_heads(rows: int) -> None:
    """Heads with random weights cost forwards, never a code."""
    backbone = embedded()
    torch.manual_seed(0)
    heads = SpatialHeads(HeadsSpec(backbone.hidden, (1, 2, 3, 4, 5), (1, 2, 3), neighbours=1)).requires_grad_(False)
    for parameter in heads.parameters():
        parameter.normal_(std=0.05)
    want = generate(backbone, prompt(), schedule=AR(), grid=SMALLEST, seed=12)
    got = generate(backbone, prompt(), heads=heads, schedule=Rolling(rows), grid=SMALLEST, seed=12)
    good = generate(backbone, prompt(), heads=built_in_heads(), schedule=Rolling(rows), grid=SMALLEST, seed=12)
    assert torch.equal(got.tokens, want.tokens)
    assert got.report.acceptance is not None
    assert good.report.acceptance is not None
    assert got.report.acceptance < good.report.acceptance


@pytest.mark.parametrize(("seed", "guidance"), [(0, None), (7, 1.0)])
@pytest.mark.parametrize("drafts", ["heads", "copies"])
def test_exact_mode_is_plain_decoding(seed: int, guidance: float | None, drafts: str) -> None:
    """Float32, heads and copies: the same codes and pixels as AR, in a fraction of the forwards."""
    backbone = embedded()
    sampling = backbone.default_sampling if guidance is None else Sampling(guidance)
    want = generate(backbone, prompt(), schedule=AR(), sampling=sampling, grid=SMALLEST, seed=seed)
    assert want.report.total_forwards == 256
    heads = built_in_heads() if drafts == "heads" else None
    got = generate(backbone, prompt(), heads=heads, sampling=sampling, grid=SMALLEST, seed=seed)
    assert torch.equal(got.tokens, want.tokens)
    assert torch.equal(got.images, want.images)
    assert got.report.total_forwards < 128


@pytest.mark.slow
def test_exact_mode_on_the_default_grid() -> None:
    """24x24, a batch of different prompts, several windows."""
    backbone, heads = embedded(), built_in_heads()
    prompts = list(backbone.words()[:2])
    want = generate(backbone, prompts, schedule=AR(), seed=2**40)
    for schedule in (Rolling(1), Rolling(3), Rolling(window_tokens=30)):
        got = generate(backbone, prompts, heads=heads, schedule=schedule, seed=2**40)
        assert torch.equal(got.tokens, want.tokens)


def test_heads_draft_better_than_copies() -> None:
    """What the heads are for: more drafts accepted and fewer forwards than copying a neighbouring code."""
    heads, copies = (
        generate(embedded(), prompt(), heads=h, schedule=Rolling(1), grid=SMALLEST, batch=3, seed=20).report
        for h in (built_in_heads(), None)
    )
    assert heads.acceptance is not None
    assert copies.acceptance is not None
    assert heads.acceptance_by_direction["vertical"] > copies.acceptance_by_direction["left"]
    assert heads.total_forwards < copies.total_forwards


def test_published_rounds_run_on_the_real_model() -> None:
    got = generate(embedded(), prompt(), heads=built_in_heads(), schedule=Rounds(1), grid=SMALLEST)
    assert got.report.total_forwards <= 1 + 3 + 15
    assert int(got.tokens.max()) < embedded().codes


def test_pictures() -> None:
    """Pixels in 0..1; most patches of a drawn picture are read back as the code they were drawn from."""
    backbone = embedded()
    got = generate(backbone, [prompt(), backbone.words()[0]], grid=SMALLEST, seed=3)
    assert got.images.shape == (2, 128, 128, 3)
    assert 0 <= float(got.images.min()) < float(got.images.max()) <= 1
    assert float(got.images.std()) > 0.05  # not one flat colour
    again = backbone.encode_pixels(got.images)
    assert again.shape == got.tokens.shape
    repeated = backbone.decode_pixels(again)
    assert float((repeated - got.images).abs().mean()) < 0.05


def test_the_heads_file_says_what_it_is() -> None:
    """In the form in which `distill` writes it, so that whoever reads one file can read all."""
    spec = built_in_heads().spec
    assert {"grids", "training", "acceptance", "recommended", "licence", "author"} <= spec.notes.keys()
    names = {head_name(*name) for name in each_head(SpatialHeads(spec), (24, 24))}
    assert dict(spec.notes["acceptance"]).keys() == names  # type: ignore[call-overload]
    assert dict(spec.notes["recommended"]).keys() == {"preset", "window_rows", "tolerance"}  # type: ignore[call-overload]
