"""Spatial heads: the paper's formula and size, files that round-trip, and every file that must be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from toys import ToyBackbone, draw, randomise, toy_heads

from ssd_core import Rolling, Rounds, SSDError, load_heads
from ssd_core.heads import (
    HeadsSpec,
    SpatialHead,
    SpatialHeads,
    read_heads,
    read_heads_spec,
    save_heads,
    update_notes,
)

NAME, PRINT = "toy", "fingerprint-of-the-toy"


def make(neighbours: int = 0, **changes: Any) -> SpatialHeads:
    spec: dict[str, Any] = {"hidden": 16, "horizontal": (1, 2), "vertical": (1, 3), "neighbours": neighbours}
    spec |= {"backbone": NAME, "fingerprint": PRINT, "notes": {"loss": 0.5}, **changes}
    heads = SpatialHeads(HeadsSpec(**spec)).eval().requires_grad_(False)
    randomise(heads, seed=2)
    return heads


def read(path: Path, hidden: int = 16, fingerprint: str = PRINT) -> SpatialHeads:
    return read_heads(path, hidden, NAME, fingerprint)


@pytest.mark.parametrize("sources", [1, 3])
def test_formula(sources: int) -> None:
    """u = W0 [h; e], n = RMSNorm(u), u + W2 (SiLU(W1 n) * W3 n), in numpy."""
    head = SpatialHead(8, sources).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    h, e = (torch.randn(5, 8 * sources, generator=generator, dtype=torch.float64) for _ in range(2))
    w = textbook.weights_of(head)
    u = np.concatenate([h.numpy(), e.numpy()], 1) @ w["mix.weight"].T
    n = u / np.sqrt((u**2).mean(1, keepdims=True) + 1e-6) * w["norm.weight"]
    w1, w3 = np.split(w["gate_up.weight"], 2)
    want = u + (textbook.silu(n @ w1.T) * (n @ w3.T)) @ w["down.weight"].T
    np.testing.assert_allclose(head(h, e).detach().numpy(), want, rtol=1e-9)


def test_size_is_the_papers() -> None:
    """134M parameters a head at width 4096: W0 d x 2d, W1 and W3 2d x d, W2 d x 2d, and the norm's d."""
    with torch.device("meta"):
        head = SpatialHead(4096)
    count = sum(p.numel() for p in head.parameters())
    assert count == 8 * 4096**2 + 4096
    assert round(count / 1e6) == 134


@pytest.mark.parametrize("neighbours", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_round_trip(tmp_path: Path, neighbours: int, dtype: torch.dtype) -> None:
    """Spec and weights come back (weights rounded to the file's dtype), as float32, frozen; no partial file is left."""
    heads, path = make(neighbours), tmp_path / "heads.safetensors"
    path.write_bytes(b"an older file")
    save_heads(heads, path, dtype)
    again = read(path)
    assert again.spec == heads.spec == read_heads_spec(path)
    assert {n: t.shape for n, t in again.state_dict().items()} == {n: t.shape for n, t in heads.state_dict().items()}
    for name, tensor in again.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, heads.state_dict()[name].to(dtype).float())
    assert not again.training
    assert not any(p.requires_grad for p in again.parameters())
    assert [p.name for p in tmp_path.iterdir()] == ["heads.safetensors"]


def test_heads_without_a_fingerprint_fit_any_weights_of_that_width(tmp_path: Path) -> None:
    path = tmp_path / "h.safetensors"
    save_heads(make(fingerprint=""), path)
    assert read(path, fingerprint="another").spec.fingerprint == ""


def rewrite(path: Path, change: Callable[[dict[str, Tensor], dict[str, str]], None]) -> None:
    """Writes a heads file with tensors or metadata changed."""
    save_heads(make(), path)
    tensors = load_file(path)
    metadata = {"format": "ssd-heads", "version": "1", "spec": json.dumps(_spec_of(path))}
    change(tensors, metadata)
    save_file(tensors, path, metadata=metadata)


def _spec_of(path: Path) -> dict[str, Any]:
    size = int.from_bytes(path.read_bytes()[:8], "little")
    spec = json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]["spec"]
    return dict(json.loads(spec))


