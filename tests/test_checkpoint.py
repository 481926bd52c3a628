"""The loader: what lies in a folder ends up in a module, or the error says what is wrong and what to do."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ssd_core import SSDError
from ssd_core import tensor_files as files
from ssd_core.checkpoint import INDEX, SINGLE, Checkpoint, Plan, Source, fill, fingerprint_of

CPU = torch.device("cpu")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Target(nn.Module):
    """A module with what models have: a fused matrix, a vector, an integer buffer, a part that stays in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = nn.Linear(4, 5, bias=False)
        self.norm = nn.Parameter(torch.empty(4))
        self.register_buffer("count", torch.tensor(0))
        self.pixels = nn.Conv2d(2, 3, 1)


PLAN: Plan = {
    "fused.weight": Source(("q", "k")),
    "norm": "n",
    "count": "steps",
    "pixels.weight": "p.weight",
    "pixels.bias": "p.bias",
}


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"q": (3, 4), "k": (2, 4), "n": (4,), "p.weight": (3, 2, 1, 1), "p.bias": (3,)}
    out = {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()}
    return {**out, "steps": torch.tensor(7)}


def target() -> Target:
    with torch.device("meta"):
        return Target()


def load(folder: Path, plan: Plan = PLAN, **options: Any) -> Target:
    module = target()
    fill(module, Checkpoint.open(folder), plan, **{"dtype": torch.float32, "device": CPU, **options})
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(tensors(), tmp_path / SINGLE)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Three shards and an index; the first and the last shard also hold an outdated copy of `k`."""
    parts = tensors()
    shard_of = {"q": "a", "k": "b", "n": "b", "p.weight": "a", "p.bias": "c", "steps": "c"}
    shard_of = {key: f"model-{letter}.safetensors" for key, letter in shard_of.items()}
    for name in set(shard_of.values()):
        own = {key: parts[key] for key in parts if shard_of[key] == name}
        if name != shard_of["k"]:
            own["k"] = torch.zeros(2, 4)
        save_file(own, tmp_path / name)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": shard_of}))
    return tmp_path


# --- what is loaded ------------------------------------------------------------------------------------------------


def test_every_tensor_gets_its_place(folder: Path) -> None:
    module, want = load(folder), tensors()
    assert torch.equal(module.fused.weight, torch.cat((want["q"], want["k"])))
    assert torch.equal(module.norm, want["n"])
    assert int(module.count) == 7
    assert torch.equal(module.pixels.weight, want["p.weight"])
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_the_index_decides(sharded: Path) -> None:
    """Tensors come from the shard that the index names, also when another shard has one of the same name."""
    (sharded / SINGLE).write_bytes(b"not looked at")
    module, want = load(sharded), tensors()
    assert torch.equal(module.fused.weight, torch.cat((want["q"], want["k"])))
    assert torch.equal(module.pixels.bias, want["p.bias"])


def test_a_named_file_is_read_alone(sharded: Path) -> None:
    assert set(Checkpoint.open(sharded, "model-c.safetensors").tensors) == {"p.bias", "steps", "k"}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_casting_is_torchs(tmp_path: Path, source: torch.dtype, dtype: torch.dtype) -> None:
    """Every pair of dtypes gives the bits of ``Tensor.to``; subnormal, huge and special numbers included."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = bits.view(torch.bfloat16).to(torch.float64)  # all bfloat16 numbers
    awkward = torch.tensor(
        [1 + 2**-8, 1 + 2**-9, 65519.0, 65520.0, 1e-8, 1e-46, 3.4028235e38, 1e300], dtype=torch.float64
    )
    values = torch.cat((every[~every.isnan()], awkward, torch.tensor([torch.nan], dtype=torch.float64))).to(source)
    save_file({"x": values}, tmp_path / SINGLE)
    with torch.device("meta"):
        module = nn.ParameterDict({"x": nn.Parameter(torch.empty(values.shape))})
    fill(module, Checkpoint.open(tmp_path), {"x": "x"}, dtype=dtype, device=CPU)
    got, want = module["x"].data, values.to(dtype)
    assert got.dtype == dtype
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num().view(torch.uint8), want.nan_to_num().view(torch.uint8))


def test_chunks_leave_no_seams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 24)  # six float32 values at a time
    save_file(tensors(), tmp_path / SINGLE)
    for dtype in (torch.float32, torch.bfloat16):
        want = torch.cat((tensors()["q"], tensors()["k"])).to(dtype)
        assert torch.equal(load(tmp_path, dtype=dtype).fused.weight, want)


