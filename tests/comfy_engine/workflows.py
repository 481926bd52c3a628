"""Turns a saved workflow (what the editor loads) into a prompt (what the server takes), as the frontend does.

It knows what our workflows use: widgets, links, muted nodes and notes. Anything else is an error, never a guess.
"""

from __future__ import annotations

from typing import Any

from .client import Prompt

NOTES = ("Note", "MarkdownNote")
MUTED = 2
WIDGET_TYPES = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")


class WorkflowError(Exception):
    """The workflow does not fit the server's nodes, or has something this converter does not know."""


def to_prompt(workflow: dict[str, Any], object_info: dict[str, Any]) -> Prompt:
    """The prompt that pressing Run would queue. Raises WorkflowError."""
    if workflow.get("definitions", {}).get("subgraphs"):
        raise WorkflowError("subgraphs are not known here")
    links = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    prompt: Prompt = {}
    for node in workflow["nodes"]:
        if node["type"] in NOTES or node.get("mode", 0) == MUTED:
            continue
        if node.get("mode", 0) != 0:
            raise WorkflowError(f"node {node['id']} has mode {node['mode']}, expected 0 or {MUTED}")
        if node["type"] not in object_info:
            raise WorkflowError(f"node {node['id']}: the server has no {node['type']}")
        inputs = widget_inputs(node, object_info[node["type"]])
        for slot in node.get("inputs", []):
            if slot.get("link") is not None:
                inputs[slot["name"]] = links[slot["link"]]
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return prompt


def widget_inputs(node: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    """The values of a node's widgets by name. Every saved value must belong to a widget and the other way round."""
    names = widget_names(info)
    values = node.get("widgets_values", [])
    if len(values) != len(names):
        raise WorkflowError(
            f"{node['type']} {node['id']} has {len(values)} saved values, expected {len(names)}: {names}"
        )
    return {name: value for name, value in zip(names, values, strict=True) if name is not None}


def widget_names(info: dict[str, Any]) -> list[str | None]:
    """A node's widgets in their order; None for the frontend's own, which are saved but not sent."""
    names: list[str | None] = []
    for group in ("required", "optional"):
        for name in info["input_order"].get(group, []):
            kind, options = (*info["input"][group][name], {})[:2]
            if not isinstance(kind, list) and kind not in WIDGET_TYPES:
                continue
            if options.get("forceInput"):
                continue
            names.append(name)
            # The frontend gives every whole number of these names a control, asked or not.
            if options.get("control_after_generate") or (kind == "INT" and name in ("seed", "noise_seed")):
                names.append(None)
            if options.get("image_upload"):
                names.append(None)
    return names
