"""The backbone's own pictures as training data: tokens only, in safetensors shards.

A shard ``samples-ROWSxCOLS-NUMBER.safetensors`` holds ``tokens`` [n, rows, cols] as uint16 (uint32 for more than 65536
codes) and, in its metadata, the prompts, the seed of the first picture (picture k has seed + k
modulo 2**64), the sampling settings
and the backbone's name and fingerprint. ``index-ROWSxCOLS.json`` beside the shards says what is being drawn.
A shard is written whole or not at all, so collecting can be killed at any moment and taken up again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from ..engine import OnProgress
from ..errors import ShouldStop, SSDError
from ..families.base import Backbone
from ..generation import generate
from ..heads import SpatialHeads
from ..noise import image_seeds
from ..sampling import Sampling
from ..schedule import AR, Schedule
from ..writing import whole, write

INDEX_VERSION = 1


@dataclass(frozen=True)
class Samples:
    """Pictures of one grid in memory: ``tokens`` int64 [n, rows, cols] and a prompt for each picture."""

    tokens: Tensor
    prompts: list[str]

    @property
    def grid(self) -> tuple[int, int]:
        return self.tokens.shape[1], self.tokens.shape[2]

    def pick(self, numbers: Sequence[int]) -> Samples:
        """Some of the pictures, in that order."""
        return Samples(self.tokens[list(numbers)], [self.prompts[number] for number in numbers])


@dataclass(frozen=True)
class Part:
    """Part ``number`` (from 1) of ``of``: which shards this process draws."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise SSDError(f"got part {self.number} of {self.of}, expected 1/{self.of} to {self.of}/{self.of}")


def collect(
    backbone: Backbone,
    prompts: Sequence[str],
    folder: Path,
    *,
    grid: tuple[int, int],
    seed: int,
    batch: int,
    sampling: Sampling | None = None,
    schedule: Schedule | None = None,
    heads: SpatialHeads | None = None,
    part: Part | None = None,
    at_once: int | None = None,
    on_shard: Callable[[int, int], None] | None = None,
    on_share: Callable[[float], None] | None = None,
    should_stop: ShouldStop | None = None,
) -> None:
    """Draws one picture per prompt, ``batch`` pictures a shard, all of a shard or ``at_once`` of them at the same time.

    Plain decoding by default; an exact ``schedule`` with ``heads`` draws from the same distribution. Shards that exist
    already are left alone, so an interrupted call goes on where it was and a call with more prompts adds pictures.
    ``part`` draws its share of the shards. ``on_shard(done, total)`` is called after each shard of the part,
    ``on_share`` with the share of the part's rows that are drawn, 0..1, whenever a code is accepted.

    Raises SSDError, before anything is drawn, when the folder holds pictures of this grid from another backbone, other
    prompts, another seed, batch or sampling; StopRequested when ``should_stop`` said so.
    """
    sampling = sampling or backbone.default_sampling
    if schedule is not None and schedule.tolerance:
        raise SSDError(f"training pictures need exact decoding, got tolerance {schedule.tolerance}; use tolerance 0")
    image_seeds(seed, 1)  # refuses what is no seed
    claim(backbone, prompts, folder, grid=grid, seed=seed, batch=batch, sampling=sampling)
    width = at_once or batch
    starts = _starts(prompts, batch, part)
    pictures = sum(min(batch, len(prompts) - start) for start in starts)
    for done, start in enumerate(starts, start=1):
        path, chunk = _shard(folder, grid, prompts, batch, start)
        if not _is_complete(path, chunk):
            first = (seed + start) % 2**64
            drawn: list[Tensor] = []
            for begin in range(0, len(chunk), width):
                tell = None
                if on_share is not None:
                    before = (done - 1) * batch + begin, pictures
                    tell = _share_line(on_share, before, grid[0])
                made = generate(
                    backbone, chunk[begin : begin + width], schedule=schedule or AR(),
                    heads=heads if schedule is not None else None, sampling=sampling, seed=(first + begin) % 2**64,
                    grid=grid, on_progress=tell, should_stop=should_stop,
                )  # fmt: skip
                drawn.append(made.tokens.cpu())
            metadata = {
                "prompts": json.dumps(chunk),
                "seed": str(first),
                "sampling": json.dumps(asdict(sampling)),
                "schedule": made.report.decoder,
                "backbone": backbone.name,
                "fingerprint": backbone.fingerprint,
            }
            tokens = torch.cat(drawn).numpy().astype(token_dtype(backbone))
            with whole(path) as partial:
                save_file({"tokens": tokens}, partial, metadata=metadata)
        if on_shard is not None:
            on_shard(done, len(starts))


def _share_line(on_share: Callable[[float], None], before: tuple[int, int], rows: int) -> OnProgress:
    """From finished rows of each picture to the share of all; ``before``: pictures done, and all there are."""
    pictures, total = before
    return lambda done: on_share((pictures + sum(done) / rows) / total)


