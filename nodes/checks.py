"""What can be known before a graph is queued. Each check raises an error that says what to change.

ComfyUI repeats the answer of ``validate_inputs`` for every input that it takes as a parameter, so the nodes take one
and find the others in the queued graph. Outside of queueing there is no graph: the run itself then finds the mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from . import token_grids
from .core import core
from .errors import NodeError
from .grid import parse_grid
from .host import folders, models
from .host.graph import QueuedNode
from .settings import (
    COMMITS,
    CUSTOM,
    FITS,
    GRAPHS,
    MODES,
    NOTHING,
    PRECISIONS,
    PRESETS,
    Verification,
    check_choice,
    prompt_lines,
    sampling,
)


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
    _not_empty(node, "backbone")
    if choice is not None:
        models.backbone_facts(choice)
    _combo(node, "precision", PRECISIONS)


def heads_loader(node: QueuedNode | None, choice: str | None) -> None:
    """Load SSD Heads: the file is there, is one, and was trained for the connected backbone."""
    _not_empty(node, "heads")
    if choice is None or choice == models.NO_HEADS:
        return
    facts = _backbone_facts(node)
    if facts is None:
        file = models.heads_source(choice)
        if file is not None:
            core("heads").read_heads_spec(file)
        return
    spec = _heads_spec(facts, choice)
    misfit = spec.misfit(facts.name, facts.hidden, facts.fingerprint)
    if misfit is not None:
        raise NodeError(f"the heads file {choice!r} {misfit}, or {models.NO_HEADS!r}")


def verification(node: QueuedNode | None) -> None:
    """Verification Rounds: every combo holds one of its options, and the numbers make a schedule."""
    for name, options in (("preset", (CUSTOM, *PRESETS)), ("mode", MODES), ("commit", COMMITS)):
        _combo(node, name, options)
    if node is not None:
        _schedule(node)


def drawing_node(node: QueuedNode | None) -> None:
    """The sampler and Compare Decoders: sizes, words and numbers that the backbone takes, parts that fit."""
    if node is None:
        return
    _combo(node, "graphs", GRAPHS)
    grid = parse_grid(str(node.constant("grid") or ""))
    keep_rows = node.constant("keep_rows")
    keep_rows = keep_rows if _is_number(keep_rows) else 0
    if keep_rows and not node.connected("tokens"):
        raise NodeError(
            f"keep_rows is {keep_rows}, but there are no rows to keep: connect tokens (from Encode Image to AR Tokens, "
            "Load AR Tokens or another sampler), or set it to 0"
        )
    _same_backbone(node)
    facts = _backbone_facts(node)
    if facts is None:
        return
    tokens_fit(node, facts)
    given = token_grids.grid_of(node, facts.default_grid) if node.connected("tokens") else None
    if grid is not None:
        facts.check_grid(grid)
        if given is not None and given != grid:
            raise NodeError(
                f"grid is {grid[0]}x{grid[1]}, but the connected tokens have {given[0]}x{given[1]} codes; set it to "
                "'auto', or connect tokens of that size"
            )
    size = grid or given
    if size is not None and not 0 <= keep_rows < size[0]:
        raise NodeError(
            f"keep_rows must be from 0 to {size[0] - 1}, so that at least one of {size[0]} rows is left to draw; got "
            f"{keep_rows}"
        )
    _heads_reach(node, facts, size or (None if node.connected("tokens") else facts.default_grid))
    for name in ("positive", "negative"):
        if node.has_constant(name):
            facts.check_prompt(str(node.constant(name)))
    values = [node.constant(name) for name in ("cfg", "temperature", "top_k", "top_p")]
    if all(_is_number(value) for value in values):
        sampling(facts, *values)


def decoder(node: QueuedNode | None) -> None:
    """Decode AR Tokens: tokens of a file are this backbone's."""
    facts = _backbone_facts(node)
    if node is not None and facts is not None:
        tokens_fit(node, facts)


def tokens_fit(node: QueuedNode, facts: Any) -> None:
    """Tokens of a connected file are this backbone's, and as many pictures as the node draws."""
    tokens = token_grids.of_file(node)
    if tokens is None:
        return
    tokens.check_fits(facts)
    batch = node.constant("batch_size")
    if _is_number(batch) and len(tokens.codes) not in (1, batch):
        raise NodeError(
            f"the connected tokens are {len(tokens.codes)} pictures, batch_size is {batch}; set it to "
            f"{len(tokens.codes)}, or connect the tokens of one picture"
        )


