"""The decoder: a cached window of any width gives what step by step and plain causal attention give.

Proven against a textbook Llama in numpy, and against transformers' LlamaModel where that is installed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import textbook
import torch
from torch import Tensor
from toys import randomise

from ssd_core import transformer
from ssd_core.attention_kernels import without_cudnn_attention
from ssd_core.transformer import CacheWindow, Decoder, DecoderSpec, HeadNorm, KVCache, rope_table, rotate

LENGTH = 14
SPECS = {
    "one group": DecoderSpec(16, 2, 2, 2, 8, 24, 1e-6),
    "grouped": DecoderSpec(16, 3, 4, 2, 8, 24, 1e-5),
    "one key head": DecoderSpec(16, 2, 4, 1, 8, 24, 1e-6),
    "query/key norm": DecoderSpec(16, 2, 4, 2, 8, 24, 1e-6, qk_norm=True),
}


def make(name: str, dtype: torch.dtype = torch.float64) -> Decoder:
    decoder = Decoder(SPECS[name])
    randomise(decoder, seed=3)
    return decoder.to(dtype).eval().requires_grad_(False)


def inputs(sequences: int = 2, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randn(sequences, length, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tables(length: int = LENGTH) -> tuple[Tensor, Tensor]:
    return rope_table(torch.arange(length)[:, None], 8, 100.0)


class Fed:
    """A cache fed slot by slot or window by window, every query seeing the slots up to its own."""

    def __init__(self, decoder: Decoder, sequences: int) -> None:
        self.decoder, self.sequences = decoder, sequences
        self.cache = KVCache(decoder.spec, sequences, LENGTH, torch.float64, torch.device("cpu"))
        for store in (self.cache.keys, self.cache.values):
            store.fill_(1e6)  # a slot that is read before it is written would be seen at once

    def feed(self, x: Tensor, start: int, end: int) -> Tensor:
        slots = torch.arange(start, end)
        rows = (torch.arange(self.sequences)[:, None] * (LENGTH + 1) + slots).reshape(-1)
        mask = torch.arange(end) <= slots[:, None]
        cos, sin = tables()
        window = CacheWindow(rows, end, None if end - start == 1 else mask[None, None])
        return self.decoder(x[:, start:end], (cos[start:end], sin[start:end]), self.cache, window)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("width", [1, 2, 3, 5, 7, LENGTH])
def test_cached_windows_equal_uncached(name: str, width: int) -> None:
    """Feeding ``width`` positions a forward equals one causal pass over everything, to 1e-9 in float64."""
    decoder, x = make(name), inputs()
    fed = Fed(decoder, 2)
    pieces = [fed.feed(x, start, min(start + width, LENGTH)) for start in range(0, LENGTH, width)]
    assert (torch.cat(pieces, 1) - decoder(x, tables())).abs().max() < 1e-9


@pytest.mark.parametrize("name", SPECS)
def test_roll_back_and_overwrite(name: str) -> None:
    """After drafts are overwritten, features are those of the new tokens; nothing of the old ones is left."""
    decoder, wrong, right = make(name), inputs(seed=1), inputs(seed=2)
    for keep, width in itertools.product((0, 3, 6), (1, 4, 9)):
        x = torch.cat((wrong[:, :keep], right[:, keep:]), 1)
        fed = Fed(decoder, 2)
        fed.feed(wrong, 0, 12)
        starts = range(keep, LENGTH, width)
        pieces = [fed.feed(x, start, min(start + width, LENGTH)) for start in starts]
        assert (torch.cat(pieces, 1) - decoder(x, tables())[:, keep:]).abs().max() < 1e-9


def test_hidden_slots_do_not_matter() -> None:
    """Slots beyond the window, and the scratch slot of padding queries, are never looked at."""
    decoder, x = make("grouped"), inputs(sequences=1)
    fed = Fed(decoder, 1)
    fed.feed(x, 0, 5)
    before = fed.feed(x, 5, 9)
    for store in (fed.cache.keys, fed.cache.values):
        store[:, :, 9:] = float("nan")
    assert torch.equal(fed.feed(x, 5, 9), before)


def test_sequences_may_feed_different_positions() -> None:
    """Two sequences at their own pace in one forward: each gets the features of its own prefix."""
    decoder, x = make("grouped"), inputs()
    fed = Fed(decoder, 2)
    fed.feed(x, 0, 6)
    starts = torch.tensor([2, 5])
    slots = starts[:, None] + torch.arange(4)
    rows = (torch.arange(2)[:, None] * (LENGTH + 1) + slots).reshape(-1)
    mask = (torch.arange(9) <= slots[..., None])[:, None]
    picked = x[torch.arange(2)[:, None], slots]
    cos, sin = tables()
    out = decoder(picked, (cos[slots], sin[slots]), fed.cache, CacheWindow(rows, 9, mask))
    full = decoder(x, tables())
    assert (out - full[torch.arange(2)[:, None], slots]).abs().max() < 1e-9


@pytest.mark.parametrize("name", SPECS)
def test_equals_the_textbook(name: str) -> None:
    decoder, x = make(name), inputs(sequences=1)
    spec = decoder.spec
    angle = textbook.angles(np.arange(LENGTH)[:, None].astype(float), 8, 100.0)
    cos, sin = torch.from_numpy(np.cos(angle)), torch.from_numpy(np.sin(angle))
    rotary = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    want = textbook.llama(
        textbook.weights_of(decoder), spec.heads, spec.kv_heads, spec.head_dim, x[0].numpy(), angle, spec.norm_eps
    )
    assert np.abs(decoder(x, rotary)[0].numpy() - want).max() < 1e-9


@pytest.mark.parametrize("positions", [[[0], [1], [57]], [[0, 0], [3, 7], [-2, 90], [-1, -1]]])
def test_rope_tables_and_rotation(positions: list[list[int]]) -> None:
    """One axis is Llama's rope, two axes turn half of the pairs each; float32 tables hold 1e-5."""
    place = torch.tensor(positions, dtype=torch.float32)
    cos, sin = rope_table(place, 8, 10000.0)
    angle = textbook.angles(place.double().numpy(), 8, 10000.0)
    assert cos.dtype == sin.dtype == torch.float32
    assert cos.shape == sin.shape == (len(positions), 8)
    np.testing.assert_allclose(cos.numpy(), np.tile(np.cos(angle), 2), atol=1e-5)
    np.testing.assert_allclose(sin.numpy(), np.concatenate((-np.sin(angle), np.sin(angle)), 1), atol=1e-5)
    x = torch.randn(1, len(positions), 3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = rotate(x, (cos, sin))
    for head in range(3):
        want = textbook.rotate(x[0, :, head].numpy(), angle)
        np.testing.assert_allclose(turned[0, :, head].numpy(), want, atol=1e-4)
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1))


