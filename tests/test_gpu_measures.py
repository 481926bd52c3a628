"""What the GPU benchmark measures and checks: spans, whole pictures, equality, moved weights, allocators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu_fakes import Clock, fake_line

from benchmarks import gpu_allocators, gpu_forward, gpu_speed
from benchmarks.gpu_budget import Allowance, NoTimeError
from benchmarks.gpu_checks import (
    check_model,
    check_moves,
    check_static,
    check_strictly,
    draw_small,
    graphs_ran,
    move,
    shares,
    small_decoders,
)
from benchmarks.gpu_lines import Line, places, rows_needed
from benchmarks.gpu_shapes import FULL, TOY, random_backbone, random_heads
from benchmarks.gpu_span import Decoder, StopWatch, time_span
from benchmarks.gpu_speed import measure_spans, measure_speed, plan_spans
from ssd_core import AR, SSDError
from ssd_core.graphs import graphs_of

CPU = torch.device("cpu")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_stop_watch_times_the_steps_after_warming_up(clock: Clock) -> None:
    watch = StopWatch(warm=2, steps=3, device=CPU, clock=clock)
    assert not watch.should_stop()  # the prompt's forward, before the kept rows are told of
    watch.on_progress((1,))
    for seconds in (10.0, 10.0, 1.0, 2.0, 3.0):
        assert not watch.should_stop()
        clock.now += seconds
    assert watch.should_stop()
    assert watch.step == 2.0


def test_stop_watch_of_a_picture_that_ends(clock: Clock) -> None:
    watch = StopWatch(warm=1, steps=9, device=CPU, clock=clock)
    watch.on_progress((1,))
    for _ in range(4):
        assert not watch.should_stop()
        clock.now += 2
    watch.finish()  # one warm-up, two steps, the question before the pixels
    assert watch.step == pytest.approx(6 / 2)
    too_short = StopWatch(warm=3, steps=9, device=CPU, clock=clock)
    too_short.on_progress((1,))
    too_short.should_stop()
    too_short.finish()
    assert too_short.step is None


def test_a_span_without_a_step_is_refused() -> None:
    shape = TOY["janus"]
    backbone, heads = random_backbone(shape, CPU, torch.float32), random_heads(shape, CPU, torch.float32)
    codes = torch.zeros(1, *shape.grid, dtype=torch.int64)
    with pytest.raises(SSDError, match="ended within the 60 steps"):
        time_span(Decoder("x", shape.paper, "off"), backbone, heads, codes, keep_rows=6, warm=60, steps=3)


def test_lines_take_turns_and_stop_when_time_does(clock: Clock) -> None:
    log: list[str] = []
    lines = [fake_line(name, 1.0, clock, log) for name in "abc"]
    measure_spans(lines, 8, {}, Allowance(clock.now + 1e6, clock), lambda: None)
    assert log == [*"abc" * 3, *"bca" * 3, *"cab" * 3]
    assert [len(s) for line in lines for s in line.samples] == [3] * 9
    log.clear()
    lines = [fake_line(name, 1.0, clock, log) for name in "abc"]
    measure_spans(lines, 8, {}, Allowance(clock.now + 12, clock), lambda: None)
    assert log == [*"abc" * 3]  # the first round is whole


def test_spans_are_shortened_to_the_time(clock: Clock) -> None:
    for seconds, least, most in ((1e9, 18, 20), (0.0, 1, 1), (2 * 6 * 15.0, 5, 12)):
        lines = [fake_line("a", 1.0, clock, []), fake_line("b", 1.0, clock, [], block=(3, 1))]
        assert plan_spans(lines, seconds, 8, {}, clock) == lines
        assert least <= lines[0].span <= most
        assert lines[1].span % 3 == 0
        for line in lines:
            first, _, last = places(line.rows, rows_needed(line, 8))
            assert first >= 1
            assert last + rows_needed(line, 8) <= line.rows


def test_whole_pictures_only_where_they_fit(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest first, each up to three times, none that would not be done in time."""
    shape = TOY["janus"]
    runs: list[str] = []

    def whole(decoder: Decoder, *arguments: Any) -> tuple[float, Any]:
        runs.append(decoder.name)
        clock.now += 10 if decoder.name == "short" else 1000
        report = type("Report", (), {"total_forwards": 7, "graphs": "off: cpu"})
        return 10.0, type("Generation", (), {"report": report})

    monkeypatch.setattr(gpu_speed, "time_whole", whole)
    lines = [fake_line("long", 1.0, clock, []), fake_line("short", 1.0, clock, [])]
    for line in lines:
        line.decoder = Decoder(line.name, AR(), "off")
    data: dict[str, Any] = {"lines": {"long": {"picture_s": 1000.0}, "short": {"picture_s": 10.0}}, "missing": {}}
    gpu_speed._measure_whole(shape, None, None, lines, data, Allowance(clock.now + 25, clock), lambda data: None)  # type: ignore[arg-type]
    assert runs == ["short", "short"]
    assert data["lines"]["short"]["whole_s"] == 10.0
    assert "whole_s" not in data["lines"]["long"]


