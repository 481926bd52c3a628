"""Stops, errors, failed captures and wrong replays: the run goes on plainly, and says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph_fakes import FakeCapture, NotCapturableError, kept_tensor
from graph_toys import same, setup, used
from torch import Tensor
from toys import ToyBackbone, draw

from ssd_core import (
    AR,
    Rolling,
    Rounds,
    RowsEvent,
    SSDError,
    StopRequested,
)
from ssd_core import graphs as graphs_module
from ssd_core.graph_check import StepCheck
from ssd_core.graphs import Graphs, graphs_of
from ssd_core.schedule import Schedule


@pytest.mark.parametrize("schedule", [AR(), Rolling(3), Rounds(2)], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("after", [1, 4])
def test_a_stop_in_the_middle_leaves_good_graphs(schedule: Schedule, after: int) -> None:
    backbone, heads, fake = setup()
    expected = draw(backbone, schedule, heads=heads, graphs="off")
    for _ in range(2):
        draw(backbone, schedule, heads=heads)
    polls: list[int] = []
    with pytest.raises(StopRequested):
        draw(backbone, schedule, heads=heads, should_stop=lambda: polls.append(1) or len(polls) > after)  # type: ignore[func-returns-value]
    captures = fake.captures
    assert graphs_of(backbone).count > 0
    assert fake.log[-1] == "wait"  # the next run may come on another stream
    assert same(draw(backbone, schedule, heads=heads), expected)
    assert fake.captures == captures


def test_an_error_lets_everything_go() -> None:
    """Such as ComfyUI's own exception for Stop, or damaged logits. The next run begins anew, with graphs."""
    backbone, heads, _ = setup()
    expected = draw(backbone, Rolling(2), heads=heads, graphs="off")

    def fail(event: RowsEvent) -> None:
        if event.accepted[0] > 9:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        draw(backbone, Rolling(2), heads=heads, on_rows=fail)
    kept = graphs_of(backbone)
    assert (kept.count, kept._tensors, kept.fault) == (0, {}, None)
    again = draw(backbone, Rolling(2), heads=heads)
    assert same(again, expected)
    assert used(again)


