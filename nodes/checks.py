"""What can be known before a graph is queued. Each check raises an error that says what to change.

ComfyUI repeats the answer of ``validate_inputs`` for every input that it takes as a parameter, so the nodes take one
and find the others in the queued graph. Outside of queueing there is no graph: the run itself then finds the mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .core import core
from .errors import NodeError
from .grid import parse_grid
from .host import folders, models
from .host.graph import QueuedNode
from .settings import COMMITS, CUSTOM, FITS, MODES, PRECISIONS, PRESETS, check_choice, sampling


def answer(check: Callable[..., None], *arguments: Any) -> bool | str:
    """The result of a check as ``validate_inputs`` gives it: True, or what is wrong."""
    try:
        check(*arguments)
    except NodeError as error:
        return str(error)
    except Exception as error:
        if isinstance(error, core().SSDError):
            return str(error)
        raise
    return True


def backbone_stamp(choice: str | None) -> str:
    """Fingerprint of a backbone's files, for ComfyUI's cache."""
    if choice is None or choice == models.BUILT_IN_BACKBONE:
        return ""
    return folders.stamp(folders.backbone_folder(choice))


def heads_stamp(choice: str | None) -> str:
    """Fingerprint of a heads file, for ComfyUI's cache."""
    if choice is None or choice in (models.BUILT_IN_HEADS, models.NO_HEADS):
        return ""
    return folders.stamp(folders.heads_file(choice))


def backbone_loader(node: QueuedNode | None, choice: str | None) -> None:
    """Load AR Backbone: the folder is there and holds a model that the decoder knows."""
    if choice is not None:
        models.backbone_facts(choice)
    if node is not None:
        check_choice("precision", node.constant("precision"), PRECISIONS)


def heads_loader(node: QueuedNode | None, choice: str | None) -> None:
    """Load SSD Heads: the file is there, is one, and was trained for the connected backbone."""
    if choice is None or choice == models.NO_HEADS:
        return
    file, facts = models.heads_source(choice), _backbone_facts(node)
    if file is None:
        families = core("families")
        if facts is not None and facts.name != families.BUILT_IN:
            raise NodeError(
                f"the extension brings no heads for {facts.name}; choose a file trained for it, or {models.NO_HEADS!r}"
            )
        file = families.ASSETS / "heads.safetensors"
    heads = core("heads").read_heads_spec(file)
    if facts is None:
        return
    if heads.hidden != facts.hidden or (heads.fingerprint and heads.fingerprint != facts.fingerprint):
        raise NodeError(
            f"the heads {choice!r} do not fit: they were trained for {heads.backbone or 'an unknown backbone'} (width "
            f"{heads.hidden}, weights {heads.fingerprint[:12] or 'unknown'}), the connected backbone is {facts.name} "
            f"(width {facts.hidden}, weights {facts.fingerprint[:12]}); choose heads trained for it, or "
            f"{models.NO_HEADS!r}"
        )


def verification(node: QueuedNode | None, preset: str | None) -> None:
    """Verification Rounds: every combo holds one of its options."""
    check_choice("preset", preset, (CUSTOM, *PRESETS))
    if node is not None:
        check_choice("mode", node.constant("mode"), MODES)
        check_choice("commit", node.constant("commit"), COMMITS)


def run(node: QueuedNode | None) -> None:
    """The sampler and Compare Decoders: sizes, words and numbers that the backbone takes, parts that fit."""
    if node is None:
        return
    grid = parse_grid(node.constant("grid") or "")
    keep_rows = node.constant("keep_rows") or 0
    if keep_rows and not node.connected("tokens"):
        raise NodeError(
            f"keep_rows is {keep_rows}, but there are no rows to keep: connect tokens (from Encode Image to AR Tokens, "
            "Load AR Tokens or another sampler), or set it to 0"
        )
    _same_backbone(node)
    facts = _backbone_facts(node)
    if facts is None:
        return
    if grid is not None:
        facts.check_grid(grid)
    elif not node.connected("tokens"):
        grid = facts.default_grid
    if grid is not None and not 0 <= keep_rows < grid[0]:
        raise NodeError(
            f"keep_rows must be from 0 to {grid[0] - 1}, so that at least one of {grid[0]} rows is left to draw; got "
            f"{keep_rows}"
        )
    for name in ("positive", "negative"):
        text = node.constant(name)
        if text is not None:
            facts.check_prompt(str(text))
    values = [node.constant(name) for name in ("cfg", "temperature", "top_k", "top_p")]
    if None not in values:
        sampling(facts, *values)


def encoder(node: QueuedNode | None) -> None:
    """Encode Image to AR Tokens: the grid is one of the backbone's."""
    if node is None:
        return
    check_choice("fit", node.constant("fit"), FITS)
    grid = parse_grid(node.constant("grid") or "")
    facts = _backbone_facts(node)
    if facts is not None and grid is not None:
        facts.check_grid(grid)


def tokens_loader(choice: str | None) -> None:
    """Load AR Tokens: the file is there and is one."""
    if choice is not None:
        core("tokens").read_tokens(folders.tokens_file(choice))


def _backbone_facts(node: QueuedNode | None) -> Any | None:
    loader = None if node is None else node.linked("backbone", "SSDLoadBackbone")
    choice = None if loader is None else loader.constant("backbone")
    try:
        return None if choice is None else models.backbone_facts(choice)
    except (NodeError, core().SSDError):
        return None  # the loader's own check tells


def _same_backbone(node: QueuedNode) -> None:
    """Heads and sampler must be connected to loaders with the same choice."""
    heads = node.linked("heads", "SSDLoadHeads")
    loaders = [None if end is None else end.linked("backbone", "SSDLoadBackbone") for end in (heads, node)]
    if heads is None or heads.constant("heads") == models.NO_HEADS or None in loaders:
        return
    choices = [(loader.constant("backbone"), loader.constant("precision")) for loader in loaders if loader is not None]
    if choices[0] != choices[1]:
        raise NodeError(
            f"the connected heads are loaded for {choices[0][0]} ({choices[0][1]}), this node draws with "
            f"{choices[1][0]} ({choices[1][1]}); connect the same Load AR Backbone to both"
        )
