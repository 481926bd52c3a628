"""Pictures as training data: small types, parts, growth, and every folder that must be refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from toys import ToyBackbone, toy_heads

from ssd_core import AR, Rolling, Sampling, SSDError, StopRequested, generate
from ssd_core.distill import estimate
from ssd_core.distill.estimate import estimate_drawing
from ssd_core.distill.samples import Part, collect, digest, missing, read_samples

PROMPTS = ["ab", "c", "", "dea", "b", "ee", "da"]


def draw(folder: Path, backbone: ToyBackbone | None = None, prompts: list[str] = PROMPTS, **options: object) -> None:
    settings: dict[str, object] = {"grid": (3, 4), "seed": 5, "batch": 2, **options}
    collect(backbone or ToyBackbone(3, 4), prompts, folder, **settings)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, object]:
    """What each file says; the order of a safetensors file's metadata is random."""
    found: dict[str, object] = {}
    for path in folder.iterdir():
        if path.suffix == ".safetensors":
            with safe_open(str(path), framework="np") as file:
                found[path.name] = file.get_tensor("tokens").tolist(), file.metadata()
        else:
            found[path.name] = path.read_text()
    return found


@pytest.mark.parametrize(("codes", "dtype"), [(11, "uint16"), (2**16 + 1, "uint32")])
def test_tokens_take_the_smallest_type(tmp_path: Path, codes: int, dtype: str) -> None:
    backbone = ToyBackbone(1, 2, codes=codes, hidden=8)
    draw(tmp_path, backbone, ["a"], grid=(1, 2))
    with safe_open(str(next(tmp_path.glob("*.safetensors"))), framework="np") as file:
        assert file.get_tensor("tokens").dtype == dtype
        metadata = file.metadata()
    assert metadata["fingerprint"] == "toy-1"
    assert json.loads(metadata["sampling"])["guidance"] == 1.0
    index = json.loads((tmp_path / "index-1x2.json").read_text())
    assert (index["prompts"], index["seed"], index["grid"], index["fingerprint"]) == (["a"], 5, [1, 2], "toy-1")


def test_parts_together_are_the_whole(tmp_path: Path) -> None:
    """Three machines, in any order, write the very files that one would have written."""
    draw(tmp_path / "one")
    for number in (3, 1, 2):
        draw(tmp_path / "many", part=Part(number, 3))
    assert files(tmp_path / "one") == files(tmp_path / "many")
    with pytest.raises(SSDError, match="part 4 of 3"):
        Part(4, 3)


def test_what_is_missing_is_what_would_be_drawn(tmp_path: Path) -> None:
    plan: dict[str, object] = {"grid": (3, 4), "batch": 2}
    assert missing(PROMPTS, tmp_path / "none", **plan) == PROMPTS  # type: ignore[arg-type]
    draw(tmp_path, part=Part(2, 3))  # the second of the four shards
    assert missing(PROMPTS, tmp_path, **plan) == [*PROMPTS[:2], *PROMPTS[4:]]  # type: ignore[arg-type]
    assert missing(PROMPTS, tmp_path, **plan, part=Part(2, 3)) == []  # type: ignore[arg-type]
    draw(tmp_path)
    assert missing(PROMPTS, tmp_path, **plan) == []  # type: ignore[arg-type]
    assert missing([*PROMPTS, "f"], tmp_path, **plan) == ["da", "f"]  # type: ignore[arg-type]


def test_pictures_can_be_added(tmp_path: Path) -> None:
    """A call with more prompts keeps whole shards and fills up the last one; one with fewer changes nothing."""
    draw(tmp_path / "grown", prompts=PROMPTS[:3])
    first = (tmp_path / "grown" / "samples-3x4-00000.safetensors").stat().st_mtime_ns
    draw(tmp_path / "grown")
    draw(tmp_path / "whole")
    assert files(tmp_path / "grown") == files(tmp_path / "whole")
    assert (tmp_path / "grown" / "samples-3x4-00000.safetensors").stat().st_mtime_ns == first


