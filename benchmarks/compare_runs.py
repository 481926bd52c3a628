"""The timed runs of ``benchmarks.compare``: every decoder between two runs of plain decoding of the same picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from ssd_core import Backbone, Generation, SpatialHeads, generate
from ssd_core.distill.likelihood import likelihood

from .decoder_table import PLAIN, Decoder
from .peak_memory import peak_bytes

PROMPTS = (
    "a cat on grass", "two apples on a beach", "a dog left of a car", "a red heart on a blue background",
    "three mushrooms on grass", "a rocket at night", "a fish underwater", "four stars at night",
    "a house and a tree on grass", "a duck", "a yellow balloon in the sky", "a car right of a house",
)  # fmt: skip
BETWEEN = 4
"""Decoders that are run between two runs of plain decoding; fewer take longer and follow the machine more closely."""

Row = dict[str, Any]


class Runs:
    """Draws and measures on one backbone; rows are plain dicts, one a picture, ready for JSON."""

    def __init__(self, backbone: Backbone, heads: SpatialHeads) -> None:
        self._backbone = backbone
        self._heads = heads

    def draw(self, decoder: Decoder, prompt: str, seed: int, grid: tuple[int, int]) -> Generation:
        heads = self._heads if decoder.heads else None
        return generate(
            self._backbone,
            prompt,
            heads=heads,
            schedule=decoder.schedule,
            drafts=decoder.drafts,
            seed=seed,
            grid=grid,
        )

    def peak(self, decoder: Decoder, prompt: str, grid: tuple[int, int]) -> int | None:
        """Bytes a picture needs at its peak beyond weights; the run also warms up for the timed ones."""
        return peak_bytes(lambda: self.draw(decoder, prompt, 0, grid), self._backbone.device)

    def rows(
        self, plain: Decoder, table: Sequence[Decoder], prompt: str, seed: int, grid: tuple[int, int]
    ) -> Iterator[list[Row]]:
        """Yields the rows of a few decoders at a time, as soon as plain decoding was timed before and after them."""
        before = self.draw(plain, prompt, seed, grid)
        yield [self._row(PLAIN, before, before, before)]
        for first in range(0, len(table), BETWEEN):
            drawn = {d.name: self.draw(d, prompt, seed, grid) for d in table[first : first + BETWEEN]}
            after = self.draw(plain, prompt, seed, grid)
            yield [self._row(name, result, before, after) for name, result in drawn.items()]
            before = after

    def _row(self, name: str, drawn: Generation, before: Generation, after: Generation) -> Row:
        report = drawn.report
        prompts = report.settings["prompts"]
        found = likelihood(self._backbone, drawn.tokens, prompts, self._backbone.default_sampling)
        around = [seconds_of(before), seconds_of(after)]
        ar_seconds, step = statistics.fmean(around), statistics.fmean(around) / before.report.total_forwards
        return {
            "grid": list(report.grid),
            "decoder": name,
            "prompt": prompts[0],
            "seed": report.seed,
            "forwards": report.total_forwards,
            "fewer": before.report.total_forwards / report.total_forwards,
            "seconds": seconds_of(drawn),
            "ar_seconds": ar_seconds,
            "faster": ar_seconds / seconds_of(drawn),
            "ar_spread": abs(around[0] - around[1]) / ar_seconds,
            "draft_steps_a_row": report.seconds.get("draft", 0.0) / report.grid[0] / step,
            "tokens_a_forward": report.fed_tokens / report.total_forwards,
            "acceptance": report.acceptance,
            "by_round": report.acceptance_by_round,
            "by_direction": report.acceptance_by_direction,
            "equal": float((drawn.tokens == before.tokens).double().mean()),
            "nll": float(found.nll),
            "excluded": float(found.excluded),
        }


def seconds_of(drawn: Generation) -> float:
    """Seconds of decoding; pixels are the same work for all and left out."""
    return drawn.report.seconds["total"] - drawn.report.seconds["pixels"]


def turned(table: Sequence[Decoder], by: int) -> list[Decoder]:
    """The decoders in an order that begins ``by`` further: places and neighbours change from prompt to prompt."""
    start = by % len(table) if table else 0
    return [*table[start:], *table[:start]]


def missing(
    rows: Sequence[Row], table: Sequence[Decoder], prompt: str, seed: int, grid: tuple[int, int]
) -> list[Decoder]:
    """The decoders without a row for that picture."""
    have = {r["decoder"] for r in rows if (r["prompt"], r["seed"], tuple(r["grid"])) == (prompt, seed, grid)}
    return [decoder for decoder in table if decoder.name not in have]