DAMAGE: dict[str, tuple[Callable[[dict[str, Tensor], dict[str, str]], Any], str]] = {
    "missing tensor": (lambda t, m: t.pop("vertical.3.mix.weight"), r"missing \['vertical\.3\.mix\.weight'\]"),
    "extra tensor": (lambda t, m: t.update(x=torch.zeros(1)), r"unexpected \['x'\]"),
    "wrong shape": (
        lambda t, m: t.update({"horizontal.1.down.weight": torch.zeros(16, 31)}),
        r"horizontal\.1\.down\.weight has shape \[16, 31\], expected \[16, 32\]",
    ),
    "newer version": (lambda t, m: m.update(version="2"), "version 2, this release reads 1"),
    "no version": (lambda t, m: m.pop("version"), "version None"),
    "another format": (lambda t, m: m.update(format="pt"), "not an SSD heads file"),
    "no format": (lambda t, m: m.pop("format"), "not an SSD heads file"),
    "no spec": (lambda t, m: m.pop("spec"), "damaged heads metadata"),
    "broken spec": (lambda t, m: m.update(spec="{"), "damaged heads metadata"),
    "spec is a list": (lambda t, m: m.update(spec="[1]"), "damaged heads metadata"),
    "unknown field": (lambda t, m: m.update(spec=m["spec"][:-1] + ', "depth": 3}'), "damaged heads metadata.*depth"),
    "offsets out of order": (lambda t, m: m.update(spec=m["spec"].replace("[1, 3]", "[3, 1]")), "rising numbers"),
    "offset zero": (lambda t, m: m.update(spec=m["spec"].replace("[1, 3]", "[0, 1]")), "rising numbers"),
    "offsets are texts": (lambda t, m: m.update(spec=m["spec"].replace("[1, 3]", '["1", "3"]')), "whole numbers"),
    "width is a text": (lambda t, m: m.update(spec=m["spec"].replace('"hidden": 16', '"hidden": ""')), "hidden must"),
    "notes are a list": (lambda t, m: m.update(spec=m["spec"].replace('{"loss": 0.5}', "[]")), "notes an object"),
    "too many neighbours": (
        lambda t, m: m.update(spec=m["spec"].replace('"neighbours": 0', '"neighbours": 2')), "neighbours must be"
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    change, match = DAMAGE[damage]
    path = tmp_path / "heads.safetensors"
    rewrite(path, change)
    with pytest.raises(SSDError, match=match):
        read(path)


def test_other_backbones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "heads.safetensors"
    save_heads(make(), path)
    with pytest.raises(SSDError, match=r"width 16 \(toy\).*has width 24"):
        read(path, hidden=24)
    with pytest.raises(SSDError, match=r"weights fingerprint-.*has weights elsewhere"):
        read(path, fingerprint="elsewhere")


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_truncated_files_are_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "heads.safetensors"
    save_heads(make(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SSDError, match=r"cannot read the heads file.*complete"):
        read(path)


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(SSDError, match="there is no heads file"):
            read(path)


def test_notes_change_and_tensors_do_not(tmp_path: Path) -> None:
    """Byte for byte the same tensors, old notes kept, new ones added; a file that is none, or is cut off, stays."""
    path = tmp_path / "heads.safetensors"
    save_heads(make(), path)
    before, data = load_file(path), path.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    spec = update_notes(path, {"recommended": {"preset": "exact"}, "long": "ä" * 1000})
    assert spec.notes == {"loss": 0.5, "recommended": {"preset": "exact"}, "long": "ä" * 1000}
    assert read(path).spec == spec
    after = path.read_bytes()
    assert after[8 + int.from_bytes(after[:8], "little") :] == data[size:]
    assert all(torch.equal(before[name], tensor) for name, tensor in load_file(path).items())
    assert [p.name for p in tmp_path.iterdir()] == ["heads.safetensors"]
    path.write_bytes(data[:-4])
    with pytest.raises(SSDError, match="cannot read the heads file"):
        update_notes(path, {})
    assert path.read_bytes() == data[:-4]


def test_new_heads_are_repeatable_and_independent() -> None:
    """One seed, one head, whatever else there is; no global random numbers are used; they begin as a copy."""
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    many = SpatialHeads.new(HeadsSpec(16, (1, 2), (1, 3), 1), seed=4)
    one = SpatialHeads.new(HeadsSpec(16, (), (3,), 1), seed=4)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, many.state_dict()[name])
    other = SpatialHeads.new(HeadsSpec(16, (), (3,), 1), seed=5)
    assert not torch.equal(
        other.state_dict()["vertical.3.gate_up.weight"], one.state_dict()["vertical.3.gate_up.weight"]
    )
    assert not torch.equal(
        many.state_dict()["vertical.1.gate_up.weight"], many.state_dict()["vertical.3.gate_up.weight"]
    )
    features, embeddings = torch.randn(2, 48), torch.randn(2, 48)
    assert torch.equal(one.head("vertical", 3)(features, embeddings), features[:, 16:32])


def test_load_heads_takes_the_backbones_dtype(tmp_path: Path) -> None:
    backbone = ToyBackbone(2, 3, dtype=torch.float64)
    path = tmp_path / "heads.safetensors"
    save_heads(make(fingerprint=backbone.fingerprint), path)
    heads = load_heads(backbone, path)
    assert {p.dtype for p in heads.parameters()} == {torch.float64}
    assert draw(backbone, Rolling(), heads=heads).tokens.shape == (1, 2, 3)
    with pytest.raises(SSDError, match="no heads for toy are built in"):
        load_heads(backbone)


def test_generate_refuses_heads_that_do_not_fit() -> None:
    backbone = ToyBackbone(2, 3)
    with pytest.raises(SSDError, match="width 24, toy has width 16"):
        draw(backbone, Rolling(), heads=toy_heads(ToyBackbone(2, 3, hidden=24)))
    with pytest.raises(SSDError, match=r"heads are in torch\.float64.*load_heads"):
        draw(backbone, Rolling(), heads=toy_heads(backbone).double())
    with pytest.raises(SSDError, match=r"vertical heads 1 to 2.*has \[1\]"):
        draw(ToyBackbone(4, 3), Rounds(rows_per_block=2), heads=toy_heads(backbone, vertical=1))


def test_heads_without_offsets_are_refused() -> None:
    """Nothing to draft with: an error where they are made or used, not a bare StopIteration."""
    with pytest.raises(SSDError):
        draw(ToyBackbone(2, 3), Rolling(), heads=toy_heads(ToyBackbone(2, 3), 0, 0))
