"""Graphs of our nodes in the form that POST /prompt takes, for tests and benchmarks."""

from __future__ import annotations

import copy
from typing import Any

from .client import Prompt

BUILT_IN = "emoji scenes (built in)"
NO_HEADS = "none (training-free)"
# The embedded model's smallest grid: the fastest picture.
SMALL = "16x16"
OWN = -1

VERIFICATION = {
    "preset": "auto",
    "mode": "rolling",
    "window_rows": 1,
    "tolerance": 0.0,
    "rounds": 2,
    "rows_per_block": 1,
    "incremental_rounds": 0,
    "commit": "fused",
}
DRAWING = {
    "positive": "a cat on grass",
    "negative": "",
    "seed": 1,
    "cfg": OWN,
    "temperature": OWN,
    "top_k": OWN,
    "top_p": OWN,
    "grid": SMALL,
    "batch_size": 1,
}


def picture(backbone: str = BUILT_IN, heads: str = "built in", **sampler: Any) -> Prompt:
    """Text to image: nodes backbone, heads, verification, sampler, image (PreviewImage), report (PreviewAny).

    Keywords are the sampler's inputs; those of VERIFICATION go to Verification Rounds.
    """
    settings = {name: sampler.pop(name) for name in list(sampler) if name in VERIFICATION}
    return {
        "backbone": node("SSDLoadBackbone", backbone=backbone, precision="auto"),
        "heads": node("SSDLoadHeads", backbone=["backbone", 0], heads=heads),
        "verification": node("SSDVerification", **{**VERIFICATION, **settings}),
        "sampler": node(
            "SSDSampler",
            backbone=["backbone", 0],
            heads=["heads", 0],
            verification=["verification", 0],
            **{**DRAWING, "keep_rows": 0, **sampler},
        ),
        "image": node("PreviewImage", images=["sampler", 0]),
        "report": node("PreviewAny", source=["sampler", 2]),
    }


def comparison(**settings: Any) -> Prompt:
    """Compare Decoders with both pictures (plain, ssd) and the report shown."""
    return {
        "backbone": node("SSDLoadBackbone", backbone=BUILT_IN, precision="auto"),
        "heads": node("SSDLoadHeads", backbone=["backbone", 0], heads="built in"),
        "compare": node("SSDCompareDecoders", backbone=["backbone", 0], heads=["heads", 0], **{**DRAWING, **settings}),
        "plain": node("PreviewImage", images=["compare", 0]),
        "ssd": node("PreviewImage", images=["compare", 1]),
        "report": node("PreviewAny", source=["compare", 2]),
    }


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    """One node."""
    return {"class_type": class_type, "inputs": inputs}


def changed(prompt: Prompt, node_id: str, **inputs: Any) -> Prompt:
    """A copy with some inputs of one node replaced."""
    copied = copy.deepcopy(prompt)
    copied[node_id]["inputs"].update(inputs)
    return copied