def test_a_line_that_cannot_run_leaves_the_others_alone(clock: Clock) -> None:
    def broken(keep_rows: int, warm: int, steps: int) -> float:
        raise TypeError("unexpected keyword")

    def too_large(keep_rows: int, warm: int, steps: int) -> float:
        raise torch.OutOfMemoryError("too large")

    good, bad = fake_line("good", 1.0, clock, []), fake_line("bad", 1.0, clock, [])
    reasons: dict[str, str] = {}
    bad.time = broken
    assert plan_spans([bad, good], 100, 8, reasons, clock) == [good]
    assert reasons == {"bad": "TypeError: unexpected keyword"}
    bad.time = too_large
    with pytest.raises(torch.OutOfMemoryError):
        plan_spans([bad, good], 100, 8, reasons, clock)


@pytest.mark.parametrize(("fails_at", "kept"), [(1, 0), (5, 1)])
def test_a_line_that_fails_later_leaves_the_others_alone(clock: Clock, fails_at: int, kept: int) -> None:
    """What it measured in whole rounds stays."""
    good, bad = fake_line("good", 1.0, clock, []), fake_line("bad", 1.0, clock, [])
    asked = 0

    def breaking(keep_rows: int, warm: int, steps: int) -> float:
        nonlocal asked
        asked += 1
        if asked == fails_at:
            raise RuntimeError("a graph that\nfails")
        return 2.0

    bad.time = breaking
    reasons: dict[str, str] = {}
    measure_spans([bad, good], 8, reasons, Allowance(clock.now + 1e6, clock), lambda: None)
    assert reasons == {"bad": "RuntimeError: a graph that fails"}
    assert [len(samples) for samples in good.samples] == [3] * 3
    assert [len(samples) for samples in bad.samples] == [kept] * 3
    assert asked == fails_at

    def too_large(keep_rows: int, warm: int, steps: int) -> float:
        raise torch.OutOfMemoryError("too large")

    bad.time = too_large
    with pytest.raises(torch.OutOfMemoryError):
        measure_spans([bad, good], 8, reasons, Allowance(clock.now + 1e6, clock), lambda: None)


