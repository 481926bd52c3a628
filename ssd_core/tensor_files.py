"""One safetensors file: its header checked, its values read by plain reads into tensors that exist already.

The safetensors library would map the file, whose pages then count as memory of the process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import SSDError

CHUNK_BYTES = 16 * 2**20
_LFS_MARK = b"version https://git-lfs"
MOST_HEADER_BYTES = 100 * 2**20  # the format's own limit
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def new_buffer() -> Tensor:
    """A chunk for `TensorInfo.copy_to`."""
    return torch.empty(CHUNK_BYTES, dtype=torch.uint8)


@dataclass(frozen=True)
class TensorInfo:
    """One tensor on disk; ``start`` is the byte of the file where its values begin."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    file: Path
    start: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def row_range(self, rows: slice | None) -> tuple[int, int]:
        """First row and number of rows along dimension 0; (0, 1) for a single value."""
        if not self.shape:
            return 0, 1
        begin, end, step = (rows or slice(None)).indices(self.shape[0])
        if step != 1:
            raise ValueError(f"rows must be neighbours, got {rows}")
        return begin, max(0, end - begin)

    def shape_of(self, rows: slice | None) -> tuple[int, ...]:
        """The shape of those rows."""
        return (self.row_range(rows)[1], *self.shape[1:]) if self.shape else ()

    def read(self, rows: slice | None = None) -> Tensor:
        """The values, or those of some rows, on the CPU in the dtype of the file."""
        out = torch.empty(self.shape_of(rows), dtype=self.dtype)
        self.copy_to(out, rows)
        return out

    def copy_to(self, out: Tensor, rows: slice | None = None, buffer: Tensor | None = None) -> None:
        """Fills the contiguous ``out`` of any dtype and device, a chunk at a time; torch casts the values.

        ``buffer``: uint8 on the CPU, the chunk. Who reads many tensors hands the same one in each time: buffers that
        come and go between the tensors that stay would tear holes into the process's memory.
        """
        flat = out.view(-1)
        with self.file.open("rb", buffering=0) as file:
            file.seek(self._byte_of(rows))
            if out.device.type == "cpu" and out.dtype == self.dtype:
                self._read_into(file, flat)
                return
            chunk = (new_buffer() if buffer is None else buffer).view(self.dtype)
            for begin in range(0, flat.numel(), len(chunk)):
                values = chunk[: flat.numel() - begin]
                self._read_into(file, values)
                flat[begin : begin + len(chunk)].copy_(values)

    def sample(self, rows: slice | None = None, blocks: int = 16, width: int = 256) -> Iterator[Tensor]:
        """Up to ``blocks`` runs of ``width`` values, evenly spread over the rows, the first and the last included."""
        total = math.prod(self.shape_of(rows))
        last = max(0, total - width)
        with self.file.open("rb", buffering=0) as file:
            for at in sorted({last * block // (blocks - 1) for block in range(blocks)}):
                values = torch.empty(min(width, total - at), dtype=self.dtype)
                file.seek(self._byte_of(rows) + at * self.dtype.itemsize)
                self._read_into(file, values)
                yield values

    def _byte_of(self, rows: slice | None) -> int:
        """Where the first value of those rows begins in the file."""
        return self.start + self.row_range(rows)[0] * math.prod(self.shape[1:]) * self.dtype.itemsize

    def _read_into(self, file: RawIOBase, out: Tensor) -> None:
        """Reads the bytes of a contiguous CPU tensor from where the raw file stands."""
        if out.numel() == 0:
            return
        view = memoryview(out.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        while len(view):
            got = file.readinto(view[:CHUNK_BYTES])
            if not got:
                raise SSDError(f"{self.file} ended while it was read: {len(view)} bytes are missing; download it again")
            view = view[got:]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file, each checked to lie inside the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(len(_LFS_MARK))
        if first.startswith(_LFS_MARK):
            raise SSDError(
                f"{path} is a git-LFS pointer of {size} bytes, not the weights; "
                "run `git lfs pull` in the repository or download the file from the model's page"
            )
        length = int.from_bytes(first[:8], "little")
        if len(first) < 8 or not 2 <= length <= min(size - 8, MOST_HEADER_BYTES):
            raise SSDError(
                f"{path} ({size} bytes) is not a complete safetensors file: its header would have {length} bytes; "
                "download it again"
            )
        file.seek(8)
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        found = {name: _tensor_info(item, path, 8 + length) for name, item in header.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise SSDError(
            f"{path} has a damaged header ({type(error).__name__}: {error}); download the file again"
        ) from error
    end = max((info.start + info.bytes for info in found.values()), default=0)
    if end > size:
        raise SSDError(f"{path} is truncated: got {size} bytes, expected {end}; download it again")
    return found


def _tensor_info(item: dict[str, Any], path: Path, data: int) -> TensorInfo:
    """One entry of a header whose values begin at byte ``data``; ValueError and KeyError when it contradicts itself."""
    begin, end = item["data_offsets"]
    shape = tuple(int(side) for side in item["shape"])
    info = TensorInfo(_DTYPES[item["dtype"]], shape, path, data + int(begin))
    if begin < 0 or any(side < 0 for side in shape) or end - begin != info.bytes:
        raise ValueError(f"a tensor of shape {list(shape)} and dtype {item['dtype']} at bytes {begin} to {end}")
    return info
