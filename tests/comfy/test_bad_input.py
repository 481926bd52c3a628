"""Each class of bad input: refused before it is queued where that can be known, else an error on the right node."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from comfy_engine import graphs
from comfy_engine.client import RefusedError
from comfy_engine.graphs import changed, node, picture
from safetensors.torch import load_file, save_file

from ssd_core.families.loaders import ASSETS
from ssd_core.heads import HeadsSpec, SpatialHeads, save_heads

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def models(comfy_server, tiny_model):
    """Models and heads that fit badly, in the server's own folders."""
    backbones, heads = (comfy_server.base / "models" / name for name in ("ar_backbones", "ssd_heads"))
    for folder in (backbones, heads):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(tiny_model, backbones / "tiny", dirs_exist_ok=True)
    shutil.copytree(ASSETS, backbones / "nan", dirs_exist_ok=True)
    weights = load_file(backbones / "nan" / "model.safetensors")
    name = next(key for key in weights if "norm" in key)
    weights[name] = torch.full_like(weights[name], float("nan"))
    save_file(weights, backbones / "nan" / "model.safetensors")
    shutil.copytree(ASSETS, backbones / "cut", dirs_exist_ok=True)
    whole = (backbones / "cut" / "model.safetensors").read_bytes()
    (backbones / "cut" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    (backbones / "foreign").mkdir(exist_ok=True)
    (backbones / "foreign" / "config.json").write_text('{"model_type": "unheard_of"}', encoding="utf-8")
    save_heads(
        SpatialHeads(HeadsSpec(32, (1,), (1,), backbone="tiny", fingerprint="0" * 64)), heads / "narrow.safetensors"
    )
    (heads / "text.safetensors").write_text("no heads at all", encoding="utf-8")
    return comfy_server.base


def refused(comfy, prompt, node_id, *words):
    """The server refuses the prompt with status 400, and what it says of the node has these words."""
    with pytest.raises(RefusedError) as caught:
        comfy.queue(prompt)
    assert caught.value.status == 400
    assert node_id in caught.value.body["node_errors"], caught.value.body
    said = caught.value.texts(node_id)
    for word in words:
        assert word.lower() in said.lower(), said
    assert "traceback" not in said.lower()


def failed(comfy, prompt, node_id, *words):
    """The run ends as an error on that node, whose text has these words; nothing is shown; the next run works."""
    run = comfy.run(prompt)
    assert run.end == "execution_error"
    assert run.error["node_id"] == node_id
    for word in words:
        assert word.lower() in run.error["exception_message"].lower(), run.error["exception_message"]
    assert not any(run.images(name) for name in prompt)
    return run


def wrong(comfy, prompt, node_ids, *words):
    """Refused or failed, whichever the case allows, on one of the nodes and with these words."""
    try:
        run = comfy.wait(comfy.queue(prompt))
    except RefusedError as error:
        nodes, said = list(error.body["node_errors"]), " ".join(map(error.texts, error.body["node_errors"]))
    else:
        assert run.end == "execution_error"
        nodes, said = [run.error["node_id"]], run.error["exception_message"]
    assert set(nodes) <= set(node_ids)
    for word in words:
        assert word.lower() in said.lower(), said


# --- known before queueing -----------------------------------------------------------------------------------------


def test_an_unknown_word(comfy):
    refused(comfy, picture(positive="a cat riding a submarine"), "sampler", "submarine", "does not know")
    refused(comfy, picture(negative="blurry"), "sampler", "blurry", "does not know")


@pytest.mark.parametrize("grid", ["", "24", "axb", "24x", "0x24", "-1x4", "24x24x24"])
def test_a_grid_that_is_none(comfy, grid):
    if grid == "":
        assert comfy.run(picture(grid=grid, seed=601)).end == "execution_success"  # an empty field is `auto`
    else:
        refused(comfy, picture(grid=grid), "sampler", "grid", repr(grid), "24x24")


def test_a_grid_that_the_backbone_was_not_trained_for(comfy):
    refused(comfy, picture(grid="7x9"), "sampler", "7x9", "24x24")


def test_keep_rows_out_of_range(comfy):
    prompt = picture(seed=602)
    prompt["again"] = changed(prompt, "sampler", tokens=["sampler", 1])["sampler"]
    prompt["again image"] = node("PreviewImage", images=["again", 0])
    del prompt["image"], prompt["report"]  # ComfyUI would queue what is right and leave out what is wrong
    for keep in (16, 100):
        refused(comfy, changed(prompt, "again", keep_rows=keep), "again", "keep_rows", str(keep), "15")
        # The size is that of the tokens, which the graph tells before anything is drawn.
        refused(comfy, changed(prompt, "again", keep_rows=keep, grid="auto"), "again", "keep_rows", str(keep))
    refused(comfy, changed(prompt, "again", keep_rows=-1), "again", "-1")


def test_rows_to_keep_of_nothing(comfy):
    refused(comfy, picture(keep_rows=3), "sampler", "keep_rows", "tokens")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cfg", 101.0),
        ("cfg", math.nan),
        ("cfg", math.inf),
        ("cfg", -0.5),
        ("temperature", -0.5),
        ("temperature", math.nan),
        ("top_p", 1.5),
        ("top_p", 0.0),
        ("top_p", math.nan),
        ("top_k", -7),
        ("batch_size", 0),
        ("batch_size", 65),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_a_number_out_of_range(comfy, name, value):
    wrong(comfy, picture(**{name: value}), ("sampler",), name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("tolerance", math.nan), ("tolerance", -1.0), ("window_rows", 0), ("rounds", 17), ("rows_per_block", 6)],
)
def test_a_verification_out_of_range(comfy, name, value):
    refused(comfy, picture(preset="custom", **{name: value}), "verification", name)


