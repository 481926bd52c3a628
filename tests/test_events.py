"""What a run tells while it runs and when it is done: events for a preview, figures for a report."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from test_engine import SCHEDULES, every_schedule, setup
from toys import ToyBackbone, draw, toy_heads

from ssd_core import AR, Generation, Jacobi, Rolling, Rounds, RowsEvent, Sampling
from ssd_core.schedule import Schedule


def watch(schedule: Schedule, batch: int = 2, heads: bool = True) -> tuple[Generation, list[RowsEvent]]:
    backbone, drafts = setup()
    events: list[RowsEvent] = []
    got = draw(backbone, schedule, batch=batch, heads=drafts if heads else None, on_rows=events.append)
    return got, events


@every_schedule
@pytest.mark.parametrize("heads", [True, False], ids=["heads", "copies"])
def test_events_tell_the_story(schedule: Schedule, heads: bool) -> None:
    """Counts only grow, accepted cells stay, -1 stands behind everything known, the last event is the result."""
    got, events = watch(schedule, heads=heads)
    rows, cols = got.report.grid
    final = got.tokens.flatten(1)
    for before, event in zip([None, *events], events, strict=False):
        codes = event.codes.flatten(1)
        assert event.codes.shape == event.changed.shape == got.tokens.shape
        assert event.codes.device.type == event.changed.device.type == "cpu"
        assert event.total == rows * cols
        assert event.rows_accepted == tuple(count // cols for count in event.accepted)
        for image, count in enumerate(event.accepted):
            assert torch.equal(codes[image, :count], final[image, :count])
            known = codes[image] >= 0
            assert not bool((known.int().diff() > 0).any())  # what is known is a prefix
        if before is not None:
            assert all(a <= b for a, b in zip(before.accepted, event.accepted, strict=True))
            assert before.forwards <= event.forwards
            assert before.elapsed <= event.elapsed
            lost = (before.codes >= 0) & (event.codes < 0)
            assert not bool(lost.any())
    last = events[-1]
    assert last.kind == "accepted"
    assert torch.equal(last.codes, got.tokens)
    assert last.accepted == (rows * cols,) * 2
    assert last.forwards == got.report.total_forwards
    assert last.acceptance == got.report.acceptance


@every_schedule
def test_changed_marks_exactly_what_changed(schedule: Schedule) -> None:
    """``changed`` is set at corrections only: where codes differ from the event before, or were not there."""
    _, events = watch(schedule)
    shown = torch.full_like(events[0].codes, -1)
    for event in events:
        differs = event.codes != shown
        if event.kind == "corrected":
            assert torch.equal(event.changed, differs)
        else:
            assert not bool(event.changed.any())
            if event.kind == "accepted":
                assert not bool(differs.any())
            else:
                assert bool((shown[differs] == -1).all())
        shown = event.codes


def test_every_kind_of_event_comes() -> None:
    kinds = {name: {event.kind for event in watch(schedule)[1]} for name, schedule in SCHEDULES.items()}
    assert all(kinds[name] == {"corrected", "accepted"} for name in ("ar", "ar maximal"))
    everything = {"drafted", "corrected", "accepted"}
    assert all(seen == everything for name, seen in kinds.items() if not name.startswith("ar"))


@every_schedule
def test_report_adds_up(schedule: Schedule) -> None:
    backbone, heads = setup()
    fed: list[int] = []
    backbone.decoder.register_forward_hook(lambda _m, inputs, _o: fed.append(inputs[0].shape[1]))
    got = draw(backbone, schedule, batch=2, heads=heads, seed=77, negative="g", sampling=Sampling(2.0, 0.9, 5, 0.9))
    report = got.report
    assert report.total_forwards == len(fed) == sum(report.forwards.values())
    assert report.forwards["prefill"] == 1
    assert report.fed_tokens == sum(fed)
    assert (report.seed, report.grid, report.batch) == (77, (4, 6), 2)
    assert set(report.seconds) >= {"prompt", "forward", "sample", "pixels", "total"}
    assert sum(s for phase, s in report.seconds.items() if phase != "total") <= report.seconds["total"]
    working = report.seconds["total"] - report.seconds["pixels"]
    assert report.tokens_per_second == pytest.approx(got.tokens.numel() / working)
    assert report.settings["sampling"] == {"guidance": 2.0, "temperature": 0.9, "top_k": 5, "top_p": 0.9}
    drafts = "none" if isinstance(schedule, AR) else "random" if isinstance(schedule, Jacobi) else "heads"
    assert report.settings["drafts"] == drafts
    assert report.settings["dtype"] == "float64"
    assert report.settings["schedule"]["coupling"] == schedule.coupling
    assert json.loads(json.dumps(report.to_dict()))["total_forwards"] == len(fed)


@every_schedule
def test_acceptance_is_the_share_of_kept_drafts(schedule: Schedule) -> None:
    """Recounted from the events: drafted cells that a correction looked at, and those it left alone."""
    got, events = watch(schedule, batch=1)
    report = got.report
    if isinstance(schedule, AR):
        assert report.acceptance is None
        assert report.acceptance_by_round == []
        assert report.acceptance_by_direction == {}
        return
    if schedule == Rounds(0):
        return  # nothing but the first row is ever judged
    assert report.acceptance is not None
    assert 0 < report.acceptance < 1
    assert all(0 <= share <= 1 for share in report.acceptance_by_round)
    kinds = {"random"} if isinstance(schedule, Jacobi) else {"horizontal", "vertical"}
    assert set(report.acceptance_by_direction) <= kinds
    if isinstance(schedule, Rolling):
        judged = kept = 0
        for before, event in itertools.pairwise(events):
            if event.kind == "corrected":
                start = before.accepted[0]
                drafts = before.codes.flatten()[start:] >= 0
                judged += int(drafts.sum())
                kept += int((drafts & ~event.changed.flatten()[start:]).sum())
        assert report.acceptance == pytest.approx(kept / judged)


def test_plain_decoding_events_are_one_code_each() -> None:
    backbone = ToyBackbone(2, 3)
    counts: list[int] = []
    draw(backbone, AR(), on_rows=lambda e: counts.append(e.accepted[0]) if e.kind == "accepted" else None)
    assert counts == [1, 2, 3, 4, 5, 6]


def test_drafts_by_direction() -> None:
    """The first row is drafted from the left, the others from above; other drafts count under their own names."""
    backbone = ToyBackbone(4, 6)
    heads = draw(backbone, Rolling(), heads=toy_heads(backbone)).report
    assert set(heads.acceptance_by_direction) == {"horizontal", "vertical"}
    assert set(draw(backbone, Rolling()).report.acceptance_by_direction) == {"left"}
    assert set(draw(backbone, Rounds()).report.acceptance_by_direction) == {"copy"}
