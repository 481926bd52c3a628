"""Our web files where ComfyUI's own static routes cannot serve them.

ComfyUI serves a pack's files under the pack's folder name. aiohttp from 3.11 on compares such a prefix in its quoted
form with the path in its plain form, so a folder name with a space or a letter outside ASCII serves nothing: no
widget, no help, no templates. Routes with the name as a pattern do not have that problem.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

from aiohttp import web
from server import PromptServer

PACK = Path(__file__).parents[2]  # as ComfyUI names it: a link has its own name, so it is not resolved
_PLACES = {"/extensions": PACK / "web", "/api/workflow_templates": PACK / "workflows"}


def serve() -> None:
    """Adds the routes where they are needed. Call once, before the server starts."""
    if quote(PACK.name) == PACK.name:
        return
    name = re.sub(r"\\[{}]", ".", re.escape(PACK.name))  # aiohttp has a meaning of its own for braces
    for prefix, folder in _PLACES.items():
        pattern = f"{prefix}/{{pack:{name}}}/{{file:.*}}"
        PromptServer.instance.app.router.add_get(pattern, _files_of(folder))


def _files_of(folder: Path) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    root = folder.resolve()

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            path = (root / request.match_info["file"]).resolve()
            found = root in path.parents and path.is_file()
        except (OSError, ValueError):  # no file can have such a name
            found = False
        if not found:
            raise web.HTTPNotFound
        return web.FileResponse(path)

    return handler
