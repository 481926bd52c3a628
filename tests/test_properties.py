"""Whatever the grid, schedule, drafts, batch, guidance and weights: a whole, well-formed picture in bounded work."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ToyBackbone, make_engine, toy_heads

from ssd_core import AR, HorizontalMTP, Jacobi, Rolling, Rounds, RowsEvent, Sampling
from ssd_core.draft import CopyDrafter, Drafter, HeadsDrafter, LeftDrafter, NoDrafter, RandomDrafter
from ssd_core.schedule import Schedule

couplings = st.sampled_from(["gumbel", "maximal"])
rolling = st.one_of(
    st.builds(Rolling, window_rows=st.integers(1, 6), coupling=couplings),
    st.builds(Rolling, window_tokens=st.integers(1, 30), coupling=couplings),
    st.builds(Rolling, window_rows=st.integers(1, 4), tolerance=st.floats(0, 50)),
)
rounds = st.builds(
    Rounds,
    rounds=st.integers(0, 4),
    rows_per_block=st.integers(1, 3),
    incremental_rounds=st.integers(0, 3),
    commit=st.sampled_from(["fused", "separate"]),
    coupling=couplings,
    first_row_block=st.integers(1, 5),
)
baselines = st.one_of(
    st.builds(Jacobi, st.integers(1, 30), couplings),
    st.builds(HorizontalMTP, st.integers(1, 5), st.integers(1, 3), couplings),
)
schedules: st.SearchStrategy[Schedule] = st.one_of(st.builds(AR, couplings), rolling, rounds, baselines)
samplings = st.builds(
    Sampling,
    guidance=st.sampled_from([0.0, 1.0, 1.0, 2.5, 30.0]),
    temperature=st.sampled_from([0.0, 0.01, 1.0, 5.0]),
    top_k=st.integers(0, 8),
    top_p=st.sampled_from([0.01, 0.5, 1.0]),
)
backbones = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 5),
        "cols": st.integers(1, 6),
        "codes": st.integers(1, 9),
        "end_of_line": st.booleans(),
        "padded": st.booleans(),
        "axes": st.sampled_from([1, 2]),
        "sharpness": st.sampled_from([0.0, 1.0, 6.0]),
        "seed": st.integers(0, 1000),
    }
)


def forwards_bound(schedule: Schedule, rows: int, cols: int) -> int:
    """The most forwards a schedule may take, prompt included."""
    if isinstance(schedule, Rounds):
        first = 2 * math.ceil((cols - 1) / schedule.first_row_block) + 1
        blocks = math.ceil((rows - 1) / schedule.rows_per_block)
        each = schedule.rounds + 1 + (schedule.rows_per_block - 1) * (schedule.incremental_rounds + 1)
        return 1 + first + blocks * each
    if isinstance(schedule, HorizontalMTP):
        return 1 + rows * max(math.ceil((cols - 1) / schedule.tokens), 1) * schedule.rounds
    return rows * cols  # at least one code a forward, and the first comes with the prompt


class Watch:
    """Checks every event of a run as it comes."""

    def __init__(self, codes: int) -> None:
        self.codes, self.accepted, self.events = codes, 0, 0
        self.shown: torch.Tensor | None = None

    def __call__(self, event: RowsEvent) -> None:
        self.events += 1
        assert int(event.codes.max()) < self.codes
        assert int(event.codes.min()) >= -1
        assert sum(event.accepted) >= self.accepted
        self.accepted = sum(event.accepted)
        if event.kind == "accepted" and self.shown is not None:
            for image, count in enumerate(event.accepted):
                final = event.codes[image].flatten()[:count]
                assert torch.equal(final, self.shown[image].flatten()[:count])  # drawn before it became final
                assert bool((final >= 0).all())
        self.shown = event.codes


@settings(max_examples=100)
@given(backbones, schedules, samplings, st.integers(1, 3), st.integers(0, 2**64 - 1), st.data())
def test_any_run_is_whole_and_bounded(
    options: dict[str, Any], schedule: Schedule, sampling: Sampling, batch: int, seed: int, data: st.DataObject
) -> None:
    """No code out of range, nothing final that was never drawn, a well-formed stream, bounded forwards."""
    backbone = ToyBackbone(**options)
    rows, cols = backbone.default_grid
    heads = toy_heads(backbone, neighbours=data.draw(st.integers(0, 1)), seed=seed % 100)
    drafters: list[Drafter] = [
        CopyDrafter(), LeftDrafter(), RandomDrafter(backbone.codes), HeadsDrafter(backbone, heads)
    ]  # fmt: skip
    drafter = NoDrafter() if isinstance(schedule, AR) else data.draw(st.sampled_from(drafters))
    watch = Watch(backbone.codes)
    engine, meter = make_engine(backbone, drafter, schedule, batch=batch, sampling=sampling, seed=seed, on_rows=watch)
    prompts = ["abcde"[: 1 + k] for k in range(batch)]
    codes = engine.run(backbone.prompt_rows(prompts, "g", (rows, cols), sampling.guidance_rows == 2))
    assert codes.shape == (batch, rows, cols)
    assert int(codes.min()) >= 0
    assert int(codes.max()) < backbone.codes
    assert watch.accepted == batch * rows * cols
    stream = engine.state.stream
    assert engine.state.front == [stream.length] * batch
    assert torch.equal(stream.to_grid(engine.state.tokens), codes)
    if stream.end_of_line is not None:
        assert bool((engine.state.tokens.view(batch, rows, cols + 1)[..., cols] == stream.end_of_line).all())
    assert sum(meter.forwards.values()) <= forwards_bound(schedule, rows, cols)
