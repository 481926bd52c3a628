"""Fetching published models, with a stand-in for the hub: nothing here touches a network."""

from __future__ import annotations

import inspect as python_inspect
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ssd_core import SSDError, hub
from ssd_core.cli import main


class FakeHub(ModuleType):
    """Repositories in memory. ``snapshot_download`` writes what the patterns allow, as the real one does."""

    def __init__(self) -> None:
        super().__init__("huggingface_hub")
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.failures: list[Exception] = []
        self.calls: list[tuple[str, Path, list[str]]] = []
        self.asked: list[str] = []

    def HfApi(self) -> FakeHub:  # noqa: N802 - the name of the real one
        return self

    def model_info(self, repo_id: str, *, files_metadata: bool) -> SimpleNamespace:
        assert files_metadata
        self.asked.append(repo_id)
        if repo_id not in self.repositories:
            raise ConnectionError(f"no answer for {repo_id}\nmore lines")
        files = self.repositories[repo_id]
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=n, size=len(data)) for n, data in files.items()])

    def snapshot_download(self, repo_id: str, *, local_dir: Path, allow_patterns: list[str]) -> str:
        self.calls.append((repo_id, local_dir, allow_patterns))
        if self.failures:
            raise self.failures.pop()
        for name, data in self.repositories[repo_id].items():
            if any(hub.fnmatch(name, pattern) for pattern in allow_patterns):
                path = local_dir / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        return str(local_dir)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> FakeHub:
    """The hub with our tiny model under the name of Janus-Pro-1B, and files that nobody needs."""
    module = FakeHub()
    files = {path.name: path.read_bytes() for path in tiny_model.iterdir()}
    files |= {"pytorch_model.bin": b"x" * 5000, "modeling_janus.py": b"raise SystemExit", "README.md": b"about"}
    module.repositories["deepseek-community/Janus-Pro-1B"] = files
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    one = hub.PUBLISHED["janus-pro-1b"]
    part = hub.Part(one.parts[0].repository, (*one.parts[0].files, "pixels.safetensors"))
    monkeypatch.setitem(hub.PUBLISHED, "janus-pro-1b", hub.Published(one.folder, (part,), one.licence))
    return module


def answers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Somebody at a terminal who types ``text``."""
    terminal = io.StringIO(text)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)


def run(*arguments: str) -> int:
    return main(["download", "janus-pro-1b", *arguments])


def test_size_and_licence_come_first(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shown before the question; after a no nothing has been fetched."""
    answers(monkeypatch, "n\n")
    assert run("--into", str(tmp_path / "models")) == 0
    out = capsys.readouterr().out
    offered, _, rest = out.partition("[y/N]")
    files = fake.repositories["deepseek-community/Janus-Pro-1B"]
    wanted = [n for n in files if n not in ("pytorch_model.bin", "modeling_janus.py", "heads.safetensors")]
    size = sum(len(files[name]) for name in wanted)
    assert f"deepseek-community/Janus-Pro-1B: {len(wanted)} files, {hub.gigabytes(size)}" in offered
    assert "licence   DeepSeek Model License" in offered
    assert str(tmp_path / "models" / "Janus-Pro-1B") in offered
    assert f"Download {hub.gigabytes(size)} under this licence?" in offered
    assert "nothing was downloaded" in rest
    assert fake.calls == []
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("how", ["asked", "--yes"])
def test_a_model_is_fetched_and_inspected(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    if how == "asked":
        answers(monkeypatch, "y\n")
    assert run("--into", str(tmp_path), *(["--yes"] if how == "--yes" else [])) == 0
    folder = tmp_path / "Janus-Pro-1B"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "pixels.safetensors",
    ]
    assert "48×48 pixels" in capsys.readouterr().out