def test_exact_mode_draws_the_same_pictures(tmp_path: Path) -> None:
    backbone = ToyBackbone(3, 4)
    draw(tmp_path / "ar", backbone)
    draw(tmp_path / "exact", backbone, schedule=Rolling(window_rows=2), heads=toy_heads(backbone))
    plain, exact = (list(read_samples(tmp_path / name, "toy-1")) for name in ("ar", "exact"))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(plain, exact, strict=True))
    assert digest(plain) == digest(exact) != digest(plain[1:])
    with pytest.raises(SSDError, match="need exact decoding, got tolerance 4"):
        draw(tmp_path / "no", backbone, schedule=Rolling(tolerance=4.0))


def test_seeds_go_round_at_their_end(tmp_path: Path) -> None:
    """Picture k has seed + k modulo 2**64, in whichever shard and however many are drawn at once."""
    backbone = ToyBackbone(3, 4)
    draw(tmp_path / "end", backbone, seed=2**64 - 3)
    draw(tmp_path / "single", backbone, seed=2**64 - 3, at_once=1)
    assert files(tmp_path / "end") == files(tmp_path / "single")
    pictures = torch.cat([shard.tokens for shard in read_samples(tmp_path / "end", "toy-1")])
    for number, seed in ((2, 2**64 - 1), (3, 0), (6, 3)):
        assert torch.equal(pictures[number], generate(backbone, PROMPTS[number], schedule=AR(), seed=seed).tokens[0])
    for seed in (-1, 2**64):
        with pytest.raises(SSDError, match="seed must be from 0"):
            draw(tmp_path / "none", backbone, seed=seed)
    assert not (tmp_path / "none").exists()


def test_the_share_that_is_drawn_is_told_row_by_row(tmp_path: Path) -> None:
    """Seven pictures in shards of two; what was there already counts when the next shard is drawn."""
    shares: list[float] = []
    draw(tmp_path, at_once=1, on_share=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert {round(share * 21) for share in shares} == set(range(22))  # three rows a picture


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 6}, "seed 5, now 6"),
        ({"batch": 3}, "batch 2, now 3"),
        ({"prompts": ["x", *PROMPTS]}, "other prompts"),
        ({"sampling": Sampling(guidance=3.0)}, "sampling"),
        ({"backbone": ToyBackbone(3, 4, seed=2)}, "drawn by a backbone with weights toy-1, expected toy-2"),
        ({"grid": (9, 9)}, "cannot draw 9x9"),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    draw(tmp_path)
    before = files(tmp_path)
    with pytest.raises(SSDError, match=message):
        draw(tmp_path, **change)  # type: ignore[arg-type]
    assert files(tmp_path) == before


def test_damaged_files_are_named(tmp_path: Path) -> None:
    draw(tmp_path)
    shard, index = tmp_path / "samples-3x4-00001.safetensors", tmp_path / "index-3x4.json"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:40])
    with pytest.raises(SSDError, match=r"samples-3x4-00001\.safetensors is damaged"):
        list(read_samples(tmp_path, "toy-1"))
    shard.write_bytes(whole)
    index.write_text("{")
    with pytest.raises(SSDError, match=r"cannot read .*index-3x4\.json"):
        draw(tmp_path)


def test_a_stop_leaves_whole_shards_only(tmp_path: Path) -> None:
    polls = 0

    def stop() -> bool:
        nonlocal polls
        polls += 1
        return polls > 20  # in the second shard of 13 forwards each

    with pytest.raises(StopRequested):
        draw(tmp_path, should_stop=stop)
    assert sorted(files(tmp_path)) == ["index-3x4.json", "samples-3x4-00000.safetensors"]


def test_the_estimate_is_of_the_right_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disk to within a factor of two of what is written; time a positive number, proportional to the pictures."""
    ticks = itertools.count()
    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * 1e-3))
    backbone = ToyBackbone(3, 4)
    options = {"grid": (3, 4), "batch": 2, "sampling": Sampling()}
    few = estimate_drawing(backbone, PROMPTS, **options)  # type: ignore[arg-type]
    assert few.seconds > 0
    many = estimate_drawing(backbone, PROMPTS * 1000, **options)  # type: ignore[arg-type]
    assert many.seconds == pytest.approx(1000 * few.seconds)
    draw(tmp_path, backbone)
    written = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert many.bytes == 1000 * few.bytes
    assert written / 2 < few.bytes < 2 * written