def test_damaged_weights_are_blamed_as_ever() -> None:
    backbone, heads, _ = setup(layers=2)
    draw(backbone, Rolling(2), heads=heads)
    backbone.decoder.layers[1].get_parameter("mlp.down.weight").data[:] = torch.nan
    with pytest.raises(SSDError, match=r"NaN or infinity.*layer 1 of 2"):
        draw(backbone, Rolling(2), heads=heads)
    assert graphs_of(backbone).count == 0


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize(
    "error", [NotCapturableError("not permitted"), torch.OutOfMemoryError("too much"), TypeError("not that kind")]
)
def test_a_capture_that_fails_turns_graphs_off_and_the_run_goes_on(
    number: int, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    backbone, heads, fake = setup()
    expected = draw(backbone, Rounds(2), heads=heads, graphs="off")

    def fail(count: int) -> None:
        if count == number:
            raise error

    fake.fail = fail
    with caplog.at_level(logging.WARNING):
        first, second = draw(backbone, Rounds(2), heads=heads), draw(backbone, Rounds(2), heads=heads)
    assert same(first, expected)
    assert same(second, expected)
    assert first.report.graphs.startswith("off: a step could not be captured")
    assert str(error) in first.report.graphs
    assert second.report.graphs.startswith("off: a step could not be captured")
    assert len(caplog.records) == 1
    assert "CUDA graphs are off for ToyBackbone" in caplog.text
    assert fake.captures == number  # never again
    assert (graphs_of(backbone).count, graphs_of(backbone)._tensors) == (0, {})


@pytest.mark.parametrize("error", [KeyboardInterrupt, StopRequested])
def test_a_capture_that_somebody_ends_is_no_fault_of_graphs(error: type[BaseException]) -> None:
    backbone, heads, fake = setup()
    expected = draw(backbone, Rounds(2), heads=heads, graphs="off")

    def interrupt(count: int) -> None:
        if count == 3:
            raise error

    fake.fail = interrupt
    with pytest.raises(error):
        draw(backbone, Rounds(2), heads=heads)
    assert graphs_of(backbone).count == 0  # a failed capture takes the workspace of all
    again = draw(backbone, Rounds(2), heads=heads)
    assert same(again, expected)
    assert used(again)


def test_no_memory_for_the_widest_step_turns_graphs_off(caplog: pytest.LogCaptureFixture) -> None:
    backbone, heads, fake = setup()
    expected = draw(backbone, Rounds(2), heads=heads, graphs="off")

    def short(step: Any, numbers: Tensor) -> None:
        step(numbers)
        raise torch.OutOfMemoryError("too much")

    fake.aside = short  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        results = [draw(backbone, Rounds(2), heads=heads) for _ in range(2)]
    assert all(same(result, expected) for result in results)
    assert results[0].report.graphs == "off: no memory for the widest step (too much) (after 0 replays)"
    assert fake.captures == 0
    assert len(caplog.records) == 1


@pytest.mark.parametrize("moment", ["__init__", "rewind", "problem"])
@pytest.mark.parametrize("number", [1, 3])
def test_no_memory_to_compare_turns_graphs_off(
    moment: str, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A replay that nobody could check is not trusted: the run goes on with what the step itself left."""
    backbone, heads, _ = setup()
    expected = draw(backbone, Rounds(2), heads=heads, graphs="off")
    whole, calls = getattr(StepCheck, moment), []

    def short(check: StepCheck, *arguments: Any) -> object:
        calls.append(1)
        if len(calls) == number:
            if moment == "problem":
                damage_tokens(backbone)
            raise torch.OutOfMemoryError("too much")
        return whole(check, *arguments)

    monkeypatch.setattr(StepCheck, moment, short)
    with caplog.at_level(logging.WARNING):
        results = [draw(backbone, Rounds(2), heads=heads) for _ in range(2)]
    assert all(same(result, expected) for result in results)
    assert results[0].report.graphs.startswith("off: no memory to check a graph (too much)")
    assert graphs_of(backbone).count == 0
    assert len(calls) == number
    assert len(caplog.records) == 1


def damage_tokens(backbone: ToyBackbone) -> None:
    kept_tensor(backbone, "tokens")[0, 3] += 1


def damage_features(backbone: ToyBackbone) -> None:
    kept_tensor(backbone, "features")[..., :-1, :] *= 1.01


def damage_nan(backbone: ToyBackbone) -> None:
    kept_tensor(backbone, "features")[0, 0, 2] = torch.nan


def damage_status(backbone: ToyBackbone) -> None:
    kept_tensor(backbone, "status").fill_(7)


@pytest.mark.parametrize("damage", [damage_tokens, damage_features, damage_nan, damage_status])
@pytest.mark.parametrize("number", [1, 4])
def test_a_replay_that_is_wrong_turns_graphs_off_and_the_run_goes_on(
    damage: Callable[[ToyBackbone], None], number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """From any first replay on; what the step itself left is what the run goes on with."""
    backbone, heads, fake = setup()
    schedule = Rounds(2)
    expected = draw(backbone, schedule, heads=heads, graphs="off")
    firsts = first_replays(schedule)
    fake.damage = lambda count: damage(backbone) if count == firsts[number] else None
    with caplog.at_level(logging.WARNING):
        results = [draw(backbone, schedule, heads=heads) for _ in range(2)]
    assert all(same(result, expected) for result in results)
    assert all("a replay was not what the step is" in result.report.graphs for result in results)
    assert all(not used(result) for result in results)
    assert fake.replays == firsts[number]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("checked", [False, True], ids=["first", "later"])
def test_a_launch_that_is_refused_turns_graphs_off_and_the_run_goes_on(
    number: int, checked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As where memory that a graph allocates is found no earlier than at its launch, or no longer."""
    backbone, heads, fake = setup()
    schedule = Rounds(2)
    expected = draw(backbone, schedule, heads=heads, graphs="off")
    firsts = first_replays(schedule)
    chosen = firsts[number] if not checked else next(n for n in range(firsts[number], 999) if n not in firsts)

    def refuse(count: int) -> None:
        if count == chosen:
            raise RuntimeError("CUDA error: out of memory")

    fake.launch = refuse
    with caplog.at_level(logging.WARNING):
        results = [draw(backbone, schedule, heads=heads) for _ in range(2)]
    assert all(same(result, expected) for result in results)
    assert all(
        result.report.graphs.startswith("off: a graph could not be replayed (CUDA error: out of memory)")
        for result in results
    )
    assert fake.replays == chosen
    assert len(caplog.records) == 1
    assert (graphs_of(backbone).count, graphs_of(backbone)._tensors) == (0, {})
    assert fake.log[-1] == "trim"


def first_replays(schedule: Schedule) -> list[int]:
    """The numbers of those replays that are compared, in a run on a fresh toy; the list begins with a 0."""
    backbone, heads, fake = setup()
    draw(backbone, schedule, heads=heads)
    numbers, replay = [0], 0
    compared = False
    for entry in fake.log[4:]:
        if entry == "aside":
            compared = True
        if entry == "replay":
            replay += 1
            if compared:
                numbers.append(replay)
            compared = False
    return numbers


def test_spoiled_keys_where_nothing_was_written_end_the_run() -> None:
    """The prompt's keys cannot be brought back: better an error than another picture."""
    backbone, heads, fake = setup()
    fake.damage = lambda count: kept_tensor(backbone, "keys")[:, :, 2].fill_(3.0) if count == 1 else None  # type: ignore[assignment,return-value]
    with pytest.raises(SSDError, match="spoiled this run's keys and values"):
        draw(backbone, Rolling(2), heads=heads)
    fake.damage = lambda count: None
    again = draw(backbone, Rolling(2), heads=heads)
    assert same(again, draw(backbone, Rolling(2), heads=heads, graphs="off"))
    assert not used(again)


def test_keys_that_a_replay_does_not_write_are_noticed() -> None:
    backbone, heads, fake = setup()
    expected = draw(backbone, Rolling(2), heads=heads, graphs="off")
    replay_of = FakeCapture.capture

    def lame(step: Any, numbers: Tensor) -> Callable[[], None]:
        """A replay that leaves the cache as it finds it."""
        replay = replay_of(fake, step, numbers)

        def leave() -> None:
            keys = kept_tensor(backbone, "keys")
            before = keys.clone()
            replay()
            keys.copy_(before)

        return leave

    fake.capture = lame  # type: ignore[method-assign]
    got = draw(backbone, Rolling(2), heads=heads)
    assert same(got, expected)
    assert "keys differs by" in got.report.graphs


def test_a_device_without_captures_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(graphs_module, "CudaCapture", refuse)
    kept = Graphs()
    for _ in range(2):
        assert kept.open(torch.device("cuda", 0)) == "the device takes no captures (no such thing)"


def test_memory_that_runs_out_is_taken_from_other_kinds_of_run(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, heads, _ = setup()
    kept = graphs_of(backbone)
    draw(backbone, Rolling(2), heads=heads)
    zeros, failed = torch.zeros, []

    def short(*shape: Any, **options: Any) -> Tensor:
        if not failed and isinstance(shape[0], tuple) and len(shape[0]) == 5:  # keys, of another batch
            failed.append(kept.count)
            raise torch.OutOfMemoryError("too much")
        return zeros(*shape, **options)

    monkeypatch.setattr(torch, "zeros", short)
    result = draw(backbone, Rolling(2), heads=heads, batch=2)
    assert failed[0] > 0
    assert used(result)
    assert all(name != "keys" or shape[1] == 2 for name, shape, *_ in kept._tensors)  # type: ignore[misc]
