"""The fixtures that server tests and browser tests share: one built ComfyUI, one running server, a client each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .build import Engine, build
from .client import Client, connected
from .server import ComfyServer

# Looks inside the server, see there.
PROBE = Path(__file__).parent / "probe"
# The log of each running server, for the report of a failed test.
RUNNING = pytest.StashKey[list[ComfyServer]]()


def small_environment() -> dict[str, str]:
    """One thread, like the tests' own torch (see conftest.py): the embedded model's matrices are small."""
    return {"OMP_NUM_THREADS": os.environ.get("SSD_TEST_THREADS", "1")}


@pytest.fixture(scope="session")
def built_comfy() -> Engine:
    """A ComfyUI, built on the first use (minutes) and kept between runs."""
    return build()


@pytest.fixture(scope="session")
def comfy_server(
    built_comfy: Engine, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ComfyServer]:
    """A running server with an empty folder of its own, shared by all tests."""
    base = tmp_path_factory.mktemp("comfy")
    with ComfyServer(built_comfy, base, environment=small_environment(), custom_nodes=[PROBE]) as server:
        pytestconfig.stash.setdefault(RUNNING, []).append(server)
        yield server


@pytest.fixture
def comfy(comfy_server: ComfyServer) -> Iterator[Client]:
    """A client of the shared server."""
    with connected(comfy_server.url) as client:
        yield client


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show the servers' logs with the failure of a test that may have used them."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and (item.get_closest_marker("comfy") or item.get_closest_marker("browser")):
        for server in item.config.stash.get(RUNNING, []):
            report.sections.append((f"ComfyUI at {server.url}", server.log()))