def test_some_parts_stay_in_float32(tmp_path: Path) -> None:
    save_file(tensors(torch.bfloat16), tmp_path / SINGLE)
    for dtype in (torch.bfloat16, torch.float64):
        module = load(tmp_path, dtype=dtype, keep_float32=("pixels.",))
        assert module.fused.weight.dtype == module.norm.dtype == dtype
        assert module.pixels.weight.dtype == module.pixels.bias.dtype == torch.float32
        assert module.count.dtype == torch.int64
        assert torch.equal(module.pixels.bias, tensors(torch.bfloat16)["p.bias"].float())


def test_rows_and_transform(folder: Path) -> None:
    """Rows are cut first, then each source is changed, then they are joined."""
    plan = {**PLAN, "fused.weight": Source(("q", "k"), rows=slice(1, 3), transform=lambda t: torch.cat((t, t[:1] * 0)))}
    save_file({**tensors(), "k": torch.ones(3, 4)}, folder / SINGLE)
    with torch.device("meta"):
        module = Target()
        module.fused = nn.Linear(4, 6, bias=False)
    fill(module, Checkpoint.open(folder), plan, dtype=torch.float32, device=CPU)
    q, zero = tensors()["q"], torch.zeros(1, 4)
    assert torch.equal(module.fused.weight, torch.cat((q[1:], zero, torch.ones(2, 4), zero)))
    plain = {**PLAN, "fused.weight": Source(("q",), rows=slice(-2, None))}
    with torch.device("meta"):
        module.fused, module.norm = nn.Linear(4, 2, bias=False), nn.Parameter(torch.empty(4))
        module.pixels = nn.Conv2d(2, 3, 1)
    fill(module, Checkpoint.open(folder), plain, dtype=torch.float32, device=CPU, ignorable=("k",))
    assert torch.equal(module.fused.weight, q[1:])


def test_rows_are_neighbours(folder: Path) -> None:
    with pytest.raises(ValueError, match="rows must be neighbours"):
        load(folder, {**PLAN, "fused.weight": Source(("q", "k"), rows=slice(0, 3, 2))})


def test_a_module_may_come_from_two_files(folder: Path) -> None:
    """What one file has filled, the plan of the next leaves out; its tensors stay."""
    module = target()
    parts = tensors()
    save_file({name: parts[name] for name in ("p.weight", "p.bias")}, folder / "pixels.safetensors")
    save_file({name: parts[name] for name in ("q", "k", "n", "steps")}, folder / SINGLE)
    pixels = {"weight": "p.weight", "bias": "p.bias"}
    fill(module.pixels, Checkpoint.open(folder, "pixels.safetensors"), pixels, dtype=torch.float32, device=CPU)
    kept = module.pixels.weight
    rest = {name: source for name, source in PLAN.items() if not name.startswith("pixels.")}
    fill(module, Checkpoint.open(folder), rest, dtype=torch.bfloat16, device=CPU)
    assert module.pixels.weight is kept
    assert module.norm.dtype == torch.bfloat16


def test_the_meta_device_checks_and_reads_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.TensorInfo, "_read_into", lambda *_: pytest.fail("values were read"))
    module = load(folder, device=torch.device("meta"), dtype=torch.bfloat16, keep_float32=("pixels.",))
    assert module.norm.is_meta
    assert (module.norm.dtype, module.pixels.weight.dtype, module.count.dtype) == (
        torch.bfloat16,
        torch.float32,
        torch.int64,
    )
    change(folder, lambda t: t.pop("k"))
    with pytest.raises(SSDError, match="missing k; unexpected nothing"):
        load(folder, device=torch.device("meta"))


def test_the_plan_must_name_all_and_only_what_is_there(folder: Path) -> None:
    for plan in ({**PLAN, "more": "n"}, {name: PLAN[name] for name in ("norm", "count")}):
        with pytest.raises(ValueError, match="plan without"):
            load(folder, plan, ignorable=("",))


# --- what is refused -----------------------------------------------------------------------------------------------


