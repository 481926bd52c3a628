"""Counter-based random numbers (Philox 4x32-10), the same on every device, window and batch layout.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The key is the image's 64-bit seed; the counter
is (lane, stream position, round, purpose). No generator is advanced, so no global state is read or changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .errors import SSDError
from .runner import NewTensor, new_tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

GUMBEL, DRAFT, ACCEPT, RESAMPLE = range(4)
"""Purposes: what a number is for is part of its counter, so no two uses share one."""


def philox(counter: Sequence[Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words (int64 tensors, 0 .. 2**32 - 1) for broadcastable counter words and key words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]  # wraps modulo 2**64; the shifts below read the bits as unsigned
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _MASK) ^ c1 ^ k0,
            product1 & _MASK,
            ((product0 >> 32) & _MASK) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0 = (k0 + _WEYL[0]) & _MASK
        k1 = (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def image_seeds(seed: int, batch: int) -> list[int]:
    """The seeds of a batch: image k draws with ``seed + k`` modulo 2**64, like the single image of that seed."""
    if not 0 <= seed < 2**64:
        raise SSDError(f"seed must be from 0 to 2**64 - 1, got {seed}")
    return [(seed + k) % 2**64 for k in range(batch)]


class Noise:
    """Uniform and Gumbel numbers for the images of one run.

    Every number is a function of (image seed, stream position, round or code, purpose) alone.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device, tensor: NewTensor = new_tensor) -> None:
        key = tensor("noise key", (2, len(seeds)), torch.int64, device)
        key.copy_(torch.tensor([[s & _MASK for s in seeds], [s >> 32 for s in seeds]]))
        self._key = (key[0], key[1])  # [images] each

    def gumbel(self, image: int, start: int, end: int, codes: int) -> Tensor:
        """Gumbel noise float32 [end - start, codes] of one image for stream positions start .. end - 1."""
        device = self._key[0].device
        lanes = torch.arange((codes + 3) // 4, device=device)[None, :]
        positions = torch.arange(start, end, device=device)[:, None]
        key = (self._key[0][image], self._key[1][image])
        words = philox((lanes, positions, torch.zeros_like(lanes), torch.full_like(lanes, GUMBEL)), key)
        bits = torch.stack(words, dim=-1).flatten(-2)[:, :codes]
        return -torch.log(-torch.log(_unit(bits)))

    def uniform(self, images: Tensor, positions: Tensor, rounds: Tensor, purpose: int) -> Tensor:
        """Uniform numbers in (0, 1), float32 [n], for images, stream positions and rounds, int64 [n] each."""
        zero = torch.zeros_like(positions)
        key = (self._key[0][images], self._key[1][images])
        return _unit(philox((zero, positions, rounds, zero + purpose), key)[0])


def _unit(bits: Tensor) -> Tensor:
    """Maps 32-bit words to the open interval (0, 1): 23 bits plus a half, exact in float32 at both ends."""
    return ((bits >> 9).float() + 0.5) * 2.0**-23
