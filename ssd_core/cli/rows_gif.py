"""`--rows-gif`: the picture as it grows. Gray: nothing drafted yet; dim: drafted; full colour: accepted."""

from __future__ import annotations

import io

import torch
from PIL import Image
from torch import Tensor

from ..families.base import Backbone
from ..report import RowsEvent
from .files import to_bytes

MAX_FRAMES = 96
PLAY_MILLISECONDS = 4000
SHORTEST_FRAME = 40  # players slow down frames that are shorter
LAST_FRAME = 1500
GRAY = 0.5
DIM = 0.45


class RowsRecorder:
    """Keeps about `MAX_FRAMES` moments of a run at most; pixels are made afterwards, so drawing is not held up."""

    def __init__(self) -> None:
        self._moments: list[RowsEvent] = []

    def on_rows(self, event: RowsEvent) -> None:
        """Keep an event if enough codes were accepted since the last one kept, or if it is the first or the last."""
        if self._moments and sum(event.accepted) < event.total * len(event.accepted):
            gained = sum(event.accepted) - sum(self._moments[-1].accepted)
            if event.kind != "accepted" or gained * MAX_FRAMES < event.total * len(event.accepted):
                return
        self._moments.append(event)

    def gif_bytes(self, backbone: Backbone) -> bytes:
        """The animation; the pictures of a batch stand side by side. Call after a finished run."""
        frames = [Image.fromarray(to_bytes(frame(event, backbone))) for event in self._moments]
        each = max(SHORTEST_FRAME, PLAY_MILLISECONDS // len(frames))
        stream = io.BytesIO()
        frames[0].save(
            stream,
            format="GIF",
            save_all=True,
            append_images=frames[1:],
            duration=[each] * (len(frames) - 1) + [LAST_FRAME],
            loop=0,
        )
        return stream.getvalue()


def frame(event: RowsEvent, backbone: Backbone) -> Tensor:
    """One moment as an image [height, batch * width, 3] in 0..1."""
    codes = event.codes
    drafted = codes >= 0
    rank = torch.arange(event.total).reshape(codes.shape[1:])
    accepted = rank < torch.tensor(event.accepted)[:, None, None]
    with torch.inference_mode():
        images = backbone.decode_pixels(_filled(codes).to(backbone.device)).cpu().float()
    height = images.shape[1] // codes.shape[1]
    width = images.shape[2] // codes.shape[2]

    def per_pixel(mask: Tensor) -> Tensor:
        return mask.repeat_interleave(height, 1).repeat_interleave(width, 2)[..., None]

    dimmed = GRAY + (images - GRAY) * DIM
    shown = torch.where(per_pixel(accepted), images, dimmed)
    shown = torch.where(per_pixel(drafted), shown, torch.full_like(shown, GRAY))
    return torch.cat(list(shown), dim=1)


def _filled(codes: Tensor) -> Tensor:
    """Codes [batch, rows, cols] with the row above in place of -1: gray cells bleed into their neighbours."""
    filled = codes.clone()
    for row in range(codes.shape[1]):
        above = filled[:, row - 1] if row else torch.zeros_like(filled[:, 0])
        filled[:, row] = torch.where(filled[:, row] < 0, above, filled[:, row])
    return filled