def change(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    parts = load_file(folder / SINGLE)
    edit(parts)
    save_file(parts, folder / SINGLE)


MISMATCHES: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "missing": (lambda t: t.pop("k"), "missing k; unexpected nothing; check that all files are of one download"),
    "unexpected": (lambda t: t.update(extra=torch.ones(1)), "missing nothing; unexpected extra;"),
    "both": (lambda t: t.update(kk=t.pop("k")), "missing k; unexpected kk;"),
    "shape": (lambda t: t.update(n=torch.ones(5)), r"got n \[5\], expected \[4\] for norm"),
    "fused shape": (lambda t: t.update(k=torch.ones(3, 4)), r"q \[3, 4\], k \[3, 4\], expected \[5, 4\]"),
    "fused width": (lambda t: t.update(k=torch.ones(2, 5)), r"k \[2, 5\], expected \[5, 4\] for fused"),
    "quantised": (lambda t: t.update(n=torch.ones(4, dtype=torch.int8)), "n is torch.int8, expected .*quantised"),
    "float8": (lambda t: t.update(n=torch.ones(4).to(torch.float8_e4m3fn)), "n is torch.float8_e4m3fn, expected"),
    "float for integer": (lambda t: t.update(steps=torch.tensor(7.0)), "steps is torch.float32, expected torch.int64"),
}


@pytest.mark.parametrize("mismatch", MISMATCHES)
def test_mismatches_are_named(folder: Path, mismatch: str) -> None:
    edit, match = MISMATCHES[mismatch]
    change(folder, edit)
    with pytest.raises(SSDError, match=match):
        load(folder)


def test_long_lists_are_cut(folder: Path) -> None:
    change(folder, lambda t: t.update({f"layer.{i}": torch.ones(1) for i in range(30)}))
    with pytest.raises(SSDError, match=r"layer\.0, layer\.1, .* … \(30 in all\)"):
        load(folder)


def test_known_extras_are_passed_over(folder: Path) -> None:
    """A prefix is a prefix: `vision.` lets `vision.x` through and not `revision.x`. Their dtype does not matter."""
    change(folder, lambda t: t.update({"vision.x": torch.ones(2, dtype=torch.int8)}))
    load(folder, ignorable=("vision.",))
    change(folder, lambda t: t.update({"revision.x": torch.ones(1)}))
    with pytest.raises(SSDError, match=r"unexpected revision\.x"):
        load(folder, ignorable=("vision.",))


def test_a_transform_of_the_wrong_shape_is_told(folder: Path) -> None:
    with pytest.raises(SSDError, match=r"got n \[4\], expected \[4\] for norm"):
        load(folder, {**PLAN, "norm": Source(("n",), transform=lambda t: t[:2])})


