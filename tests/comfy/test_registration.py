"""What the server knows about our nodes: ids, inputs, tooltips, help pages; and that loading us went quietly."""

from __future__ import annotations

import json
import urllib.parse

import pytest
from comfy_engine.client import RefusedError
from comfy_engine.golden import FILE, breaks, frozen
from comfy_engine.server import LINK_NAME

pytestmark = pytest.mark.comfy

NODES = {
    "SSDLoadBackbone": ("Load AR Backbone", "SSD/loaders"),
    "SSDLoadHeads": ("Load SSD Heads", "SSD/loaders"),
    "SSDVerification": ("Verification Rounds", "SSD/sampling"),
    "SSDSampler": ("Spatial Speculative Sampler", "SSD/sampling"),
    "SSDCompareDecoders": ("Compare Decoders", "SSD/sampling"),
    "SSDDecodeTokens": ("Decode AR Tokens", "SSD/tokens"),
    "SSDEncodeImage": ("Encode Image to AR Tokens", "SSD/tokens"),
    "SSDSaveTokens": ("Save AR Tokens", "SSD/tokens"),
    "SSDLoadTokens": ("Load AR Tokens", "SSD/tokens"),
    "SSDTrainHeads": ("Train SSD Heads", "SSD/training"),
}


@pytest.fixture(scope="module")
def ours(comfy_server):
    from comfy_engine.client import Client

    info = Client(comfy_server.url).object_info()
    return {name: node for name, node in info.items() if name.startswith("SSD")}


def test_every_node_is_there_under_its_name(ours):
    assert {name: (node["display_name"], node["category"]) for name, node in ours.items()} == NODES


def test_ids_inputs_and_outputs_are_frozen(comfy):
    """After a change on purpose: `PYTHONPATH=tests python -m comfy_engine.golden` writes the file anew."""
    golden = json.loads(FILE.read_text(encoding="utf-8"))
    now = frozen(comfy.object_info())
    assert breaks(golden, now) == []
    assert now == golden


def test_breaks_finds_what_old_workflows_would_miss():
    def node(*inputs):
        declared = [{"name": name, "group": "required", "type": "INT"} for name in inputs]
        return {"inputs": declared, "outputs": [["image", "IMAGE"]]}

    old = {"A": node("first", "second")}
    assert breaks(old, {"A": node("first", "second", "third"), "B": node()}) == []
    assert breaks(old, {"A": node("second", "first")})
    assert breaks(old, {"A": node("new", "first", "second")})
    assert breaks(old, {"A": node("first")})
    assert breaks(old, {})
    combos = [{"A": node("first")}, {"A": node("first")}]
    combos[0]["A"]["inputs"][0]["choices"] = ["x", "y"]
    combos[1]["A"]["inputs"][0]["choices"] = ["y", "z"]
    assert breaks(*combos) == ["A.first: the choices ['x'] are gone"]


def test_everything_is_explained(ours):
    silent = []
    for name, node in ours.items():
        if not node["description"]:
            silent.append(name)
        for group in ("required", "optional"):
            for input_name, declared in node["input"].get(group, {}).items():
                if not (len(declared) > 1 and declared[1].get("tooltip")):
                    silent.append(f"{name}.{input_name}")
        silent += [
            f"{name} -> {output}"
            for output, tooltip in zip(node["output_name"], node["output_tooltips"], strict=True)
            if not tooltip
        ]
    assert silent == []


def test_every_node_has_a_help_page(comfy):
    for name in NODES:
        page = comfy.request(f"/extensions/{urllib.parse.quote(LINK_NAME)}/docs/{name}.md").decode()
        assert page.startswith("# "), name
        assert len(page) > 300, name


def test_scripts_are_listed_and_served(comfy):
    listed = [
        path for path in comfy.get("/extensions") if urllib.parse.unquote(path).startswith(f"/extensions/{LINK_NAME}")
    ]
    assert listed
    for path in listed:
        assert b"export" in comfy.request(path) or b"import" in comfy.request(path), path


def test_templates_are_offered_with_their_pictures(comfy, repository):
    offered = comfy.get("/workflow_templates")[LINK_NAME]
    assert sorted(offered) == sorted(file.stem for file in (repository / "workflows").glob("*.json"))
    assert len(offered) >= 7
    for name in offered:
        place = f"/api/workflow_templates/{urllib.parse.quote(LINK_NAME)}/{urllib.parse.quote(name)}"
        assert json.loads(comfy.request(place + ".json"))["nodes"]
        assert comfy.request(place + ".jpg").startswith(b"\xff\xd8")


def test_loading_us_is_quiet(comfy_server):
    log = comfy_server.log(10_000_000)  # all of it: the beginning counts
    loaded = [line for line in log.splitlines() if "seconds" in line and LINK_NAME in line]
    assert len(loaded) == 1
    assert "FAILED" not in loaded[0]
    for line in log.splitlines():
        assert not (LINK_NAME in line and ("Error" in line or "Traceback" in line or "Warning" in line)), line


@pytest.mark.parametrize("prefix", ["/extensions", "/api/workflow_templates"])
@pytest.mark.parametrize(
    "way", ["../", "..%2F", "%2e%2e/", "%2e%2e%2f", "..\\", "/", "docs/../../", "%2Fetc%2Fpasswd%00"]
)
def test_nothing_outside_our_web_and_workflow_folders_is_served(comfy, prefix, way):
    with pytest.raises(RefusedError) as refused:
        comfy.request(f"{prefix}/{urllib.parse.quote(LINK_NAME)}/{way}pyproject.toml")
    assert refused.value.status in (400, 403, 404)
