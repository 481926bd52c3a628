"""Holds a run inside a long piece of work that is no forward, until Stop is pressed: a test aims Stop at it."""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import comfy.model_management
from aiohttp import web
from server import PromptServer

# What can be held: the module and the name of the call that is one piece of it.
PIECES = {
    "a forward": (".ssd_core.engine", "Engine", "_feed"),
    "pixels of an image": (".ssd_core.generation", None, "_decode"),
    "a tensor of a file": (".ssd_core.tensor_files", "TensorInfo", "copy_to"),
}
CALLS = dict.fromkeys(PIECES, 0)
AIM: dict[str, Any] = {"piece": None, "call": 0}
INSTALLED: set[str] = set()


@PromptServer.instance.routes.post("/probe/aim")
async def aim(request: web.Request) -> web.Response:
    """{"piece": "pixels of an image", "call": 2}: the second call from now on waits for Stop, then does its work."""
    for piece in PIECES.keys() - INSTALLED:
        install(piece)
    AIM.update(await request.json())
    CALLS.update(dict.fromkeys(CALLS, 0))
    return web.json_response({})


@PromptServer.instance.routes.get("/probe/calls")
async def calls(request: web.Request) -> web.Response:
    """How often each piece of work was begun since the last aim."""
    return web.json_response(CALLS)


def install(piece: str) -> None:
    """Counts the calls of a piece and lets the aimed one wait."""
    end, owner_name, name = PIECES[piece]
    door = ".nodes.host.events"
    (pack,) = (key.removesuffix(door) for key in sys.modules if key.endswith(door))
    module = importlib.import_module(pack + end)  # the core is loaded at its first use
    owner = module if owner_name is None else getattr(module, owner_name)
    work: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(work)
    def counted(*arguments: Any, **options: Any) -> Any:
        CALLS[piece] += 1
        this = {"piece": piece, "call": CALLS[piece]}
        while this == AIM and not comfy.model_management.processing_interrupted():
            time.sleep(0.01)
        return work(*arguments, **options)

    setattr(owner, name, counted)
    INSTALLED.add(piece)
