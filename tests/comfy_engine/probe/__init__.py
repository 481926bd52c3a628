"""A custom node pack for tests, without nodes: looks inside the server that runs our extension."""

from __future__ import annotations

import functools
import gc
import sys
import time
from typing import Any

import comfy.model_management
import torch
from aiohttp import web
from server import PromptServer

from . import hold, moments  # noqa: F401 - they add their own routes

NODE_CLASS_MAPPINGS: dict[str, Any] = {}
ORIGINALS: dict[tuple[Any, str], Any] = {}
TELLING: dict[str, Any] = {"seconds": 0.0, "quiet": False}
OURS = ("EmojiBackbone", "SpatialHeads")


@PromptServer.instance.routes.get("/probe/alive")
async def alive(request: web.Request) -> web.Response:
    """How many of our models have weights in memory, and how many models ComfyUI manages."""
    gc.collect()
    counts = dict.fromkeys(OURS, 0)
    for thing in gc.get_objects():
        name = type(thing).__name__
        # A model on the meta device has shapes only; the nodes check graphs with such.
        if name in counts and any(weight.device.type != "meta" for weight in thing.parameters()):
            counts[name] += 1
    managed = len(comfy.model_management.current_loaded_models)
    return web.json_response({"alive": counts, "managed": managed})


@PromptServer.instance.routes.get("/probe/state")
async def state(request: web.Request) -> web.Response:
    """What an extension must leave as it is while it draws."""
    return web.json_response(
        {
            "path": sys.path,
            "random": torch.random.get_rng_state().sum().item(),
            "seed": torch.initial_seed(),
            "threads": torch.get_num_threads(),
            "dtype": str(torch.get_default_dtype()),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "benchmark": torch.backends.cudnn.benchmark,
        }
    )


@PromptServer.instance.routes.get("/probe/cpu")
async def cpu(request: web.Request) -> web.Response:
    """CPU seconds so far: of the whole process, of its network thread (which asks this), of our telling of runs."""
    if not ORIGINALS:
        meter_telling()
    seconds = {"process": time.process_time(), "network": time.thread_time(), "telling": TELLING["seconds"]}
    return web.json_response(seconds)


@PromptServer.instance.routes.post("/probe/quiet")
async def quiet(request: web.Request) -> web.Response:
    """{"quiet": true}: our nodes draw without telling of it (no progress, no events) until {"quiet": false}."""
    if not ORIGINALS:
        meter_telling()
    TELLING["quiet"] = (await request.json())["quiet"]
    return web.json_response({})


def meter_telling() -> None:
    """Put a clock, and a switch, around everything that tells of a run."""
    for owner, names in ((ours(".nodes.host.events").RowsChannel, ("__enter__", "rows", "__exit__")),
                         (ours(".nodes.host.progress").RowProgress, ("__init__", "reached"))):  # fmt: skip
        for name in names:
            ORIGINALS[owner, name] = getattr(owner, name)
            setattr(owner, name, metered(ORIGINALS[owner, name]))
    decoder = ours(".ssd_core")
    generate = ORIGINALS[decoder, "generate"] = decoder.generate

    def switched(*arguments: Any, **options: Any) -> Any:
        silence = {"on_rows": None, "on_progress": None} if TELLING["quiet"] else {}
        return generate(*arguments, **{**options, **silence})

    decoder.generate = switched


def ours(suffix: str) -> Any:
    """A module of our extension, whose name ComfyUI made from a folder's."""
    return next(module for name, module in sys.modules.items() if name.endswith(suffix))


def metered(method: Any) -> Any:
    """The method, its CPU time added to TELLING; with quiet it does nothing (and an `__enter__` still gives itself)."""

    @functools.wraps(method)
    def inner(self: Any, *arguments: Any) -> Any:
        if TELLING["quiet"]:
            return self if method.__name__ == "__enter__" else None
        start = time.thread_time()
        try:
            return method(self, *arguments)
        finally:
            TELLING["seconds"] += time.thread_time() - start

    return inner
