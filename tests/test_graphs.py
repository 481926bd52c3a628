"""Captured steps against the plain path, on a stand-in for CUDA graphs that does what a device would and no more."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from graph_fakes import FakeCapture, NotCapturableError, allow, kept_tensor, spoil_scratch, storage_of
from torch import Tensor
from toys import ToyBackbone, draw, toy_heads

from ssd_core import (
    AR,
    Generation,
    HorizontalMTP,
    Jacobi,
    Rolling,
    Rounds,
    RowsEvent,
    Sampling,
    SSDError,
    StopRequested,
)
from ssd_core import graphs as graphs_module
from ssd_core.graphs import Graphs, graphs_of
from ssd_core.heads import SpatialHeads
from ssd_core.schedule import Schedule

DOUBLE = torch.float64
SCHEDULES: dict[str, Schedule] = {
    "ar": AR(),
    "ar maximal": AR("maximal"),
    "rolling 1": Rolling(1),
    "rolling 3": Rolling(3),
    "rolling tokens": Rolling(window_tokens=5),
    "rolling maximal": Rolling(2, coupling="maximal"),
    "rolling tolerant": Rolling(3, tolerance=3.0),
    "rounds fused": Rounds(2),
    "rounds separate": Rounds(1, commit="separate"),
    "rounds staged": Rounds(2, 2, 1),
    "rounds gumbel": Rounds(3, coupling="gumbel"),
    "rounds none": Rounds(0),
    "jacobi": Jacobi(7),
    "mtp": HorizontalMTP(3, 2),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
FIGURES = ("forwards", "fed_tokens", "acceptance", "acceptance_by_round", "acceptance_by_direction")


def setup(**options: Any) -> tuple[ToyBackbone, SpatialHeads, FakeCapture]:
    """A toy on the stand-in; its captures may read weights and kept tensors, nothing else."""
    backbone = ToyBackbone(3, 6, dtype=DOUBLE, **{"layers": 1, **options})
    heads, fake = toy_heads(backbone), FakeCapture()
    allow(fake, backbone, heads)
    return backbone, heads, fake


def used(result: Generation) -> bool:
    return not result.report.graphs.startswith("off")


def same(a: Generation, b: Generation) -> bool:
    figures = all(getattr(a.report, name) == getattr(b.report, name) for name in FIGURES)
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.images, b.images) and figures


@every_schedule
@pytest.mark.parametrize(
    ("options", "batch", "sampling"),
    [({}, 1, Sampling()), ({"padded": True, "end_of_line": False}, 3, Sampling(2.5, 0.9, 9, 0.97))],
    ids=["plain", "batch"],
)
def test_replays_draw_what_the_steps_do(
    schedule: Schedule, options: dict[str, Any], batch: int, sampling: Sampling
) -> None:
    """Tokens, pictures and figures of several seeds; scratch that is spoiled after every replay leaks nowhere."""
    backbone, heads, fake = setup(**options)
    kept = graphs_of(backbone)
    prompts = ["a", "bcd", "efgab"][:batch]
    fake.damage = lambda _: spoil_scratch(kept)
    for seed, drafts in ((2**64 - 2, heads), (5, heads if schedule.name == "mtp" else None)):
        plain, graphed = (
            draw(backbone, schedule, prompts, heads=drafts, sampling=sampling, seed=seed, graphs=graphs)
            for graphs in ("off", "auto")
        )
        assert same(plain, graphed)
        assert used(graphed), graphed.report.graphs
        assert plain.report.graphs == "off: switched off"
    assert fake.replays > 4


def test_the_widest_steps_are_captured_first_and_others_when_they_come_again() -> None:
    backbone, heads, fake = setup()
    draw(backbone, Rounds(2), heads=heads)
    assert fake.log[:4] == ["aside", "capture", "aside", "capture"]  # nothing was replayed, so nothing compared
    draw(backbone, Rounds(2), heads=heads)
    before = fake.captures
    draw(backbone, Rounds(2), heads=heads)
    assert fake.captures == before > 4
    assert "aside" not in fake.log[-10:]


def test_a_graph_is_compared_once_and_replayed_ever_after() -> None:
    backbone, _, fake = setup(end_of_line=False)
    runs = [draw(backbone, AR(), seed=seed) for seed in range(3)]
    asides = fake.log.count("aside")
    assert asides == 4  # forward and correction, each before its capture at the start and at its first replay
    assert runs[2].report.graphs == f"2 graphs (0 of them new), {2 * 18 - 1} replays"
    assert [int(text.report.graphs.split("(")[1].split()[0]) for text in runs] == [2, 0, 0]


def test_kinds_of_run_take_turns_without_a_new_capture() -> None:
    """AR, one row and three rows: each keeps its graphs, and all share the cache of keys and values."""
    backbone, heads, fake = setup()
    kinds: list[Schedule] = [AR(), Rolling(1), Rounds(2)]
    plain = [draw(backbone, kind, heads=heads, seed=3, graphs="off") for kind in kinds]
    for turn in range(3):
        for kind, expected in zip(kinds, plain, strict=True):
            assert same(draw(backbone, kind, heads=heads, seed=3), expected)
        if turn == 1:
            captures = fake.captures
    assert fake.captures == captures
    names = [name for name, *_ in graphs_of(backbone)._tensors]  # type: ignore[misc]
    assert names.count("keys") == names.count("values") == names.count("features") == 1


@pytest.mark.parametrize("which", ["backbone", "heads", "both"])
def test_moved_weights_are_captured_anew(which: str) -> None:
    """The old places hold NaN, as freed memory may: a replay that still read them would be seen."""
    backbone, heads, fake = setup()
    expected = draw(backbone, Rolling(2), heads=heads, graphs="off")
    for _ in range(2):
        assert same(draw(backbone, Rolling(2), heads=heads), expected)
    captures = fake.captures
    old = []
    for module in {"backbone": [backbone], "heads": [heads], "both": [backbone, heads]}[which]:
        for parameter in module.parameters():
            old.append(parameter.data)
            parameter.data = parameter.data.clone()
            old[-1].fill_(torch.nan)
    moved = draw(backbone, Rolling(2), heads=heads)
    assert same(moved, expected)
    assert used(moved)
    assert fake.captures > captures


def test_one_moved_matrix_is_enough() -> None:
    backbone, heads, fake = setup()
    draw(backbone, Rolling(2), heads=heads)
    captures = fake.captures
    backbone.norm.weight.data = backbone.norm.weight.data.clone()
    draw(backbone, Rolling(2), heads=heads)
    assert fake.captures >= captures + 2


def test_more_kinds_of_decoder_are_replayed() -> None:
    """Axes, grouped heads, normalised queries, several layers, greedy."""
    backbone, heads, _ = setup(axes=2, kv_heads=2, qk_norm=True, layers=2)
    for schedule in (Rolling(3), Rounds(2, 2, 1)) * 2:
        plain = draw(backbone, schedule, heads=heads, sampling=Sampling(0.5, 0.0), graphs="off")
        graphed = draw(backbone, schedule, heads=heads, sampling=Sampling(0.5, 0.0))
        assert same(plain, graphed)
        assert used(graphed)


def test_changed_heads_are_used() -> None:
    backbone, heads, fake = setup()
    others = toy_heads(backbone, neighbours=1, seed=9)
    allow(fake, backbone, heads, others)
    for _ in range(2):
        for each in (heads, others):
            plain = draw(backbone, Rounds(1), heads=each, graphs="off")
            graphed = draw(backbone, Rounds(1), heads=each)
            assert same(plain, graphed)
            assert used(graphed)


@pytest.mark.parametrize(
    "changes",
    [
        [Sampling(1.0), Sampling(2.0), Sampling(4.0), Sampling(2.0)],
        [Sampling(2.0, 1.0), Sampling(2.0, 0.7), Sampling(2.0, 0.0)],
        [Sampling(top_k=3), Sampling(top_k=9), Sampling(top_p=0.5), Sampling(top_p=0.9)],
    ],
    ids=["guidance", "temperature", "truncation"],
)
def test_changed_sampling_is_followed(changes: list[Sampling]) -> None:
    backbone, heads, _ = setup()
    for sampling in changes * 2:
        plain = draw(backbone, Rolling(2), heads=heads, sampling=sampling, graphs="off")
        graphed = draw(backbone, Rolling(2), heads=heads, sampling=sampling)
        assert same(plain, graphed)
        assert used(graphed)


def test_changed_tolerance_batch_prompt_and_coupling_are_followed() -> None:
    backbone, heads, _ = setup(padded=True)
    runs: list[tuple[Schedule, Any]] = [
        (Rolling(2), "abcde"),
        (Rolling(2, tolerance=4.0), "abcde"),
        (Rolling(2, coupling="maximal"), "a"),
        (Rolling(2), ["a", "bcd"]),
        (Rolling(2, tolerance=1.0), "ab"),
        (Rolling(2), "a"),
    ]
    for schedule, prompt in runs * 2:
        plain = draw(backbone, schedule, prompt, heads=heads, graphs="off")
        assert same(draw(backbone, schedule, prompt, heads=heads), plain)


@pytest.mark.parametrize("name", ["keys", "features", "cos"])
def test_freed_tensors_are_made_anew(name: str) -> None:
    backbone, heads, fake = setup()
    expected = draw(backbone, Rolling(2), heads=heads)
    captures = fake.captures
    for (kind, *_), each in graphs_of(backbone)._tensors.items():  # type: ignore[misc]
        if kind == name:
            each.tensor.untyped_storage().resize_(0)
    again = draw(backbone, Rolling(2), heads=heads)
    assert same(again, expected)
    assert used(again)
    assert fake.captures > captures


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
@pytest.mark.parametrize("error", [NotCapturableError("not permitted"), torch.OutOfMemoryError("too much")])
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


def test_ctrl_c_in_a_capture_is_no_fault_of_graphs() -> None:
    backbone, heads, fake = setup()
    expected = draw(backbone, Rounds(2), heads=heads, graphs="off")

    def interrupt(count: int) -> None:
        if count == 3:
            raise KeyboardInterrupt

    fake.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        draw(backbone, Rounds(2), heads=heads)
    again = draw(backbone, Rounds(2), heads=heads)
    assert same(again, expected)
    assert used(again)


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


def test_two_runs_at_once_are_both_right() -> None:
    """The second one goes plainly and says so; the first one's graphs are not disturbed."""
    backbone, heads, fake = setup()
    plain = [draw(backbone, Rounds(2), heads=heads, seed=seed, graphs="off") for seed in (1, 2)]
    inner: list[Generation] = []

    def other(event: RowsEvent) -> None:
        if len(inner) < 3 and event.kind == "corrected":
            inner.append(draw(backbone, Rounds(2), heads=heads, seed=2))

    for _ in range(2):
        inner.clear()
        outer = draw(backbone, Rounds(2), heads=heads, seed=1, on_rows=other)
        assert same(outer, plain[0])
        assert used(outer)
        assert len(inner) == 3
        for each in inner:
            assert same(each, plain[1])
            assert each.report.graphs == "off: another run is using the graphs of this backbone"
    assert fake.replays > 0