def overwrite(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def header(entries: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def cut(folder: Path) -> None:
    path = folder / SINGLE
    path.write_bytes(path.read_bytes()[:-3])


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4178912345\n"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (cut, r"is truncated: got \d+ bytes, expected \d+; download it again"),
    "pointer": (overwrite(SINGLE, POINTER), "git-LFS pointer of 75 bytes, not the weights; run `git lfs pull`"),
    "empty": (overwrite(SINGLE, b""), r"\(0 bytes\) is not a complete safetensors file"),
    "web page": (overwrite(SINGLE, b"<!DOCTYPE html><html>not found</html>"), "is not a complete safetensors file"),
    "only a header length": (overwrite(SINGLE, struct.pack("<Q", 500)), "its header would have 500 bytes"),
    "bad header": (overwrite(SINGLE, struct.pack("<Q", 4) + b"{oh}"), "damaged header .*download the file again"),
    "list header": (overwrite(SINGLE, struct.pack("<Q", 2) + b"[]"), "damaged header"),
    "unknown dtype": (overwrite(SINGLE, header({"x": {**ONE, "dtype": "F4"}}, bytes(8))), "damaged header .*F4"),
    "offsets": (overwrite(SINGLE, header({"x": {**ONE, "data_offsets": [0, 4]}}, bytes(8))), "damaged header"),
    "negative": (overwrite(SINGLE, header({"x": {**ONE, "data_offsets": [-8, 0]}}, bytes(8))), "damaged header"),
    "no offsets": (overwrite(SINGLE, header({"x": {"dtype": "F32", "shape": [2]}})), "damaged header .*data_offsets"),
    "nothing": (lambda f: (f / SINGLE).unlink(), r"lacks weights: expected model\.safetensors or .*got no files"),
    "shards without index": (
        lambda f: (f / SINGLE).rename(f / "model-00001-of-00002.safetensors"), f"has .*00002.* but no {INDEX}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_told(folder: Path, damage: str) -> None:
    break_it, match = DAMAGES[damage]
    break_it(folder)
    with pytest.raises(SSDError, match=match):
        load(folder)


INDEX_DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (
        lambda f: (f / "model-b.safetensors").unlink(), r"lacks model-b\.safetensors of the 3 files .*download the miss"
    ),
    "other version": (
        lambda f: save_file({"k": torch.ones(1)}, f / "model-b.safetensors"), r"names n \(model-b\.safetensors\), which"
    ),
    "truncated shard": (overwrite("model-c.safetensors", POINTER), r"model-c\.safetensors is a git-LFS pointer"),
    "not JSON": (overwrite(INDEX, b"version https"), "cannot read .*index.json"),
    "no map": (overwrite(INDEX, b"{}"), "expected JSON with a weight_map"),
    "empty map": (overwrite(INDEX, b'{"weight_map": {}}'), "must map tensors to files beside it"),
    "outside": (overwrite(INDEX, b'{"weight_map": {"q": "../x.safetensors"}}'), r"files beside it, got \.\./x"),
}  # fmt: skip


@pytest.mark.parametrize("damage", INDEX_DAMAGES)
def test_damaged_indices_are_told(sharded: Path, damage: str) -> None:
    break_it, match = INDEX_DAMAGES[damage]
    break_it(sharded)
    with pytest.raises(SSDError, match=match):
        load(sharded)


class Bomb:
    """Unpickling it would raise: what `torch.load` without `weights_only` does to any code in a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise RuntimeError('a pickle was opened')",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt", "vqgan.ckpt"])
def test_pickles_are_named_and_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(SSDError, match=rf"only {name}: such files can run code and are not read.*convert once"):
        load(tmp_path)


def test_a_file_that_shrinks_while_it_is_read(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    cut(folder)
    with pytest.raises(SSDError, match=r"ended while it was read: .* bytes are missing"):
        fill(target(), checkpoint, PLAN, dtype=torch.float32, device=CPU)


# --- fingerprint ---------------------------------------------------------------------------------------------------


def test_fingerprints_are_of_weights_not_of_files(folder: Path, tmp_path: Path) -> None:
    """Names under a plan, shapes and values count; layout, file names and a float32 copy of bfloat16 do not."""
    first = fingerprint_of(Checkpoint.open(folder), PLAN)
    assert first == fingerprint_of(Checkpoint.open(folder), PLAN)
    assert len(first) == 64
    other = tmp_path / "other"
    other.mkdir()
    renamed = {f"model.{name}": t for name, t in tensors().items()}
    plan = {
        name: Source(tuple(f"model.{key}" for key in (item.keys if isinstance(item, Source) else (item,))))
        for name, item in PLAN.items()
    }
    save_file({**renamed, "rest": torch.ones(3)}, other / SINGLE)
    assert fingerprint_of(Checkpoint.open(other), plan) == first
    assert fingerprint_of(Checkpoint.open(other)) != fingerprint_of(Checkpoint.open(folder))
    save_file(tensors(torch.bfloat16), other / SINGLE)
    half = fingerprint_of(Checkpoint.open(other), PLAN)
    save_file(
        {name: t.float() if t.is_floating_point() else t for name, t in load_file(other / SINGLE).items()},
        other / SINGLE,
    )
    assert fingerprint_of(Checkpoint.open(other), PLAN) == half


@pytest.mark.parametrize("key", ["q", "k", "n", "steps", "p.bias"])
def test_any_tensor_changes_the_fingerprint(folder: Path, key: str) -> None:
    before = fingerprint_of(Checkpoint.open(folder), PLAN)
    change(folder, lambda t: t[key].add_(1))
    assert fingerprint_of(Checkpoint.open(folder), PLAN) != before


def test_fingerprints_sample_large_tensors(tmp_path: Path) -> None:
    """First and last values are always looked at; only rows that are used count; empty tensors do no harm."""
    big = torch.zeros(1000, 40)
    prints = []
    for at in (None, (0, 0), (999, 39), (499, 3)):
        x = big.clone()
        if at:
            x[at] = 1
        save_file({"x": x, "empty": torch.zeros(0, 4)}, tmp_path / SINGLE)
        checkpoint = Checkpoint.open(tmp_path)
        prints.append((fingerprint_of(checkpoint), fingerprint_of(checkpoint, {"x": Source(("x",), slice(10, 900))})))
    whole, middle = zip(*prints, strict=True)
    assert len(set(whole[:3])) == 3
    assert len(set(middle[:3])) == 1
