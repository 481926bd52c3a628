"""``Auto``: its codes are plain decoding's whatever a clock says, and it never costs much more than plain decoding."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ToyBackbone, draw, toy_heads

from ssd_core import AR, Auto, Generation, Sampling, SSDError, auto
from ssd_core.engine import Engine
from ssd_core.heads import HeadsSpec
from ssd_core.pilot import Costs, Odds, Pilot
from ssd_core.stream import Stream
from ssd_core.summary import report_text

GUIDED = Sampling(2.0, 0.9, 9, 0.95)
Cost = Callable[[int], float]
COSTS: dict[str, Cost] = {
    "flat": lambda width: 1,
    "a CPU": lambda width: 1 + 0.055 * (width - 1),
    "half": lambda width: 0.5 + 0.5 * width,
    "linear": lambda width: width,
    "a knee": lambda width: max(1, width / 16),
    "tiny numbers": lambda width: 1e-9 * (1 + 0.2 * width),
}


def clocks() -> dict[str, Iterator[float]]:
    """Times that no honest clock tells, two a step."""
    chance = random.Random(1)
    return {
        "stands still": itertools.repeat(5.0),
        "runs backwards": itertools.count(0, -1),
        "not a number": itertools.repeat(math.nan),
        "infinite": itertools.cycle([0.0, math.inf]),
        "plain steps are dear": itertools.cycle([0, 100, 200, 200.001, 300, 300.001]),
        "ever slower": itertools.accumulate(1.3**k for k in itertools.count()),
        "ever faster": itertools.accumulate(0.7**k for k in itertools.count()),
        "noise": iter(lambda: chance.expovariate(1), None),
        "huge": iter(lambda: chance.choice([-1e308, 1e308]), None),
    }


@pytest.mark.parametrize("options", [{}, {"end_of_line": False}, {"padded": True, "axes": 2}], ids=str)
def test_no_clock_changes_a_code(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32, heads, neighbours and random drafts, a batch; the windows do follow the clock."""
    backbone = ToyBackbone(5, 6, **options)
    heads = toy_heads(backbone)
    want = draw(backbone, AR(), ["a", "bcd"], sampling=GUIDED, seed=3).tokens
    windows = set()
    for name, times in clocks().items():
        monkeypatch.setattr(auto, "clock_of", lambda device, times=times: lambda: next(times))
        for drafts, given_heads in (("heads", heads), ("left", None), ("random", None)):
            got = draw(backbone, Auto(), ["a", "bcd"], sampling=GUIDED, seed=3, heads=given_heads, drafts=drafts)
            assert torch.equal(got.tokens, want), (name, drafts)
            windows.add(str(chosen(got)["windows"]))
    assert len(windows) > 5


def chosen(result: Generation) -> dict[str, Any]:
    assert result.report.auto is not None
    return result.report.auto


class FakeClock:
    """Time that passes by the width of forwards and the number of drafts alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: Cost, draft: float = 0.0) -> None:
        self.now = 0.0
        feed, step = Engine._feed, Engine._step

        def timed(engine: Engine, *arguments: Any) -> int:
            width = feed(engine, *arguments)
            self.now += cost(width) if width else 0
            return width

        def drafted(engine: Engine, *arguments: Any) -> None:
            before = sum(engine.state.drafted)
            step(engine, *arguments)
            self.now += draft * (sum(engine.state.drafted) - before)

        monkeypatch.setattr(Engine, "_feed", timed)
        monkeypatch.setattr(Engine, "_step", drafted)
        monkeypatch.setattr(auto, "clock_of", lambda device: lambda: self.now)

    def of(self, run: Callable[[], Generation]) -> tuple[Generation, float]:
        begin = self.now
        result = run()
        return result, self.now - begin


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_hopeless_drafts_cost_a_tenth_more_at_most(cost: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft is a wrong code to begin with, and the toy's codes hang on all before them."""
    backbone = ToyBackbone(12, 12, sharpness=4.0, codes=40)
    right = draw(backbone, AR()).tokens
    clock = FakeClock(monkeypatch, cost)
    plain, plain_time = clock.of(lambda: draw(backbone, AR()))
    got, time = clock.of(lambda: draw(backbone, Auto(), start=(right + 1) % 40))
    assert torch.equal(got.tokens, right)
    assert time <= 1.1 * plain_time
    assert got.report.total_forwards <= plain.report.total_forwards


