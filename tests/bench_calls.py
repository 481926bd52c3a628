"""`bench` called as from the command line, and what it leaves in its folders."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ssd_core.cli import main

LINES = ['{"prompt": "a red cat", "tag": "colors", "include": [{"class": "cat", "count": 1}]}', '{"prompt": "a dog"}']


@pytest.fixture
def bench(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs `bench` on the tiny model into ``tmp_path``; returns exit code, stdout, stderr."""

    def run(prompts: Path, *arguments: str, output: str = "out") -> tuple[int, str, str]:
        code = main(["bench", str(prompts), "-o", str(tmp_path / output), "--model", str(tiny_model), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def geneval(folder: Path) -> dict[int, tuple[dict, list[np.ndarray]]]:
    """What the evaluator sees: folders of digits, one JSON object each, pictures whose names begin with digits."""
    found = {}
    for sub in folder.iterdir():
        if sub.is_dir() and sub.name.isdigit():
            metadata = json.loads((sub / "metadata.jsonl").read_text(encoding="utf-8"))
            files = [file for file in sorted((sub / "samples").iterdir()) if re.match(r"\d+\.png", file.name)]
            found[int(sub.name)] = metadata, [np.asarray(Image.open(file)) for file in files]
    return found


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but the timings, whose seconds differ."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("timings-")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
