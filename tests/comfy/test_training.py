"""Train SSD Heads in the real server: trains, stops, goes on, and its heads draw."""

from __future__ import annotations

import pytest
from comfy_engine.client import RefusedError
from comfy_engine.graphs import changed, node, picture
from comfy_engine.pictures import pixels

pytestmark = [pytest.mark.comfy, pytest.mark.slow]


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
    assert (comfy_server.base / "models" / "ssd_heads" / "stopped.safetensors").is_file()
    (work,) = (comfy_server.base / "user" / "ssd_training").glob("stopped-*")
    assert list((work / "samples").rglob("*.safetensors"))
    drawn = comfy.run(picture(seed=702, heads="stopped.safetensors"))
    assert drawn.end == "execution_success"


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
    assert says in caught.value.texts("train")
