"""What importing an extension costs and changes, measured inside ComfyUI's own interpreter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import dev

from .build import Engine
from .server import LINK_NAME, link

# Runs in ComfyUI's interpreter with ComfyUI's folder as the working directory: the server's own steps up to where it
# loads custom nodes, then an empty pack and ours, by the server's own function. The empty pack takes what ComfyUI
# needs for any extension, above all the library that reads pyproject.toml.
CODE = """
import sys
base, empty, extension = sys.argv[1:]
sys.argv = ["main.py", "--cpu", "--base-directory", base]
sys.path.insert(0, ".")
import comfy.options
comfy.options.enable_args_parsing()
import utils.extra_config  # before `nodes`, which puts a module of the same name in front
import asyncio, json, random, signal, time, warnings
import numpy, torch
import nodes, server

def state():
    return {
        "sys.path": list(sys.path), "sys.meta_path": [repr(type(finder)) for finder in sys.meta_path],
        "SIGINT": id(signal.getsignal(signal.SIGINT)), "threads": torch.get_num_threads(),
        "default dtype": str(torch.get_default_dtype()), "gradients": torch.is_grad_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32, "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.tf32": torch.backends.cudnn.allow_tf32, "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(), "torch seed": torch.initial_seed(),
        "torch rng": torch.random.get_rng_state().sum().item(), "python rng": hash(random.getstate()),
        "numpy rng": str(numpy.random.get_state()[1][:4]), "warnings": len(warnings.filters),
        "flash": torch.backends.cuda.flash_sdp_enabled(), "math": torch.backends.cuda.math_sdp_enabled(),
    }

async def load():
    server.PromptServer(asyncio.get_running_loop())
    start = time.perf_counter()
    await nodes.load_custom_node(empty, module_parent="custom_nodes")
    empty_seconds = time.perf_counter() - start
    before, modules, nodes_before = state(), set(sys.modules), set(nodes.NODE_CLASS_MAPPINGS)
    start = time.perf_counter()
    worked = await nodes.load_custom_node(extension, module_parent="custom_nodes")
    seconds = time.perf_counter() - start
    after = state()
    return {
        "worked": worked, "seconds": seconds, "empty_seconds": empty_seconds,
        "changed": [name for name in before if before[name] != after[name]],
        "new_modules": sorted(set(sys.modules) - modules),
        "nodes": sorted(set(nodes.NODE_CLASS_MAPPINGS) - nodes_before),
    }

print("RESULT " + json.dumps(asyncio.run(load())))
"""


def measure(engine: Engine, base: Path, extension: Path) -> dict[str, Any]:
    """Load an extension once in a fresh process with torch and ComfyUI imported before.

    Returns seconds, those of an empty pack loaded before it, the names of global settings that changed, new modules
    and new nodes. Raises dev.DevError.
    """
    empty, place = (base / "custom_nodes" / name for name in ("empty", LINK_NAME))
    empty.mkdir(parents=True)
    (empty / "__init__.py").write_text("NODE_CLASS_MAPPINGS = {}\n", encoding="utf-8")
    shutil.copy(extension / "pyproject.toml", empty)
    link(place, extension)
    done = subprocess.run(
        [str(engine.python), "-c", CODE, str(base), str(empty), str(place)],
        cwd=engine.main.parent,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result = json.loads(lines[0].removeprefix("RESULT ")) if lines else {}
    if not result.get("worked"):
        raise dev.DevError(f"the extension did not load: {(done.stdout + done.stderr)[-3000:]}")
    return dict(result)
