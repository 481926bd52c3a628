"""Installing and importing: nothing is changed that is not ours."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from comfy_engine.client import RefusedError, connected
from comfy_engine.fixtures import small_environment
from comfy_engine.graphs import picture
from comfy_engine.importing import measure
from comfy_engine.server import REPOSITORY, ComfyServer

pytestmark = pytest.mark.comfy


def test_our_requirements_change_no_package_of_comfyuis_environment(built_comfy):
    command = [str(built_comfy.python), "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-"]
    done = subprocess.run(
        [*command, "-r", str(REPOSITORY / "requirements.txt")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert [item["metadata"]["name"] for item in json.loads(done.stdout)["install"]] == []


def test_loading_us_brings_nothing_heavy_and_changes_nothing(built_comfy, tmp_path):
    found = measure(built_comfy, tmp_path, REPOSITORY)
    assert len(found["nodes"]) == 10
    assert found["changed"] == []
    assert not {"transformers", "huggingface_hub", "safetensors.torch", "tokenizers"} & set(found["new_modules"])
    assert found["seconds"] < 5  # the figure is benchmarks/comfy_import.py's; this is for a mistake of a large kind


def test_with_a_broken_decoder_the_nodes_are_there_and_say_how_to_mend_it(built_comfy, tmp_path):
    """A module that the decoder needs cannot be imported: the first use says which, why, and what to do."""
    copy = tmp_path / "broken copy"
    left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", "tests", "recipes", "demo", "docs", "benchmarks")
    shutil.copytree(REPOSITORY, copy, ignore=left_out)
    door = copy / "ssd_core" / "__init__.py"
    door.write_text(door.read_text(encoding="utf-8") + "import a_module_that_is_missing\n", encoding="utf-8")
    server = ComfyServer(built_comfy, tmp_path / "comfy", extension=copy, environment=small_environment())
    with server, connected(server.url) as client:
        assert "SSDSampler" in client.object_info()
        with pytest.raises(RefusedError) as refused:
            client.queue(picture())
        said = json.dumps(refused.value.body)
        assert "a_module_that_is_missing" in said
        assert "pip install -r" in said
