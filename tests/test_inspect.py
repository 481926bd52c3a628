"""What a model folder is, needs and lacks, told without reading its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ssd_core import Sampling, SSDError, generate, load_backbone
from ssd_core.cli import main
from ssd_core.heads import HeadsSpec, SpatialHeads, save_heads
from ssd_core.inspection import inspect
from ssd_core.memory import PROMPT_TOKENS, memory_of
from ssd_core.transformer import KVCache


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    """A tiny model as it lies in ComfyUI's models folder: models/ar_backbones/OWNER/NAME."""
    return Path(shutil.copytree(tiny_model, tmp_path / "models" / "ar_backbones" / "owner" / "tiny"))


def heads(path: Path, folder: Path, hidden: int | None = None, fingerprint: str | None = None) -> Path:
    backbone = load_backbone(folder)
    own = backbone.fingerprint if fingerprint is None else fingerprint
    spec = HeadsSpec(hidden or backbone.hidden, (1, 2, 3), (1, 2), backbone="tiny", fingerprint=own)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_heads(SpatialHeads(spec), path)
    return path


def test_facts_are_those_of_the_loaded_model(folder: Path) -> None:
    found, loaded = inspect(folder), load_backbone(folder)
    backbone = found.backbone
    assert backbone is not None
    assert found.problem is None
    assert (found.model_type, backbone.name) == ("emoji-scenes", loaded.name)
    assert (backbone.fingerprint, backbone.grids) == (loaded.fingerprint, loaded.grids)
    assert {t.device.type for t in backbone.parameters()} == {"meta"}
    files = [folder / "model.safetensors", folder / "pixels.safetensors"]
    assert 0 < sum(found.stored.values()) < sum(file.stat().st_size for file in files)
    (folder / "inner").mkdir()
    shutil.copy(folder / "pixels.safetensors", folder / "inner" / "pixels.safetensors")
    assert sum(inspect(folder).stored.values()) > sum(found.stored.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_memory_is_what_a_run_takes(
    folder: Path, dtype: torch.dtype, guidance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights to the byte (pixels stay in float32), keys and values to the slot."""
    loaded, facts = load_backbone(folder, dtype=dtype), inspect(folder).backbone
    assert facts is not None
    sampling = Sampling(guidance=guidance)
    need = memory_of(facts, dtype, (4, 6), 2, sampling.guidance_rows)
    assert need.weights == sum(t.numel() * t.element_size() for t in [*loaded.parameters(), *loaded.buffers()])
    caches: list[KVCache] = []

    class Watched(KVCache):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            caches.append(self)

    monkeypatch.setattr("ssd_core.feed.KVCache", Watched)
    generate(loaded, "a red cat", batch=2, grid=(4, 6), sampling=sampling)
    prompt = loaded.prompt_rows(["a red cat"], "", (4, 6), guided=False).length
    taken = sum(store[:, :, 0].numel() * store.element_size() for store in (caches[0].keys, caches[0].values))
    assert need.cache == taken * (caches[0].slots - prompt + PROMPT_TOKENS)
    assert need.working > 0
    assert need.total == need.weights + need.cache + need.working


def test_heads_that_fit_are_found(folder: Path, tmp_path: Path) -> None:
    """In the model's folder, in ComfyUI's folder for heads and where one points; each once, with the reason if not."""
    (folder / "heads.safetensors").unlink()
    fits = heads(folder / "heads.safetensors", folder)
    shelf = tmp_path / "models" / "ssd_heads"
    narrow = heads(shelf / "narrow.safetensors", folder, hidden=8)
    foreign = heads(shelf / "foreign.safetensors", folder, fingerprint="f" * 64)
    own = heads(tmp_path / "own.safetensors", folder)
    (shelf / "broken.safetensors").write_bytes(b"no heads")
    found = inspect(folder, heads=[own, shelf, folder])
    assert [(file.path, file.problem is None) for file in found.heads] == [
        (fits, True),
        (foreign, False),
        (narrow, False),
        (own, True),
    ]
    problems = {file.path: file.problem for file in found.heads}
    assert "was trained for features of width 8 (tiny), but emoji-scenes has width 16" in str(problems[narrow])
    assert "was trained for tiny with weights ffffffffffff" in str(problems[foreign])


def test_a_named_heads_file_that_is_none_is_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "no.safetensors").write_bytes(b"no heads")
    with pytest.raises(SSDError, match="cannot read the heads file"):
        inspect(folder, heads=[tmp_path / "no.safetensors"])
    with pytest.raises(SSDError, match="there is no heads file"):
        inspect(folder, heads=[tmp_path / "gone.safetensors"])


def test_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--batch", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("emoji-scenes\n")
    for line in (
        "family       model_type 'emoji-scenes' in config.json",
        "picture      48×48 pixels, 6×6 codes (rows × columns)",
        "other sizes  4×4, 4×6, 6×4",
        "keys and values of 3 pictures",
        "heads.safetensors: horizontal 1–5 and vertical 1–3, fit",
        "missing      nothing",
    ):
        assert line in out


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got == inspect(folder).to_dict()
    assert got["pixels"] == [48, 48]
    assert got["memory_bytes"]["bfloat16"]["weights"] < got["memory_bytes"]["float32"]["weights"]
    assert [item["fits"] for item in got["heads"]] == [True]


def test_what_is_missing_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What can be known is printed, the problem is the error, the exit code says so."""
    (folder / "pixels.safetensors").unlink()
    assert main(["inspect", str(folder)]) == 2
    captured = capsys.readouterr()
    assert "on disk" in captured.out
    assert "missing      see the error below" in captured.out
    assert "lacks weights: expected pixels.safetensors" in captured.err
    assert main(["inspect", str(folder), "--json"]) == 2
    assert "lacks weights: expected pixels.safetensors" in json.loads(capsys.readouterr().out)["problem"]


def test_no_model_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert "expected a folder with a config.json" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(SSDError, match=r"names model_type 'bert'; supported: 'emoji-scenes', .*'janus'"):
        inspect(tmp_path)


def test_janus_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers.models.janus")
    from tiny_janus import write_original, write_transformers

    folders = [write_transformers(tmp_path / "one")]
    folders.append(write_original(tmp_path / "two", folders[0], shards=3))
    for folder in folders:
        assert main(["inspect", str(folder)]) == 0
        assert "16×16 pixels, 8×8 codes" in capsys.readouterr().out
    (folders[1] / "model-00002-of-00003.safetensors").unlink()
    assert main(["inspect", str(folders[1])]) == 2
    assert "lacks model-00002-of-00003.safetensors of the 3 files" in capsys.readouterr().err