def test_a_whole_picture_that_fails_leaves_the_others_alone(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(decoder: Decoder, *arguments: Any) -> tuple[float, Any]:
        if decoder.name == "bad":
            raise RuntimeError("no")
        report = type("Report", (), {"total_forwards": 7, "graphs": "off: cpu"})
        return 1.0, type("Generation", (), {"report": report})

    monkeypatch.setattr(gpu_speed, "time_whole", whole)
    lines = [fake_line(name, 1.0, clock, []) for name in ("bad", "good", "without figures")]
    for line in lines:
        line.decoder = Decoder(line.name, AR(), "off")
    data: dict[str, Any] = {"lines": {"bad": {"picture_s": 1.0}, "good": {"picture_s": 2.0}}, "missing": {}}
    gpu_speed._measure_whole(TOY["janus"], None, None, lines, data, Allowance(1e9, clock), lambda data: None)  # type: ignore[arg-type]
    assert data["missing"] == {"bad, whole picture": "RuntimeError: no"}
    assert len(data["lines"]["good"]["whole_times"]) == 3


@pytest.mark.parametrize(("fill", "fewest", "most"), [(0.0, 30, 30), (10.0, 8, 8)])
def test_rows_that_are_fed_before_each_span_cost_layers(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, fill: float, fewest: int, most: int
) -> None:
    """Steps of a second fit easily; ten seconds before each of some thirty spans do not."""

    def lines_of(shape: Any, layers: int, heads: None, reasons: dict[str, str]) -> list[Line]:
        lines = [fake_line(name, 1.0, clock, []) for name in ("AR, eager", "AR, graphed")]
        for line in lines:

            def filled(keep_rows: int, warm: int, steps: int, time: Any = line.time) -> float:
                clock.now += fill
                return float(time(keep_rows, warm, steps))

            line.time = filled
        lines[0].decoder = Decoder("AR, eager", AR(), "off")
        lines[1].decoder = Decoder("AR, graphed", AR(), "auto")
        return lines

    monkeypatch.setattr(gpu_speed, "lines_of", lines_of)
    allowed = Allowance(clock.now + 150.0, clock)
    layers = gpu_speed._affordable_layers(FULL["janus"], lambda count: (count, None), 30, allowed)  # type: ignore[arg-type, return-value]
    assert fewest <= layers <= most


def test_too_slow_a_device_measures_fewer_layers(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 1 + layers seconds: too long for thirty, so two counts are measured and a line drawn to all of them."""
    shape = FULL["janus"]

    def lines_of(shape: Any, layers: int, heads: None, reasons: dict[str, str]) -> list[Line]:
        lines = [fake_line(name, 1.0 + layers, clock, []) for name in ("AR, eager", "SSD")]
        lines[0].decoder = Decoder("AR, eager", AR(), "off")
        return lines

    monkeypatch.setattr(gpu_speed, "lines_of", lines_of)
    saved: list[Any] = []
    data = measure_speed(
        shape, lambda count: (count, None), 30, Allowance(clock.now + 400.0, clock), saved.append  # type: ignore[arg-type, return-value]
    )  # fmt: skip
    many, few = data["layers"]
    assert few == many // 2 < many < 30
    assert saved
    for line in data["lines"].values():
        assert line["ms_per_forward"] == pytest.approx(31e3)
        assert line["picture_s"] == pytest.approx(3100)
        assert line["extrapolated"] == ["picture from spans", f"layers from {few} and {many}"]
        assert line["shortened"]
        assert "whole_s" not in line


def test_shares_compare_the_right_pairs() -> None:
    a, b = torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])
    codes = {"AR, eager": a, "AR, graphed": b, "exact, eager": a, "exact, graphed": a}
    assert shares(codes) == {
        "AR, graphed = AR, eager": 0.75,
        "exact, graphed = exact, eager": 1.0,
        "exact, eager = AR, eager": 1.0,
        "exact, graphed = AR, graphed": 0.75,
    }


def test_graphs_must_run_on_a_gpu_and_nowhere_else() -> None:
    texts = {"a": "off: cpu", "b": "12 graphs, 480 replays"}
    for device, passed in (("cpu", [True, False]), ("cuda", [False, True])):
        assert [check["passed"] for check in graphs_ran(texts, torch.device(device)).values()] == passed


def test_strict_checks_and_moves_pass_on_toys() -> None:
    checks = check_strictly(TOY["janus"], CPU)["checks"]
    assert "float32: exact, eager = AR, eager" in checks
    moved = check_moves(TOY["janus"], CPU, torch.float32)["checks"]
    assert all(check["passed"] for check in [*checks.values(), *moved.values()])


def test_graphed_pictures_are_compared_with_plain_ones_on_the_same_shapes() -> None:
    """The part that needs a GPU, with plain pictures for graphed ones; the model gets its own graphs back."""
    shape = TOY["emu3"]
    backbone, heads = random_backbone(shape, CPU, torch.float64), random_heads(shape, CPU, torch.float64)
    own = graphs_of(backbone)
    allowed = Allowance(1e18)
    codes = draw_small(shape, backbone, heads, 0, small_decoders(shape), None).codes
    checks, missing = check_static(shape, backbone, heads, codes, allowed)
    assert [check["passed"] for check in checks.values()] == [True] * 3
    assert not missing
    codes["SSD, graphed"] = codes["SSD, graphed"] + 1
    checks, _ = check_static(shape, backbone, heads, codes, allowed)
    assert [name for name, check in checks.items() if not check["passed"]] == ["SSD, graphed = eager on static shapes"]
    assert graphs_of(backbone) is own
    checks, missing = check_static(shape, backbone, heads, codes, Allowance(0.0))
    assert not checks
    assert missing == ["SSD, graphed", "AR, graphed", "exact, graphed"]
    assert graphs_of(backbone) is own


def test_small_pictures_end_with_their_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published schedule comes first; the picture that is being drawn is given up, and the record says so."""
    shape = TOY["janus"]
    backbone, heads = random_backbone(shape, CPU, torch.float32), random_heads(shape, CPU, torch.float32)
    forward = backbone.decoder.forward

    def stepping(*arguments: Any) -> torch.Tensor:
        clock.now += 1
        return forward(*arguments)

    monkeypatch.setattr(backbone.decoder, "forward", stepping)
    small = draw_small(shape, backbone, heads, 0, small_decoders(shape), Allowance(clock.now + 30, clock))
    drawn = list(small.codes)
    assert drawn == ["SSD, eager", "SSD, graphed"]
    assert drawn + small.missing == list(small_decoders(shape))
    data = check_model(shape, lambda: (backbone, heads), CPU, Allowance(clock.now + 60, clock))
    assert data["missing"]["small pictures"].startswith("no time was left for AR, eager")


def test_graphed_lines_settle_before_they_count(clock: Clock) -> None:
    log: list[str] = []
    lines = [fake_line(name, 1.0, clock, log) for name in "ab"]
    lines[0].decoder = Decoder("a", AR(), "auto")
    measure_spans(lines, 8, {}, Allowance(clock.now + 1e6, clock), lambda: None)
    assert log[:4] == ["a", "a", "a", "b"]  # two that do not count, then one of each
    assert [len(samples) for line in lines for samples in line.samples] == [3] * 6
    assert log.count("a") == log.count("b") + 6


def test_two_pictures_that_differ_fail_the_strict_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that draws another picture is noticed."""
    run = Decoder.run

    def other(self: Decoder, *arguments: Any, **options: Any) -> Any:
        return run(self, *arguments, **{**options, "seed": options["seed"] + self.name.startswith("exact")})

    monkeypatch.setattr(Decoder, "run", other)
    checks = check_strictly(TOY["janus"], CPU)["checks"]
    assert not checks["float32: exact, eager = AR, eager"]["passed"]


@pytest.mark.parametrize("same", [True, False])
def test_replayed_output_is_compared_with_the_eager_one(same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that needs a GPU, with a replay that is given: timed, and compared bit by bit."""
    out = torch.arange(5.0) + (not same)
    monkeypatch.setattr(gpu_forward, "wait", lambda device: None)
    monkeypatch.setattr(gpu_forward, "captured", lambda work, device: (lambda: None, out))
    figures = gpu_forward.timed(lambda: torch.arange(5.0), torch.device("cuda"), 0.0)
    assert figures["same_bits"] is same
    assert figures["eager_ms"] > 0
    assert figures["graphed_ms"] > 0


def test_work_that_cannot_be_captured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(work: Any, device: torch.device) -> Any:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(gpu_forward, "wait", lambda device: None)
    monkeypatch.setattr(gpu_forward, "captured", refuse)
    figures = gpu_forward.timed(lambda: torch.arange(5.0), torch.device("cuda"), 0.0)
    assert figures["graph_failed"] == "operation not permitted when stream is capturing"
    assert "graphed_ms" not in figures


def test_moved_weights_leave_their_place_and_spoil_it() -> None:
    module = torch.nn.Linear(3, 3)
    old, value = module.weight.data, module.weight.data.clone()
    assert move(module, CPU) == 2
    assert torch.equal(module.weight.data, value)
    assert bool(old.isnan().all())


def test_allocators_that_fail_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess = gpu_allocators.subprocess
    outcomes = iter([
        subprocess.TimeoutExpired("x", 20), subprocess.CalledProcessError(1, "x", stderr="first\nout of luck"),
    ])  # fmt: skip

    def fail(*arguments: Any) -> Any:
        raise next(outcomes)

    monkeypatch.setattr(gpu_allocators, "run_under", fail)
    checks = gpu_allocators.check_allocators("janus", CPU, True, 40)["checks"]
    assert checks == {
        "native": {"passed": False, "detail": "not done after 20 s"},
        "cudaMallocAsync": {"passed": False, "detail": "exit status 1: out of luck"},
    }
    with pytest.raises(NoTimeError, match="at least 10 s"):
        gpu_allocators.check_allocators("janus", CPU, True, 5)


def test_an_allocator_that_is_not_the_wanted_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"backend": "native", "checks": {"a": {"passed": True, "detail": ""}}}
    monkeypatch.setattr(gpu_allocators, "run_under", lambda *arguments: told)
    checks = gpu_allocators.check_allocators("janus", torch.device("cuda"), True, 40)["checks"]
    assert checks["native"]["passed"]
    assert not checks["cudaMallocAsync"]["passed"]


@pytest.mark.slow
def test_allocators_run_in_processes_of_their_own() -> None:
    result = gpu_allocators.check_allocators("emu3", CPU, True, 120)
    assert set(result["allocators"]) == set(gpu_allocators.BACKENDS)
    assert all(check["passed"] for check in result["checks"].values())
