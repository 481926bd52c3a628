"""Devices, dtypes and memory are ComfyUI's choice: its model manager places our weights and makes room for a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import comfy.model_management as management
import comfy.model_patcher as patching
import comfy.patcher_extension as extension
import torch
from comfy.cli_args import args
from torch import Tensor, nn

from ..errors import NodeError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class SSDWeights(nn.Module):
    """What ComfyUI's patcher manages. The patcher writes ``device`` and other marks on its model: not on ours."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def compute_device() -> torch.device:
    """Where ComfyUI computes."""
    return management.get_torch_device()


def offload_device() -> torch.device:
    """Where weights wait while they are not needed."""
    return management.unet_offload_device()


def compute_dtype(precision: str) -> torch.dtype:
    """``auto`` -> what suits ComfyUI's device; else the dtype of that name."""
    if precision != "auto":
        return DTYPES[precision]
    device = compute_device()
    if management.is_device_cpu(device):
        return torch.float32
    if management.should_use_bf16(device):
        return torch.bfloat16
    return torch.float16 if management.should_use_fp16(device) else torch.float32


def patcher_of(module: nn.Module, on_unload: Callable[[], None] | None = None) -> Any:
    """Hands a module, now on the offload device, over to ComfyUI's manager, which tells when it takes it off the device
    as a whole. What it takes in part it does not tell.
    """
    # Newer cores' default patcher streams weights in and out of the device layer by layer. A decoder that runs through
    # all of them hundreds of times a picture wants them whole and in one place: the plain patcher does that.
    patcher = patching.ModelPatcher(SSDWeights(module), load_device=compute_device(), offload_device=offload_device())
    if on_unload is not None:

        def detached(patcher: Any, weights_leave: bool = True) -> None:
            if weights_leave:  # else it only changes hands
                on_unload()

        patcher.add_callback(extension.CallbacksMP.ON_DETACH, detached)
    return patcher


def why_no_graphs(patchers: Sequence[Any]) -> str | None:
    """What speaks against CUDA graphs over these weights here, or None: they stay where they are during a run."""
    if getattr(args, "disable_cuda_graphs", False):  # not every version has it
        return "ComfyUI was started with --disable-cuda-graphs"
    state = management.vram_state.name
    if state in ("LOW_VRAM", "NO_VRAM"):
        return f"ComfyUI runs in {state} mode, where weights move"
    if any(getattr(patcher, "is_dynamic", bool)() for patcher in patchers):
        return "ComfyUI streams these weights (dynamic VRAM)"
    return None


def make_resident(patchers: Sequence[Any], working_bytes: int) -> None:
    """Brings everything a run needs to the compute device with one request that also leaves room to work.

    Raises NodeError when only a part of the weights fitted.
    """
    with torch.inference_mode(False):  # weights that were moved in inference mode could never be trained with
        management.load_models_gpu(list(patchers), memory_required=working_bytes, force_full_load=True)
    places = {weight.device for patcher in patchers for weight in patcher.model.parameters()}
    if len(places) > 1:
        raise NodeError(
            f"ComfyUI could place only a part of the weights on {compute_device()}; choose a smaller "
            "precision, free memory (the 'Unload Models' button) or start ComfyUI with --cpu"
        )
    if not all(_is_at(place, patcher.load_device) for place in places for patcher in patchers):
        raise NodeError(
            f"ComfyUI computes on {compute_device()} but left the weights on {next(iter(places))}, as it does with "
            "--novram; start it without that option, or with --cpu"
        )


def _is_at(place: torch.device, wanted: torch.device) -> bool:
    """Whether a tensor's device is the wanted one, which may come without its number: ``mps`` for ``mps:0``."""
    return place.type == wanted.type and wanted.index in (None, place.index)


def free_bytes(device: torch.device) -> float:
    """What can still be allocated on a device, by ComfyUI's count."""
    return float(management.get_free_memory(device))


def to_output(images: Tensor) -> Tensor:
    """Images float32 [batch, height, width, 3] where ComfyUI keeps what flows between nodes."""
    return images.to(device=management.intermediate_device(), dtype=torch.float32)
