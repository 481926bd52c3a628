"""The way to the decoder, above all when it is broken."""

from __future__ import annotations

import shutil
import sys

import pytest
from nodes_fakes import pack_of


@pytest.fixture
def broken(repository, tmp_path, comfy):
    """A copy of the extension whose decoder a test can break; yields (load, folder)."""
    copy = tmp_path / "broken pack.1"
    for name in ("nodes", "ssd_core"):
        shutil.copytree(repository / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "assets"))
    shutil.copy(repository / "__init__.py", copy)
    with pack_of(copy, comfy.modules(), "broken_pack") as load:
        yield load, copy


def message(load):
    with pytest.raises(load("errors").NodeError) as caught:
        load("core").core()
    return str(caught.value)


def test_the_core_is_the_copy_inside_the_pack(pack):
    assert pack("core").core().__name__ == "trial_pack.ssd_core"
    assert pack("core").core("presets").__name__ == "trial_pack.ssd_core.presets"


def test_a_missing_requirement_is_named_with_the_command_that_installs_it(broken):
    load, folder = broken
    start = folder / "ssd_core" / "__init__.py"
    start.write_text("import safetensors_that_nobody_has\n", encoding="utf-8")
    said = message(load)
    assert "'safetensors_that_nobody_has'" in said
    assert "ModuleNotFoundError" in said
    assert f'"{sys.executable}" -m pip install -r "{folder.resolve() / "requirements.txt"}"' in said
    assert "restart ComfyUI" in said


def test_a_broken_requirement_is_told_with_its_own_words(broken):
    load, folder = broken
    start = folder / "ssd_core" / "__init__.py"
    start.write_text("raise OSError('libgomp.so.1: cannot open shared object file')\n", encoding="utf-8")
    assert "OSError: libgomp.so.1" in message(load)


@pytest.mark.parametrize("lost", ["ssd_core", "ssd_core/generation.py"])
def test_missing_files_of_our_own_ask_for_a_new_installation(broken, lost):
    load, folder = broken
    path = folder / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    said = message(load)
    assert "install the extension again" in said
    assert "pip install" not in said


def test_it_works_again_once_it_is_mended(broken):
    load, folder = broken
    start = folder / "ssd_core" / "__init__.py"
    whole = start.read_text(encoding="utf-8")
    start.write_text("import nothing_of_that_name\n", encoding="utf-8")
    message(load)
    start.write_text(whole + "# mended\n", encoding="utf-8")
    assert load("core").core().Sampling().top_p == 1
