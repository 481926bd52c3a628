"""Holds a run of our nodes in its middle, so that a test sees it there on a machine of any speed."""

from __future__ import annotations

import sys
import time
from typing import Any

import comfy.model_management
from aiohttp import web
from server import PromptServer

ANY: dict[str, Any] = {"row": None, "node": None, "label": None}
HELD = dict(ANY)


@PromptServer.instance.routes.post("/probe/hold")
async def hold(request: web.Request) -> web.Response:
    """{"row": 8}: runs wait, after telling of it, as soon as 8 rows of every picture are final; {} lets them go on.

    "node" (an execution id) and "label" limit it to runs of one kind. Stop ends a run that waits, as any other.
    """
    install()
    HELD.update({**ANY, **await request.json()})
    return web.json_response({})


def install() -> None:
    """Put the waiting behind the sending of events, once."""
    (module,) = (module for name, module in sys.modules.items() if name.endswith(".nodes.host.events"))
    channel = module.RowsChannel
    tell = channel.rows
    if getattr(tell, "holds", False):
        return

    def tell_and_wait(self: Any, event: Any) -> None:
        tell(self, event)
        while is_held(self, min(event.rows_accepted)):
            comfy.model_management.throw_exception_if_processing_interrupted()
            time.sleep(0.02)

    tell_and_wait.holds = True  # type: ignore[attr-defined]
    channel.rows = tell_and_wait


def is_held(channel: Any, rows: int) -> bool:
    """Whether a run that has come so far waits."""
    wanted = HELD["row"]
    right_node = HELD["node"] in (None, channel._address.node)
    right_label = HELD["label"] in (None, channel._label)
    return wanted is not None and rows >= wanted and right_node and right_label