def test_threads_on_one_backbone() -> None:
    backbone, heads, _ = setup()
    plain = [draw(backbone, Rolling(2), heads=heads, seed=seed, graphs="off") for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: draw(backbone, Rolling(2), heads=heads, seed=seed), range(4)))
    assert all(same(a, b) for a, b in zip(plain, together, strict=True))


def test_the_number_of_graphs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "MOST_GRAPHS", 4)
    backbone, heads, fake = setup()
    kept = graphs_of(backbone)
    most = 0
    for schedule in [AR(), Rounds(2), Rolling(3)] * 2:
        plain = draw(backbone, schedule, heads=heads, graphs="off")
        assert same(draw(backbone, schedule, heads=heads), plain)
        most = max(most, sum(len(suite.steps) for suite in kept._suites.values()))
    assert most == 4
    assert fake.captures > 4


def test_the_number_of_kinds_is_bounded_and_their_tensors_go_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "MOST_SUITES", 2)
    backbone, heads, _ = setup()
    kept = graphs_of(backbone)
    sizes = []
    for batch in (1, 2, 3, 1, 2):
        plain = draw(backbone, Rolling(2), heads=heads, batch=batch, graphs="off")
        assert same(draw(backbone, Rolling(2), heads=heads, batch=batch), plain)
        assert len(kept._suites) <= 2
        sizes.append(len(kept._tensors))
    assert sizes[1:] == sizes[1:2] * 4


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


