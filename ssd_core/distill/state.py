"""A training run on disk, so that it can be killed at any moment and taken up again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import SSDError
from ..heads import SpatialHeads
from ..writing import whole
from .settings import TrainSettings

STATE_FILE = "state.safetensors"
STATE_VERSION = "1"
_MOMENTS = ("exp_avg", "exp_avg_sq")
_ANEW = "to begin again delete {}"
_FREE = ("micro_batch", "checkpoint_minutes", "minutes")
"""Settings that may change when a run is taken up: memory, and how long it may go on."""
HEADS_BYTES = 12
"""Of a state on disk for each weight of the heads: itself and AdamW's two moments in float32."""


@dataclass
class Progress:
    """Where a run is: finished ``steps``, ``seconds`` of training, and the best mean acceptance measured so far.

    ``measured``: after how many steps the last time, which took ``measuring`` seconds.
    """

    steps: int = 0
    seconds: float = 0.0
    best: float = -1.0
    measured: int = 0
    measuring: float = 0.0


def save_state(
    folder: Path, heads: SpatialHeads, optimizer: torch.optim.AdamW, scale: Tensor, progress: Progress,
    settings: TrainSettings, data: str,
) -> None:  # fmt: skip
    """Writes ``state.safetensors``: heads and optimizer moments in full precision; atomic. ``data``: see ``digest``."""
    tensors = {"scale": scale.cpu()}
    for name, parameter in heads.named_parameters():
        tensors[f"heads.{name}"] = parameter.detach().cpu()
        for part, value in optimizer.state.get(parameter, {}).items():  # nothing before a parameter's first step
            tensors[f"{part}.{name}"] = value.cpu()
    metadata = {"version": STATE_VERSION, "progress": json.dumps(asdict(progress)), **_identity(heads, settings, data)}
    with whole(folder / STATE_FILE) as partial:
        save_file(tensors, partial, metadata=metadata)


def load_state(
    folder: Path, heads: SpatialHeads, optimizer: torch.optim.AdamW, settings: TrainSettings, data: str
) -> tuple[Progress, Tensor] | None:
    """Puts heads and optimizer back where the run in ``folder`` was; returns its progress and scale, None without one.

    Raises SSDError when the run had other settings, heads or pictures, or when the file is damaged.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("version") != STATE_VERSION:
                raise SSDError(
                    f"{path} has version {metadata.get('version')}, this release reads {STATE_VERSION}; "
                    f"{_ANEW.format(path)}"
                )
            _compare(path, metadata, _identity(heads, settings, data))
            for name, parameter in heads.named_parameters():
                with torch.no_grad():
                    parameter.copy_(file.get_tensor(f"heads.{name}"))
                if f"step.{name}" in file.keys():  # noqa: SIM118 - not a mapping
                    optimizer.state[parameter] = {
                        "step": file.get_tensor(f"step.{name}"),
                        **{part: file.get_tensor(f"{part}.{name}").to(parameter.device) for part in _MOMENTS},
                    }
            scale = file.get_tensor("scale")
        progress = Progress(**json.loads(metadata["progress"]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise SSDError(f"cannot read the training state {path} ({error}); {_ANEW.format(path)}") from error
    return progress, scale


def _identity(heads: SpatialHeads, settings: TrainSettings, data: str) -> dict[str, str]:
    """What must be the same when a run is taken up."""
    spec = {**asdict(heads.spec), "notes": {}}
    return {"settings": json.dumps(fixed(settings)), "spec": json.dumps(spec), "data": data}


def fixed(settings: TrainSettings) -> dict[str, object]:
    """The settings that may not change when a run is taken up."""
    return {name: value for name, value in asdict(settings).items() if name not in _FREE}


def _compare(path: Path, found: dict[str, str], wanted: dict[str, str]) -> None:
    if found["data"] != wanted["data"]:
        raise SSDError(f"{path} was trained on other pictures; {_ANEW.format(path)}")
    for part in ("spec", "settings"):
        old, new = json.loads(found[part]), json.loads(wanted[part])
        texts = [f"{name} {old.get(name)}, now {new[name]}" for name in new if old.get(name) != new[name]]
        if texts:
            raise SSDError(
                f"{path} belongs to a run with {'; '.join(texts)}; use the same settings, or {_ANEW.format(path)}"
            )


def saved_steps(folder: Path) -> int:
    """How many steps the state in ``folder`` has behind it; 0 without a readable one."""
    found = _metadata(folder)
    return 0 if found is None else int(found[0].get("steps", 0))


def saved_offsets(folder: Path) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Horizontal and vertical offsets of the heads that the state in ``folder`` has; None without a readable one."""
    found = _metadata(folder)
    return None if found is None else (tuple(found[1]["horizontal"]), tuple(found[1]["vertical"]))


def _metadata(folder: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Progress and spec of the heads."""
    try:
        with safe_open(str(folder / STATE_FILE), framework="pt") as file:
            metadata = file.metadata() or {}
            return json.loads(metadata["progress"]), json.loads(metadata["spec"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None
