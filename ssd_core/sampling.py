"""From backbone logits to the target distribution: guidance, temperature, top-k, top-p.

The result stays in log space: truncated *log-weights*, minus infinity where a code is excluded. Draft and target
distributions go through the same function, so they are truncated alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from .errors import SSDError

_GREEDY_BELOW = 1e-6
_MOST_GUIDANCE, _HOTTEST = 1e6, 1e38
"""Beyond these float32 overflows, which would look like damaged weights."""


class Trouble(IntEnum):
    """What may be wrong with logits. A step tells it as a number on the device, so that nobody waits for it."""

    NONE = 0
    NOT_FINITE = 1
    ALL_EXCLUDED = 2


@dataclass(frozen=True)
class Sampling:
    """Sampling settings.

    ``guidance``: weight w of classifier-free guidance, logits = u + w (c - u); 1 runs the conditional row only.
    ``temperature``: 0 is greedy. ``top_k``: 0 is off. ``top_p``: 1 is off.
    """

    guidance: float = 1.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.guidance <= _MOST_GUIDANCE:
            raise SSDError(f"guidance must be from 0 to {_MOST_GUIDANCE:g} (1 is off), got {self.guidance}")
        if not 0 <= self.temperature <= _HOTTEST:
            raise SSDError(f"temperature must be from 0 to {_HOTTEST:g} (0 is greedy), got {self.temperature}")
        if self.top_k < 0:
            raise SSDError(f"top_k must be >= 0 (0 is off), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise SSDError(f"top_p must be above 0 and at most 1 (1 is off), got {self.top_p}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest code is always taken."""
        return self.temperature < _GREEDY_BELOW

    @property
    def guidance_rows(self) -> int:
        """Transformer rows per image: 1 without guidance, else 2 (conditional, unconditional)."""
        return 1 if self.guidance == 1 else 2


def guide(logits: Tensor, guidance: float, rows: int) -> Tensor:
    """Mixes logits [rows * images, n, codes] to float32 [images, n, codes]; conditional rows come first."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if rows == 1:
        return logits
    conditional, unconditional = logits.chunk(2)
    return unconditional + guidance * (conditional - unconditional)


def target_weights(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Logits [guidance_rows, n, codes] -> truncated log-weights [n, codes], and the worst ``Trouble`` (int64 scalar).

    Minus infinity in any guidance row excludes a code: infinities must not meet in the mix. NaN, plus infinity and a
    position without any code are trouble, also where another row excludes the code.
    """
    guided = guide(logits, sampling.guidance, sampling.guidance_rows)[0]
    lowest, highest = (logits[0], logits[0]) if len(logits) == 1 else torch.aminmax(logits, dim=0)
    excluded = lowest == -math.inf
    guided = guided.masked_fill(excluded, -math.inf)
    broken = ~(torch.isfinite(guided) | excluded) | (highest == math.inf)
    none_left = excluded.all(-1).any() * Trouble.ALL_EXCLUDED.value
    trouble = none_left.masked_fill(broken.any(), Trouble.NOT_FINITE.value)
    return truncate(guided, sampling), trouble


def running_sum(weights: Tensor) -> Tensor:
    """Sums of ``weights`` [..., codes] along each row, the same ones for a row whether it comes alone or with others.

    CUDA sums a tensor of one row by another method, whose rounding changes from call to call and which may fall from
    one entry to the next: a code of weight 0 could be drawn there.
    """
    if weights.is_cuda and weights.numel() == weights.shape[-1]:
        return torch.stack((weights, weights)).cumsum(-1)[0]
    return weights.cumsum(-1)


def truncate(logits: Tensor, sampling: Sampling) -> Tensor:
    """Applies temperature, top-k and top-p to ``logits`` [..., codes]; returns unnormalised log-weights.

    Temperature 0 keeps the largest logit alone (the first one of equals), so greedy decoding needs no path of its own;
    what is below a millionth is taken for 0. Logits are measured from the largest, so none can overflow.
    """
    if sampling.greedy:
        best = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter_(-1, best, 0.0)
    if sampling.temperature != 1:
        logits = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        logits = logits.masked_fill(logits < smallest, -math.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        weights = ordered.softmax(-1)
        above = running_sum(weights) - weights  # mass of the codes that are more likely
        least = max(sampling.top_p, torch.finfo(torch.float32).tiny)  # the likeliest code stays
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, order, above >= least)
        logits = logits.masked_fill(drop, -math.inf)
    return logits