def begun_batch(folder: Path, grid: tuple[int, int]) -> int | None:
    """Pictures a shard in a folder where pictures of that grid were begun; None where there are none."""
    try:
        return int(json.loads(_index(folder, grid).read_text(encoding="utf-8"))["batch"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def missing(
    prompts: Sequence[str], folder: Path, *, grid: tuple[int, int], batch: int, part: Part | None = None
) -> list[str]:
    """The prompts of the shards that ``collect`` would still have to draw for these arguments."""
    shards = (_shard(folder, grid, prompts, batch, start) for start in _starts(prompts, batch, part))
    return [prompt for path, chunk in shards if not _is_complete(path, chunk) for prompt in chunk]


def claim(
    backbone: Backbone, prompts: Sequence[str], folder: Path, *, grid: tuple[int, int], seed: int, batch: int,
    sampling: Sampling | None = None,
) -> None:  # fmt: skip
    """Makes the folder and its index for these pictures, or raises SSDError when it holds others."""
    backbone.check_grid(grid)
    folder.mkdir(parents=True, exist_ok=True)
    for path in _shards(folder):
        _check_fingerprint(path, backbone.fingerprint)
    _write_index(backbone, prompts, folder, grid, seed, batch, sampling or backbone.default_sampling)


def token_dtype(backbone: Backbone) -> type[np.uint16] | type[np.uint32]:
    """The smallest type that holds every code."""
    return np.uint16 if backbone.codes <= 2**16 else np.uint32


def read_samples(folder: Path, fingerprint: str) -> Iterator[Samples]:
    """Reads all shards of a folder in name order. Raises SSDError for shards of another backbone and damaged ones."""
    paths = _shards(folder)
    if not paths:
        raise SSDError(f"no sample shards in {folder}; collect samples first")
    for path in paths:
        metadata = _check_fingerprint(path, fingerprint)
        with safe_open(str(path), framework="np") as file:
            tokens = file.get_tensor("tokens")
        yield Samples(torch.from_numpy(tokens.astype(np.int64)), json.loads(metadata["prompts"]))


def digest(shards: Sequence[Samples]) -> str:
    """A hash of prompts and tokens: the same data gives the same digest."""
    found = hashlib.sha256()
    for shard in shards:
        found.update(json.dumps([shard.prompts, list(shard.tokens.shape)]).encode())
        found.update(shard.tokens.to(torch.int32).numpy().tobytes())
    return found.hexdigest()


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("samples-*.safetensors"))


def _starts(prompts: Sequence[str], batch: int, part: Part | None) -> list[int]:
    """The first picture of every shard of the part."""
    part = part or Part()
    return list(range(0, len(prompts), batch))[part.number - 1 :: part.of]


def _shard(
    folder: Path, grid: tuple[int, int], prompts: Sequence[str], batch: int, start: int
) -> tuple[Path, list[str]]:
    """File and prompts of the shard that begins with picture ``start``."""
    name = f"samples-{grid[0]}x{grid[1]}-{start // batch:05d}.safetensors"
    return folder / name, list(prompts[start : start + batch])


def _is_complete(path: Path, prompts: list[str]) -> bool:
    """Whether the shard is there with exactly these prompts; the last shard of a smaller call has fewer."""
    return path.exists() and json.loads(_metadata(path)["prompts"]) == prompts


def _index(folder: Path, grid: tuple[int, int]) -> Path:
    return folder / f"index-{grid[0]}x{grid[1]}.json"


def _write_index(
    backbone: Backbone, prompts: Sequence[str], folder: Path, grid: tuple[int, int], seed: int, batch: int,
    sampling: Sampling,
) -> None:  # fmt: skip
    """Says what is being drawn, and refuses to mix it with something else."""
    path = _index(folder, grid)
    plan: dict[str, Any] = {
        "version": INDEX_VERSION,
        "backbone": backbone.name,
        "fingerprint": backbone.fingerprint,
        "grid": list(grid),
        "codes": backbone.codes,
        "seed": seed,
        "batch": batch,
        "sampling": asdict(sampling),
        "pictures": len(prompts),
        "prompts": list(prompts),
    }
    if path.exists():
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
            shared = min(len(old["prompts"]), len(prompts))
            same = {name: old[name] == plan[name] for name in plan if name not in ("pictures", "prompts")}
            same["prompts"] = old["prompts"][:shared] == plan["prompts"][:shared]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SSDError(f"cannot read {path} ({error!r}); delete it or collect into an empty folder") from error
        wrong = [name for name, equal in same.items() if not equal]
        if wrong:
            texts = ", ".join(
                f"{name} {old[name]!r}, now {plan[name]!r}" if name != "prompts" else "other prompts" for name in wrong
            )
            raise SSDError(f"{folder} holds pictures drawn with {texts}; use the same settings or an empty folder")
        if old["pictures"] >= len(prompts):
            return
    write(path, (json.dumps(plan, indent=1, ensure_ascii=False) + "\n").encode())


def _metadata(path: Path) -> dict[str, str]:
    """A shard's metadata. Raises SSDError when the file is damaged or no shard."""
    try:
        with safe_open(str(path), framework="np") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise SSDError(f"{path} is damaged ({error}); delete it and collect again, the other shards stay") from error
    if "fingerprint" not in metadata or "prompts" not in metadata:
        raise SSDError(f"{path} is no shard of samples: its metadata has no fingerprint or no prompts; move it away")
    return metadata


def _check_fingerprint(path: Path, fingerprint: str) -> dict[str, str]:
    """The metadata of a shard that this backbone drew."""
    metadata = _metadata(path)
    if metadata["fingerprint"] != fingerprint:
        raise SSDError(
            f"{path} was drawn by a backbone with weights {metadata['fingerprint'][:12]}, "
            f"expected {fingerprint[:12]}; collect again in an empty folder"
        )
    return metadata