def test_good_drafts_are_used_where_width_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = ToyBackbone(12, 12)
    right = draw(backbone, AR()).tokens
    forwards = {}
    for name in ("flat", "a CPU", "linear"):
        with monkeypatch.context() as patch:
            clock = FakeClock(patch, COSTS[name])
            got, time = clock.of(lambda: draw(backbone, Auto(), start=right))
        assert torch.equal(got.tokens, right)
        assert time <= {"flat": 0.2, "a CPU": 0.4, "linear": 1.1}[name] * 143
        forwards[name] = got.report.total_forwards
    assert forwards["flat"] <= forwards["a CPU"] < forwards["linear"]


# --- the pilot against an adversary ----------------------------------------------------------------------------------

WIDTHS = [1, 2, 4, 8, 12, 16, 24, 36, 48, 72, 96]


def fly(codes: int, cost: Cost, runs: Callable[[int], int], expected: float = 0.8) -> tuple[float, Pilot]:
    """A whole picture; ``runs`` says how many drafts hold from a code on. Returns cost in plain pictures."""
    pilot = Pilot(codes, {width: width for width in WIDTHS}, expected, Costs(WIDTHS))
    spent, done = 0.0, 1
    pilot.learn(0, 1.0, 1, [0], [False])
    while done < codes:
        width = min(pilot.choose(), codes - done)
        held = min(runs(done), width) if width > 1 else 0
        advance = min(held + 1, width)
        spent += cost(width)
        pilot.learn(width, cost(width), advance, [held], [width > 1 and held < width])
        done += advance
    return spent / (cost(1) * (codes - 1)), pilot