@pytest.mark.parametrize(("name", "value"), [("preset", "fast"), ("mode", "both"), ("commit", "never")])
def test_a_choice_that_there_is_not(comfy, name, value):
    refused(comfy, picture(**{name: value}), "verification", name, value)


def test_a_backbone_that_is_not_there(comfy):
    refused(comfy, picture(backbone="Janus-Pro-7B"), "backbone", "Janus-Pro-7B", "ar_backbones")
    refused(comfy, picture(backbone="../../input"), "backbone", "ar_backbones")


def test_heads_that_are_not_there(comfy):
    refused(comfy, picture(heads="gone.safetensors"), "heads", "gone.safetensors", "ssd_heads")


def test_heads_of_another_backbone(comfy, models):
    refused(comfy, picture(heads="narrow.safetensors"), "heads", "trained for", "tiny", "emoji-scenes")


def test_a_file_that_holds_no_heads(comfy, models):
    refused(comfy, picture(heads="text.safetensors"), "heads", "text.safetensors")


def test_built_in_heads_for_another_backbone(comfy, models):
    refused(comfy, picture(backbone="tiny", grid="6x6"), "heads", "was trained for", graphs.NO_HEADS)


def test_tokens_files(comfy, comfy_server):
    (comfy_server.base / "input" / "notes.safetensors").write_text("no tokens", encoding="utf-8")
    for name, words in {
        "gone.safetensors": ("gone.safetensors",),
        "../../../secret.safetensors": ("secret.safetensors",),
        "notes.safetensors": ("notes.safetensors",),
    }.items():
        prompt = {
            "backbone": node("SSDLoadBackbone", backbone=graphs.BUILT_IN, precision="auto"),
            "load": node("SSDLoadTokens", file=name),
            "decode": node("SSDDecodeTokens", backbone=["backbone", 0], tokens=["load", 0]),
            "image": node("PreviewImage", images=["decode", 0]),
        }
        refused(comfy, prompt, "load", *words)


def test_a_missing_connection(comfy):
    prompt = picture()
    del prompt["sampler"]["inputs"]["backbone"]
    refused(comfy, prompt, "sampler", "backbone")


# --- known only while it runs --------------------------------------------------------------------------------------


def test_weights_with_nan_end_as_an_error_not_as_a_picture(comfy, models):
    prompt = picture(backbone="nan", heads=graphs.NO_HEADS)
    run = failed(comfy, prompt, "sampler", "NaN or infinity", "logits")
    events = run.of("ssd.rows")
    assert [event["kind"] for event in events].count("begin") == [event["kind"] for event in events].count("end") == 1
    assert (events[-1]["kind"], events[-1]["status"]) == ("end", "failed")
    assert comfy.run(picture(seed=603)).end == "execution_success"


@pytest.mark.parametrize(("backbone", "words"), [("cut", ("model.safetensors",)), ("foreign", ("unheard_of",))])
def test_a_damaged_or_unknown_model(comfy, models, backbone, words):
    prompt = picture(backbone=backbone, heads=graphs.NO_HEADS)
    wrong(comfy, prompt, ("backbone", "sampler"), *words)


def test_tokens_of_another_size_than_asked_for(comfy):
    prompt = picture(seed=604)
    prompt["again"] = changed(prompt, "sampler", tokens=["sampler", 1], grid="24x24", keep_rows=4)["sampler"]
    prompt["again image"] = node("PreviewImage", images=["again", 0])
    del prompt["image"], prompt["report"]
    wrong(comfy, prompt, ("again",), "16", "24")


def test_heads_and_sampler_with_different_precisions(comfy):
    prompt = picture(seed=605)
    prompt["half"] = changed(prompt, "backbone", precision="bfloat16")["backbone"]
    refused(comfy, changed(prompt, "heads", backbone=["half", 0]), "sampler", "same Load AR Backbone")
