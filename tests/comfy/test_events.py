"""Progress and `ssd.rows`: complete, in order, true, not too many."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools

import numpy as np
import pytest
from comfy_engine import graphs
from comfy_engine.client import connected
from comfy_engine.graphs import changed, picture
from PIL import Image

pytestmark = pytest.mark.comfy

KEYS = {
    "version", "prompt_id", "node", "seq", "label", "kind", "status", "rows", "cols", "batch", "shown", "images",
    "workflow", "forwards", "plain_forwards", "acceptance", "elapsed", "eta", "tokens_per_second",
}  # fmt: skip
MOST_A_SECOND = 12


def decoded(data_url: str, kind: str) -> Image.Image:
    """The picture of a data URL."""
    head, _, body = data_url.partition(",")
    assert head == f"data:image/{kind};base64"
    return Image.open(io.BytesIO(base64.b64decode(body, validate=True)))


def check_sequence(events, prompt_id, node, grid=(16, 16), status="done"):
    """What holds of every run's events."""
    assert [event["kind"] for event in events] == ["begin", *["rows"] * (len(events) - 2), "end"]
    for event in events:
        assert set(event) >= KEYS
        assert (event["version"], event["prompt_id"], event["node"]) == (1, prompt_id, node)
        assert (event["rows"], event["cols"]) == grid
    assert all(early["seq"] < late["seq"] for early, late in itertools.pairwise(events))
    assert [event["status"] for event in events] == ["running"] * (len(events) - 1) + [status]
    for name in ("forwards", "elapsed"):
        values = [event[name] for event in events]
        assert values == sorted(values), name
    cells = grid[0] * grid[1]
    for index in range(events[0]["shown"]):
        images = [event["images"][index] for event in events if event["images"]]
        accepted = [image["accepted"] for image in images]
        assert accepted == sorted(accepted)
        for image in images:
            assert 0 <= image["accepted"] <= image["drafted"] <= cells
            assert image["rows_accepted"] == image["accepted"] // grid[1]
            assert all(0 <= cell < cells for cell in image["changed"])


def test_a_run_is_told_from_begin_to_end(comfy):
    run = comfy.run(picture(seed=101))
    assert run.end == "execution_success"
    events = run.of("ssd.rows")
    assert len(events) == len(run.of("ssd.rows", "sampler")) > 3
    check_sequence(events, run.prompt_id, "sampler")
    end = events[-1]
    assert (end["batch"], end["shown"], end["plain_forwards"], end["label"]) == (1, 1, 256, "")
    assert 0 < end["forwards"] < 256
    assert 0 < end["acceptance"] <= 1
    (image,) = end["images"]
    assert (image["accepted"], image["rows_accepted"], image["drafted"]) == (256, 16, 256)
    assert image["picture"]["rows"] == 16
    # The last picture of the widget is the picture of the node.
    shown = np.asarray(decoded(image["picture"]["data"], "jpeg").convert("RGB"), dtype=float)
    saved = np.asarray(Image.open(io.BytesIO(comfy.view(run.images("image")[0]))).convert("RGB"), dtype=float)
    assert shown.shape == saved.shape == (128, 128, 3)
    assert np.abs(shown - saved).mean() < 6  # JPEG


def test_pictures_on_the_way_are_those_of_the_rows_that_are_final(comfy):
    run = comfy.run(picture(seed=102, grid="32x32", heads=graphs.NO_HEADS))  # long enough to afford pictures
    events = run.of("ssd.rows")
    assert any(image["picture"] for event in events[1:-1] for image in event["images"])
    saved = np.asarray(Image.open(io.BytesIO(comfy.view(run.images("image")[0]))).convert("RGB"), dtype=float)
    for event in events[1:-1]:
        (image,) = event["images"]
        mosaic = decoded(image["mosaic"], "png").convert("RGB")
        assert mosaic.size == (32, 32)
        cells = np.asarray(mosaic).reshape(-1, 3)
        assert not cells[image["drafted"] :].any(), "a cell without a draft is black"
        if image["picture"] is not None:
            rows = image["picture"]["rows"]
            assert 0 < rows <= image["rows_accepted"]
            strip = np.asarray(decoded(image["picture"]["data"], "jpeg").convert("RGB"), dtype=float)
            assert strip.shape == (rows * 8, 256, 3)
            # The lowest rows are decoded before what is below them is known; those above look as they will.
            sure = max(0, rows - 3) * 8
            if sure:
                assert np.abs(strip[:sure] - saved[:sure]).mean() < 10


def test_events_come_while_it_runs_and_not_too_often(comfy):
    run = comfy.run(picture(seed=103, grid="32x32", heads=graphs.NO_HEADS))
    events = [event for event in run.events if event.kind == "ssd.rows"]
    elapsed = events[-1].data["elapsed"]
    rows = [event for event in events if event.data["kind"] == "rows"]
    assert len(rows) <= MOST_A_SECOND * elapsed + 2
    assert len(rows) >= min(10, MOST_A_SECOND * elapsed / 3)
    # They came while it ran, not in one lump at its end.
    middle = [event for event in rows if 0.25 < event.data["elapsed"] / elapsed < 0.75]
    assert middle
    assert middle[0].at < events[-1].at - elapsed / 5
    assert any(event.data["eta"] for event in middle)
    assert all(event.data["tokens_per_second"] > 0 for event in middle)
    order = [event.kind for event in run.events if event.kind in ("ssd.rows", "execution_success")]
    assert order[-1] == "execution_success"