def test_rope_refuses_widths_it_cannot_split() -> None:
    with pytest.raises(ValueError, match="split over 2"):
        rope_table(torch.zeros(1, 2), 6, 100.0)


@pytest.mark.parametrize(("change", "match"), [({"kv_heads": 3}, "multiple of kv_heads"), ({"head_dim": 7}, "even")])
def test_spec_refuses_impossible_shapes(change: dict[str, int], match: str) -> None:
    fields = {"hidden": 16, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate": 8, "norm_eps": 1e-6}
    with pytest.raises(ValueError, match=match):
        DecoderSpec(**{**fields, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["one group", "grouped", "one key head"])
def test_equals_transformers_llama(name: str) -> None:
    """The same weights in transformers' own LlamaModel give the same features."""
    transformers = pytest.importorskip("transformers")
    decoder, x = make(name), inputs()
    spec = decoder.spec
    config = transformers.LlamaConfig(
        vocab_size=4,
        hidden_size=spec.hidden,
        intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=spec.norm_eps,
        rope_theta=100.0,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        attn_implementation="eager",
    )
    model = transformers.LlamaModel(config).double().eval()
    model.load_state_dict(as_transformers(decoder), strict=False)
    model.norm = torch.nn.Identity()
    with torch.no_grad():
        want = model(inputs_embeds=x, use_cache=False).last_hidden_state
    assert (decoder(x, tables()) - want).abs().max() < 1e-4  # its norms and tables are float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_query_key_norm_equals_chameleons_bit_by_bit(dtype: torch.dtype) -> None:
    """Statistics of each head alone, eps 1e-5, a weight and a bias for every head and channel."""
    chameleon = pytest.importorskip("transformers.models.chameleon.modeling_chameleon")
    ours, theirs = HeadNorm(3, 8), chameleon.ChameleonLayerNorm((3, 8))
    randomise(ours, seed=5)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 7, 3, 8, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    x[0, 0] *= 1e-3  # where eps counts
    x = x.to(dtype)
    assert torch.equal(ours.to(dtype)(x), theirs.to(dtype)(x.view(-1, 3, 8)).view(x.shape))


def as_transformers(decoder: Decoder) -> dict[str, Tensor]:
    """The weights under transformers' names."""
    spec, state = decoder.spec, {}
    parts: Sequence[int] = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.head_dim)
    for name, tensor in decoder.state_dict().items():
        name = name.replace("attention_norm", "input_layernorm").replace("mlp_norm", "post_attention_layernorm")
        name = name.replace("attention.out", "self_attn.o_proj").replace("mlp.down", "mlp.down_proj")
        if "attention.qkv" in name:
            for letter, part in zip("qkv", tensor.split(list(parts)), strict=True):
                state[name.replace("attention.qkv", f"self_attn.{letter}_proj")] = part
        elif "gate_up" in name:
            for kind, part in zip(("gate", "up"), tensor.chunk(2), strict=True):
                state[name.replace("gate_up", f"{kind}_proj")] = part
        else:
            state[name] = tensor
    return state


def cudnn() -> bool:
    return torch.backends.cuda.cudnn_sdp_enabled()


CUDA = torch.device("cuda")


@pytest.fixture
def cudnn_on() -> Iterator[None]:
    before = cudnn()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.usefixtures("cudnn_on")
@pytest.mark.parametrize("wanted", [True, False])
def test_the_switch_of_cudnns_attention_is_put_back(wanted: bool) -> None:
    """As the user had it, after errors and when entered twice; on other devices nobody touches it."""
    torch.backends.cuda.enable_cudnn_sdp(wanted)
    with without_cudnn_attention(torch.device("cpu")):
        assert cudnn() is wanted
    with without_cudnn_attention(CUDA):
        with suppress(ZeroDivisionError), without_cudnn_attention(CUDA):
            assert not cudnn()
            raise ZeroDivisionError
        assert not cudnn()
    assert cudnn() is wanted


@pytest.mark.usefixtures("cudnn_on")
def test_threads_put_the_switch_back_in_any_order() -> None:
    inside, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with without_cudnn_attention(CUDA):
            inside.set()
            assert leave.wait(20)
            seen.append(cudnn())

    thread = threading.Thread(target=other)
    with without_cudnn_attention(CUDA):
        thread.start()
        assert inside.wait(20)
    assert not cudnn()  # the first to come has gone, the other is still there
    leave.set()
    thread.join(20)
    assert seen == [False]
    assert cudnn()


@pytest.mark.usefixtures("cudnn_on")
def test_a_forward_keeps_cudnns_attention_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own device, around every layer, with and without a cache."""
    asked: list[torch.device] = []

    @contextmanager
    def as_on_a_gpu(device: torch.device) -> Iterator[None]:
        asked.append(device)
        with without_cudnn_attention(CUDA):
            yield

    seen: list[bool] = []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(transformer, "without_cudnn_attention", as_on_a_gpu)
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *tensors, **options: (seen.append(cudnn()), attend(*tensors, **options))[1],
    )
    decoder = make("grouped")
    decoder(inputs(), tables())
    Fed(decoder, 2).feed(inputs(), 0, 4)
    assert seen == [False] * 2 * decoder.spec.layers
    assert asked == [torch.device("cpu")] * 2
    assert cudnn()