def test_nobody_to_ask(fake: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--into", str(tmp_path)) == 2
    assert "give --yes to agree" in capsys.readouterr().err
    assert fake.calls == []


def test_ctrl_d_at_the_question_is_a_no(
    fake: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()  # at its end
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert run("--into", str(tmp_path)) == 0
    assert capsys.readouterr().out.endswith("nothing was downloaded\n")
    assert fake.calls == []


def test_an_interrupted_download_is_continued(
    fake: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library keeps what is complete; the message says how to go on, and going on works."""
    fake.failures.append(TimeoutError("the line broke\nwith details"))
    assert run("--into", str(tmp_path), "--yes") == 2
    error = capsys.readouterr().err
    assert "(TimeoutError: the line broke); run the same command again, it continues where it stopped" in error
    assert "details" not in error
    assert run("--into", str(tmp_path), "--yes") == 0


def test_no_network(fake: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.repositories.clear()
    assert run("--into", str(tmp_path)) == 2
    assert (
        "(ConnectionError: no answer for deepseek-community/Janus-Pro-1B); check the network" in capsys.readouterr().err
    )


def test_a_repository_without_weights(fake: FakeHub, tmp_path: Path) -> None:
    files = fake.repositories["deepseek-community/Janus-Pro-1B"]
    for name in [name for name in files if name.endswith(".safetensors")]:
        del files[name]
    with pytest.raises(
        SSDError, match=r"deepseek-community/Janus-Pro-1B has none of the files .* with weights any more"
    ):
        hub.offer("janus-pro-1b", tmp_path)


def test_a_full_disk(fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before anything is fetched; what is there already needs no room."""
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    wanted = hub.offer("janus-pro-1b", tmp_path)
    with pytest.raises(SSDError, match=r"needs .* MB more, .* has 0\.0 MB free; make room or choose another folder"):
        hub.download(wanted)
    assert fake.calls == []
    wanted.target.mkdir()
    (wanted.target / "half").write_bytes(bytes(wanted.bytes - 900))
    hub.download(wanted)


def test_an_incomplete_result_is_told(fake: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del fake.repositories["deepseek-community/Janus-Pro-1B"]["pixels.safetensors"]
    assert run("--into", str(tmp_path), "--yes") == 2
    assert "lacks weights: expected pixels.safetensors" in capsys.readouterr().err


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert run("--yes") == 2
    assert "downloading needs huggingface-hub" in capsys.readouterr().err


def test_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["download", "sdxl"]) == 2
    assert "'janus-pro-7b'" in capsys.readouterr().err
    with pytest.raises(SSDError, match="no model 'sdxl' to download; choose one of janus-pro-1b"):
        hub.offer("sdxl")


# --- the catalogue -------------------------------------------------------------------------------------------------

# Files of the repositories as their pages list them.
LISTINGS = {
    "janus-pro-7b": ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                     "special_tokens_map.json", "model-00001-of-00004.safetensors", "model.safetensors.index.json"],
    "lumina-mgpt-7b-768": ["config.json", "tokenizer.json", "model-00002-of-00002.safetensors", "tokenizer/vqgan.ckpt"],
    "emu3-gen": ["emu3.tiktoken", "emu3_vision_tokens.txt", "model-00007-of-00007.safetensors", "model.safetensors"],
    "emu3-gen-hf": ["config.json", "tokenizer.json", "model-00008-of-00008.safetensors"],
}  # fmt: skip
NEVER = ["pytorch_model.bin", "modeling_emu3.py", "tokenization_emu3.py", "tokenizer/text_tokenizer.json",
         "models/7b/consolidated.pth", "onnx/model.onnx", ".ipynb_checkpoints/config-checkpoint.json"]  # fmt: skip


@pytest.mark.parametrize("name", LISTINGS)
def test_only_what_is_loaded_is_fetched(name: str) -> None:
    patterns = [pattern for part in hub.PUBLISHED[name].parts for pattern in part.files]
    for file in LISTINGS[name]:
        assert any(hub.fnmatch(file, pattern) for pattern in patterns), file
    for file in NEVER:
        assert not any(hub.fnmatch(file, pattern) for pattern in patterns), file


def test_every_model_has_a_folder_and_a_licence() -> None:
    assert len({model.folder for model in hub.PUBLISHED.values()}) == len(hub.PUBLISHED)
    for model in hub.PUBLISHED.values():
        assert "https://" in model.licence
        assert not Path(model.folder).is_absolute()


def test_parts_that_were_converted_are_not_fetched_again(fake: FakeHub, tmp_path: Path) -> None:
    """Lumina-mGPT's pixel decoder comes from another repository as a checkpoint; once converted it is not needed."""
    fake.repositories["Alpha-VLLM/Lumina-mGPT-7B-768"] = {"model-00001-of-00002.safetensors": b"w"}
    fake.repositories["GAIR/Anole-7b-v0.1"] = {"tokenizer/vqgan.ckpt": b"v", "models/7b/consolidated.pth": b"x" * 99}
    both = hub.offer("lumina-mgpt-7b-768", tmp_path)
    assert both.sizes == {"Alpha-VLLM/Lumina-mGPT-7B-768": (1, 1), "GAIR/Anole-7b-v0.1": (1, 1)}
    both.target.mkdir()
    (both.target / "vqgan.safetensors").write_bytes(b"made")
    assert list(hub.offer("lumina-mgpt-7b-768", tmp_path).sizes) == ["Alpha-VLLM/Lumina-mGPT-7B-768"]


def test_the_checkpoint_is_converted_after_the_download(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.repositories["GAIR/Anole-7b-v0.1"] = {"tokenizer/vqgan.ckpt": b"v"}
    one = hub.PUBLISHED["janus-pro-1b"]
    parts = (*one.parts, hub.Part("GAIR/Anole-7b-v0.1", (hub.VQGAN_CKPT,), makes="vqgan.safetensors"))
    monkeypatch.setitem(hub.PUBLISHED, "janus-pro-1b", hub.Published(one.folder, parts, one.licence))
    converted: list[tuple[bytes, Path | None]] = []
    monkeypatch.setattr(
        "ssd_core.cli.download.convert", lambda o: converted.append((o.checkpoint.read_bytes(), o.output))
    )
    assert run("--into", str(tmp_path), "--yes") == 0
    assert converted == [(b"v", tmp_path / "Janus-Pro-1B" / "vqgan.safetensors")]


@pytest.mark.parametrize("inside", [True, False])
def test_the_default_folder_is_comfyuis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inside: bool) -> None:
    place = tmp_path / "ComfyUI" / ("custom_nodes" if inside else "elsewhere") / "ssd" / "ssd_core" / "hub.py"
    monkeypatch.setattr(hub, "__file__", str(place))
    models = Path("models") / "ar_backbones"
    assert hub.models_folder() == (tmp_path / "ComfyUI" / models if inside else models)


def test_the_real_library_has_what_is_called() -> None:
    real = pytest.importorskip("huggingface_hub")
    calls: dict[Callable[..., object], set[str]] = {
        real.snapshot_download: {"repo_id", "local_dir", "allow_patterns"},
        real.HfApi.model_info: {"repo_id", "files_metadata"},
    }
    for function, names in calls.items():
        assert names <= python_inspect.signature(function).parameters.keys()