@settings(max_examples=60)
@given(st.sampled_from(list(COSTS)), st.sampled_from([36, 100, 576, 1500]), st.data(), st.floats(0, 1))
def test_whatever_the_drafts_do_plain_decoding_is_never_exceeded_by_a_tenth(
    cost: str, codes: int, data: st.DataObject, expected: float
) -> None:
    period = data.draw(st.integers(1, 200))
    lengths = data.draw(st.lists(st.integers(0, 120), min_size=1, max_size=12))
    spent, _ = fly(codes, COSTS[cost], lambda done: lengths[done // period % len(lengths)], expected)
    assert spent <= 1.1


def test_it_falls_back_tries_again_ever_more_seldom_and_comes_back() -> None:
    spent, pilot = fly(600, COSTS["half"], lambda done: 0)
    assert 1 <= pilot.tries < 20
    assert spent < 1.1
    assert pilot.used[1] > 0.9 * pilot.used.total()
    spent, pilot = fly(2000, COSTS["a CPU"], lambda done: 0 if done < 600 else 99)
    assert spent < 0.3 + 0.3 * 1.1
    assert max(pilot.used) > 12


def test_odds_by_distance() -> None:
    """Where three drafts hold and the fourth fails, windows beyond four are worth no more."""
    odds = Odds(64, 0.5)
    assert odds.gains(3) == [1.0, 1.5, 1.75]
    for _ in range(200):
        odds.learn(3, True)
    gains = odds.gains(64)
    assert gains[:3] == pytest.approx([1, 2, 3], abs=0.01)
    assert 3.49 < gains[3] < gains[-1] < 4.01


def test_costs_between_and_beyond_what_was_measured() -> None:
    costs = Costs([1, 2, 4, 8, 16, 32])
    assert costs.table == [1.0] * 6
    costs.add(1, 10.0)
    assert costs.at_most(8) == 80.0
    costs.add(8, 24.0)
    assert costs.table == pytest.approx([10, 12, 16, 24, 40, 72])
    assert costs.at_most(32) == 96.0
    for _ in range(3):
        costs.add(1, 10.0)
        costs.add(8, 24.0)
    costs.add(16, 400.0)  # one disturbed step
    assert costs.of(16) == pytest.approx(40)
    assert costs.at_most(16) == 400
    for _ in range(2):
        costs.add(16, 400.0)
    assert costs.of(16) == pytest.approx(400)
    costs.add(16, 30.0)
    assert costs.of(16) < 220  # a fast step counts at once
    for nonsense in (0.0, -1.0, math.nan, math.inf):
        before = list(costs.table)
        costs.add(4, nonsense)
        assert costs.table == before
    assert Costs([1, 4], slope=0.5).table == [1, 2.5]


# --- half precision, heads' figures, reports --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_the_clock_is_not_asked(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near-ties could make another picture of another window, so windows depend on the drafts alone."""
    backbone = ToyBackbone(5, 6, dtype=dtype)
    results = []
    for times in clocks().values():
        monkeypatch.setattr(auto, "clock_of", lambda device, times=times: lambda: next(times))
        results.append(draw(backbone, Auto(), seed=2))
    assert all(torch.equal(result.tokens, results[0].tokens) for result in results)
    assert all(chosen(result) == chosen(results[0]) for result in results)
    assert chosen(results[0])["measured"] is False
    assert "must not choose" in chosen(results[0])["why"]


def test_the_clock_is_this_threads_own_where_no_other_does_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert auto.clock_of("cpu") is time.thread_time
    assert auto.clock_of("cuda") is time.perf_counter
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert auto.clock_of("cpu") is time.perf_counter


def test_a_step_without_a_time_still_tells_of_its_drafts() -> None:
    pilot = Pilot(100, {1: 1, 8: 8}, 0.5, Costs([1, 8]))
    pilot.learn(8, None, 8, [7], [False])
    assert pilot.costs.table == [1.0, 1.0]
    assert pilot.held == 7
    assert pilot._odds.gains(8)[7] > Pilot(100, {1: 1, 8: 8}, 0.5, Costs([1, 8]))._odds.gains(8)[7]


def test_the_heads_file_tells_what_to_expect() -> None:
    def expected(**notes: object) -> float | None:
        return Auto().informed(HeadsSpec(8, (1,), (1,), notes=dict(notes))).expected

    assert expected(acceptance={"vertical 1": 0.61}) == 0.61
    for nothing in ({}, {"acceptance": 3}, {"acceptance": {"vertical 1": "much"}}, {"acceptance": {"vertical 1": 7.0}}):
        assert expected(**nothing) == auto.EXPECTED
    assert Auto(expected=0.3).informed(None).expected == 0.3
    assert Auto().informed(HeadsSpec(8, (1,), (1,))).whole_rows is True
    assert Auto().informed(None).whole_rows is False
    assert Auto(whole_rows=True).informed(None).whole_rows is True
    backbone = ToyBackbone(4, 6)
    assert draw(backbone, Auto()).report.settings["schedule"]["expected"] == auto.EXPECTED


def test_the_report_says_what_was_chosen_and_why() -> None:
    backbone = ToyBackbone(6, 6)
    result = draw(backbone, Auto(), heads=toy_heads(backbone))
    found = chosen(result)
    assert set(found) == {"windows", "costs", "measured", "held", "tries", "why"}
    assert sum(found["windows"].values()) == result.report.total_forwards
    assert f"  auto       {found['why']}" in report_text(result)
    assert "ssd auto, exact" in report_text(result)
    assert draw(backbone, AR()).report.auto is None


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (3, 2)])
def test_small_grids_and_kept_rows(size: tuple[int, int]) -> None:
    backbone = ToyBackbone(*size)
    want = draw(backbone, AR(), batch=3).tokens
    assert torch.equal(draw(backbone, Auto(), batch=3).tokens, want)
    assert torch.equal(draw(backbone, Auto(1), batch=3, heads=toy_heads(backbone)).tokens, want)
    if size[0] > 1:
        options: dict[str, Any] = {"start": want[:1], "keep_rows": 1, "seed": 9}
        assert torch.equal(draw(backbone, Auto(), **options).tokens, draw(backbone, AR(), **options).tokens)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (2, 2), (3, 2), (24, 24), (2, 90)])
@pytest.mark.parametrize("end_of_line", [True, False])
@pytest.mark.parametrize("whole_rows", [True, False])
def test_windows_rise_from_one_token_to_the_most_rows(
    size: tuple[int, int], end_of_line: bool, whole_rows: bool
) -> None:
    stream = Stream(*size, 99 if end_of_line else None)
    for rows in (1, 4):
        schedule = Auto(rows, whole_rows=whole_rows)
        windows = schedule.windows(stream)
        assert list(windows) == sorted(set(windows))
        assert windows[1] == 1
        assert all(1 < width <= most for width, most in windows.items() if width > 1)
        assert max(windows.values()) == schedule.window(stream)
        for width, most in windows.items():
            for front in range(stream.length):
                end = schedule._end(stream, front, width, most)
                assert front < end <= min(front + most, stream.length)
                assert width == most or end % stream.stride == 0


def test_settings_that_cannot_work() -> None:
    for make, words in ((lambda: Auto(0), "most_rows must be at least 1"), (lambda: Auto(expected=2.0), "from 0 to 1")):
        with pytest.raises(SSDError, match=words):
            make()
