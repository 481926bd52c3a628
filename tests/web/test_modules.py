"""The widget's pure modules, tested by node's own test runner (`node --test tests/web`)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_modules() -> None:
    files = sorted(str(path) for path in HERE.glob("*.test.mjs"))
    assert NODE is not None
    assert files
    done = subprocess.run([NODE, "--test", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout or "ℹ fail 0" in done.stdout, done.stdout
