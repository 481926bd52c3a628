"""Weights in ComfyUI's care: shared, placed, forgotten. Loads the embedded model."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from nodes_fakes import BUILT_IN


@pytest.fixture
def models(pack):
    pack("host.folders").register()
    return pack("host.models")


def test_equal_choices_share_one_set_of_weights(models):
    first = models.load_backbone(BUILT_IN, "auto")
    assert models.load_backbone(BUILT_IN, "float32") is first  # what auto is on a CPU
    assert models.load_backbone(BUILT_IN, "bfloat16") is not first
    heads = models.load_heads(first, "built in")
    assert models.load_heads(first, "built in") is heads
    assert models.load_heads(first, "none (training-free)") is None


def test_precision_is_what_was_asked_for(models):
    half = models.load_backbone(BUILT_IN, "bfloat16")
    assert half.module.dtype == torch.bfloat16
    assert next(models.load_heads(half, "built in").module.parameters()).dtype == torch.bfloat16


def test_weights_can_be_trained_with_although_comfyui_runs_in_inference_mode(models):
    with torch.inference_mode():
        backbone = models.load_backbone(BUILT_IN, "auto")
        heads = models.load_heads(backbone, "built in")
    tensors = [*backbone.module.parameters(), *heads.module.parameters()]
    assert not any(tensor.is_inference() for tensor in tensors)


def test_nothing_but_the_outputs_keeps_weights_alive(models, comfy):
    backbone = models.load_backbone(BUILT_IN, "auto")
    heads = models.load_heads(backbone, "built in")
    models.make_resident(backbone, heads, 0)
    comfy.loads.clear()  # ComfyUI's own list is weak as well
    gone = [weakref.ref(backbone.module), weakref.ref(heads.module), weakref.ref(backbone.patcher)]
    del backbone, heads
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_a_changed_file_is_loaded_anew(models, comfy, tiny_model):
    import shutil

    folder = comfy.base / "models" / "ar_backbones" / "tiny"
    shutil.copytree(tiny_model, folder)
    first = models.load_backbone("tiny", "auto")
    (folder / "config.json").touch()
    assert models.load_backbone("tiny", "auto") is not first


def test_everything_is_placed_with_one_request(models, comfy):
    backbone = models.load_backbone(BUILT_IN, "auto")
    heads = models.load_heads(backbone, "built in")
    models.make_resident(backbone, heads, 12345)
    ((asked, wishes),) = comfy.loads
    assert asked == [backbone.patcher, heads.patcher]
    assert wishes["memory_required"] == 12345
    models.make_resident(backbone, None, 1)
    assert comfy.loads[1][0] == [backbone.patcher]


def test_heads_of_another_load_are_refused_before_anything_is_placed(pack, models, comfy):
    backbone, half = models.load_backbone(BUILT_IN, "auto"), models.load_backbone(BUILT_IN, "bfloat16")
    heads = models.load_heads(half, "built in")
    with pytest.raises(pack("errors").NodeError, match="connect the same Load AR Backbone"):
        models.make_resident(backbone, heads, 0)
    assert comfy.loads == []


def test_weights_that_fit_only_in_part_are_an_error(pack, models):
    backbone = models.load_backbone(BUILT_IN, "auto")
    backbone.module.norm.to("meta")  # stands for "left behind on another device"
    with pytest.raises(pack("errors").NodeError, match="only a part of the weights"):
        models.make_resident(backbone, None, 0)


def test_weights_that_are_not_placed_at_all_are_an_error(pack, models, comfy):
    comfy.device = torch.device("meta")  # stands for a GPU
    backbone = models.load_backbone(BUILT_IN, "auto")
    with pytest.raises(pack("errors").NodeError, match="left the weights on cpu, as it does with --novram"):
        models.make_resident(backbone, None, 0)


@pytest.mark.parametrize(
    ("place", "wanted", "same"),
    [("mps:0", "mps", True), ("cuda:1", "cuda:1", True), ("cuda:0", "cuda:1", False), ("cpu", "mps", False)],
)
def test_a_device_is_known_with_and_without_its_number(pack, place, wanted, same):
    """ComfyUI computes on `mps`, and tensors there say `mps:0`."""
    assert pack("host.memory")._is_at(torch.device(place), torch.device(wanted)) is same


def test_stop_is_heard_while_heads_are_loaded(pack, models, comfy):
    backbone = models.load_backbone(BUILT_IN, "auto")
    comfy.stop_at = comfy.polls + 5
    with pytest.raises(pack("host.stop").Stopped):
        models.load_heads(backbone, "built in")
    assert models.load_heads(backbone, "built in").module.spec.vertical


def test_stop_is_heard_while_loading(pack, models, comfy):
    comfy.stop = True
    with pytest.raises(pack("host.stop").Stopped):
        models.load_backbone(BUILT_IN, "auto")
    assert models.load_backbone(BUILT_IN, "auto").module.codes == 512


def test_stop_is_heard_in_the_middle_of_loading(pack, models, comfy):
    models.load_backbone(BUILT_IN, "auto")
    asked = comfy.polls
    assert asked > 20  # once a tensor
    comfy.polls, comfy.stop_at = 0, asked // 2
    with pytest.raises(pack("host.stop").Stopped):
        models.load_backbone(BUILT_IN, "auto")
    assert comfy.polls == asked // 2


def test_facts_need_no_weights_and_are_looked_up_once(models):
    facts = models.backbone_facts(BUILT_IN)
    assert all(weight.device.type == "meta" for weight in facts.parameters())
    assert models.backbone_facts(BUILT_IN) is facts
    assert facts.fingerprint == models.load_backbone(BUILT_IN, "auto").module.fingerprint


def test_what_an_error_report_shows_of_a_link_is_readable(models):
    backbone = models.load_backbone(BUILT_IN, "auto")
    assert str(backbone) == "AR backbone emoji scenes (built in) (float32, cpu)"
    assert str(models.load_heads(backbone, "built in")) == "SSD heads built in"


def graphs_of(pack, backbone):
    return pack("core").core("graphs").graphs_of(backbone.module)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda comfy: setattr(comfy.args, "disable_cuda_graphs", True), "--disable-cuda-graphs"),
        (lambda comfy: setattr(comfy.vram, "name", "LOW_VRAM"), "LOW_VRAM mode, where weights move"),
        (lambda comfy: setattr(comfy.vram, "name", "NO_VRAM"), "NO_VRAM mode, where weights move"),
        (lambda comfy: setattr(comfy, "dynamic", True), "dynamic VRAM"),
    ],
)
@pytest.mark.parametrize("whose", ["backbone", "heads"])
def test_no_graphs_where_comfyui_has_none_or_weights_move(pack, models, comfy, change, words, whose):
    backbone = models.load_backbone(BUILT_IN, "auto")
    heads = models.load_heads(backbone, "built in")
    models.make_resident(backbone, heads, 0)
    assert graphs_of(pack, backbone).barred is None
    change(comfy)
    if words == "dynamic VRAM":  # a new core's patcher, of either
        (backbone if whose == "backbone" else heads).patcher.is_dynamic = lambda: True
    models.make_resident(backbone, heads, 0)
    assert words in graphs_of(pack, backbone).barred
    drawn = (
        pack("core")
        .core()
        .generate(backbone.module, "a cat", heads=heads.module, grid=(16, 16), schedule=pack("core").core().Rounds(0))
    )
    assert drawn.report.graphs == f"off: {graphs_of(pack, backbone).barred}"
    comfy.args.__dict__.clear()
    comfy.vram.name = "NORMAL_VRAM"
    backbone.patcher.is_dynamic = heads.patcher.is_dynamic = lambda: False
    models.make_resident(backbone, heads, 0)
    assert graphs_of(pack, backbone).barred is None


def test_graphs_give_their_memory_back_when_the_weights_leave(pack, models, monkeypatch):
    backbone = models.load_backbone(BUILT_IN, "auto")
    released = []
    monkeypatch.setattr(graphs_of(pack, backbone), "release", lambda: released.append(1))
    backbone.patcher.detach(unpatch_all=False)  # loaded again: the weights stay
    assert released == []
    backbone.patcher.detach()
    assert released == [1]
