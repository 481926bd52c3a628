"""dev.py's decisions: what is missing, which torch to fetch, where to install."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

import dev


def test_lists_are_those_of_the_project_files(pyproject):
    for name, items in pyproject["project"]["optional-dependencies"].items():
        assert dev.extra_requirements(name) == items
    assert dev.run_requirements() == pyproject["project"]["dependencies"]


def test_comments_and_blank_lines_are_no_requirements(tmp_path):
    (tmp_path / "requirements.txt").write_text("# why\ntorch>=2.4  # the engine\n\nnumpy\n", encoding="utf-8")
    assert dev.run_requirements(tmp_path) == ["torch>=2.4", "numpy"]


@pytest.mark.parametrize(
    ("requirement", "version", "met"),
    [
        ("torch>=2.4", "2.13.0+cpu", True),
        ("torch>=2.4", "2.4.0", True),
        ("torch>=2.4.0", "2.4", True),
        ("torch>=2.4", "2.3.1", False),
        ("torch>=2.4", None, False),
        ("pillow", "1.0", True),
        ("ruff>=0.17.6,<0.18", "0.17.10", True),
        ("ruff>=0.17.6,<0.18", "0.18.0", False),
        ("ruff>=0.17.6,<0.18", "0.17.5", False),
    ],
)
def test_is_met(requirement, version, met):
    assert dev.is_met(requirement, version) is met


def test_a_limit_that_dev_cannot_read_is_an_error_not_a_guess():
    with pytest.raises(dev.DevError, match="only >= and <"):
        dev.is_met("torch~=2.0", "2.1")


def test_every_requirement_of_the_project_can_be_read():
    for requirement in dev.run_requirements() + dev.extra_requirements("dev") + dev.extra_requirements("comfy"):
        assert dev.is_met(requirement, "999") is ("<" not in requirement)


def test_linux_without_nvidia_asks_the_cpu_index_first_and_pypi_after_it():
    attempts = dev.torch_attempts("Linux", "x86_64", nvidia=False, wish=None)
    assert [dev.CPU_INDEX in attempt for attempt in attempts] == [True, False, True, False]
    assert attempts[1] == [dev.TESTED_TORCH]
    assert attempts[-1] == ["torch>=2.5"]


@pytest.mark.parametrize(
    ("system", "machine", "nvidia"),
    [("Linux", "x86_64", True), ("Linux", "aarch64", False), ("Darwin", "arm64", False), ("Windows", "AMD64", False)],
)
def test_elsewhere_pypi_has_the_right_build(system, machine, nvidia):
    assert dev.torch_attempts(system, machine, nvidia, wish=None) == [[dev.TESTED_TORCH], ["torch>=2.5"]]


def test_a_wish_is_followed_and_nothing_else_is_tried():
    assert dev.torch_attempts("Darwin", "arm64", False, "torch==2.6.0") == [["torch==2.6.0"]]
    attempts = dev.torch_attempts("Linux", "x86_64", False, "torch==2.6.0")
    assert {attempt[-1] for attempt in attempts} == {"torch==2.6.0"}


def test_a_complete_interpreter_is_used_as_it_is(monkeypatch):
    monkeypatch.setattr(dev, "missing_here", lambda requirements: [])
    monkeypatch.setattr(dev, "install", lambda *_: pytest.fail("installed into a complete interpreter"))
    assert dev.prepare(extras=["dev"], standalone=False) == Path(sys.executable)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """dev.py with an empty .venv place and a recorder in the place of pip."""
    installed: list[list[str]] = []
    monkeypatch.setattr(dev, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(dev, "install", lambda _, requirements: installed.append(requirements))
    monkeypatch.setattr(dev, "missing_here", lambda requirements: list(requirements))
    monkeypatch.setattr(dev, "has_ensurepip", lambda: False)  # copying pip into each would take seconds
    return installed


def test_venv_is_made_once_and_installed_only_when_something_is_new(fresh):
    python = dev.prepare(extras=[], standalone=False)
    assert python.is_relative_to(dev.VENV)
    assert python.exists()
    for _ in range(2):
        dev.prepare(extras=[], standalone=False)
    assert fresh == [dev.run_requirements()]
    dev.prepare(extras=["dev"], standalone=False)
    dev.prepare(extras=[], standalone=False)  # the extras include all that a run needs
    assert fresh == [dev.run_requirements(), dev.run_requirements() + dev.extra_requirements("dev")]


def test_venv_sees_the_torch_that_is_there_unless_it_shall_stand_alone(fresh, monkeypatch):
    monkeypatch.setattr(dev, "missing_here", lambda wanted: [item for item in wanted if not item.startswith("torch")])
    question = [str(dev.venv_python()), "-c", "import torch; print(torch.__file__)"]
    dev.prepare(extras=[], standalone=False)
    seen = subprocess.run(question, capture_output=True, text=True)
    assert seen.returncode == 0, seen.stderr
    assert Path(seen.stdout.strip()).is_relative_to(Path(sys.prefix))
    dev.prepare(extras=[], standalone=True)
    assert "No module named 'torch'" in subprocess.run(question, capture_output=True, text=True).stderr


def test_demo_draws_the_given_prompt_or_its_own(monkeypatch):
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(dev, "run", lambda _, *arguments: calls.append(arguments) or 0)
    dev.demo(Path("python"), [])
    dev.demo(Path("python"), ["a cat", "--seed", "5"])
    dev.demo(Path("python"), ["--seed", "5"])
    ours = ("ssd_core", "generate", "--compare", "-o", str(dev.DEMO_FILE))
    assert calls == [
        (*ours, dev.DEMO_PROMPT),
        (*ours, "a cat", "--seed", "5"),
        (*ours, dev.DEMO_PROMPT, "--seed", "5"),
    ]


def test_switches_choose_the_tests(monkeypatch):
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(dev, "run", lambda _, *arguments: calls.append(arguments) or 0)
    monkeypatch.setattr(dev, "TEST_PROCESSES", 3)
    dev.test(Path("python"), [])
    dev.test(Path("python"), ["--quick"])
    dev.test(Path("python"), ["-k", "stream"])
    dev.test(Path("python"), ["--quick", "-x"])
    dev.test(Path("python"), ["-x", "--comfy"])
    dev.test(Path("python"), ["--all"])
    monkeypatch.setattr(dev, "TEST_PROCESSES", 1)
    dev.test(Path("python"), [])
    spread = ("-n", "3", "--dist", "worksteal")
    assert calls == [
        ("pytest", *spread),
        ("pytest", "-m", "not (slow or comfy or browser or gpu)", *spread),
        ("pytest", "-k", "stream"),
        ("pytest", "-m", "not (slow or comfy or browser or gpu)", "-x"),
        ("pytest", "-m", "comfy or browser", "-x"),
        ("pytest", "-m", "not gpu"),
        ("pytest",),
    ]
    with pytest.raises(dev.DevError, match="expected one at most"):
        dev.test(Path("python"), ["--all", "--quick"])


def test_only_the_tests_in_comfyui_install_what_they_alone_need():
    assert dev.extras_of("demo", []) == []
    assert dev.extras_of("check", []) == dev.extras_of("test", ["--quick"]) == ["dev"]
    assert dev.extras_of("test", ["--all"]) == dev.extras_of("test", ["-x", "--comfy"]) == ["dev", "comfy"]


def test_comfy_hands_its_arguments_on_and_installs_nothing_here(monkeypatch):
    calls: list[list[str]] = []
    show = types.SimpleNamespace(main=lambda rest: calls.append(rest) or 7)
    monkeypatch.setitem(sys.modules, "comfy_engine.show", show)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(dev, "prepare", lambda *_: pytest.fail("installed here what ComfyUI has of its own"))
    assert dev.main(["comfy", "--port", "8199"]) == 7
    assert calls == [["--port", "8199"]]


def test_check_runs_all_three_and_fails_if_one_does(monkeypatch):
    codes = iter([0, 1, 0])
    monkeypatch.setattr(dev, "run", lambda *_: next(codes))
    assert dev.check(Path("python"), []) == 1
    assert next(codes, None) is None


def test_an_old_python_is_told_what_it_needs(monkeypatch, capsys):
    monkeypatch.setattr(dev, "OLDEST_PYTHON", (99, 0))
    assert dev.main(["setup"]) == 2
    assert "expected 3.10 or newer" in capsys.readouterr().out