def test_release_gives_everything_back_and_the_next_run_works() -> None:
    backbone, heads, fake = setup()
    expected = draw(backbone, Rolling(2), heads=heads)
    kept = graphs_of(backbone)
    gone = weakref.ref(kept_tensor(backbone, "keys"))
    fake.tapes.clear()
    kept.release()
    gc.collect()
    assert (kept.count, kept._tensors, gone()) == (0, {}, None)
    again = draw(backbone, Rolling(2), heads=heads)
    assert same(again, expected)
    assert used(again)


def test_release_in_the_middle_of_a_run_waits_for_its_end() -> None:
    backbone, heads, _ = setup()
    kept = graphs_of(backbone)
    expected = draw(backbone, Rolling(2), heads=heads)
    result = draw(backbone, Rolling(2), heads=heads, on_rows=lambda event: kept.release())
    assert same(result, expected)
    assert used(result)
    assert (kept.count, kept._tensors) == (0, {})


def test_graphs_go_with_their_backbone() -> None:
    backbone, heads, fake = setup()
    draw(backbone, Rolling(2), heads=heads)
    gone = [weakref.ref(graphs_of(backbone)), weakref.ref(kept_tensor(backbone, "keys")), weakref.ref(backbone)]
    del backbone, heads, fake
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_a_copied_backbone_has_graphs_of_its_own() -> None:
    backbone, heads, fake = setup()
    for _ in range(2):
        expected = draw(backbone, Rolling(2), heads=heads)
    other = copy.deepcopy(backbone)
    assert graphs_of(other) is not graphs_of(backbone)
    assert graphs_of(other).count == 0
    assert draw(other, Rolling(2), heads=heads).report.graphs == "off: the device is cpu"
    captures = fake.captures
    assert same(draw(backbone, Rolling(2), heads=heads), expected)
    assert fake.captures == captures


