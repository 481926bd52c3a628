"""Captured steps against the plain path, on a stand-in for CUDA graphs that does what a device would and no more."""

from __future__ import annotations

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from graph_fakes import allow, kept_tensor, spoil_scratch
from graph_toys import same, setup, used
from toys import ToyBackbone, draw, toy_heads

from ssd_core import (
    AR,
    Auto,
    Generation,
    HorizontalMTP,
    Jacobi,
    Rolling,
    Rounds,
    RowsEvent,
    Sampling,
    SSDError,
)
from ssd_core import graphs as graphs_module
from ssd_core.graphs import Graphs, graphs_of
from ssd_core.schedule import Schedule

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


@pytest.mark.parametrize("schedule", [AR(), Rounds(2)], ids=lambda schedule: schedule.name)
def test_replays_in_half_precision_have_the_steps_bits(schedule: Schedule) -> None:
    """Against the same steps carried out plainly: other widths could round otherwise."""
    backbone, heads, fake = setup(dtype=torch.bfloat16)
    runs = [draw(backbone, schedule, heads=heads) for _ in range(3)]
    assert fake.replays > len(fake.tapes)
    steps, _, refuses = setup(dtype=torch.bfloat16)

    def refuse(number: int) -> None:
        raise RuntimeError("no captures")

    refuses.fail = refuse
    plain = draw(steps, schedule, heads=heads)
    assert not used(plain)
    assert all(used(run) and same(run, plain) for run in runs)


def test_windows_that_a_clock_chooses_draw_plain_decodings_picture() -> None:
    backbone, heads, _ = setup()
    plain = draw(backbone, AR(), graphs="off")
    for drafts in (heads, None) * 2:
        graphed = draw(backbone, Auto(), heads=drafts)
        assert torch.equal(graphed.tokens, plain.tokens)
        assert used(graphed)


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
    most, new = 0, []
    for schedule in [AR(), AR(), Rounds(2), Rounds(2), Rolling(3), Rolling(3), AR(), AR()]:
        captures = fake.captures
        plain = draw(backbone, schedule, heads=heads, graphs="off")
        assert same(draw(backbone, schedule, heads=heads), plain)
        most = max(most, sum(len(suite.steps) for suite in kept._suites.values()))
        new.append(fake.captures - captures)
    assert most == 4
    assert all(new[2:7])  # AR's are gone by then, and two are few enough to stay
    assert new[7] == 0


def test_the_number_of_kinds_is_bounded_and_their_tensors_go_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "MOST_SUITES", 2)
    backbone, heads, _ = setup()
    kept = graphs_of(backbone)
    sizes, kinds = [], []
    for batch in (1, 2, 3, 1, 2):
        plain = draw(backbone, Rolling(2), heads=heads, batch=batch, graphs="off")
        assert same(draw(backbone, Rolling(2), heads=heads, batch=batch), plain)
        kinds.append(len(kept._suites))
        sizes.append(len(kept._tensors))
    assert kinds == [1, 2, 1, 2, 1]
    assert sizes[::2] == sizes[:1] * 3
    assert sizes[1] == sizes[3] > sizes[0]


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


def test_a_device_that_is_not_cudas_never_tries() -> None:
    kept = Graphs()
    for _ in range(2):  # nothing stays taken
        assert kept.open(torch.device("mps")) == "the device is mps"
    assert kept._backend is None
    assert kept.fault is None


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
