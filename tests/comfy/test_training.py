"""Train SSD Heads in the real server: trains, stops, goes on, and its heads draw."""

from __future__ import annotations

import json
import os

import pytest
from comfy_engine.client import RefusedError
from comfy_engine.graphs import changed, node, picture
from comfy_engine.pictures import pixels
from safetensors import safe_open

from ssd_core.heads import read_heads_spec

pytestmark = [pytest.mark.comfy, pytest.mark.slow]


def steps_of(file):
    return read_heads_spec(file).notes["training"]["steps"]


def seconds_of(work):
    """How long the training in a work folder has trained."""
    (state,) = work.glob("training-*/state.safetensors")
    with safe_open(str(state), framework="pt") as file:
        return json.loads(file.metadata()["progress"])["seconds"]


def training(name, **settings):
    """Heads made for the built-in backbone, and a sampler that draws with them."""
    prompt = picture(seed=701)
    del prompt["heads"]
    wanted = {
        "prompts": "a cat\na dog on grass", "pictures": 4, "minutes": 0.4, "grid": "16x16", "seed": 1,
        "start_from": "nothing",
    }  # fmt: skip
    prompt["train"] = node("SSDTrainHeads", backbone=["backbone", 0], name=name, **{**wanted, **settings})
    prompt["train report"] = node("PreviewAny", source=["train", 1])
    prompt["plot"] = node("PreviewImage", images=["train", 2])
    return changed(prompt, "sampler", heads=["train", 0])


def test_trained_heads_draw_the_same_picture_and_are_offered_by_name(comfy, comfy_server):
    run = comfy.run(training("trained/first"), 300)
    assert run.end == "execution_success", run.of("execution_error")
    file = comfy_server.base / "models" / "ssd_heads" / "trained" / "first.safetensors"
    assert file.is_file()
    report = "".join(run.text("train report"))
    assert "first.safetensors" in report
    assert "vertical" in report
    assert len(run.images("plot")) == 1
    steps = [step["value"] for step in run.of("progress", "train")]
    assert steps == sorted(steps)
    assert steps[-1] == run.of("progress", "train")[-1]["max"]
    assert not list((comfy_server.base / "user" / "ssd_training").iterdir())
    # Whoever drafts, exact mode draws the seed's picture: trained heads, none, and loaded by name.
    shown = pixels(comfy, run)
    assert "trained/first.safetensors" in str(comfy.object_info()["SSDLoadHeads"]["input"]["required"]["heads"])
    again = comfy.run(picture(seed=701, heads="trained/first.safetensors"))
    assert again.end == "execution_success"
    assert (pixels(comfy, again) == shown).all()
    # When ComfyUI has forgotten everything, the same graph is answered with the file.
    written = file.stat().st_mtime_ns
    comfy.free()
    once_more = comfy.run(training("trained/first"), 60)
    assert once_more.end == "execution_success", once_more.of("execution_error")
    assert "made by an earlier run" in "".join(once_more.text("train report"))
    assert len(once_more.images("plot")) == 1
    assert [path.name for path in file.parent.iterdir()] == ["first.safetensors"]
    assert file.stat().st_mtime_ns == written
    # Heads to start from are a file that may be exchanged: then ComfyUI's memory of the answer is out of date.
    further = training("trained/further", minutes=0.1, start_from="trained/first.safetensors")
    assert comfy.run(further, 200).end == "execution_success"
    assert "train" in comfy.run(further, 60).of("execution_cached")[0]["nodes"]
    os.utime(file)
    assert "train" not in comfy.run(further, 200).of("execution_cached")[0]["nodes"]


def test_stop_while_it_trains_keeps_the_heads_and_the_next_run_goes_on(comfy, comfy_server):
    prompt = training("stopped", minutes=5.0, pictures=2)
    prompt_id = comfy.queue(prompt)
    comfy.listener.wait(
        lambda events: any(
            event.kind == "progress" and event.data["prompt_id"] == prompt_id and event.data["value"] > 405
            for event in events
        ),
        200,
    )
    comfy.interrupt()
    run = comfy.wait(prompt_id, 60)
    assert run.end == "execution_interrupted"
    file = comfy_server.base / "models" / "ssd_heads" / "stopped.safetensors"
    steps = steps_of(file)
    assert steps > 0
    (work,) = (comfy_server.base / "user" / "ssd_training").glob("stopped-*")
    assert list((work / "samples").rglob("*.safetensors"))
    drawn = comfy.run(picture(seed=702, heads="stopped.safetensors"))
    assert drawn.end == "execution_success"
    # With a little more time it is done soon: it draws nothing more, and its file takes the stopped one's place.
    pictures = {path.name: path.stat().st_mtime_ns for path in (work / "samples").iterdir()}
    prompt["train"]["inputs"]["minutes"] = (seconds_of(work) + 25) / 60
    prompt_id = comfy.queue(prompt)
    comfy.listener.wait(
        lambda events: any(e.kind == "progress" and e.data["prompt_id"] == prompt_id for e in events), 200
    )
    if work.exists():
        assert {path.name: path.stat().st_mtime_ns for path in (work / "samples").iterdir()} == pictures
    run = comfy.wait(prompt_id, 300)
    assert run.end == "execution_success", run.of("execution_error")
    assert steps_of(file) > steps
    assert list(file.parent.glob("stopped*")) == [file]
    assert not list((comfy_server.base / "user" / "ssd_training").iterdir())


def test_stop_while_it_draws_writes_no_heads(comfy, comfy_server):
    prompt_id = comfy.queue(training("drawing", minutes=60.0, pictures=64))
    comfy.listener.wait(
        lambda events: any(
            event.kind == "progress" and event.data["prompt_id"] == prompt_id and 0 < event.data["value"] < 400
            for event in events
        ),
        200,
    )
    comfy.interrupt()
    assert comfy.wait(prompt_id, 60).end == "execution_interrupted"
    assert not list((comfy_server.base / "models" / "ssd_heads").rglob("drawing*"))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": "../outside"}, "models/ssd_heads"),
        ({"prompts": "a cat\na zeppelin"}, "zeppelin"),
        ({"grid": "7x7"}, "7x7"),
        ({"start_from": "not there.safetensors"}, "not there"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_it_is_queued(comfy, wrong, says):
    settings = {"name": "refused", **wrong}
    with pytest.raises(RefusedError) as caught:
        comfy.queue(training(**settings))
    assert caught.value.status == 400
    told = caught.value.texts("train")
    assert says in told
    assert told.count("input_name") == 1  # not once more for another input
