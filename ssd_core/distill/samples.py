"""The backbone's own pictures as training data: tokens only, in safetensors shards.

A shard ``samples-*.safetensors`` holds ``tokens`` int32 [n, rows, cols] and, in its metadata, the prompts, the seed of
the first picture, the sampling settings and the backbone's fingerprint.
A shard is written whole or not at all, so collecting can be killed at any moment and taken up again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import SSDError
from ..families.base import Backbone
from ..generate import generate
from ..schedule import AR


@dataclass(frozen=True)
class Samples:
    """One shard in memory: ``tokens`` int64 [n, rows, cols] and a prompt for each picture."""

    tokens: Tensor
    prompts: list[str]

    @property
    def grid(self) -> tuple[int, int]:
        return self.tokens.shape[1], self.tokens.shape[2]


def collect(
    backbone: Backbone,
    prompts: Sequence[str],
    folder: Path,
    *,
    grid: tuple[int, int],
    seed: int,
    batch: int,
    on_shard: Callable[[int, int], None] | None = None,
) -> None:
    """Draws one picture per prompt by plain decoding, ``batch`` at a time, one shard a batch.

    Shards that exist already are left alone; one of another backbone is refused before anything is drawn.
    ``on_shard(done, total)`` is called after each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in _shards(folder):
        _check_fingerprint(path, backbone.fingerprint)
    rows, cols = grid
    starts = range(0, len(prompts), batch)
    for number, start in enumerate(starts):
        path = folder / f"samples-{rows}x{cols}-{number:05d}.safetensors"
        if not path.exists():
            chunk = list(prompts[start : start + batch])
            drawn = generate(backbone, chunk, schedule=AR(), seed=seed + start, grid=grid)
            metadata = {
                "prompts": json.dumps(chunk),
                "seed": str(seed + start),
                "sampling": json.dumps(asdict(backbone.default_sampling)),
                "fingerprint": backbone.fingerprint,
            }
            partial = path.with_name(path.name + ".partial")
            save_file({"tokens": drawn.tokens.to("cpu", torch.int32)}, partial, metadata=metadata)
            partial.replace(path)
        if on_shard is not None:
            on_shard(number + 1, len(starts))


def read_samples(folder: Path, fingerprint: str) -> Iterator[Samples]:
    """Reads all shards of a folder in name order; refuses shards of another backbone."""
    paths = _shards(folder)
    if not paths:
        raise SSDError(f"no sample shards in {folder}; collect samples first")
    for path in paths:
        metadata = _check_fingerprint(path, fingerprint)
        with safe_open(str(path), framework="pt") as file:
            yield Samples(file.get_tensor("tokens").long(), json.loads(metadata["prompts"]))


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("samples-*.safetensors"))


def _check_fingerprint(path: Path, fingerprint: str) -> dict[str, str]:
    """The metadata of a shard that this backbone drew."""
    with safe_open(str(path), framework="pt") as file:
        metadata: dict[str, str] = file.metadata()
    if metadata["fingerprint"] != fingerprint:
        raise SSDError(
            f"{path} was drawn by a backbone with weights {metadata['fingerprint'][:12]}, "
            f"expected {fingerprint[:12]}; collect again in an empty folder"
        )
    return metadata