def test_progress_rises_a_step_a_row_and_ends_at_its_maximum(comfy):
    run = comfy.run(picture(seed=104))
    progress = run.of("progress", "sampler")
    assert {step["max"] for step in progress} == {16}
    values = [step["value"] for step in progress]
    assert values == sorted(values)
    assert values[-1] == 16
    # One forward of this window finishes two rows at most: no step is left out.
    assert max(late - early for early, late in itertools.pairwise(values)) <= 2


def test_comfyui_shows_no_second_picture(comfy):
    assert comfy.run(picture(seed=105)).of("preview") == []


def test_of_a_batch_the_first_four_are_shown(comfy):
    run = comfy.run(picture(seed=106, batch_size=5))
    events = run.of("ssd.rows")
    check_sequence(events, run.prompt_id, "sampler")
    assert {(event["batch"], event["shown"]) for event in events} == {(5, 4)}
    assert all(len(event["images"]) == 4 for event in events[1:])
    pictures = [decoded(image["picture"]["data"], "jpeg").tobytes() for image in events[-1]["images"]]
    assert len(set(pictures)) == 4


def test_compare_tells_of_both_runs(comfy):
    run = comfy.run(graphs.comparison(seed=107))
    assert run.end == "execution_success"
    events = run.of("ssd.rows", "compare")
    labels = [event["label"] for event in events]
    assert labels == ["plain"] * labels.count("plain") + ["ssd"] * labels.count("ssd")
    for label in ("plain", "ssd"):
        check_sequence([event for event in events if event["label"] == label], run.prompt_id, "compare")
    progress = run.of("progress", "compare")
    assert progress[-1]["value"] == progress[-1]["max"]
    values = [step["value"] for step in progress]
    assert values == sorted(values)


def test_two_samplers_in_one_graph_are_told_apart(comfy):
    prompt = picture(seed=108)
    prompt["other"] = changed(prompt, "sampler", seed=109)["sampler"]
    prompt["other image"] = graphs.node("PreviewImage", images=["other", 0])
    run = comfy.run(prompt)
    for node in ("sampler", "other"):
        check_sequence(run.of("ssd.rows", node), run.prompt_id, node)
    assert len(run.of("ssd.rows")) == sum(len(run.of("ssd.rows", node)) for node in ("sampler", "other"))


def test_a_node_in_a_subgraph_is_named_by_its_whole_path(comfy):
    prompt = picture(seed=111)
    prompt["5:12"] = prompt.pop("sampler")
    for name in ("image", "report"):
        (link,) = prompt[name]["inputs"].values()
        link[0] = "5:12"
    run = comfy.run(prompt)
    check_sequence(run.of("ssd.rows"), run.prompt_id, "5:12")


def test_events_name_the_workflow_they_belong_to(comfy):
    run = comfy.wait(comfy.queue(picture(seed=112), workflow={"id": "a-workflow", "nodes": []}))
    assert {event["workflow"] for event in run.of("ssd.rows")} == {"a-workflow"}
    assert {event["workflow"] for event in comfy.run(picture(seed=113)).of("ssd.rows")} == {None}


def test_another_tab_hears_nothing_of_the_run(comfy, comfy_server):
    with connected(comfy_server.url) as other:
        assert other.listener.events  # it is connected
        assert comfy.run(picture(seed=114)).of("ssd.rows")
        other.run({"a": graphs.node("EmptyImage", width=8, height=8, batch_size=1, color=114),
                   "b": graphs.node("PreviewImage", images=["a", 0])})  # fmt: skip
        assert [event for event in other.listener.events if event.kind == "ssd.rows"] == []


def test_a_reloaded_page_hears_the_rest_of_the_run(comfy, comfy_server):
    comfy.request("/probe/hold", {"row": 8})
    prompt_id = comfy.queue(picture(seed=115, grid="32x32", heads=graphs.NO_HEADS))

    def held(events):
        images = [event.data["images"] for event in events if event.kind == "ssd.rows"]
        return images and images[-1] and images[-1][0]["rows_accepted"] >= 8

    with contextlib.ExitStack() as stack:
        stack.callback(comfy.request, "/probe/hold", {})
        comfy.listener.wait(held, 120)
        reloaded = stack.enter_context(connected(comfy_server.url, comfy.id))
        assert reloaded.listener.events  # it is connected
        reloaded.request("/probe/hold", {})
        run = reloaded.wait(prompt_id)
        events = run.of("ssd.rows")
        assert events[0]["kind"] == "rows"
        assert (events[-1]["kind"], events[-1]["status"]) == ("end", "done")
        # One event is enough to draw from: counts and colours of every cell.
        (image,) = events[0]["images"]
        assert image["accepted"] > 0
        assert decoded(image["mosaic"], "png").size == (32, 32)
