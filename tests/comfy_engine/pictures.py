"""The pictures that a run showed, as numbers: files differ by their metadata although the pictures are the same."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .client import Client, Run


def pixels(client: Client, run: Run, node: str = "image") -> NDArray[np.uint8]:
    """uint8 [images, height, width, 3] that a node showed."""
    pictures = [Image.open(io.BytesIO(client.view(image))).convert("RGB") for image in run.images(node)]
    return np.stack([np.asarray(picture) for picture in pictures])