def test_a_cpu_never_tries() -> None:
    backbone = ToyBackbone(3, 4)
    result = draw(backbone, AR())
    assert result.report.graphs == "off: the device is cpu"
    assert graphs_of(backbone)._tensors == {}


def test_a_device_without_captures_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(graphs_module, "CudaCapture", refuse)
    kept = Graphs()
    for _ in range(2):
        assert kept.open(torch.device("cuda", 0)) == "the device takes no captures (no such thing)"


def test_a_choice_that_there_is_not_is_refused() -> None:
    with pytest.raises(SSDError, match="graphs must be one of auto, off, got 'on'"):
        draw(ToyBackbone(2, 3), AR(), graphs="on")


def test_runs_in_and_out_of_inference_mode_share_their_tensors() -> None:
    """ComfyUI runs nodes in inference mode, a library's user may not."""
    backbone, heads, fake = setup()
    with torch.inference_mode():
        for _ in range(2):
            inside = draw(backbone, Rolling(2), heads=heads)
    captures = fake.captures
    outside = draw(backbone, Rolling(2), heads=heads)
    with torch.inference_mode():
        again = draw(backbone, Rolling(2), heads=heads)
    assert same(inside, outside)
    assert same(inside, again)
    assert fake.captures == captures
    outside.tokens.add_(1)  # ordinary tensors that nobody else writes to
    assert not torch.equal(draw(backbone, Rolling(2), heads=heads).tokens, outside.tokens)


