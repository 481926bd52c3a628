"""The house in order: dependencies, imports, file sizes, no traces of one machine."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ssd_core

LONGEST_FILE = 400
SKIPPED_FOLDERS = {".git", ".venv", ".cache", "node_modules", "__pycache__", "demo", "out", "build", "dist"}


def sources(repository: Path, *suffixes: str) -> list[Path]:
    """The project's own files, by what git tracks or would track; by folders where this is no git checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=repository, capture_output=True, text=True) if shutil.which("git") else None
    if listing is not None and listing.returncode == 0:
        files = [repository / line for line in listing.stdout.splitlines()]
    else:
        files = list(repository.rglob("*"))
    kept = [file for file in files if file.is_file() and not SKIPPED_FOLDERS & set(file.relative_to(repository).parts)]
    chosen = [file for file in kept if file.suffix in suffixes]
    assert chosen
    return chosen


def run_python(code: str, folder: Path) -> str:
    """A fresh interpreter in `folder`; its stdout. Fails the test if it fails."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- metadata ------------------------------------------------------------------------------------------------------


def test_requirements_txt_equals_the_dependencies(repository, pyproject):
    lines = (repository / "requirements.txt").read_text(encoding="utf-8").split("\n")
    assert [line for line in lines if line] == pyproject["project"]["dependencies"]
    for line in lines:
        assert "==" not in line
        assert "git+" not in line
        assert "@" not in line


def test_the_version_is_the_same_everywhere(repository, pyproject):
    assert pyproject["project"]["version"] == ssd_core.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", ssd_core.__version__)


def test_what_the_core_imports_is_declared(repository, pyproject):
    declared = {re.split(r"[<>=]", item)[0].replace("-", "_") for item in pyproject["project"]["dependencies"]}
    declared = {"PIL" if name == "pillow" else name for name in declared}
    foreign = set()
    for file in (repository / "ssd_core").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                foreign |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                foreign.add(str(node.module).split(".")[0])
    assert foreign - set(sys.stdlib_module_names) - declared == set()


def test_comfy_metadata_is_complete(pyproject):
    comfy = pyproject["tool"]["comfy"]
    assert {"PublisherId", "DisplayName", "Icon", "requires-comfyui"} <= set(comfy)
    assert "web" not in comfy  # WEB_DIRECTORY serves it already; twice would load the scripts twice
    assert "comfyui" not in pyproject["project"]["name"].lower()


def test_the_registry_gets_what_users_run_and_no_more(repository):
    """comfy-cli packs the tracked files that .comfyignore, in the syntax of .gitignore, does not name."""

    def git(*arguments, **options):
        done = subprocess.run(
            ["git", "-c", f"core.excludesFile={repository / '.comfyignore'}", *arguments],
            cwd=repository, capture_output=True, text=True, **options,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return set(done.stdout.splitlines())

    if not shutil.which("git") or subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True).returncode:
        pytest.skip("no clone that git reads")
    tracked = git("-c", "core.quotePath=off", "ls-files")
    kept = tracked - git("check-ignore", "--no-index", "--stdin", input="\n".join(sorted(tracked)))
    folders = ("nodes/", "ssd_core/", "web/", "workflows/", "locales/")
    assert {name for name in kept if "/" in name} == {name for name in tracked if name.startswith(folders)}
    assert {name for name in kept if "/" not in name} == {
        ".comfyignore", ".gitignore", "CHANGELOG.md", "LICENSE", "NOTICE", "README.md", "__init__.py",
        "pyproject.toml", "requirements.txt",
    }  # fmt: skip


# --- imports -------------------------------------------------------------------------------------------------------


def test_core_imports_inside_a_parent_of_any_name(repository, tmp_path):
    """ComfyUI loads the repository as a package named after its folder's path, dashes, dots and all."""
    copy = tmp_path / "spatial-speculative.decoding 1"
    shutil.copytree(repository / "ssd_core", copy / "ssd_core", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "__init__.py", copy)
    code = f"""
        import importlib, importlib.util, sys
        folder = {str(copy)!r}
        door = folder + "/__init__.py"
        spec = importlib.util.spec_from_file_location(folder, door, submodule_search_locations=[folder])
        parent = importlib.util.module_from_spec(spec)
        sys.modules[folder] = parent
        spec.loader.exec_module(parent)
        core = importlib.import_module(folder + ".ssd_core")
        importlib.import_module(folder + ".ssd_core.cli.draw")
        assert "ssd_core" not in sys.modules, "something imports ssd_core absolutely"
        print(core.generate.__module__ == folder + ".ssd_core.generation")
    """
    assert run_python(code, tmp_path) == "True\n"


def test_importing_the_core_changes_nothing_and_brings_nothing_heavy(repository):
    code = """
        import json, random, signal, sys, time, warnings
        import numpy, torch
        def state():
            return [
                list(sys.path), [str(type(finder)) for finder in sys.meta_path], repr(signal.getsignal(signal.SIGINT)),
                torch.get_num_threads(), str(torch.get_default_dtype()), torch.is_grad_enabled(),
                torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark, torch.initial_seed(),
                torch.random.get_rng_state().sum().item(), hash(random.getstate()), len(warnings.filters),
                str(numpy.random.get_state()[1][:4]), torch.are_deterministic_algorithms_enabled(),
            ]
        before, modules, start = state(), set(sys.modules), time.process_time()
        import ssd_core
        seconds = time.process_time() - start
        new = sorted(name.split(".")[0] for name in set(sys.modules) - modules)
        print(json.dumps([before == state(), seconds, new]))
    """
    unchanged, seconds, new = json.loads(run_python(code, repository))
    assert unchanged
    assert not {"transformers", "huggingface_hub", "PIL", "comfy", "folder_paths", "server"} & set(new)
    assert seconds < 5  # torch is loaded already; the rest is our own few files


def test_the_root_package_brings_nothing_heavy(repository):
    code = f"""
        import importlib.util, sys
        spec = importlib.util.spec_from_file_location("root", {str(repository / "__init__.py")!r})
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        print("torch" in sys.modules)
    """
    assert run_python(code, repository) == "False\n"


def test_core_knows_neither_comfy_nor_its_own_absolute_name(repository):
    for file in (repository / "ssd_core").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [str(node.module)]
            for name in names:
                assert name.split(".")[0] not in {"ssd_core", "comfy", "nodes", "folder_paths", "server"}, file


# --- house rules ---------------------------------------------------------------------------------------------------


def test_files_are_short_and_have_one_subject(repository):
    code = sources(repository, ".py", ".js", ".mjs")
    lengths = {str(file): len(file.read_text(encoding="utf-8").splitlines()) for file in code}
    assert {file: length for file, length in lengths.items() if length > LONGEST_FILE} == {}
    assert [str(file) for file in code if file.stem in {"utils", "util", "helpers", "misc", "common"}] == []


def test_every_module_says_what_it_is_for(repository):
    silent = []
    for file in sources(repository, ".py"):
        text = file.read_text(encoding="utf-8")
        if text.strip() and ast.get_docstring(ast.parse(text)) is None:
            silent.append(str(file))
    assert silent == []


def test_no_file_knows_one_machine(repository):
    pattern = re.compile(r"(?<![A-Za-z0-9_.\-/~])/(?:home|root|Users|tmp|work|mnt|opt)/[a-z]")
    found = [
        f"{file}:{number}"
        for file in sources(repository, ".py", ".md", ".toml", ".txt", ".json", ".yaml", ".js", ".sh", ".log")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []
