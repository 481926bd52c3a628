"""A slow, independent decoder to check the engine against. Written from the algorithm, not from the engine.

Everything is numpy float64 and plain loops: no cache, no batch, no window tensors. Every forward computes all features
anew from the prompt and the tokens as they stand. Only the random numbers come from the core.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from textbook import Array, angles, inverse_cdf, llama, rms, silu, truncated, weights_of
from toys import ToyBackbone

from ssd_core import Sampling
from ssd_core.heads import SpatialHeads
from ssd_core.noise import ACCEPT, DRAFT, RESAMPLE, Noise


class Reference:
    """One image: prompt, seed and settings. ``forwards`` counts what a decoder with a cache would have run."""

    def __init__(
        self,
        backbone: ToyBackbone,
        prompt: str,
        sampling: Sampling,
        seed: int,
        heads: SpatialHeads | None = None,
        drafts: str = "left",
    ) -> None:
        self.backbone, self.sampling, self.heads, self.drafts = backbone, sampling, heads, drafts
        self.rows, self.cols = backbone.default_grid
        self.stride = self.cols + (backbone.end_of_line is not None)
        self.length = self.rows * self.stride
        texts = [prompt] if sampling.guidance == 1 else [prompt, ""]
        self.prompts = [backbone.prompt_ids(text) for text in texts]
        self.noise = Noise([seed], torch.device("cpu"))
        self.w = weights_of(backbone)
        self.decoder = {n.removeprefix("decoder."): t for n, t in self.w.items() if n.startswith("decoder.")}
        self.head_weights = {} if heads is None else weights_of(heads)
        self.tokens: list[int] = []  # final tokens and drafts, forced tokens included
        self.features: Array = np.zeros((len(texts), 0, backbone.hidden))  # [guidance rows, known positions, hidden]
        self.q: dict[int, Array] = {}  # the law of the token that now stands at a position
        self.rounds: dict[int, int] = {}  # how often a position was corrected
        self.kept = self.judged = 0

    # Model

    def forced(self, position: int) -> bool:
        return position % self.stride == self.cols

    def positions(self) -> list[int]:
        return [i for i in range(self.length) if not self.forced(i)]

    def forward(self, end: int) -> None:
        """Features of stream positions 0 .. end - 1 under the tokens as they stand; later ones stay as they were."""
        spec = self.backbone.decoder.spec
        fresh = []
        for prompt in self.prompts:
            own, after = (t.double().numpy() for t in self.backbone.axes_of(len(prompt)))
            ids = prompt + self.tokens[: end - 1]
            places = np.concatenate([own, after])[: len(ids)]
            angle = angles(places, spec.head_dim, self.backbone.rope_theta)
            x = self.w["embedding.weight"][ids]
            out = llama(self.decoder, spec.heads, spec.kv_heads, spec.head_dim, x, angle)
            fresh.append(out[len(prompt) - 1 :])
        self.features = np.concatenate([np.stack(fresh), self.features[:, end:]], axis=1)

    def target(self, features: Array) -> Array:
        """Probabilities [codes] from the features [guidance rows, hidden] of one position."""
        logits = rms(features, self.w["norm.weight"]) @ self.w["head.weight"].T
        mixed = logits[0] if len(logits) == 1 else logits[1] + self.sampling.guidance * (logits[0] - logits[1])
        return truncated(mixed, self.sampling)

    def predicted(self, direction: str, offset: int, source: int) -> Array:
        """What a spatial head predicts from ``source``: features [guidance rows, hidden]."""
        wide = direction == "vertical" and self.heads is not None and self.heads.spec.neighbours
        shifts = (-1, 0, 1) if wide else (0,)
        column = source % self.stride
        near = [
            source + s if 0 <= column + s < self.cols and source + s < self.features.shape[1] else source
            for s in shifts
        ]
        h = np.concatenate([self.features[:, i] for i in near], axis=-1)
        e = np.concatenate([self.w["embedding.weight"][self.tokens[i]] for i in near])
        z = np.concatenate([h, np.tile(e, (len(h), 1))], axis=-1)
        w = {
            name.split(".", 2)[2]: t
            for name, t in self.head_weights.items()
            if name.startswith(f"{direction}.{offset}.")
        }
        u = z @ w["mix.weight"].T
        gate, up = np.split(rms(u, w["norm.weight"]) @ w["gate_up.weight"].T, 2, axis=-1)
        return u + (silu(gate) * up) @ w["down.weight"].T

    # Random choices

    def uniform(self, position: int, round_: int, purpose: int) -> float:
        at = torch.tensor([position])
        return float(self.noise.uniform(torch.tensor([0]), at, torch.tensor([round_]), purpose))

    def gumbel_pick(self, position: int, p: Array) -> int:
        g = self.noise.gumbel(0, position, position + 1, self.backbone.codes)[0].double().numpy()
        with np.errstate(divide="ignore"):
            return int(np.argmax(np.log(p) + g))

    def put(self, position: int, token: int) -> None:
        """Sets the token of a position and the forced token that follows it."""
        assert position <= len(self.tokens)
        self.tokens[position : position + 1] = [token]
        if len(self.tokens) < self.length and self.forced(len(self.tokens)):
            self.tokens.append(int(self.backbone.end_of_line or 0))

    def draft(self, position: int, q: Array, coupling: str) -> None:
        self.q[position] = q
        if coupling == "gumbel":
            self.put(position, self.gumbel_pick(position, q))
        else:
            self.put(position, inverse_cdf(q, self.uniform(position, 0, DRAFT)))

    def draft_untrained(self, position: int, coupling: str) -> bool:
        """A code that needs no heads: a neighbour's (none at position 0), or any code by chance."""
        if self.drafts == "random":
            self.draft(position, np.full(self.backbone.codes, 1 / self.backbone.codes), coupling)
            return True
        if position == 0:
            return False
        above = position % self.stride == 0 if self.drafts == "left" else position >= self.stride
        token = self.tokens[position - (self.stride if above else 1)]
        self.q[position] = np.eye(self.backbone.codes)[token]
        self.put(position, token)
        return True

    def correct(self, position: int, coupling: str, tolerance: float = 0.0) -> bool:
        """Judges the token at ``position`` (or draws it if there is none); True if it changed."""
        p = self.target(self.features[:, position])
        drafted = position < len(self.tokens)
        round_ = self.rounds.get(position, 0)
        if coupling == "gumbel":
            token = self.gumbel_pick(position, p)
            if drafted and tolerance * p[self.tokens[position]] >= p[token]:
                token = self.tokens[position]
        else:
            token = self._maximal(position, p, round_, drafted)
        self.q[position] = p
        self.rounds[position] = round_ + 1
        changed = not drafted or self.tokens[position] != token
        self.judged += drafted
        self.kept += drafted and not changed
        self.put(position, token)
        return changed

    def _maximal(self, position: int, p: Array, round_: int, drafted: bool) -> int:
        q = self.q[position] if drafted else np.zeros_like(p)
        if drafted:
            x = self.tokens[position]
            if self.uniform(position, round_, ACCEPT) < min(1.0, p[x] / q[x]):
                return x
        residual = np.maximum(0, p - q)
        return inverse_cdf(residual if residual.sum() > 1e-12 else p, self.uniform(position, round_, RESAMPLE))

    def grid(self) -> Array:
        return np.array([self.tokens[i] for i in self.positions()]).reshape(self.rows, self.cols)

    # Decoders

    def plain(self, coupling: str = "gumbel") -> Array:
        """Plain decoding, one position at a time."""
        for position in self.positions():
            self.forward(position + 1)
            self.correct(position, coupling)
        return self.grid()

    def published(
        self,
        rounds: int,
        rows_per_block: int = 1,
        incremental: int = 0,
        fused: bool = False,
        coupling: str = "maximal",
        block: int = 5,
    ) -> Array:
        """The published schedule: blocks, a fixed number of blind rounds, commit (paper section 3)."""
        self.forward(1)
        self.correct(0, coupling)
        for start in range(1, self.cols, block):
            span = range(start, min(start + block, self.cols))
            for position in span:
                self.draft(
                    position, self.target(self.predicted("horizontal", position - start + 1, start - 1)), coupling
                )
            self._round(span, coupling)
            if not fused:
                self.forward(span[-1] + 1)
        if not fused and self.rows > 1:
            self.forward(self.stride + 1)
        row = 1
        while row < self.rows:
            last = min(row + rows_per_block, self.rows) - 1
            self._block(row, last, rounds, incremental, fused, coupling)
            row = last + 1
        return self.grid()

    def _block(self, row: int, last: int, rounds: int, incremental: int, fused: bool, coupling: str) -> None:
        for y, x in itertools.product(range(row, last + 1), range(self.cols)):
            above = (row - 1) * self.stride + x
            self.draft(y * self.stride + x, self.target(self.predicted("vertical", y - row + 1, above)), coupling)
        if fused and incremental == 0:
            for _ in range(rounds):
                self._round(self._codes(row, last), coupling)
            if rounds == 0:
                self.forward((last + 1) * self.stride)
            return
        for leading in range(row, last + 1):
            count = rounds if leading == row else incremental
            for _ in range(count):
                self._round(self._codes(leading, last), coupling)
            if not fused or count == 0:
                self.forward((leading + 1) * self.stride)

    def horizontal_mtp(self, tokens: int, rounds: int, coupling: str) -> Array:
        """1D-MTP: blocks of a row from horizontal heads; the block that ends a row also draws the next row's first."""
        self.steps = 0
        for row in range(self.rows):
            begin = row * self.stride
            if row == 0 or self.cols == 1:
                self._block_rounds([begin], 1, coupling)
            for start in range(begin + 1, begin + self.cols, tokens):
                span = list(range(start, min(start + tokens, begin + self.cols)))
                for offset, position in enumerate(span, start=1):
                    self.draft(position, self.target(self.predicted("horizontal", offset, start - 1)), coupling)
                if span[-1] == begin + self.cols - 1 and row + 1 < self.rows:
                    span.append(begin + self.stride)
                self._block_rounds(span, rounds, coupling)
        return self.grid()

    def _block_rounds(self, span: list[int], rounds: int, coupling: str) -> None:
        for _ in range(rounds):
            self.forward(span[-1] + 1)
            self.steps += 1
            for position in span:
                self.correct(position, coupling)

    def _codes(self, first_row: int, last_row: int) -> list[int]:
        return [y * self.stride + x for y in range(first_row, last_row + 1) for x in range(self.cols)]

    def _round(self, span: range | list[int], coupling: str) -> None:
        self.forward(
            (span[-1] // self.stride + 1) * self.stride if span[-1] % self.stride == self.cols - 1 else span[-1] + 1
        )
        for position in span:
            self.correct(position, coupling)

    def rolling(
        self,
        window_rows: int = 3,
        window_tokens: int | None = None,
        tolerance: float = 0.0,
        coupling: str = "gumbel",
    ) -> Array:
        """Rolling window: judge everything after the finished prefix, finish through the first change."""
        front = 0
        self.steps = 0
        draft_next = self._rule()
        while front < self.length:
            if window_tokens is None:
                end = min((front // self.stride + window_rows) * self.stride, self.length)
            else:
                end = min(front + window_tokens, self.length)
            while len(self.tokens) < end and draft_next(len(self.tokens), coupling):
                pass
            drawn = [i for i in range(front, min(len(self.tokens) + 1, end)) if not self.forced(i)]
            self.forward(min(len(self.tokens) + 1, end))
            self.steps += 1
            front = self._judge(drawn, min(len(self.tokens), end), coupling, tolerance)
            while front < self.length and self.forced(front):
                front += 1
        return self.grid()

    def _judge(self, span: list[int], clear: int, coupling: str, tolerance: float) -> int:
        """Corrects the span; where the finished prefix then ends."""
        changed = [position for position in span if self.correct(position, coupling, tolerance)]
        return changed[0] + 1 if changed else clear

    def _rule(self) -> Callable[[int, str], bool]:
        """How the next position is drafted; the function returned says False where nothing is known to draft from."""
        if self.heads is None:
            return self.draft_untrained
        spec = self.heads.spec

        def by_heads(position: int, coupling: str) -> bool:
            known = self.features.shape[1]
            for offset in spec.vertical:
                source = position - offset * self.stride
                if 0 <= source < known:
                    self.draft(position, self.target(self.predicted("vertical", offset, source)), coupling)
                    return True
            source = known - 1
            same_row = source >= 0 and source // self.stride == position // self.stride and not self.forced(source)
            if same_row and position - source in spec.horizontal:
                self.draft(position, self.target(self.predicted("horizontal", position - source, source)), coupling)
                return True
            return False

        return by_heads
