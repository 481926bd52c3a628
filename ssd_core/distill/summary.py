"""A finished training in words."""

from __future__ import annotations

from .losses import DIRECTIONS, head_name
from .session import Distilled


def made_text(made: Distilled) -> str:
    """Where the heads are, what they were trained on, and how much of what each one drafts the backbone accepts."""
    lines = [f"{made.path}"]
    if made.reused:
        lines.append("made by an earlier run with the same settings; another seed or name trains anew")
    if made.left_out:
        lines.append(f"left out, as memory did not hold all heads: {', '.join(made.left_out)}")
    lines += [
        f"{made.steps} steps on {made.pictures} pictures",
        "expected acceptance on pictures that were not trained on:",
    ]
    spec = made.heads.spec
    for direction in DIRECTIONS:
        offsets = spec.horizontal if direction == "horizontal" else spec.vertical
        known = {offset: made.acceptance.get(head_name(direction, offset)) for offset in offsets}
        values = [f"{offset}: {share:.2f}" for offset, share in known.items() if share is not None]
        if values:
            lines.append(f"  {direction}  {'  '.join(values)}")
    return "\n".join(lines)
