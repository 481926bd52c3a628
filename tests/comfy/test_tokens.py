"""Tokens on their way: encode, decode, save, load, keep rows, refine."""

from __future__ import annotations

import json

import numpy as np
import pytest
from comfy_engine.graphs import BUILT_IN, changed, node, picture
from comfy_engine.pictures import pixels
from PIL import Image
from safetensors import safe_open

pytestmark = pytest.mark.comfy


def redrawn(first=501, **second):
    """A picture of seed `first`, and a second sampler (seed 502) that starts from its tokens."""
    prompt = picture(seed=first)
    prompt["second"] = changed(prompt, "sampler", tokens=["sampler", 1], seed=502, **second)["sampler"]
    prompt["second image"] = node("PreviewImage", images=["second", 0])
    prompt["second report"] = node("PreviewAny", source=["second", 2])
    return prompt


def saved_tokens(server, run, name="save"):
    """The codes and the info of the file that a Save AR Tokens node wrote."""
    (saved,) = run.history["outputs"][name]["tokens"]
    with safe_open(server.base / "output" / saved["subfolder"] / saved["filename"], framework="np") as file:
        return file.get_tensor("tokens"), json.loads(file.metadata()["ssd"]), saved


def test_saved_tokens_load_and_decode_to_the_same_picture(comfy, comfy_server):
    prompt = picture(seed=503, batch_size=2)
    prompt["save"] = node("SSDSaveTokens", tokens=["sampler", 1], filename_prefix="tokens/round trip")
    first = comfy.run(prompt)
    codes, info, saved = saved_tokens(comfy_server, first)
    assert codes.shape == (2, 16, 16)
    assert info["seed"] == 503
    assert info["backbone"] == "emoji-scenes"
    assert len(info["fingerprint"]) == 64
    assert "a cat on grass" in json.dumps(info)
    name = f"{saved['subfolder']}/{saved['filename']} [output]"
    second = comfy.run(
        {
            "backbone": node("SSDLoadBackbone", backbone=BUILT_IN, precision="auto"),
            "load": node("SSDLoadTokens", file=name),
            "decode": node("SSDDecodeTokens", backbone=["backbone", 0], tokens=["load", 0]),
            "image": node("PreviewImage", images=["decode", 0]),
        }
    )
    assert second.end == "execution_success"
    assert np.array_equal(pixels(comfy, first), pixels(comfy, second))
    assert name in str(comfy.object_info()["SSDLoadTokens"]["input"]["required"]["file"])


@pytest.mark.parametrize("prefix", ["twice", "twice/."])
def test_saving_twice_overwrites_nothing(comfy, prefix):
    prompt = picture(seed=504)
    prompt["save"] = node("SSDSaveTokens", tokens=["sampler", 1], filename_prefix=prefix)
    names = {
        run.history["outputs"]["save"]["tokens"][0]["filename"]
        for run in map(comfy.run, (prompt, changed(prompt, "sampler", seed=505)))
    }
    assert len(names) == 2


def test_kept_rows_stay_and_the_rest_is_new(comfy, comfy_server):
    prompt = redrawn(keep_rows=9)
    prompt["save"] = node("SSDSaveTokens", tokens=["sampler", 1], filename_prefix="kept/first")
    prompt["save second"] = node("SSDSaveTokens", tokens=["second", 1], filename_prefix="kept/second")
    run = comfy.run(prompt)
    assert run.end == "execution_success"
    first, _, _ = saved_tokens(comfy_server, run)
    second, _, _ = saved_tokens(comfy_server, run, "save second")
    assert np.array_equal(first[:, :9], second[:, :9])
    assert (first[:, 9:] != second[:, 9:]).mean() > 0.1
    assert not np.array_equal(pixels(comfy, run), pixels(comfy, run, "second image"))
    events = run.of("ssd.rows", "second")
    assert events[-1]["plain_forwards"] == (16 - 9) * 16
    assert run.of("progress", "second")[-1]["value"] == 16


def test_redrawing_with_the_same_seed_gives_the_same_picture(comfy):
    """Draws hang on seed and place: the kept rows lead to the very codes that followed them before."""
    run = comfy.run(redrawn() | {"second": changed(redrawn(keep_rows=8), "second", seed=501)["second"]})
    assert np.array_equal(pixels(comfy, run), pixels(comfy, run, "second image"))


def test_tokens_as_a_draft_change_the_speed_only(comfy):
    """Exact mode: a start with the right answer is accepted in far fewer forwards, a wrong one changes nothing."""
    fixed = changed(redrawn(first=508), "verification", preset="exact")  # auto's windows go by the clock
    run = comfy.run(changed(fixed, "second", seed=508))
    assert np.array_equal(pixels(comfy, run), pixels(comfy, run, "second image"))
    forwards = {name: run.of("ssd.rows", name)[-1]["forwards"] for name in ("sampler", "second")}
    assert forwards["second"] < forwards["sampler"] / 2
    other = comfy.run(redrawn())
    plain = comfy.run(picture(seed=502))
    assert np.array_equal(pixels(comfy, other, "second image"), pixels(comfy, plain))


def test_an_encoded_picture_comes_back_like_itself(comfy, comfy_server):
    run = comfy.run(picture(seed=506, grid="24x24"))
    (shown,) = run.images("image")
    (comfy_server.base / "input" / "drawn.png").write_bytes(comfy.view(shown))
    prompt = {
        "backbone": node("SSDLoadBackbone", backbone=BUILT_IN, precision="auto"),
        "load": node("LoadImage", image="drawn.png"),
        "encode": node("SSDEncodeImage", backbone=["backbone", 0], image=["load", 0], grid="auto", fit="crop"),
        "decode": node("SSDDecodeTokens", backbone=["backbone", 0], tokens=["encode", 0]),
        "image": node("PreviewImage", images=["decode", 0]),
    }
    back = comfy.run(prompt)
    assert back.end == "execution_success"
    difference = np.abs(pixels(comfy, back).astype(float) - pixels(comfy, run)).mean()
    assert difference < 12


@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_a_picture_of_any_size_and_form_is_fitted(comfy, comfy_server, fit):
    """A third red, then blue, three times as wide as high: cropping leaves the blue middle, stretching keeps all."""
    image = Image.new("RGBA", (300, 100), (255, 0, 0, 255))
    image.paste((0, 0, 255, 255), (100, 0, 300, 100))
    image.save(comfy_server.base / "input" / "wide.png")
    prompt = {
        "backbone": node("SSDLoadBackbone", backbone=BUILT_IN, precision="auto"),
        "load": node("LoadImage", image="wide.png"),
        "encode": node("SSDEncodeImage", backbone=["backbone", 0], image=["load", 0], grid="16x16", fit=fit),
        "decode": node("SSDDecodeTokens", backbone=["backbone", 0], tokens=["encode", 0]),
        "image": node("PreviewImage", images=["decode", 0]),
    }
    found = pixels(comfy, comfy.run(prompt))
    assert found.shape == (1, 128, 128, 3)
    red, blue = found[0, 64, 8, 0], found[0, 64, 8, 2]
    assert bool(red > blue) == (fit == "stretch")
    assert found[0, 64, 120, 2] > found[0, 64, 120, 0]
