"""Models in ComfyUI's folders, and in a second root that an extra paths file names."""

from __future__ import annotations

import io
import shutil

import numpy as np
import pytest
from comfy_engine.client import connected
from comfy_engine.fixtures import PROBE, small_environment
from comfy_engine.graphs import picture
from comfy_engine.server import ComfyServer
from PIL import Image

from ssd_core.families.loaders import ASSETS

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def second_root(built_comfy, tmp_path_factory):
    """A client of a server with models in its own folders and in a second root; and the server's own folder."""
    folder = tmp_path_factory.mktemp("models")
    root = folder / "large disk"
    for target in (root / "backbones" / "owner" / "scenes", folder / "base" / "models" / "ar_backbones" / "local"):
        shutil.copytree(ASSETS, target, ignore=shutil.ignore_patterns("heads.safetensors"))
    (root / "heads" / "mine").mkdir(parents=True)
    shutil.copy(ASSETS / "heads.safetensors", root / "heads" / "mine" / "scenes.safetensors")
    (root / "backbones" / "not a model").mkdir()
    paths = folder / "extra.yaml"
    paths.write_text(f"disk:\n  base_path: {root}\n  ar_backbones: backbones\n  ssd_heads: heads\n", encoding="utf-8")
    base = folder / "base"
    server = ComfyServer(built_comfy, base, model_paths=paths, environment=small_environment(), custom_nodes=[PROBE])
    with server, connected(server.url) as client:
        yield client, base


def choices(client, node, name):
    declared = client.object_info()[node]["input"]["required"][name]
    return declared[0] if isinstance(declared[0], list) else declared[1]["options"]


def test_both_roots_are_listed_the_built_in_model_first(second_root):
    client, _ = second_root
    assert choices(client, "SSDLoadBackbone", "backbone") == ["emoji scenes (built in)", "local", "owner/scenes"]
    assert choices(client, "SSDLoadHeads", "heads") == [
        "built in",
        "mine/scenes.safetensors",
        "none (training-free)",
    ]


def test_models_of_both_roots_draw_the_built_in_models_picture(second_root):
    client, _ = second_root

    def drawn(backbone, heads):
        run = client.run(picture(backbone=backbone, heads=heads, seed=701))
        assert run.end == "execution_success"
        return np.asarray(Image.open(io.BytesIO(client.view(run.images("image")[0]))))

    built_in = drawn("emoji scenes (built in)", "built in")
    for backbone in ("owner/scenes", "local", "owner\\scenes"):  # workflows from Windows have the other separator
        assert np.array_equal(drawn(backbone, "mine/scenes.safetensors"), built_in), backbone


def test_a_model_that_comes_later_is_found_without_a_restart(second_root):
    client, base = second_root
    shutil.copytree(ASSETS, base / "models" / "ar_backbones" / "newcomer")
    assert "newcomer" in choices(client, "SSDLoadBackbone", "backbone")
    assert client.run(picture(backbone="newcomer", heads="none (training-free)", seed=702)).end == "execution_success"


def test_a_changed_file_is_read_again(second_root):
    """The loader's cache key hangs on the files: a graph that has run before sees a model that was exchanged."""
    client, base = second_root
    prompt = picture(backbone="local", heads="none (training-free)", seed=703)
    assert "backbone" in client.run(prompt).executed
    assert client.run(prompt).executed == []
    file = base / "models" / "ar_backbones" / "local" / "model.safetensors"
    file.write_bytes(file.read_bytes())
    assert "backbone" in client.run(prompt).executed
