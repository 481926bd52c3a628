"""What is refused before a graph is queued: training and the loaders."""

from __future__ import annotations

import shutil

import pytest
import torch
from nodes_fakes import BUILT_IN

# --- training ------------------------------------------------------------------------------------------------------


@pytest.fixture
def taught(pack, graph):
    """The answer to Train SSD Heads with changes."""
    checks = pack("checks")
    values = {
        "backbone": ["backbone", 0], "prompts": "", "name": "mine", "pictures": 64, "minutes": 15.0, "grid": "auto",
        "seed": 0, "start_from": "nothing",
    }  # fmt: skip

    def answer(backbone=None, **changes):
        settings = {**values, **changes}
        node = graph("train", train=("SSDTrainHeads", settings), backbone=backbone or {})
        return checks.answer(checks.trainer, node, settings["name"])

    return answer


def test_a_training_that_works_is_let_through(taught, heads_of):
    heads_of("narrow.safetensors", hidden=256, neighbours=0)
    for changes in ({}, {"prompts": "a cat\n\na dog", "grid": "16x16"}, {"start_from": "built in"}):
        assert taught(**changes) is True
    assert taught(start_from="narrow.safetensors") is True  # its neighbours are taken over
    assert taught(start_from=["elsewhere", 0], prompts=["elsewhere", 0]) is True


def test_a_start_that_does_not_fit_is_refused_before_hours_of_drawing(taught, heads_of, comfy, pack):
    heads_of("wide.safetensors", hidden=64, backbone="another")
    (comfy.base / "models" / "ssd_heads" / "text.safetensors").write_text("hello", encoding="utf-8")
    assert "trained for features of width 64 (another)" in taught(start_from="wide.safetensors")
    assert "cannot read the heads file" in taught(start_from="text.safetensors")
    assert "cannot read the heads file" in taught(start_from="text.safetensors", backbone={"backbone": ["x", 0]})
    other = comfy.base / "models" / "ar_backbones" / "tuned"
    shutil.copytree(pack("core").core("families.loaders").ASSETS, other)
    pack("host.models").backbone_facts("tuned").name = "tuned"
    assert "no heads for tuned are built in" in taught(start_from="built in", backbone={"backbone": "tuned"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "a:b"}, "without < >"),
        ({"name": "../x"}, "inside models/ssd_heads"),
        ({"prompts": "a cat\na zeppelin"}, "prompt 2 of the list ('a zeppelin')"),
        ({"grid": "7x7"}, "cannot draw 7x7"),
    ],
)
def test_a_training_that_cannot_work_is_refused_in_words(taught, changes, words):
    assert words in taught(**changes)


@pytest.mark.parametrize("value", ["gone.safetensors", 5, True, {"a": 1}])
def test_a_start_file_that_is_not_there_is_refused_in_words(taught, value):
    assert f"there is no heads file {value!r}" in taught(start_from=value)
    assert "start_from is empty" in taught(start_from=None)


# --- the loaders ---------------------------------------------------------------------------------------------------


def test_heads_must_have_been_trained_for_the_connected_backbone(pack, graph, heads_of):
    checks = pack("checks")
    facts = pack("host.models").backbone_facts(BUILT_IN)
    heads_of("fits.safetensors", hidden=256, backbone=facts.name, fingerprint=facts.fingerprint)
    heads_of("wide.safetensors", hidden=64, backbone="another")
    heads_of("old.safetensors", hidden=256, backbone=facts.name, fingerprint="0123456789abcdef")

    def said(choice):
        return checks.answer(checks.heads_loader, graph("heads", heads={"heads": choice}), choice)

    for fine in ("built in", "none (training-free)", "fits.safetensors"):
        assert said(fine) is True
    assert "trained for features of width 64 (another)" in said("wide.safetensors")
    assert "0123456789ab" in said("old.safetensors")
    assert facts.fingerprint[:12] in said("old.safetensors")
    assert "there is no heads file" in said("gone.safetensors")


def test_a_file_that_is_no_heads_file_is_refused(pack, graph, comfy):
    (comfy.base / "models" / "ssd_heads" / "text.safetensors").write_text("hello", encoding="utf-8")
    checks = pack("checks")
    answer = checks.answer(checks.heads_loader, graph("heads"), "text.safetensors")
    assert "cannot read the heads file" in answer


def test_a_backbone_must_be_there_and_known(pack, graph, comfy):
    checks = pack("checks")
    folder = comfy.base / "models" / "ar_backbones" / "foreign"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "unheard_of"}', encoding="utf-8")

    def said(choice, **inputs):
        return checks.answer(checks.backbone_loader, graph("backbone", backbone=inputs), choice)

    assert said(BUILT_IN) is True
    assert "unheard_of" in said("foreign")
    assert "there is no backbone folder 'gone'" in said("gone")
    assert "precision must be one of" in said(BUILT_IN, precision="int8")


def test_what_is_wrong_with_the_backbone_is_told_once_at_its_loader(pack, graph):
    checks = pack("checks")
    sampler = graph(backbone={"backbone": "gone"})
    assert checks.answer(checks.drawing_node, sampler) is True
    assert checks.answer(checks.heads_loader, graph("heads", backbone={"backbone": "gone"}), "built in") is True


def test_tokens_are_read_before_they_are_queued(pack, graph, comfy):
    checks, tokens = pack("checks"), pack("core").core("tokens")
    tokens.save_tokens(
        comfy.base / "input" / "good.safetensors", tokens.ARTokens(torch.zeros(1, 2, 2, dtype=torch.int64))
    )
    (comfy.base / "input" / "bad.safetensors").write_text("hello", encoding="utf-8")
    assert checks.answer(checks.tokens_loader, "good.safetensors") is True
    assert "cannot read the tokens file" in checks.answer(checks.tokens_loader, "bad.safetensors")
    assert "there is no tokens file" in checks.answer(checks.tokens_loader, "gone.safetensors")


def test_our_own_mistakes_are_not_passed_off_as_the_users(pack):
    def broken():
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        pack("checks").answer(broken)
