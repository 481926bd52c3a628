"""The widget's pure modules, tested by node's own test runner (`node --test tests/web`)."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def find_node() -> str | None:
    """node on the PATH, or the one that Playwright brings."""
    found = shutil.which("node")
    if found is None and importlib.util.find_spec("playwright"):
        from playwright._impl._driver import compute_driver_executable

        found = compute_driver_executable()[0]
    return found


NODE = find_node()
# Fast and without a browser, so with all other tests where node is there; where it is not, only when asked for.
pytestmark = [] if NODE else [pytest.mark.browser]


def test_modules() -> None:
    assert NODE is not None, "got no node, expected one; install Node.js 18 or newer, or pip install playwright"
    files = sorted(str(path) for path in HERE.glob("*.test.mjs"))
    assert files
    done = subprocess.run([NODE, "--test", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout or "ℹ fail 0" in done.stdout, done.stdout
