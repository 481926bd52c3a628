"""Where models and tokens are looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture
def folders(pack):
    module = pack("host.folders")
    module.register()
    return module


@pytest.fixture
def backbones(comfy):
    return comfy.base / "models" / "ar_backbones"


def test_roots_that_the_user_has_named_before_stay_and_the_own_one_comes_first(pack, comfy, tmp_path):
    module = pack("host.folders")
    table = module.folder_paths
    table.add_model_folder_path("ar_backbones", str(tmp_path / "other"))  # as extra_model_paths.yaml does
    module.register()
    module.register()  # a second time changes nothing
    own = str(comfy.base / "models" / "ar_backbones")
    assert table.folder_names_and_paths["ar_backbones"] == ([own, str(tmp_path / "other")], {"folder"})
    assert table.folder_names_and_paths["ssd_heads"][1] == {".safetensors"}


def test_models_are_folders_with_a_config_up_to_two_levels_deep(folders, backbones):
    model(backbones / "zeta")
    model(backbones / "Alpha")
    model(backbones / "owner" / "model")
    model(backbones / "a" / "b" / "too-deep")
    model(backbones / ".cache" / "hidden")
    (backbones / "no-config").mkdir()
    (backbones / "config.json").write_text("{}", encoding="utf-8")
    model(backbones / "zeta" / "vision_tokenizer")  # a part of the model, not a model
    assert folders.backbone_names() == ["Alpha", "owner/model", "zeta"]


def test_a_name_is_found_with_either_separator(folders, backbones):
    folder = model(backbones / "owner" / "model")
    assert folders.backbone_folder("owner/model") == folder
    assert folders.backbone_folder("owner\\model") == folder


def test_the_first_root_wins_and_every_root_is_searched(pack, folders, backbones, tmp_path):
    other = tmp_path / "other"
    folders.folder_paths.add_model_folder_path("ar_backbones", str(other))
    folders.folder_paths.add_model_folder_path("ar_backbones", str(tmp_path / "missing"))
    first, second = model(backbones / "same"), model(other / "same")
    assert second.is_dir()
    only = model(other / "only")
    assert folders.backbone_folder("same") == first
    assert folders.backbone_folder("only") == only


@pytest.mark.parametrize("name", ["gone", "../outside", "..\\outside", "", "."])
def test_a_missing_model_is_told_with_where_it_was_looked_for_and_what_is_there(pack, folders, backbones, name):
    model(backbones / "present")
    model(backbones.parent / "outside")
    with pytest.raises(pack("errors").NodeError, match=r"present") as caught:
        folders.backbone_folder(name)
    assert str(backbones) in str(caught.value)


def test_heads_are_listed_with_slashes_and_found_with_either_separator(pack, folders, comfy):
    file = comfy.base / "models" / "ssd_heads" / "janus" / "heads.safetensors"
    file.parent.mkdir()
    file.touch()
    (file.parent / "readme.txt").touch()
    assert folders.heads_names() == ["janus/heads.safetensors"]
    assert folders.heads_file("janus\\heads.safetensors") == file
    with pytest.raises(pack("errors").NodeError, match=r"janus/heads\.safetensors"):
        folders.heads_file("gone.safetensors")


def test_tokens_of_input_and_output_are_told_apart(folders, comfy):
    for place in (
        "input/a.safetensors",
        "output/tokens/b.safetensors",
        "output/picture.png",
        "output/1/2/3/4.safetensors",
    ):
        (comfy.base / place).parent.mkdir(parents=True, exist_ok=True)
        (comfy.base / place).touch()
    assert folders.tokens_names() == ["a.safetensors", "tokens/b.safetensors [output]"]
    for name in folders.tokens_names():
        assert folders.tokens_file(name).is_file()
    assert (
        folders.tokens_file("tokens\\b.safetensors [output]") == (comfy.base / "output/tokens/b.safetensors").resolve()
    )


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "../secret.safetensors [output]", "sub/../../secret.safetensors"]
)
def test_tokens_outside_the_two_folders_are_refused(pack, folders, comfy, name):
    (comfy.base / "secret.safetensors").touch()
    (comfy.base / "input" / "sub").mkdir()
    with pytest.raises(pack("errors").NodeError, match="there is no tokens file"):
        folders.tokens_file(name)


@pytest.mark.parametrize("name", ["a.safetensors [temp]", "x" * 5000, "nul\0.safetensors"])
def test_names_that_cannot_be_files_are_refused_in_words(pack, folders, name):
    with pytest.raises(pack("errors").NodeError, match="there is no tokens file"):
        folders.tokens_file(name)


def test_a_stamp_changes_with_any_file_and_only_then(folders, backbones):
    folder = model(backbones / "one")
    weights = folder / "model.safetensors"
    weights.write_bytes(b"12345")
    first = folders.stamp(folder)
    assert folders.stamp(folder) == first
    os.utime(weights, ns=(1, 1))
    second = folders.stamp(folder)
    (folder / "part").mkdir()
    (folder / "part" / "more.json").touch()
    third = folders.stamp(folder)
    other = folders.stamp(model(backbones / "two"))
    assert len({first, second, third, other}) == 4


def test_a_stamp_follows_links_and_ignores_hidden_files(folders, backbones, tmp_path):
    folder, part = model(backbones / "one"), tmp_path / "part"
    part.mkdir()
    (folder / "part").symlink_to(part, target_is_directory=True)
    first = folders.stamp(folder)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").touch()
    (folder / ".lock").touch()
    assert folders.stamp(folder) == first
    (part / "vision.safetensors").touch()
    assert folders.stamp(folder) != first


def test_a_stamp_below_a_hidden_folder_still_sees_the_files(folders, tmp_path):
    folder = model(tmp_path / ".git" / "one")
    first = folders.stamp(folder)
    (folder / "model.safetensors").touch()
    assert folders.stamp(folder) != first


def test_a_stamp_of_one_file(folders, tmp_path):
    file = tmp_path / "heads.safetensors"
    file.write_bytes(b"1")
    first = folders.stamp(file)
    file.write_bytes(b"12")
    assert folders.stamp(file) != first


def test_heads_are_found_again_under_the_name_they_got(folders, comfy):
    file = folders.named_heads_file("mine\\janus.safetensors")
    assert file == folders.named_heads_file(" mine/janus ") == comfy.base / "models/ssd_heads/mine/janus.safetensors"
    assert not file.parent.exists()
    file.parent.mkdir()
    file.write_bytes(b"")
    assert folders.heads_file(folders.heads_name(file)) == file
    for name in ("janus v1.5", "a/../b", "console", "com10", "heads (2)", "头", "nul_heads"):
        assert folders.named_heads_file(name).suffix == ".safetensors"


@pytest.mark.parametrize(
    "name",
    [
        "", "  ", "../x", "/etc/x", "a/../../x", "a/", ".", "a/.", "a/..", "x\0y", ".safetensors", "a:b", "x?", "a<b",
        'say "x"', "a|b", "a*", "line\nend", "dot.", "folder. /x", "folder./x", "CON", "nul", "Com1.heads", "lpt9/x",
    ],
)  # fmt: skip
def test_heads_that_would_not_be_a_file_of_their_folder_are_refused(pack, folders, comfy, name):
    """Nor what could be none on another system."""
    with pytest.raises(pack("errors").NodeError, match="models/ssd_heads"):
        folders.named_heads_file(name)
    assert list((comfy.base / "models" / "ssd_heads").iterdir()) == []


def test_training_keeps_its_work_where_no_list_offers_it(folders, comfy):
    work = folders.training_folder("mine/janus", "abc")
    assert comfy.base / "user" in work.parents
    assert work != folders.training_folder("mine/janus", "abd")
