"""A custom node pack for tests, without nodes: looks inside the server that runs our extension."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import comfy.model_management
import torch
from aiohttp import web
from server import PromptServer

from . import hold  # noqa: F401 - adds its own route

NODE_CLASS_MAPPINGS: dict[str, Any] = {}
ORIGINALS: dict[str, Any] = {}
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
    """CPU seconds of the whole process so far."""
    return web.json_response({"cpu_seconds": time.process_time()})


@PromptServer.instance.routes.post("/probe/quiet")
async def quiet(request: web.Request) -> web.Response:
    """{"quiet": true}: our nodes draw without telling of it (no progress, no events) until {"quiet": false}."""
    wanted = (await request.json())["quiet"]
    modules = {
        name: module for name, module in sys.modules.items() if name.endswith((".ssd_core", ".nodes.host.events"))
    }
    decoder = next(module for name, module in modules.items() if name.endswith(".ssd_core"))
    channel = next(module for name, module in modules.items() if name.endswith(".events")).RowsChannel
    if not ORIGINALS:
        ORIGINALS.update(generate=decoder.generate, enter=channel.__enter__, leave=channel.__exit__)
    decoder.generate = drawing_quietly if wanted else ORIGINALS["generate"]
    channel.__enter__ = (lambda self: self) if wanted else ORIGINALS["enter"]
    channel.__exit__ = (lambda self, *_: None) if wanted else ORIGINALS["leave"]
    return web.json_response({})


def drawing_quietly(*arguments: Any, **options: Any) -> Any:
    """The decoder's `generate` without a listener."""
    return ORIGINALS["generate"](*arguments, **{**options, "on_rows": None, "on_progress": None})
