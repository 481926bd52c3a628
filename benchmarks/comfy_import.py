"""What ComfyUI's start pays for this extension: seconds, modules, and global settings that change (none may).

Run: ``python -m benchmarks.comfy_import``. It builds a real ComfyUI on the first use (about 2 GB, see
``tests/comfy_engine/build.py``). Each measurement is a fresh process in which torch and ComfyUI are imported before
the clock starts; an empty pack, loaded before ours, takes what ComfyUI itself needs for any extension.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from comfy_engine.build import build  # noqa: E402
from comfy_engine.importing import measure  # noqa: E402

LIMIT = 0.3
"""Seconds that the extension may take beyond torch and ComfyUI."""
HEAVY = ("transformers", "huggingface_hub", "tokenizers", "scipy", "matplotlib", "pandas")


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    engine = build()
    ours: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as base:
        for number in range(options.repeats):
            ours.append(measure(engine, Path(base) / str(number), ROOT))
    seconds = [found["seconds"] for found in ours]
    new = ours[-1]["new_modules"]
    figures = {
        "seconds": round(statistics.median(seconds), 3),
        "range": [round(min(seconds), 3), round(max(seconds), 3)],
        "seconds_of_an_empty_pack": round(statistics.median(found["empty_seconds"] for found in ours), 3),
        "limit": LIMIT,
        "nodes": len(ours[-1]["nodes"]),
        "new_modules": len(new),
        "heavy_modules": [name for name in new if name.split(".")[0] in HEAVY],
        "changed_settings": ours[-1]["changed"],
    }
    print(json.dumps(figures, indent=1))
    if figures["seconds"] > LIMIT or figures["heavy_modules"] or figures["changed_settings"]:
        sys.exit("comfy_import: over the limit, or something changed that should not")


if __name__ == "__main__":
    main()