def test_kept_rows_and_given_drafts_work_with_graphs() -> None:
    backbone, heads, _ = setup()
    codes = draw(backbone, AR(), seed=8, graphs="off").tokens
    for keep in (0, 2):
        for schedule in (Rolling(2), Rounds(2)):
            settings = {"heads": heads, "start": codes, "keep_rows": keep, "seed": 9}
            for _ in range(2):
                graphed = draw(backbone, schedule, graphs="auto", **settings)
                assert same(graphed, draw(backbone, schedule, graphs="off", **settings))
                assert used(graphed)


@pytest.fixture
def numbers() -> Iterator[Tensor]:
    with torch.inference_mode():
        yield torch.tensor([0, 1, 2])


REFUSALS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a number read": lambda x, n: x[0].item(),
    "a list": lambda x, n: x.tolist(),
    "a condition": lambda x, n: 1 if x[0] > 0 else 2,
    "an index from the host": lambda x, n: x[int(n[1])],
    "positions of true": lambda x, n: (x > 0).nonzero(),
    "a mask": lambda x, n: x[x > 0],
    "a masked write": lambda x, n: x.__setitem__(x > 0, n[:1].double()),
    "a new tensor of numbers": lambda x, n: x + torch.tensor([1.0, 2.0, 3.0]),
    "a random number": lambda x, n: torch.rand(3),
    "a summing write": lambda x, n: x.index_put_((n,), x, accumulate=True),
    "two ways": lambda x, n: torch.equal(x, x),
    "a bare number written by index": lambda x, n: x.__setitem__(n, 4.0),
    "unique": lambda x, n: n.unique(),
}


@pytest.mark.parametrize("step", REFUSALS.values(), ids=REFUSALS)
def test_the_stand_in_refuses_what_a_device_does(step: Callable[[Tensor, Tensor], object], numbers: Tensor) -> None:
    """So steps that it takes wait for nobody: every run above goes through it."""
    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(NotCapturableError, match="stream is capturing"):
        FakeCapture().capture(lambda n: step(x, n), numbers)  # type: ignore[arg-type,return-value]


def test_the_stand_in_sees_tensors_that_nobody_keeps(numbers: Tensor) -> None:
    fake, x, y = FakeCapture(), torch.zeros(3), torch.ones(3)
    fake.static = lambda: {storage_of(x)}
    fake.capture(lambda n: x.add_(n), numbers)
    with pytest.raises(AssertionError, match="tensors that nobody keeps"):
        fake.capture(lambda n: x.add_(y), numbers)


def test_the_stand_in_replays_memory_and_not_python(numbers: Tensor) -> None:
    """What a replay does not do: run Python, follow a name to another tensor, keep temporaries, act when captured."""
    fake = FakeCapture()
    names, calls, leaked = {"x": torch.zeros(3)}, [], []
    first = names["x"]

    def step(n: Tensor) -> None:
        calls.append(1)
        leaked.append(names["x"] + n)
        names["x"].copy_(leaked[-1] * len(calls))

    replay = fake.capture(step, numbers)
    assert first.tolist() == [0, 0, 0]
    names["x"] = torch.full((3,), 100.0)
    numbers.add_(1)
    replay()
    replay()
    assert first.tolist() == [2, 4, 6]
    assert names["x"].tolist() == [100.0] * 3
    assert len(calls) == 1
    assert bool(leaked[0].isnan().all())
