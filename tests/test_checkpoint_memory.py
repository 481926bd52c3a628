"""The loader's peak memory, measured in a process of its own on checkpoints of one and two gigabytes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ssd_core.checkpoint import INDEX

MEASURE = """
import sys, torch
from pathlib import Path
from torch import nn
from ssd_core.checkpoint import Checkpoint, Source, fill

def memory(field):  # VmRSS: resident now, VmHWM: its peak so far; pages of mapped files count
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

folder, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
torch.set_num_threads(1)
torch.ones(100).to(torch.bfloat16).float()  # what torch needs for itself comes before the baseline
with torch.device("meta"):
    module = nn.ModuleList(nn.Linear(1024, 3072, bias=False) for _ in range(int(sys.argv[3])))
checkpoint = Checkpoint.open(folder)
plan = {f"{i}.weight": Source((f"{i}.q", f"{i}.k")) for i in range(len(module))}
before = memory("VmRSS")
fill(module, checkpoint, plan, dtype=dtype, device=torch.device("cpu"))
size = sum(p.numel() * p.element_size() for p in module.parameters())
print((memory("VmHWM") - before) / size, size)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    ("source", "dtype", "gigabytes"),
    [("float32", "bfloat16", 2), ("bfloat16", "bfloat16", 2), ("bfloat16", "float32", 1)],
)
def test_peak_memory_is_that_of_the_weights(
    tmp_path: Path, repository: Path, source: str, dtype: str, gigabytes: int
) -> None:
    """Loading in a process of its own needs at most 1.3 times the finished size, whatever the dtypes."""
    layers = gigabytes * 10**9 // (3072 * 1024 * getattr(torch, source).itemsize)
    shard_of = {}
    for layer in range(layers):
        name = f"model-{layer}.safetensors"
        part = torch.full((1536, 1024), layer, dtype=getattr(torch, source))
        save_file({f"{layer}.q": part, f"{layer}.k": part.clone()}, tmp_path / name)
        shard_of |= {f"{layer}.q": name, f"{layer}.k": name}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": shard_of}))
    command = [sys.executable, "-c", MEASURE, str(tmp_path), dtype, str(layers)]
    try:
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    finally:
        shutil.rmtree(tmp_path)  # pytest would keep it for the next three runs
    ratio, size = map(float, done.stdout.split())
    print(f"{source} -> {dtype}: {size / 1e9:.2f} GB in memory, peak {ratio:.3f} times that")
    assert 0.98 < ratio <= 1.3
