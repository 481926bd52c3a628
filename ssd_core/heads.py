"""Spatial heads: from the feature of one position to the features to its right and below it.

Paper section 3: one independent head per direction and offset. With z = [h ; e] (feature and token embedding of the
same position), u = W0 z, n = RMSNorm(u): predicted feature = u + W2 (SiLU(W1 n) * W3 n), no biases, inner width 2d.
The predicted feature goes through the backbone's own final norm and output head.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .errors import ShouldStop, SSDError, StopRequested
from .transformer import RMSNorm
from .writing import claim, whole

Direction = Literal["horizontal", "vertical"]
FORMAT_VERSION = 1


@dataclass(frozen=True)
class HeadsSpec:
    """What a heads file holds and what it was trained for.

    ``horizontal`` and ``vertical`` are the trained offsets, a part of the paper's five each is fine; ``neighbours`` is
    how many columns on each side of a position the vertical heads read (0 is the paper's head). ``notes``: JSON values
    that loading does not depend on, such as ``grids``, ``training``, ``acceptance``, ``recommended``, ``licence`` and
    ``author`` as `ssd_core.distill` writes them.
    """

    hidden: int
    horizontal: tuple[int, ...]
    vertical: tuple[int, ...]
    neighbours: int = 0
    backbone: str = ""
    fingerprint: str = ""
    notes: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("horizontal", "vertical"):
            offsets = getattr(self, name)
            if any(type(o) is not int for o in offsets):
                raise SSDError(f"{name} offsets must be whole numbers, got {list(offsets)}")
            if list(offsets) != sorted(set(offsets)) or any(o < 1 for o in offsets):
                raise SSDError(f"{name} offsets must be rising numbers from 1, got {list(offsets)}")
        if not self.horizontal and not self.vertical:
            raise SSDError("heads need at least one offset in one direction, got none")
        if type(self.hidden) is not int or self.hidden < 1:
            raise SSDError(f"hidden must be a whole number from 1, got {self.hidden!r}")
        if type(self.backbone) is not str or type(self.fingerprint) is not str or type(self.notes) is not dict:
            raise SSDError("backbone and fingerprint must be texts and notes an object")
        if self.neighbours not in (0, 1):
            raise SSDError(f"neighbours must be 0 or 1, got {self.neighbours}")

    def misfit(self, backbone: str, hidden: int, fingerprint: str) -> str | None:
        """Why these heads do not fit a backbone of that name, width and weight fingerprint; None when they do."""
        if self.hidden != hidden:
            return (
                f"was trained for features of width {self.hidden} ({self.backbone or 'unknown backbone'}), but "
                f"{backbone} has width {hidden}; choose heads made for this backbone"
            )
        if self.fingerprint and self.fingerprint != fingerprint:
            return (
                f"was trained for {self.backbone or 'another backbone'} with weights {self.fingerprint[:12]}, but "
                f"{backbone} has weights {fingerprint[:12]}; choose heads made for these weights"
            )
        return None


class SpatialHead(nn.Module):
    """One head. ``sources`` is how many positions it reads: 1, or 3 for a neighbour-aware vertical head.

    A new head predicts the feature it reads from its own column: training starts from a copy of the source.
    """

    def __init__(self, hidden: int, sources: int = 1) -> None:
        super().__init__()
        self.mix = nn.Linear(2 * hidden * sources, hidden, bias=False)  # W0
        self.norm = RMSNorm(hidden, eps=1e-6)
        self.gate_up = nn.Linear(hidden, 4 * hidden, bias=False)  # W1 and W3
        self.down = nn.Linear(2 * hidden, hidden, bias=False)  # W2
        self._copy_source()

    @torch.no_grad()
    def _copy_source(self) -> None:
        hidden = self.norm.weight.shape[0]
        own = self.mix.weight.shape[1] // hidden // 4 * hidden  # of the features of 1 or 3 positions, then embeddings
        self.mix.weight.zero_()
        self.mix.weight[:, own : own + hidden].fill_diagonal_(1.0)
        self.down.weight.zero_()

    @torch.no_grad()
    def restart(self, seed: int) -> None:
        """A new head's weights, the random ones (W1 and W3) from a generator of their own."""
        self._copy_source()
        self.norm.weight.fill_(1.0)
        bound = self.gate_up.weight.shape[1] ** -0.5
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand(self.gate_up.weight.shape, generator=generator)
        self.gate_up.weight.copy_((2 * drawn - 1) * bound)

    def forward(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """Features and embeddings [..., sources * hidden] -> predicted pre-norm features [..., hidden]."""
        mixed = self.mix(torch.cat((features, embeddings), dim=-1))
        gate, up = self.gate_up(self.norm(mixed)).chunk(2, dim=-1)
        predicted: Tensor = mixed + self.down(F.silu(gate) * up)
        return predicted


class SpatialHeads(nn.Module):
    """All heads of one backbone: ``horizontal.{offset}`` and ``vertical.{offset}``."""

    def __init__(self, spec: HeadsSpec) -> None:
        super().__init__()
        self.spec = spec
        sources = 1 + 2 * spec.neighbours
        self.horizontal = nn.ModuleDict({str(o): SpatialHead(spec.hidden) for o in spec.horizontal})
        self.vertical = nn.ModuleDict({str(o): SpatialHead(spec.hidden, sources) for o in spec.vertical})

    @classmethod
    def new(cls, spec: HeadsSpec, seed: int) -> SpatialHeads:
        """Heads to be trained (float32, CPU); one seed gives each head the same weights, whichever others there are."""
        with torch.device("meta"):
            heads = cls(spec)
        heads.to_empty(device="cpu")
        for direction, offsets in ((heads.horizontal, spec.horizontal), (heads.vertical, spec.vertical)):
            for offset in offsets:
                head = direction[str(offset)]
                assert isinstance(head, SpatialHead)
                head.restart((seed * 1000 + 2 * offset + (direction is heads.vertical)) % 2**63)
        return heads

    def offsets(self, direction: Direction) -> tuple[int, ...]:
        return self.spec.horizontal if direction == "horizontal" else self.spec.vertical

    def digest(self) -> str:
        """A hash of the weights, 16 hex digits: outside exact mode drafts decide what is drawn."""
        found = hashlib.sha256()
        for name, value in sorted(self.state_dict().items()):
            found.update(name.encode())
            found.update(value.float().cpu().numpy().tobytes())
        return found.hexdigest()[:16]

    def noted(self, notes: dict[str, object]) -> SpatialHeads:
        """The same heads, weights shared, with ``notes`` added to those of the spec."""
        with torch.device("meta"):
            other = SpatialHeads(replace(self.spec, notes={**self.spec.notes, **notes}))
        other.load_state_dict(self.state_dict(), assign=True)
        return other.requires_grad_(False).eval()

    def head(self, direction: Direction, offset: int) -> SpatialHead:
        table = self.horizontal if direction == "horizontal" else self.vertical
        head = table[str(offset)]
        assert isinstance(head, SpatialHead)
        return head


def save_heads(heads: SpatialHeads, path: str | Path, dtype: torch.dtype = torch.float16) -> None:
    """Writes one safetensors file with the spec in its metadata; atomic, an old file is replaced."""
    tensors = {name: t.detach().to("cpu", dtype).contiguous() for name, t in heads.state_dict().items()}
    with whole(Path(path)) as partial:
        save_file(tensors, partial, metadata=_metadata(heads.spec))


def save_new_heads(heads: SpatialHeads, path: Path, dtype: torch.dtype = torch.float16) -> Path:
    """Like ``save_heads``, but replaces no file: where the name is taken it gets ``_2``, ``_3`` ...

    Returns the path.
    """
    partial = path.with_name(f".ssd-{secrets.token_hex(8)}.partial")
    try:
        save_heads(heads, partial, dtype)
        free = claim(path.parent, path.stem, path.suffix, "_")
        try:
            partial.replace(free)
        except BaseException:
            free.unlink()
            raise
    finally:
        partial.unlink(missing_ok=True)
    return free


def update_notes(path: str | Path, notes: dict[str, object]) -> HeadsSpec:
    """Adds ``notes`` to a heads file's own; the tensors stay as they are, byte for byte. Atomic.

    Returns the new spec. Raises SSDError when the file is no heads file or is truncated.
    """
    spec = read_heads_spec(path)
    new = replace(spec, notes={**spec.notes, **notes})
    source = Path(path)
    with source.open("rb") as old, whole(source) as partial, partial.open("wb") as file:
        header = json.loads(old.read(int.from_bytes(old.read(8), "little")))
        header["__metadata__"] = _metadata(new)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
        file.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(old, file, 2**24)
    return new


def _metadata(spec: HeadsSpec) -> dict[str, str]:
    return {"format": "ssd-heads", "version": str(FORMAT_VERSION), "spec": json.dumps(asdict(spec))}


def read_heads_spec(path: str | Path) -> HeadsSpec:
    """Reads the spec of a heads file without its weights. Raises SSDError when the file is not one."""
    if not Path(path).is_file():
        raise SSDError(f"there is no heads file {path}; check the name, or decode without heads")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise SSDError(f"cannot read the heads file {path}: {error}; is it complete?") from error
    if metadata.get("format") != "ssd-heads":
        raise SSDError(f"{path} is not an SSD heads file (no 'ssd-heads' format mark in its metadata)")
    if metadata.get("version") != str(FORMAT_VERSION):
        raise SSDError(
            f"{path} has heads format version {metadata.get('version')}, this release reads {FORMAT_VERSION}; "
            "update the extension or train the heads again"
        )
    try:
        raw = json.loads(metadata["spec"])
        raw["horizontal"], raw["vertical"] = tuple(raw["horizontal"]), tuple(raw["vertical"])
        return HeadsSpec(**raw)
    except (KeyError, RecursionError, TypeError, ValueError, SSDError) as error:
        raise SSDError(f"{path} has damaged heads metadata: {error}") from error


def read_heads(
    path: str | Path, hidden: int, backbone: str, fingerprint: str, should_stop: ShouldStop | None = None
) -> SpatialHeads:
    """Loads a heads file strictly for a backbone of that width, name and weight fingerprint (float32, CPU).

    ``should_stop`` is asked before each tensor. Raises SSDError for a file that does not fit, StopRequested.
    """
    spec = read_heads_spec(path)
    misfit = spec.misfit(backbone, hidden, fingerprint)
    if misfit is not None:
        raise SSDError(f"{path} {misfit}")
    with torch.device("meta"):
        heads = SpatialHeads(spec)
    expected = {name: tuple(t.shape) for name, t in heads.state_dict().items()}
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(str(path), framework="pt") as file:
            _compare_names(path, set(expected), file.keys())
            for name, shape in expected.items():
                if should_stop is not None and should_stop():
                    raise StopRequested("loading the heads was stopped")
                tensor = file.get_tensor(name)
                if tuple(tensor.shape) != shape:
                    raise SSDError(f"{path}: tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
                tensors[name] = tensor.float()
    except SafetensorError as error:
        raise SSDError(f"cannot read the heads file {path}: {error}; is it complete?") from error
    heads.load_state_dict(tensors, strict=True, assign=True)
    return heads.requires_grad_(False).eval()


def _compare_names(path: str | Path, expected: set[str], found: Sequence[str]) -> None:
    missing, extra = sorted(expected - set(found)), sorted(set(found) - expected)
    if missing or extra:
        raise SSDError(
            f"{path} does not match its metadata: missing {missing or 'nothing'}, unexpected {extra or 'nothing'}"
        )
