"""The workflows of Janus-Pro, Lumina-mGPT and Emu3, as shipped, on tiny checkpoints in their true file layouts."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from comfy_engine.client import connected
from comfy_engine.fixtures import small_environment
from comfy_engine.server import ComfyServer
from comfy_engine.workflows import to_prompt
from emu3_checkpoints import write_both as write_emu3
from lumina_files import write_tiny_lumina
from PIL import Image
from tiny_janus import write_transformers as write_tiny_janus

pytestmark = pytest.mark.comfy

WORKFLOWS = Path(__file__).resolve().parents[2] / "workflows"


@pytest.fixture(scope="module")
def big_models(built_comfy, tmp_path_factory):
    """A client of a server whose models folder holds the three under the names that the workflows expect."""
    folder = tmp_path_factory.mktemp("big")
    models = folder / "base" / "models" / "ar_backbones"
    models.mkdir(parents=True)
    write_tiny_janus(models / "Janus-Pro-7B")
    write_tiny_lumina(models / "Lumina-mGPT-7B-768")
    shutil.copytree(write_emu3(folder / "emu3").hf, models / "Emu3-Gen")
    server = ComfyServer(built_comfy, folder / "base", environment=small_environment())
    with server, connected(server.url) as client:
        yield client


@pytest.mark.parametrize("name", ["janus_pro", "lumina_mgpt", "emu3"])
def test_it_runs_as_shipped_and_yields_a_picture(big_models, name):
    prompt = to_prompt(json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8")), big_models.object_info())
    run = big_models.run(prompt, timeout=600)
    assert run.end == "execution_success"
    sampler = next(node for node, inner in prompt.items() if inner["class_type"] == "SSDSampler")
    last = run.of("ssd.rows", sampler)[-1]
    assert (last["kind"], last["status"]) == ("end", "done")
    shown = [image for node in prompt for image in run.images(node)]
    assert len(shown) == 1
    pixels = np.asarray(Image.open(io.BytesIO(big_models.view(shown[0]))).convert("RGB"))
    assert pixels.shape[0] % last["rows"] == 0
    assert pixels.shape[1] % last["cols"] == 0
    assert pixels.std() > 1  # weights are random, the picture is noise: but not of one colour
