"""A real browser for the widget's tests, and ComfyUI's page in it."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import comfy_engine.server
import pytest
from comfy_engine.build import Engine
from comfy_engine.fixtures import PROBE, RUNNING, small_environment
from comfy_engine.server import ComfyServer
from comfy_page import ARGUMENTS, ComfyPage, artifacts_folder

OpenPage = Callable[..., ComfyPage]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium (or Chrome) of this machine, driven by Playwright."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:  # not in the extra `dev`: only these tests need it
        pytest.fail("got no Playwright, expected it; pip install -e '.[dev,comfy]'")
    path = comfy_engine.server.chromium()
    if path is None:
        pytest.fail("got no Chromium or Chrome on the PATH, expected one; on Debian: apt install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept: the folder that SSD_ARTIFACTS names, or pytest's own."""
    return artifacts_folder(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="session")
def repository_url(repository: Path) -> Iterator[str]:
    """The files of the repository over HTTP, for pages without ComfyUI."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=repository))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def newest_server(
    built_comfy: Engine, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ComfyServer]:
    """Like `comfy_server`, with the newest frontend in place of its own."""
    base = tmp_path_factory.mktemp("comfy-newest")
    frontend = built_comfy.newest_frontend
    with ComfyServer(
        built_comfy, base, frontend=frontend, environment=small_environment(), custom_nodes=[PROBE]
    ) as server:
        pytestconfig.stash.setdefault(RUNNING, []).append(server)
        yield server


@pytest.fixture
def open_page(request: pytest.FixtureRequest, chromium: Any, artifacts: Path) -> Iterator[OpenPage]:
    """Opens ComfyUI in a browser window of its own: `open_page("pinned" | "newest", "classic" | "nodes 2.0")`.

    Every page must come to its end without complaints of the widget or unknown errors in the console.
    """
    opened: list[ComfyPage] = []

    def open_one(frontend: str, renderer: str, **context: Any) -> ComfyPage:
        server = request.getfixturevalue({"pinned": "comfy_server", "newest": "newest_server"}[frontend])
        window = chromium.new_context(**{"viewport": {"width": 1600, "height": 1000}, **context})
        window.set_default_timeout(240_000)  # on a busy machine ComfyUI's page alone can take a minute
        page = ComfyPage(window.new_page(), server.url, renderer == "nodes 2.0", artifacts)
        opened.append(page)
        page.open()
        return page

    yield open_one
    complaints = [complaint for page in opened for complaint in page.complaints]
    for page in opened:
        page.close()
    assert complaints == []
