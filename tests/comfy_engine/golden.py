"""What must stay as it is so that saved workflows keep loading: node ids, the order and kind of inputs and outputs.

`PYTHONPATH=tests python -m comfy_engine.golden` (in the repository root) writes tests/comfy/golden_nodes.json anew,
and refuses where old workflows would break.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import dev

from .build import build
from .client import Client
from .server import ComfyServer, ServerError

FILE = dev.ROOT / "tests" / "comfy" / "golden_nodes.json"
PREFIX = "SSD"
# Inputs whose choices are, but for the default, the files of the moment.
LISTS_FILES = {
    ("SSDLoadBackbone", "backbone"),
    ("SSDLoadHeads", "heads"),
    ("SSDLoadTokens", "file"),
    ("SSDTrainHeads", "start_from"),
}
FROZEN_OPTIONS = ("default", "min", "max", "multiline", "control_after_generate", "forceInput")


def frozen(object_info: dict[str, Any]) -> dict[str, Any]:
    """The part of /object_info that is frozen, of our nodes."""
    return {name: _node(name, info) for name, info in sorted(object_info.items()) if name.startswith(PREFIX)}


def _node(name: str, info: dict[str, Any]) -> dict[str, Any]:
    inputs = []
    for group in ("required", "optional", "hidden"):
        for input_name in info["input_order"].get(group, []):
            declared = info["input"][group][input_name]
            inputs.append({"name": input_name, "group": group, **_input(name, input_name, declared)})
    return {
        "display_name": info["display_name"],
        "category": info["category"],
        "output_node": info["output_node"],
        "inputs": inputs,
        "outputs": [list(pair) for pair in zip(info["output_name"], info["output"], strict=True)],
    }


def _input(node: str, name: str, declared: Any) -> dict[str, Any]:
    if not isinstance(declared, list):  # hidden inputs are bare words
        return {"type": declared}
    kind, options = (*declared, {})[:2]
    choices = kind if isinstance(kind, list) else options.get("options")
    found = {option: options[option] for option in FROZEN_OPTIONS if option in options}
    if (node, name) in LISTS_FILES:
        return {"type": "COMBO", **found}
    if choices is not None:
        return {"type": "COMBO", "choices": choices, **found}
    return {"type": kind, **found}


def breaks(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What a workflow saved with `old` would miss in `new`: nodes, inputs in their places, outputs, choices."""
    found = []
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            found.append(f"{name} is gone")
            continue
        # Widgets are saved as a list without names: an input may only come after those that are there.
        names = [[item["name"] for item in node["inputs"] if item["group"] != "hidden"] for node in (before, after)]
        if names[1][: len(names[0])] != names[0]:
            found.append(f"{name}: inputs were {names[0]}, are {names[1]}")
        if after["outputs"][: len(before["outputs"])] != before["outputs"]:
            found.append(f"{name}: outputs were {before['outputs']}, are {after['outputs']}")
        kept = {item["name"]: item for item in after["inputs"]}
        for item in before["inputs"]:
            lost = set(item.get("choices", [])) - set(kept.get(item["name"], {}).get("choices", []))
            if lost:
                found.append(f"{name}.{item['name']}: the choices {sorted(lost)} are gone")
    return found


def write() -> int:
    """Ask a real server and write the file."""
    with tempfile.TemporaryDirectory() as base, ComfyServer(build(), Path(base)) as server:
        new = frozen(Client(server.url).object_info())
    if not new:
        print("golden: the server has none of our nodes", file=sys.stderr)
        return 1
    broken = breaks(json.loads(FILE.read_text(encoding="utf-8")), new) if FILE.exists() else []
    for line in broken:
        print(f"golden: {line}", file=sys.stderr)
    if not broken:
        FILE.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"golden: {len(new)} nodes in {FILE}")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(write())
    except (dev.DevError, ServerError) as error:
        sys.exit(f"golden: {error}")
