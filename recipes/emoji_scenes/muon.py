"""Muon: momentum whose update of a weight matrix is made nearly orthogonal (Jordan et al., 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
WEIGHT_DECAY = 0.01


def orthogonalised(stack: Tensor, steps: int = 4) -> Tensor:
    """Pushes the singular values of matrices [k, m, n], m <= n, towards 1 by a quintic Newton-Schulz iteration."""
    x = stack / (stack.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


class Muon:
    """Updates weight matrices; fused matrices are handled as the square or gate/up parts they are made of.

    Args:
        matrices: Parameters [out, in]; where ``out`` is a multiple of ``parts`` times the part height, the matrix
            is split along ``out``.
        parts: How many separate projections each matrix fuses.
    """

    def __init__(self, matrices: Sequence[Tensor], parts: Sequence[int]) -> None:
        self._matrices = list(matrices)
        self._parts = list(parts)
        self._momenta = [torch.zeros_like(matrix) for matrix in matrices]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update at learning rate ``rate`` from the matrices' gradients."""
        groups: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for matrix, momentum, parts in zip(self._matrices, self._momenta, self._parts, strict=True):
            assert matrix.grad is not None
            momentum.mul_(MOMENTUM).add_(matrix.grad)
            update = matrix.grad.add(momentum, alpha=MOMENTUM)
            for piece, change in zip(matrix.chunk(parts), update.chunk(parts), strict=True):
                wide = piece.shape[0] <= piece.shape[1]
                piece, change = (piece, change) if wide else (piece.t(), change.t())
                groups[tuple(change.shape)].append((piece, change))
        for pieces in groups.values():
            changes = orthogonalised(torch.stack([change for _, change in pieces]))
            for (piece, _), change in zip(pieces, changes, strict=True):
                scale = max(1.0, piece.shape[1] / piece.shape[0]) ** 0.5
                piece.mul_(1 - rate * WEIGHT_DECAY).add_(change, alpha=-rate * scale)

    def state_dict(self) -> dict[str, Any]:
        """The momenta."""
        return {"momenta": self._momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over saved momenta."""
        for momentum, saved in zip(self._momenta, state["momenta"], strict=True):
            momentum.copy_(saved)
