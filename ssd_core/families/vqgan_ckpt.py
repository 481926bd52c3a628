"""Meta's ``vqgan.ckpt``, read once so that ``python -m ssd_core convert`` can write it as safetensors.

The only place that opens a pickle, and only with torch's weights-only reader, which builds tensors and plain containers
and runs nothing else. Whatever it refuses is refused here too.
"""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path

import torch
from torch import Tensor

from ..errors import SSDError
from .chameleon_pixels import SOURCE, empty_vqgan, file_key


def read_vqgan_ckpt(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors that a picture tokenizer needs, under their own names, and the names of the others.

    Left out are the training loss (``loss.…``) and whatever else encoder, decoder and codebook do not use. Raises
    SSDError when the file holds anything but plain tensors, is damaged, or is not such a VQGAN; OSError when it cannot
    be opened.
    """
    stored = _tensors_of(_load(path), path)
    network = empty_vqgan({name: tuple(t.shape) for name, t in stored.items()}, path)
    wanted = {file_key(name): tensor for name, tensor in network.state_dict().items()}
    missing = sorted(wanted.keys() - stored.keys())
    wrong = [
        f"{name} {list(stored[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in stored and (stored[name].shape != tensor.shape or not stored[name].is_floating_point())
    ]
    if missing or wrong:
        raise SSDError(
            f"{path} is not complete: missing {', '.join(missing[:4]) or 'nothing'}{' …' if missing[4:] else ''}, "
            f"wrong {', '.join(wrong[:4]) or 'nothing'}{' …' if wrong[4:] else ''}; expected {SOURCE}"
        )
    # Copies: tensors of a checkpoint may share memory, which safetensors cannot say.
    kept = {name: stored[name].detach().clone(memory_format=torch.contiguous_format) for name in sorted(wanted)}
    return kept, sorted(stored.keys() - wanted.keys())


def _load(path: Path) -> object:
    """The unpickled content."""
    with path.open("rb") as file:
        start = file.read(16)
    if start.startswith(b"version https://"):
        raise SSDError(
            f"{path} is a git-LFS pointer, not the checkpoint; run `git lfs pull` or download the file itself"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about pickles that it then refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise SSDError(
            f"{path} is damaged or holds objects that could run code, and is not read ({_reason(error)}); "
            f"expected {SOURCE}"
        ) from error
    except (
        AssertionError,
        AttributeError,
        EOFError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise SSDError(f"{path} is damaged ({_reason(error)}); download it again, expected {SOURCE}") from error


def _reason(error: Exception) -> str:
    """What torch found, without its advice, which is to read the file unsafely."""
    found = re.search(r"Unsupported .*?(?= was not an allowed|\n|$)", str(error))
    if found is not None:
        return found.group()
    first = str(error).partition("\n")[0][:200]
    return type(error).__name__ if not first or "weights" in first.lower() else f"{type(error).__name__}: {first}"


def _tensors_of(content: object, path: Path) -> dict[str, Tensor]:
    """The ``state_dict`` of the file."""
    state = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(state, dict):
        got = (
            f"a dict of {', '.join(map(str, [*content][:5]))}" if isinstance(content, dict) else type(content).__name__
        )
        raise SSDError(f"{path} holds {got}, expected a dict with a state_dict as in {SOURCE}")
    return {str(name): tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
