"""The strict checks under each of PyTorch's CUDA allocators; each needs a process of its own.

``python -m benchmarks.gpu_allocators janus --device cuda`` runs them in this process, under whichever allocator the
environment chose, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from .gpu_budget import NoTimeError
from .gpu_checks import Checks, check_strictly
from .gpu_shapes import FULL, TOY

BACKENDS = ("native", "cudaMallocAsync")
_LEAST_SECONDS = 10.0
_ROOT = Path(__file__).resolve().parent.parent


def check_allocators(name: str, device: torch.device, toy: bool, seconds: float) -> dict[str, Any]:
    """Starts a process under each allocator; one that is not done in its half of ``seconds`` has failed.

    Raises NoTimeError when there is not time enough to tell a slow process from one that hangs.
    """
    if seconds < _LEAST_SECONDS * len(BACKENDS):
        raise NoTimeError(f"got {seconds:.0f} s, expected at least {_LEAST_SECONDS:.0f} s for each allocator")
    checks: Checks = {}
    details: dict[str, Any] = {}
    for backend in BACKENDS:
        try:
            told = run_under(backend, name, device, toy, seconds / len(BACKENDS))
        except subprocess.TimeoutExpired as error:
            checks[backend] = {"passed": False, "detail": f"not done after {error.timeout:.0f} s"}
            continue
        except subprocess.CalledProcessError as error:
            last = (error.stderr or "").strip().splitlines()[-1:] or ["no message"]
            checks[backend] = {"passed": False, "detail": f"exit status {error.returncode}: {last[0]}"}
            continue
        details[backend] = told
        wanted = backend if device.type == "cuda" else device.type
        checks[backend] = {"passed": told["backend"] == wanted, "detail": f"ran under {told['backend']}"}
        checks |= {f"{backend}: {what}": result for what, result in told["checks"].items()}
    return {"checks": checks, "allocators": details}


def run_under(backend: str, name: str, device: torch.device, toy: bool, seconds: float) -> dict[str, Any]:
    """What the process under one allocator tells."""
    setting = f"backend:{backend}"
    # PyTorch 2.9 renamed the variable and still reads the old name.
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
    command = [sys.executable, "-m", "benchmarks.gpu_allocators", name, "--device", str(device)]
    done = subprocess.run(
        [*command, *(["--toy"] if toy else [])],
        cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=True,
    )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(FULL))
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    if options.device.type == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(options.device)
    result = check_strictly((TOY if options.toy else FULL)[options.model], options.device)
    backend = torch.cuda.get_allocator_backend() if options.device.type == "cuda" else options.device.type
    reserved = torch.cuda.max_memory_reserved() if options.device.type == "cuda" else None
    print(json.dumps({"backend": backend, "reserved_bytes": reserved, **result}))


if __name__ == "__main__":
    main()
