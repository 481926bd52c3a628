"""ComfyUI's cache, its Free button, shared weights, and memory over many runs."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest
from comfy_engine import graphs
from comfy_engine.graphs import changed, picture
from comfy_engine.pictures import pixels

pytestmark = pytest.mark.comfy

MEGABYTE = 2**20


def alive(comfy):
    return comfy.get("/probe/alive")


def free(comfy):
    """Press Free and wait until the server has done it (it answers before that)."""
    comfy.free()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = alive(comfy)
        if not any(found["alive"].values()):
            return found
        time.sleep(0.2)
    return found


def test_the_same_graph_twice_is_answered_from_the_cache(comfy):
    prompt = picture(seed=301)
    first = comfy.run(prompt)
    assert first.executed
    again = comfy.run(prompt)
    assert again.end == "execution_success"
    assert again.executed == []
    assert again.of("ssd.rows") == []
    assert set(again.of("execution_cached")[0]["nodes"]) == set(prompt)


def test_a_new_seed_runs_the_sampler_and_what_follows_it(comfy):
    comfy.run(picture(seed=302))
    run = comfy.run(picture(seed=303))
    assert set(run.executed) == {"sampler", "image", "report"}
    assert set(run.of("execution_cached")[0]["nodes"]) == {"backbone", "heads", "verification"}


def test_new_settings_load_nothing_anew(comfy):
    comfy.run(picture(seed=304))
    run = comfy.run(picture(seed=304, preset="balanced"))
    assert set(run.executed) == {"verification", "sampler", "image", "report"}


def test_two_loaders_with_one_choice_share_the_weights(comfy):
    free(comfy)
    prompt = picture(seed=305)
    # The very same node twice would be answered from the cache: another word for the same precision.
    prompt["second backbone"] = changed(prompt, "backbone", precision="float32")["backbone"]
    prompt["second heads"] = changed(prompt, "heads", backbone=["second backbone", 0])["heads"]
    prompt["second"] = changed(prompt, "sampler", backbone=["second backbone", 0], heads=["second heads", 0], seed=306)[
        "sampler"
    ]
    prompt["second image"] = graphs.node("PreviewImage", images=["second", 0])
    run = comfy.run(prompt)
    assert run.end == "execution_success"
    assert {"second backbone", "second heads", "second"} <= set(run.executed)
    assert alive(comfy)["alive"] == {"EmojiBackbone": 1, "SpatialHeads": 1}


def test_free_really_frees_and_the_next_run_works(comfy):
    first = comfy.run(picture(seed=307))
    found = alive(comfy)
    assert found["alive"] == {"EmojiBackbone": 1, "SpatialHeads": 1}
    assert found["managed"] >= 1
    assert free(comfy) == {"alive": {"EmojiBackbone": 0, "SpatialHeads": 0}, "managed": 0}
    again = comfy.run(picture(seed=307))
    assert again.end == "execution_success"
    assert {"backbone", "heads", "sampler"} <= set(again.executed)
    assert np.array_equal(pixels(comfy, again), pixels(comfy, first))


def test_unloading_without_emptying_the_cache_works_too(comfy):
    """`Unload models` alone: the loaders' outputs stay in the cache, their weights must come back by themselves."""
    first = comfy.run(picture(seed=308))
    comfy.request("/free", {"unload_models": True, "free_memory": False})
    again = comfy.run(picture(seed=309))
    assert set(again.executed) == {"sampler", "image", "report"}
    back = comfy.run(picture(seed=308))
    assert back.end == "execution_success"
    assert np.array_equal(pixels(comfy, back), pixels(comfy, first))


def test_drawing_leaves_the_process_as_it_is(comfy):
    comfy.run(picture(seed=310))
    before = comfy.get("/probe/state")
    comfy.run(picture(seed=311, preset="balanced", temperature=0.9, top_p=0.9))
    comfy.run(graphs.comparison(seed=311))
    assert comfy.get("/probe/state") == before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_thirty_runs_need_no_more_memory_than_five(comfy, comfy_server):
    for seed in range(320, 325):
        comfy.run(picture(seed=seed))
    early = comfy_server.memory()
    for seed in range(325, 355):
        assert comfy.run(picture(seed=seed)).end == "execution_success"
    late = comfy_server.memory()
    # A leak of one picture's keys, values and logits a run would be hundreds of megabytes.
    assert late - early < 40 * MEGABYTE, f"{early / MEGABYTE:.0f} -> {late / MEGABYTE:.0f} MB"
    assert alive(comfy)["alive"] == {"EmojiBackbone": 1, "SpatialHeads": 1}
