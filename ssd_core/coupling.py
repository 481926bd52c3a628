"""How a drafted token meets its target distribution: kept or replaced.

Two couplings (the paper publishes the second, section 3.3):

* *Gumbel*: token = argmax(log p + g) with noise g fixed by (seed, stream position). Plain decoding draws with the same
  g, so a token only depends on its true context: with prefix commit and tolerance 0 the picture is plain decoding's.
* *Maximal*: keep the draft x with probability min(1, p(x) / q(x)), else draw from the residual max(0, p - q). From the
  second round on q is the previous round's p. The token's law is p, but a seed gives another picture than plain AR.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from .noise import ACCEPT, DRAFT, RESAMPLE, Noise
from .runner import NewTensor, new_tensor
from .sampling import running_sum
from .stream import Stream


class Coupling(ABC):
    """Draws drafts and corrects them. All tensors are flat over ``n`` (image, stream position) pairs.

    ``prepare`` runs before a step, everything else inside one: no method but it may wait for the device or make tensors
    from Python numbers. A pair may be padding, at the position behind the stream: what it gets or leaves never counts.
    """

    @abstractmethod
    def prepare(self, ends: Sequence[int]) -> None:
        """Tells, for each image, the stream position up to which numbers will be asked for next."""

    @abstractmethod
    def propose(self, images: Tensor, positions: Tensor, logits: Tensor) -> Tensor:
        """Draws draft tokens int64 [n] from draft log-weights [n, codes]."""

    @abstractmethod
    def propose_tokens(self, images: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Takes note of drafts [n] that were not drawn from a distribution (a copy of the row above)."""

    @abstractmethod
    def update(
        self, images: Tensor, positions: Tensor, logits: Tensor, tokens: Tensor, drafted: Tensor, rounds: Tensor
    ) -> Tensor:
        """Corrected tokens int64 [n] for target log-weights [n, codes].

        ``tokens`` are the current ones, ``drafted`` (bool) is False where there is no draft to keep, ``rounds`` counts
        how often each position was corrected before.
        """


class PositionRing:
    """A value per code for the latest stream positions of each image, float32 [batch, capacity + 1, codes].

    ``window``: how many positions are in play at a time. The last entry belongs to padding.
    """

    def __init__(
        self, stream: Stream, batch: int, window: int, codes: int, device: torch.device, tensor: NewTensor
    ) -> None:
        self.capacity = min(window + 2 * stream.stride, stream.length)
        self._length = stream.length
        self.values = tensor("ring", (batch, self.capacity + 1, codes), torch.float32, device, scratch=1)

    def take(self, images: Tensor, positions: Tensor) -> Tensor:
        return self.values[images, positions % self.capacity]

    def put(self, images: Tensor, positions: Tensor, values: Tensor) -> None:
        slots = (positions % self.capacity).masked_fill(positions >= self._length, self.capacity)
        self.values[images, slots] = values.to(self.values.dtype)


class GumbelCoupling(Coupling):
    """One Gumbel number per code and position, shared by draft, verification and plain decoding."""

    def __init__(
        self, noise: Noise, stream: Stream, batch: int, window: int, codes: int, tolerance: float, device: torch.device,
        tensor: NewTensor = new_tensor,
    ) -> None:  # fmt: skip
        self._noise = noise
        self._stream = stream
        self._codes = codes
        self._log_tolerance = math.log(tolerance) if tolerance > 0 else -math.inf
        self._ring = PositionRing(stream, batch, window, codes, device, tensor)
        self._filled = [0] * batch

    def prepare(self, ends: Sequence[int]) -> None:
        for image, end in enumerate(ends):
            start = self._filled[image]
            if end <= start:
                continue
            stop = self._stream.row_end(self._stream.row_of(end - 1))  # whole rows: fewer, larger draws
            start = max(start, stop - self._ring.capacity)  # kept rows are never drawn
            drawn = self._noise.gumbel(image, start, stop, self._codes)
            slots = torch.arange(start, stop, device=drawn.device)
            self._ring.put(torch.full_like(slots, image), slots, drawn)
            self._filled[image] = stop

    def _pick(self, images: Tensor, positions: Tensor, logits: Tensor) -> Tensor:
        return (logits + self._ring.take(images, positions)).argmax(-1)

    def propose(self, images: Tensor, positions: Tensor, logits: Tensor) -> Tensor:
        return self._pick(images, positions, logits)

    def propose_tokens(self, images: Tensor, positions: Tensor, tokens: Tensor) -> None:
        pass

    def update(
        self, images: Tensor, positions: Tensor, logits: Tensor, tokens: Tensor, drafted: Tensor, rounds: Tensor
    ) -> Tensor:
        picked = self._pick(images, positions, logits)
        if self._log_tolerance == -math.inf:
            return picked
        kept = logits.gather(-1, tokens[:, None])[:, 0]
        drawn = logits.gather(-1, picked[:, None])[:, 0]
        keep = drafted & (kept + self._log_tolerance >= drawn)  # t * p(draft) >= p(picked)
        return torch.where(keep, tokens, picked)


class MaximalCoupling(Coupling):
    """Accept with probability min(1, p / q), else draw from the residual."""

    def __init__(
        self, noise: Noise, stream: Stream, batch: int, window: int, codes: int, device: torch.device,
        tensor: NewTensor = new_tensor,
    ) -> None:  # fmt: skip
        self._noise = noise
        self._q = PositionRing(stream, batch, window, codes, device, tensor)

    def prepare(self, ends: Sequence[int]) -> None:
        pass  # uniform numbers are drawn as they are needed

    def propose(self, images: Tensor, positions: Tensor, logits: Tensor) -> Tensor:
        q = logits.softmax(-1)
        self._q.put(images, positions, q)
        return inverse_cdf(q, self._noise.uniform(images, positions, torch.zeros_like(positions), DRAFT))

    def propose_tokens(self, images: Tensor, positions: Tensor, tokens: Tensor) -> None:
        q = torch.zeros(len(tokens), self._q.values.shape[-1], device=tokens.device)
        self._q.put(images, positions, q.scatter_(-1, tokens[:, None], 1.0))

    def update(
        self, images: Tensor, positions: Tensor, logits: Tensor, tokens: Tensor, drafted: Tensor, rounds: Tensor
    ) -> Tensor:
        p = logits.softmax(-1)
        q = self._q.take(images, positions).to(p.dtype) * drafted[:, None]
        p_draft = p.gather(-1, tokens[:, None])[:, 0]
        q_draft = q.gather(-1, tokens[:, None])[:, 0]
        accept = drafted & (self._noise.uniform(images, positions, rounds, ACCEPT) * q_draft < p_draft)
        residual = (p - q).clamp(min=0)
        empty = residual.sum(-1, keepdim=True) <= 1e-12  # p == q up to rounding: nothing to correct
        residual = torch.where(empty, p, residual)
        drawn = inverse_cdf(residual, self._noise.uniform(images, positions, rounds, RESAMPLE))
        self._q.put(images, positions, p)
        return torch.where(accept, tokens, drawn)


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draws one index per row from unnormalised ``weights`` [n, codes] with one uniform number in (0, 1) a row.

    Weights that are no numbers give a valid index too.
    """
    cumulative = running_sum(weights)
    total = cumulative[:, -1:].contiguous()
    index = torch.searchsorted(cumulative, uniform[:, None].to(total.dtype) * total, right=True)
    last = torch.searchsorted(cumulative, total)  # the last code with any weight: rounding must not pass it
    return torch.minimum(index, last)[:, 0].clamp_(max=weights.shape[-1] - 1)
