"""The shipped workflows, exactly as shipped."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from comfy_engine.client import RefusedError
from comfy_engine.graphs import BUILT_IN
from comfy_engine.workflows import WorkflowError, to_prompt, widget_names
from PIL import Image

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.json"))
CORE_NODES = {"PreviewImage", "SaveImage", "LoadImage", "PreviewAny", "Note", "MarkdownNote"}


def content(file):
    return json.loads(file.read_text(encoding="utf-8"))


def is_embedded(workflow):
    """Whether all it loads is the embedded model."""
    loaders = [node for node in workflow["nodes"] if node["type"] == "SSDLoadBackbone"]
    assert loaders
    return all(node["widgets_values"][0] == BUILT_IN for node in loaders)


def names(files):
    return [file.stem for file in files]


EMBEDDED = [file for file in WORKFLOWS if is_embedded(content(file))]
OTHERS = [file for file in WORKFLOWS if file not in EMBEDDED]


@pytest.mark.comfy
@pytest.mark.parametrize("file", EMBEDDED, ids=names(EMBEDDED))
def test_it_runs_as_shipped_and_yields_pictures(comfy, file):
    prompt = to_prompt(content(file), comfy.object_info())
    run = comfy.run(prompt, timeout=600)
    assert run.end == "execution_success"
    shown = [image for node in prompt for image in run.images(node)]
    assert shown
    for image in shown:
        pixels = np.asarray(Image.open(io.BytesIO(comfy.view(image))).convert("RGB"))
        assert pixels.std() > 10, f"{image} is of one colour"
    for node, inner in prompt.items():
        if inner["class_type"] == "SSDSampler":
            assert run.of("ssd.rows", node)[-1]["status"] == "done"


@pytest.mark.comfy
@pytest.mark.parametrize("file", OTHERS, ids=names(OTHERS))
def test_one_for_another_model_says_which_folder_is_missing(comfy, file):
    workflow = content(file)
    folders = [node["widgets_values"][0] for node in workflow["nodes"] if node["type"] == "SSDLoadBackbone"]
    with pytest.raises(RefusedError) as refused:
        comfy.queue(to_prompt(workflow, comfy.object_info()))
    assert refused.value.status == 400
    answer = json.dumps(refused.value.body, ensure_ascii=False)
    for folder in folders:
        assert folder in answer
    assert "ar_backbones" in answer


def test_enough_of_them_are_shipped():
    assert len(EMBEDDED) >= 4
    assert len(OTHERS) >= 3


@pytest.mark.parametrize("file", WORKFLOWS, ids=names(WORKFLOWS))
def test_it_uses_our_nodes_and_core_nodes_only_and_has_a_picture(file):
    kinds = {node["type"] for node in content(file)["nodes"]}
    assert {kind for kind in kinds if not kind.startswith("SSD")} <= CORE_NODES
    assert file.with_suffix(".jpg").exists()


# --- the converter itself ------------------------------------------------------------------------------------------

INFO = {
    "Draw": {
        "input": {
            "required": {
                "model": ["MODEL", {}],
                "text": ["STRING", {"multiline": True}],
                "seed": ["INT", {"control_after_generate": True}],
                "kind": [["a", "b"]],
            },
            "optional": {"forced": ["FLOAT", {"forceInput": True}], "more": ["FLOAT", {}]},
        },
        "input_order": {"required": ["model", "text", "seed", "kind"], "optional": ["forced", "more"]},
    },
    "Load": {"input": {"required": {}}, "input_order": {"required": []}},
}
NODE = {
    "id": 2,
    "type": "Draw",
    "inputs": [{"name": "model", "link": 7}, {"name": "forced", "link": None}],
    "widgets_values": ["a cat", 5, "randomize", "b", 0.5],
}


def test_converter_names_the_saved_values_and_follows_links():
    notes = [{"id": 8, "type": "Note"}, {"id": 9, "type": "Draw", "mode": 2}]
    workflow = {"nodes": [{"id": 1, "type": "Load"}, NODE, *notes], "links": [[7, 1, 0, 2, 0, "MODEL"]]}
    assert to_prompt(workflow, INFO) == {
        "1": {"class_type": "Load", "inputs": {}},
        "2": {
            "class_type": "Draw",
            "inputs": {"model": ["1", 0], "text": "a cat", "seed": 5, "kind": "b", "more": 0.5},
        },
    }


def test_converter_refuses_what_it_does_not_know():
    def convert(**node):
        return to_prompt({"nodes": [NODE | node], "links": [[7, 1, 0, 2, 0, "MODEL"]]}, INFO)

    for wrong in ({"type": "Unknown"}, {"mode": 4}, {"widgets_values": ["a cat", 5, "b", 0.5]}):
        with pytest.raises(WorkflowError):
            convert(**wrong)
    assert widget_names(INFO["Draw"]) == ["text", "seed", None, "kind", "more"]
