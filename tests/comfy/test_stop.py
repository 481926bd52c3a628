"""The Stop button: quick, clean, and only for what it was pressed for."""

from __future__ import annotations

import time

import numpy as np
import pytest
from comfy_engine import graphs
from comfy_engine.graphs import picture
from comfy_engine.pictures import pixels

pytestmark = pytest.mark.comfy

# Sixteen checks of every row of four large pictures: long enough to be stopped at any point.
LONG = {"preset": "custom", "mode": "rounds", "rounds": 16, "grid": "32x32", "batch_size": 4, "heads": graphs.NO_HEADS}
# What the way through sockets, threads and ComfyUI's own end of a run may take on a very busy machine, in seconds: this
# is for a Stop that is not heard at all. How little is done after one is counted below, in pieces of work; the measured
# latency is in benchmarks/comfy_overhead.py.
SLACK = 15.0


def check_quick(run, pressed):
    """Stop took the rest of one forward, and at most another one."""
    interrupted = next(event.at for event in run.events if event.kind == "execution_interrupted")
    end = run.of("ssd.rows")[-1]
    forward = end["elapsed"] / end["forwards"]
    assert interrupted - pressed < 2 * forward + SLACK


def started(comfy, prompt_id, forwards=3):
    """Wait until a run has done some forwards."""

    def drawing(events):
        return any(
            event.kind == "ssd.rows" and event.data["prompt_id"] == prompt_id and event.data["forwards"] >= forwards
            for event in events
        )

    comfy.listener.wait(drawing, 120)


def test_stop_ends_the_run_at_once_and_the_next_one_is_whole(comfy):
    before = comfy.run(picture(seed=201))
    stopped = comfy.queue(picture(seed=202, **LONG))
    started(comfy, stopped)
    pressed = time.monotonic()
    comfy.interrupt()
    run = comfy.wait(stopped)
    assert run.end == "execution_interrupted"
    check_quick(run, pressed)
    events = run.of("ssd.rows")
    assert (events[-1]["kind"], events[-1]["status"]) == ("end", "stopped")
    assert [event["kind"] for event in events].count("end") == 1
    assert not run.images("image")
    assert run.of("execution_error") == []
    # The same picture as before the stop, drawn anew.
    comfy.free()
    again = comfy.run(picture(seed=201))
    assert again.end == "execution_success"
    assert "sampler" in again.executed
    assert np.array_equal(pixels(comfy, again), pixels(comfy, before))


def test_of_two_queued_prompts_only_the_first_is_stopped(comfy):
    first = comfy.queue(picture(seed=203, **LONG))
    second = comfy.queue(picture(seed=204))
    started(comfy, first)
    assert comfy.queued() == ([first], [second])
    comfy.interrupt(first)
    assert comfy.wait(first).end == "execution_interrupted"
    run = comfy.wait(second)
    assert run.end == "execution_success"
    assert run.of("ssd.rows")[-1]["status"] == "done"
    assert len(pixels(comfy, run)) == 1


def test_stop_for_another_prompt_does_not_touch_this_one(comfy):
    running = comfy.queue(picture(seed=205, grid="24x24"))
    started(comfy, running, 1)
    comfy.interrupt("no such prompt")
    assert comfy.wait(running).end == "execution_success"


def test_compare_stops_too(comfy):
    prompt_id = comfy.queue(graphs.comparison(seed=206, grid="32x32", batch_size=4))
    started(comfy, prompt_id)
    pressed = time.monotonic()
    comfy.interrupt()
    run = comfy.wait(prompt_id)
    assert run.end == "execution_interrupted"
    check_quick(run, pressed)
    events = run.of("ssd.rows")
    assert [event["status"] for event in events if event["kind"] == "end"] == ["stopped"]
    assert comfy.run(picture(seed=207)).end == "execution_success"


def test_stop_during_the_first_moments(comfy):
    """While weights are loaded or the first forward runs: the run may not have told anything yet."""
    comfy.free()
    prompt_id = comfy.queue(picture(seed=208, **LONG))
    comfy.listener.wait(
        lambda events: any(
            event.kind == "executing" and event.data["prompt_id"] == prompt_id and event.data["node"] is not None
            for event in events
        ),
        60,
    )
    comfy.interrupt()
    run = comfy.wait(prompt_id, 120)
    assert run.end == "execution_interrupted"
    kinds = [event["kind"] for event in run.of("ssd.rows")]
    assert kinds.count("begin") == kinds.count("end")
    assert comfy.run(picture(seed=209)).end == "execution_success"


@pytest.mark.parametrize(
    ("piece", "call", "batch"),
    [("a forward", 20, 1), ("pixels of an image", 2, 4), ("a tensor of a file", 3, 1), ("a tensor of a file", 20, 1)],
)
def test_stop_waits_for_the_piece_of_work_at_hand_alone(comfy, piece, call, batch):
    """For the forward, or where pixels are decoded or weights are read for that image or tensor, not for the rest."""
    comfy.free()
    comfy.request("/probe/aim", {"piece": piece, "call": call})
    prompt_id = comfy.queue(picture(seed=210, batch_size=batch))
    deadline = time.monotonic() + 120
    while comfy.get("/probe/calls")[piece] < call:
        assert time.monotonic() < deadline, comfy.get("/probe/calls")
        time.sleep(0.02)
    pressed = time.monotonic()
    comfy.interrupt()
    run = comfy.wait(prompt_id, 120)
    assert run.end == "execution_interrupted"
    assert next(event.at for event in run.events if event.kind == run.end) - pressed < SLACK
    assert comfy.get("/probe/calls")[piece] == call
    assert not run.images("image")
    assert all(end["status"] == "stopped" for end in run.of("ssd.rows") if end["kind"] == "end")
    comfy.request("/probe/aim", {"piece": None, "call": 0})
    again = comfy.run(picture(seed=210, batch_size=batch))
    assert again.end == "execution_success"
    assert len(pixels(comfy, again)) == batch
    assert comfy.get("/probe/calls")[piece] > call  # the rest was there to be done
