"""Help pages and translations say something about every node, input and output that there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODES = json.loads((ROOT / "tests" / "comfy" / "golden_nodes.json").read_text(encoding="utf-8"))
CHINESE = json.loads((ROOT / "locales" / "zh" / "nodeDefs.json").read_text(encoding="utf-8"))
HAN = re.compile(r"[一-鿿]")


def page(node):
    return (ROOT / "web" / "docs" / f"{node}.md").read_text(encoding="utf-8")


def inputs_of(node):
    return [entry["name"] for entry in NODES[node]["inputs"] if entry["group"] != "hidden"]


def outputs_of(node):
    return [name for name, _ in NODES[node]["outputs"]]


def test_there_is_a_page_for_every_node_and_no_other():
    assert {file.stem for file in (ROOT / "web" / "docs").glob("*.md")} == set(NODES)


@pytest.mark.parametrize("node", NODES)
def test_a_page_has_the_nodes_title_and_all_its_parts(node):
    text = page(node)
    assert text.startswith(f"# {NODES[node]['display_name']}\n")
    for heading in ("Inputs", "Outputs", "Example", "Errors"):
        assert f"\n## {heading}\n" in text


@pytest.mark.parametrize("node", NODES)
def test_a_page_explains_every_input_and_output(node):
    inputs, outputs = page(node).split("\n## Inputs\n")[1].split("\n## Outputs\n")
    outputs = outputs.split("\n## Example\n")[0]
    assert [name for name in inputs_of(node) if f"**{name}**" not in inputs] == []
    assert [name for name in outputs_of(node) if f"**{name}**" not in outputs] == []


def test_the_translation_covers_every_node():
    assert set(CHINESE) == set(NODES)


@pytest.mark.parametrize("node", NODES)
def test_the_translation_covers_every_input_and_output_in_chinese(node):
    translated = CHINESE[node]
    assert set(translated["inputs"]) == set(inputs_of(node))
    assert set(translated.get("outputs", {})) == {str(i) for i in range(len(outputs_of(node)))}
    texts = [translated["display_name"], translated["description"]]
    texts += [entry["tooltip"] for kind in ("inputs", "outputs") for entry in translated.get(kind, {}).values()]
    assert [text for text in texts if not HAN.search(text)] == []
