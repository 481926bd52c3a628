"""What comes out: seeds, batches, saved files, exact mode, the report."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from comfy_engine import graphs
from comfy_engine.graphs import picture
from comfy_engine.pictures import pixels
from PIL import Image
from safetensors import safe_open

pytestmark = pytest.mark.comfy

LAST_SEED = 2**64 - 1


def drawn(comfy, **settings):
    """The pixels of a run of `picture`."""
    run = comfy.run(picture(**settings))
    assert run.end == "execution_success"
    return pixels(comfy, run)


def test_pictures_have_the_size_and_content_asked_for(comfy):
    for grid, size in (("16x16", (128, 128)), ("24x32", (192, 256)), ("auto", (192, 192))):
        found = drawn(comfy, seed=401, grid=grid)
        assert found.shape == (1, *size, 3)
        assert found.std() > 10


def test_image_k_of_a_batch_is_the_single_image_of_seed_plus_k(comfy):
    batch = drawn(comfy, seed=402, batch_size=3)
    singles = [drawn(comfy, seed=402 + k)[0] for k in range(3)]
    for k in range(3):
        assert np.array_equal(batch[k], singles[k]), k
    assert not np.array_equal(singles[0], singles[1])


def test_the_first_and_the_last_seed_work_and_stay_as_they_are(comfy, comfy_server):
    found = {}
    for seed in (0, LAST_SEED):
        prompt = picture(seed=seed, batch_size=2)
        prompt["save"] = graphs.node("SSDSaveTokens", tokens=["sampler", 1], filename_prefix=f"seeds/{seed}")
        run = comfy.run(prompt)
        assert run.end == "execution_success"
        (saved,) = run.history["outputs"]["save"]["tokens"]
        with safe_open(comfy_server.base / "output" / saved["subfolder"] / saved["filename"], framework="pt") as file:
            assert json.loads(file.metadata()["ssd"])["seed"] == seed
        found[seed] = pixels(comfy, run)
    # After the last seed comes the first.
    assert np.array_equal(found[LAST_SEED][1], found[0][0])
    assert not np.array_equal(found[LAST_SEED][0], found[0][0])


def test_exact_mode_draws_plain_decodings_picture_in_fewer_forwards(comfy):
    run = comfy.run(graphs.comparison(seed=403, grid="24x24"))
    assert np.array_equal(pixels(comfy, run, "plain"), pixels(comfy, run, "ssd"))
    assert pixels(comfy, run, "plain").std() > 10
    ends = {event["label"]: event for event in run.of("ssd.rows") if event["kind"] == "end"}
    assert ends["plain"]["forwards"] > 4 * ends["ssd"]["forwards"]
    (report,) = run.text("report")
    assert str(ends["ssd"]["forwards"]) in report
    assert str(ends["plain"]["forwards"]) in report


def test_exact_mode_needs_no_heads_and_no_verification(comfy):
    with_all = drawn(comfy, seed=404)
    prompt = picture(seed=404)
    for name in ("heads", "verification"):
        del prompt["sampler"]["inputs"][name], prompt[name]
    assert np.array_equal(pixels(comfy, comfy.run(prompt)), with_all)


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "balanced"},
        {"preset": "draft only"},
        {"preset": "Janus (paper)"},
        {"preset": "Lumina (paper)"},
        {"preset": "Emu3 (paper)"},
        {"preset": "custom", "mode": "rolling", "window_rows": 3, "tolerance": 2.0},
        {"preset": "custom", "mode": "rounds", "rounds": 1, "commit": "separate"},
        {"cfg": 1.0},
        {"temperature": 0.0},
        {"top_k": 20, "top_p": 0.9},
        {"negative": "a dog"},
    ],
    ids=str,
)
def test_every_setting_draws(comfy, settings):
    found = drawn(comfy, seed=405, **settings)
    assert found.std() > 3
    assert not np.array_equal(found, drawn(comfy, seed=405))


def test_the_saved_file_is_what_view_serves(comfy, comfy_server):
    prompt = picture(seed=406)
    prompt["save"] = graphs.node("SaveImage", images=["sampler", 0], filename_prefix="ssd")
    run = comfy.run(prompt)
    (saved,) = run.images("save")
    content = comfy.view(saved)
    assert saved["type"] == "output"
    assert (comfy_server.base / "output" / saved["filename"]).read_bytes() == content
    image = Image.open(io.BytesIO(content))
    assert image.size == (128, 128)
    assert json.loads(image.text["prompt"])["sampler"]["inputs"]["seed"] == 406
    assert np.array_equal(np.asarray(image.convert("RGB")), pixels(comfy, run)[0])


def test_the_report_tells_what_the_events_told(comfy):
    run = comfy.run(picture(seed=407))
    (report,) = run.text("report")
    end = run.of("ssd.rows")[-1]
    assert str(end["forwards"]) in report
    assert "407" in report
    assert f"acceptance {end['acceptance']:.2f}" in report
