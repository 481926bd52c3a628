"""The GPU benchmark's budgets and its record: what is cut when time or memory is short, what a file may hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu_fakes import Clock

from benchmarks import gpu
from benchmarks.gpu_budget import (
    Budget,
    blocks_in,
    extrapolate,
    layer_counts,
    layers_for_memory,
    layers_for_time,
)
from benchmarks.gpu_record import Record
from ssd_core import SSDError


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_budget_gives_shares_and_passes_on_what_is_left(clock: Clock) -> None:
    budget = Budget(100, {"a": 1, "b": 1, "c": 2}, clock)
    assert budget.open("a").left == pytest.approx(25)
    clock.now += 5  # a needed 5 of its 25
    allowed = budget.open("b")
    assert allowed.left == pytest.approx(95 / 3)
    clock.now += 60
    assert allowed.left == 0
    assert budget.open("c").left == pytest.approx(35)
    clock.now += 100
    assert budget.left == 0


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_budget_refuses_nonsense(seconds: float) -> None:
    with pytest.raises(SSDError, match="seconds above 0"):
        Budget(seconds, {"a": 1})


def test_blocks_and_layers_that_fit() -> None:
    assert [blocks_in(seconds, 2.0, 5) for seconds in (100, 7, 1, -3)] == [5, 3, 1, 1]
    assert blocks_in(1, 0.0, 5) == 5
    assert [layers_for_memory(free, 10, 10, 30) for free in (1000, 100, 34)] == [30, 8, 2]
    with pytest.raises(SSDError, match="free device memory"):
        layers_for_memory(33, 10, 10, 30)
    assert [layers_for_time(30, 10.0, seconds) for seconds in (10, 5, 0.1)] == [30, 10, 2]
    assert [layers_for_time(layers, 10.0, 0.1) for layers in (4, 3, 2)] == [2, 3, 2]  # 2 and 1 are as many as 3


def test_extrapolation_is_a_line_through_two_counts() -> None:
    assert layer_counts(30, 30) == (30,)
    assert layer_counts(9, 30) == (9, 4)
    assert extrapolate({30: 5.0}, 30) == 5
    assert extrapolate({4: 1 + 4 * 0.5, 9: 1 + 9 * 0.5}, 30) == pytest.approx(1 + 30 * 0.5)
    assert extrapolate({4: 5.0, 9: 4.0}, 30) == 4  # noise: a layer does not give time back
    with pytest.raises(SSDError, match="two counts"):
        extrapolate({9: 1.0}, 30)


def test_record_is_written_at_once_and_taken_up_again(tmp_path: Path) -> None:
    path, facts = tmp_path / "r.json", {"device": "x", "toy": True}
    record = Record.start(path, facts)
    record.put("device", "done", {"bandwidth": 3.0}, 1.5)
    record.put("janus-speed", "partial", {"lines": {}}, 0.5)
    again = Record.resume(path, facts)
    assert again.status("device") == "done"
    assert again.data("device") == {"bandwidth": 3.0}
    names = list(gpu.WEIGHTS)
    assert gpu.choose([], None, Record(path, facts)) == names
    assert gpu.choose([], "", again) == names[1:]
    assert gpu.choose([], "emu3-speed", again) == names[names.index("emu3-speed") :]
    assert gpu.choose(["moves", "device"], None, again) == ["device", "moves"]
    assert not list(tmp_path.glob("*.partial"))


def test_record_refuses_to_mix_or_overwrite(tmp_path: Path) -> None:
    path, facts = tmp_path / "r.json", {"device": "x", "toy": True}
    with pytest.raises(SSDError, match=r"no .* to resume"):
        Record.resume(path, facts)
    Record.start(path, facts)
    with pytest.raises(SSDError, match="exists already"):
        Record.start(path, facts)
    with pytest.raises(SSDError, match=r"measured elsewhere \(device: got 'x', now 'y'\)"):
        Record.resume(path, {"device": "y", "toy": True})
    path.write_text(json.dumps({"format": 99, "facts": facts, "sections": {}}))
    with pytest.raises(SSDError, match="format 99"):
        Record.resume(path, facts)
    for damaged in ("{", "[]", '{"format": 1}'):
        path.write_text(damaged)
        with pytest.raises(SSDError, match="cannot resume"):
            Record.resume(path, facts)
