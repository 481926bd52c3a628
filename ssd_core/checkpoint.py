"""Weights from safetensors files: found, checked and streamed into a module, one tensor at a time.

Files are read with plain reads, never mapped, so that memory holds the finished weights and one small chunk. Other
formats (``.bin``, ``.pt``, ``.ckpt``) are pickles that can run code: they are named in an error and never opened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from .errors import ShouldStop, SSDError, StopRequested
from .tensor_files import TensorInfo, new_buffer, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_READABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Source:
    """Where a parameter comes from: tensors ``keys``, joined along dimension 0 (fused QKV, gate and up).

    ``rows`` first takes a slice of dimension 0 of each (an output head's image codes; only these rows are read), then
    ``transform`` changes each, still in the dtype of the file.
    """

    keys: tuple[str, ...]
    rows: slice | None = None
    transform: Callable[[Tensor], Tensor] | None = None


Plan = Mapping[str, Source | str]
"""Parameter name -> where it comes from; a plain string is a source with that one key."""


class Checkpoint:
    """The safetensors of one folder: which tensors there are and where. No values are read yet."""

    def __init__(self, folder: Path, tensors: dict[str, TensorInfo]) -> None:
        self.folder = folder
        self.tensors = tensors

    @classmethod
    def open(cls, folder: Path, file: str | None = None) -> Checkpoint:
        """Reads the headers of ``file``, or of the shards that ``model.safetensors.index.json`` names, or of
        ``model.safetensors``.

        Raises SSDError when there are none, and for a missing shard, a truncated file, a git-LFS pointer and whatever
        is not a safetensors file.
        """
        shard_of: dict[str, str] = {}
        if file is not None:
            files = [file]
        elif (folder / INDEX).is_file():
            shard_of = _read_index(folder / INDEX)
            files = sorted(set(shard_of.values()))
            _require_shards(folder, files)
        else:
            files = [SINGLE]
        if not (folder / files[0]).is_file():
            raise SSDError(_nothing_to_read(folder, files[0]))
        tensors: dict[str, TensorInfo] = {}
        for name in files:
            found = read_header(folder / name)
            tensors.update({key: info for key, info in found.items() if shard_of.get(key, name) == name})
        lost = [f"{key} ({shard})" for key, shard in shard_of.items() if key not in tensors]
        if lost:
            raise SSDError(
                f"{folder / INDEX} names {_some(lost)}, which the file does not hold; "
                "index and shards are from different versions: download the folder again"
            )
        return cls(folder, tensors)


def fill(
    module: nn.Module,
    checkpoint: Checkpoint,
    plan: Plan,
    *,
    dtype: torch.dtype,
    device: torch.device,
    keep_float32: tuple[str, ...] = (),
    ignorable: tuple[str, ...] = (),
    should_stop: ShouldStop | None = None,
) -> None:
    """Loads ``module`` (built on the meta device) from ``checkpoint``.

    Every floating-point parameter is made in ``dtype`` on ``device``, those whose name begins with one of
    ``keep_float32`` in float32; integer buffers keep their dtype. Values are cast as ``Tensor.to`` casts them.
    Memory needed at any time: what is loaded so far, one chunk of 16 MiB, and one source tensor with a ``transform``.
    On the device ``meta`` everything is checked and no value is read: sizes and facts of a model without its weight.
    ``plan`` must name every parameter and buffer that is on the meta device; what is on a real one (computed, or filled
    from another file) may be left out.

    ``should_stop`` is asked before each tensor is read. Raises StopRequested when it said so, and SSDError, before
    anything is read, for tensors that are missing, for tensors that neither the plan nor a
    prefix in ``ignorable`` names, and for wrong shapes and dtypes.
    """
    sources = {name: Source((item,)) if isinstance(item, str) else item for name, item in plan.items()}
    targets = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    # On the meta device what another file has filled cannot be told from what nobody has.
    unplanned = [name for name, t in targets.items() if t.is_meta and name not in sources and device.type != "meta"]
    if unplanned or not sources.keys() <= targets.keys():
        unknown = _some(sorted(sources.keys() - targets.keys()))
        raise ValueError(f"plan without {_some(unplanned) or 'nothing'}, with unknown {unknown or 'nothing'}")
    _check_keys(checkpoint, sources.values(), ignorable)
    for name, source in sources.items():
        _check_source(checkpoint, name, source, targets[name])

    def place(name: str) -> tuple[Path, int]:
        first = checkpoint.tensors[sources[name].keys[0]]
        return first.file, first.start

    buffer = new_buffer()
    for name in sorted(sources, key=place):  # in the order of the disk
        wanted = targets[name]
        kind = wanted.dtype
        if kind.is_floating_point:
            kind = torch.float32 if name.startswith(keep_float32) else dtype
        value = torch.empty(wanted.shape, dtype=kind, device=device)
        if not value.is_meta:
            if should_stop is not None and should_stop():
                raise StopRequested(f"loading {checkpoint.folder} was stopped before it finished")
            _load(value, checkpoint, name, sources[name], buffer)
        _assign(module, name, value)


def fingerprint_of(checkpoint: Checkpoint, plan: Plan | None = None) -> str:
    """A hash (64 hex digits) of weights, quick for 15 GB: names, shapes and a sample of the values of every tensor.

    With ``plan`` only what it names counts, under the parameters' own names, so that two layouts of the same weights
    have the same fingerprint. Values are compared in bfloat16: a float32 copy of bfloat16 weights is the same model.
    """
    sources = plan if plan is not None else {key: key for key in checkpoint.tensors}
    digest = hashlib.sha256()
    for name in sorted(sources):
        item = sources[name]
        source = Source((item,)) if isinstance(item, str) else item
        for key in source.keys:
            info = checkpoint.tensors[key]
            digest.update(json.dumps([name, info.shape_of(source.rows)]).encode())
            for values in info.sample(source.rows):
                plain = values.to(torch.bfloat16) if values.is_floating_point() else values
                digest.update(plain.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# --- the files -----------------------------------------------------------------------------------------------------


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    try:
        shard_of = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        plain = all(isinstance(name, str) and Path(name).name == name for name in shard_of.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SSDError(
            f"cannot read {path} ({type(error).__name__}: {error}); expected JSON with a weight_map, download it again"
        ) from error
    if not shard_of or not plain:
        raise SSDError(f"{path} must map tensors to files beside it, got {_some(map(str, shard_of.values()))}")
    return dict(shard_of)


def _require_shards(folder: Path, files: list[str]) -> None:
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise SSDError(
            f"{folder} lacks {_some(missing)} of the {len(files)} files that {INDEX} names; "
            "download the missing files into the folder"
        )


def _nothing_to_read(folder: Path, wanted: str) -> str:
    """Words the error for a folder without the wanted file."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    shards = [name for name in names if name.startswith("model-") and name.endswith(".safetensors")]
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if wanted == SINGLE and shards:
        return f"{folder} has {_some(shards)} but no {INDEX}; download that file into the folder too"
    if pickles:
        return (
            f"{folder} has no {wanted}, only {_some(pickles)}: such files can run code and are not read. Get the "
            "safetensors version (on the model's page, or in its list of revisions and pull requests), or convert once "
            "with `torch.load(file, weights_only=True)` and `safetensors.torch.save_file(tensors, "
            f'"{wanted}")`'
        )
    expected = f"{SINGLE} or {INDEX} with its shards" if wanted == SINGLE else wanted
    return f"{folder} lacks weights: expected {expected}, got {_some(names) or 'no files'}; download what is missing"


# --- the checks ----------------------------------------------------------------------------------------------------


def _check_keys(checkpoint: Checkpoint, sources: Iterable[Source], ignorable: tuple[str, ...]) -> None:
    used = {key for source in sources for key in source.keys}
    missing = sorted(used - checkpoint.tensors.keys())
    unexpected = sorted(key for key in checkpoint.tensors.keys() - used if not key.startswith(ignorable))
    if missing or unexpected:
        raise SSDError(
            f"the weights in {checkpoint.folder} do not match its config.json: missing {_some(missing) or 'nothing'}; "
            f"unexpected {_some(unexpected) or 'nothing'}; check that all files are of one download of one model"
        )


def _check_source(checkpoint: Checkpoint, name: str, source: Source, target: Tensor) -> None:
    """Refuses a dtype that cannot be cast, and a wrong shape as far as it is known before a transform."""
    infos = [checkpoint.tensors[key] for key in source.keys]
    for key, info in zip(source.keys, infos, strict=True):
        good = info.dtype in _READABLE if target.dtype.is_floating_point else info.dtype == target.dtype
        if not good:
            expected = "float64, float32, bfloat16 or float16" if target.dtype.is_floating_point else target.dtype
            raise SSDError(
                f"{info.file}: {key} is {info.dtype}, expected {expected}; quantised files are not supported, "
                "get the model's original weights"
            )
    if source.transform is None:
        shapes = [info.shape_of(source.rows) for info in infos]
        joined = shapes[0] if len(shapes) == 1 else (sum(shape[0] for shape in shapes), *shapes[0][1:])
        if joined != tuple(target.shape) or len({shape[1:] for shape in shapes}) > 1:
            raise SSDError(_wrong_shape(checkpoint, name, source, tuple(target.shape)))


def _wrong_shape(checkpoint: Checkpoint, name: str, source: Source, expected: tuple[int, ...]) -> str:
    got = ", ".join(f"{key} {list(checkpoint.tensors[key].shape)}" for key in source.keys)
    return (
        f"{checkpoint.tensors[source.keys[0]].file}: got {got}, expected {list(expected)} for {name}; "
        "the weights are not those of this config.json"
    )


# --- the values ----------------------------------------------------------------------------------------------------


def _load(out: Tensor, checkpoint: Checkpoint, name: str, source: Source, buffer: Tensor) -> None:
    """Fills ``out`` with the source's tensors, one after the other along dimension 0."""
    if source.transform is None:
        row = 0
        for key in source.keys:
            info = checkpoint.tensors[key]
            count = info.row_range(source.rows)[1]
            info.copy_to(out[row : row + count] if info.shape else out, source.rows, buffer)
            row += count
        return
    parts = [source.transform(checkpoint.tensors[key].read(source.rows)) for key in source.keys]
    value = torch.cat(parts) if len(parts) > 1 else parts[0]
    if value.shape != out.shape:
        raise SSDError(_wrong_shape(checkpoint, name, source, tuple(out.shape)))
    out.copy_(value)


def _assign(module: nn.Module, name: str, value: Tensor) -> None:
    """Puts ``value`` in the place of a meta tensor."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    if leaf in owner._buffers:
        owner._buffers[leaf] = value
    else:
        owner._parameters[leaf] = nn.Parameter(value, requires_grad=False)


def _some(names: Iterable[str], most: int = 8) -> str:
    """``a, b, c … (12 in all)``."""
    items = list(names)
    return ", ".join(items[:most]) + (f" … ({len(items)} in all)" if len(items) > most else "")
