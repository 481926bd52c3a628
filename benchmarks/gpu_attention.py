"""Attention of a whole forward by each of PyTorch's backends: which one the library had better ask for.

The calls are the library's own, noted while it carries a forward out: its queries, its views of the cache, its mask.
All layers are timed together, since the keys and values of one would stay in the device's cache.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from ssd_core import Backbone, SSDError
from ssd_core.attention_kernels import without_cudnn_attention

from .gpu_budget import Allowance
from .gpu_forward import start_of, timed, widths_of
from .gpu_shapes import PROMPT
from .plain_steps import Forwards

WIDTHS = ("K = 1", "1 row")
LIBRARY = "torch's choice"
"""What the library gets: it asks for no backend, only for any but cuDNN's."""
PRODUCTS = "matrix products"
"""Attention as three calls for each sequence, which read keys and values once and write the logits out."""
_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_ON_CPU = ("flash", "math")


class _Noted(TorchFunctionMode):
    """Notes what attention is called with: queries, keys and values, and the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            self.calls.append((args[:3], kwargs.get("attn_mask")))
        return function(*args, **kwargs)


@torch.inference_mode()
def attention_backends(backbone: Backbone, grid: tuple[int, int], allowed: Allowance) -> dict[str, Any]:
    """Width -> ``kv`` slots and times by backend, ``masked`` as the library calls it, and ``unmasked``.

    Without the mask flash attention can run as well; with one query behind everything the work is then the same, with
    a row it tells what the mask costs. ``failed`` in the place of times says why a backend does not take the calls.
    Raises SSDError where the library calls no attention of PyTorch's.
    """
    stream, device = backbone.stream(grid), backbone.device
    forwards = Forwards(backbone, PROMPT, grid, graphed=True)
    widths = {name: width for name, width in widths_of(stream).items() if name in WIDTHS}
    names = [LIBRARY, PRODUCTS, *(_ON_CPU if device.type == "cpu" else _BACKENDS)]
    rest = 2 * len(widths) * len(names)
    results: dict[str, Any] = {}
    for width_name, width in widths.items():
        forward = forwards.forward(start_of(stream, width), width)
        noted = _Noted()
        with noted:
            forward.feed()
        if not noted.calls:
            raise SSDError("the library calls no scaled_dot_product_attention any more; time what it calls instead")
        results[width_name] = {"tokens": width, "kv": forward.shape.length}
        for kind in ("masked", "unmasked"):
            by_backend: dict[str, Any] = {}
            for name in names:
                seconds = allowed.part(1 / rest).left
                by_backend[name] = _backend_time(noted, name, kind == "masked", device, seconds)
                rest -= 1
            results[width_name][kind] = by_backend
    return results


def by_products(queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """``scaled_dot_product_attention`` of [sequences, heads, q or keys, head_dim], softmax in float32.

    Sequence by sequence, so that heads are the batch and no view of the cache is copied.
    """
    scale = queries.shape[-1] ** -0.5
    out = torch.empty_like(queries)
    for index, (query, key, value) in enumerate(zip(queries, keys, values, strict=True)):
        nothing = query.new_zeros(1, 1, 1)
        mask = nothing if attn_mask is None else attn_mask[index if len(attn_mask) > 1 else 0]
        logits = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scale)
        torch.bmm(logits.softmax(-1, dtype=torch.float32).to(value.dtype), value, out=out[index])
    return out


def _backend_time(noted: _Noted, name: str, masked: bool, device: torch.device, seconds: float) -> dict[str, Any]:
    """Milliseconds of all calls by one backend, as ``timed`` gives them, or why it does not take them."""
    chosen: AbstractContextManager[Any] = nullcontext()
    if name == LIBRARY:
        chosen = without_cudnn_attention(device)
    elif name in _BACKENDS:
        chosen = sdpa_kernel(_BACKENDS[name])

    def work() -> Tensor:
        attend = by_products if name == PRODUCTS else F.scaled_dot_product_attention
        for tensors, mask in noted.calls:
            out = attend(*tensors, attn_mask=mask if masked else None)
        return out

    with warnings.catch_warnings(record=True) as told, chosen:
        warnings.simplefilter("always")
        try:
            return timed(work, device, seconds)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reasons = dict.fromkeys(str(warning.message).partition(" (Triggered")[0] for warning in told)
            return {"failed": " ".join(" ".join([str(error), *reasons]).split())[:500]}