def encoder(node: QueuedNode | None) -> None:
    """Encode Image to AR Tokens: the grid is one of the backbone's."""
    if node is None:
        return
    _combo(node, "fit", FITS)
    grid = parse_grid(str(node.constant("grid") or ""))
    facts = _backbone_facts(node)
    if facts is not None and grid is not None:
        facts.check_grid(grid)


def trainer(node: QueuedNode | None, name: str | None) -> None:
    """Train SSD Heads: a name for a file, and prompts, a size and heads to begin with that the backbone can use."""
    if name is not None:
        folders.named_heads_file(name)
    if node is None:
        return
    grid = parse_grid(str(node.constant("grid") or ""))
    _not_empty(node, "start_from")
    start = node.constant("start_from")
    source = None if start in (None, NOTHING) else models.heads_source(start)
    facts = _backbone_facts(node)
    if facts is None:
        if source is not None:
            core("heads").read_heads_spec(source)
        return
    if source is None and start == models.BUILT_IN_HEADS:
        source = core("load").heads_file(facts)
    prompts = prompt_lines(str(node.constant("prompts") or "")) or core("distill.prompts").starter_prompts(facts)
    core("distill").plan_heads(facts, prompts, grids=grid and [grid], start_from=source)


def tokens_saver(prefix: str | None) -> None:
    """Save AR Tokens: the file will be inside the output folder."""
    if prefix is not None:
        folders.check_prefix(prefix)


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


def _heads_spec(facts: Any, choice: str) -> Any:
    """The ``HeadsSpec`` of a choice of Load SSD Heads for a backbone."""
    found = core("load")
    return core("heads").read_heads_spec(found.heads_file(facts, models.heads_source(choice) or found.BUILT_IN_HEADS))


def _schedule(node: QueuedNode) -> Any | None:
    """The schedule that Verification Rounds makes; None where a widget is linked or ComfyUI itself tells."""
    if any(node.connected(field.name) for field in fields(Verification)):
        return None
    values = {field.name: node.constant(field.name) for field in fields(Verification)}
    numbers = [value for name, value in values.items() if name not in ("preset", "mode", "commit")]
    return Verification(**values).schedule("cpu") if all(_is_number(value) for value in numbers) else None


def _heads_reach(node: QueuedNode, facts: Any, grid: tuple[int, int] | None) -> None:
    """The connected heads draft every position that the connected verification makes final unchecked."""
    rounds, heads = node.linked("verification", "SSDVerification"), node.linked("heads", "SSDLoadHeads")
    choice = None if heads is None else heads.constant("heads")
    if rounds is None or choice is None or choice == models.NO_HEADS or grid is None:
        return
    try:
        schedule, spec = _schedule(rounds), _heads_spec(facts, choice)
    except (NodeError, core().SSDError):
        return  # the other nodes' own checks tell
    if schedule is not None:
        core("drafts").check_reach(spec, schedule, grid)


def _same_backbone(node: QueuedNode) -> None:
    """Heads and sampler must be connected to loaders that share one set of weights."""
    heads = node.linked("heads", "SSDLoadHeads")
    if heads is None or heads.constant("heads") in (None, models.NO_HEADS):
        return
    choices = []
    for end in (heads, node):
        loader = end.linked("backbone", "SSDLoadBackbone")
        if loader is None or not loader.has_constant("backbone") or loader.constant("precision") not in PRECISIONS:
            return  # what comes over a link is left to the run
        choices.append((loader.constant("backbone"), loader.constant("precision")))
    try:
        keys = [models.backbone_key(*choice) for choice in choices]
    except NodeError:
        return  # the loader's own check tells
    if keys[0] != keys[1]:
        raise NodeError(
            f"the connected heads are loaded for {choices[0][0]} ({choices[0][1]}), this node draws with "
            f"{choices[1][0]} ({choices[1][1]}); connect the same Load AR Backbone to both"
        )


def _combo(node: QueuedNode | None, name: str, options: tuple[str, ...]) -> None:
    if node is not None and node.has_constant(name):
        check_choice(name, node.constant(name), options)


def _not_empty(node: QueuedNode | None, name: str) -> None:
    if node is not None and node.has_constant(name) and node.constant(name) is None:
        raise NodeError(f"{name} is empty; choose one")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
