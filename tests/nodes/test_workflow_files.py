"""The shipped workflows as files: links that hold, nodes that do not overlap, words that the model knows."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest
from nodes_fakes import BUILT_IN

from ssd_core import load_backbone

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "workflows").glob("*.json"))
FOLDERS = {"janus_pro": "Janus-Pro-7B", "lumina_mgpt": "Lumina-mGPT-7B-768", "emu3": "Emu3-Gen"}
TITLE_HEIGHT = 30

workflows = pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])


def content(file):
    return json.loads(file.read_text(encoding="utf-8"))


def of_kind(workflow, *kinds):
    return [node for node in workflow["nodes"] if node["type"] in kinds]


@workflows
def test_every_link_is_known_at_both_ends(file):
    workflow = content(file)
    nodes = {node["id"]: node for node in workflow["nodes"]}
    for number, origin, slot, target, place, _ in workflow["links"]:
        assert number in nodes[origin]["outputs"][slot]["links"]
        assert nodes[target]["inputs"][place]["link"] == number
    known = {link[0] for link in workflow["links"]}
    for node in workflow["nodes"]:
        used = {slot["link"] for slot in node.get("inputs", []) if slot.get("link") is not None}
        used |= {link for slot in node.get("outputs", []) for link in slot.get("links") or []}
        assert used <= known
    assert workflow["version"] == 0.4
    assert workflow["last_node_id"] >= max(nodes)
    assert workflow["last_link_id"] >= max(known)


@workflows
def test_no_two_nodes_overlap(file):
    def box(node):
        (x, y), (width, height) = node["pos"], node["size"]
        return x, y - TITLE_HEIGHT, x + width, y + height

    for one, other in combinations(content(file)["nodes"], 2):
        a, b = box(one), box(other)
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, f"{one['type']} {one['id']} and {other['type']} {other['id']}"


@workflows
def test_it_explains_itself_and_shows_a_picture(file):
    workflow = content(file)
    (note,) = of_kind(workflow, "Note")
    assert len(note["widgets_values"][0]) > 100
    assert of_kind(workflow, "PreviewImage", "SaveImage")


@workflows
def test_every_workflow_has_an_id_of_its_own(file):
    others = {content(other)["id"] for other in FILES if other != file}
    assert content(file)["id"] not in others


@workflows
def test_the_models_are_the_documented_ones(file):
    (loader,) = of_kind(content(file), "SSDLoadBackbone")
    wanted = FOLDERS.get(file.stem, BUILT_IN)
    assert loader["widgets_values"] == [wanted, "auto"]


@pytest.mark.parametrize("file", [file for file in FILES if file.stem not in FOLDERS], ids=lambda file: file.stem)
def test_the_embedded_model_knows_the_words(file):
    backbone = load_backbone(device="meta")
    prompts = [node["widgets_values"][0] for node in of_kind(content(file), "SSDSampler", "SSDCompareDecoders")]
    assert prompts
    for prompt in prompts:
        backbone.check_prompt(prompt)


def test_the_list_in_the_folder_names_them_all():
    text = (ROOT / "workflows" / "README.md").read_text(encoding="utf-8")
    assert [file.stem for file in FILES if f"`{file.stem}`" not in text] == []
    assert set(FOLDERS) <= {file.stem for file in FILES}
