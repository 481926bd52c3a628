"""The command line as a process: exit codes, Ctrl-C, pipes and terminals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Whoever starts tests in the background may have SIGINT ignored, which children inherit.
HEAR_CTRL_C = None if sys.platform == "win32" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(repository: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ssd_core", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=repository, stdout=pipe, stderr=pipe, text=True, preexec_fn=HEAR_CTRL_C)


def test_module_runs_and_a_bad_option_has_no_traceback(repository):
    process = start(repository, "generate", "cat", "--cfg", "much")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: argument --cfg: got 'much'")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for a child process")
def test_ctrl_c_exits_with_130_and_leaves_nothing(repository, tmp_path):
    """Pictures of many seconds, so that how far they came tells whether Ctrl-C was heard on the way."""
    process = start(
        repository, "generate", "a cat", "--batch", "32", "--decoder", "ar",
        "--threads", "1", "--progress", "-o", f"{tmp_path}/", "--tokens-out", f"{tmp_path}/t.safetensors",
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.read(5).endswith("rows")  # decoding has begun
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    shares = [int(share) for share in re.findall(r"\] +(\d+)%", err)]  # the bars behind the first one
    assert max(shares, default=0) < 90  # at most a tenth of a second late
    assert err.rstrip().endswith("stopped")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for a child process")
def test_ctrl_c_while_torch_is_imported(repository, tmp_path):
    """The package's own import must bring nothing heavy: ``python -m`` runs it before any handler is there."""
    for moment in ("torch", "ssd_core.cli.main"):
        hook = f"""
            import importlib.abc, os, signal, sys
            class Stop(importlib.abc.MetaPathFinder):
                def find_spec(self, name, path=None, target=None):
                    if name == {moment!r}:
                        os.kill(os.getpid(), signal.SIGINT)
            sys.meta_path.insert(0, Stop())
        """
        (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(hook), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-m", "ssd_core", "words"]
        done = subprocess.run(
            command, cwd=repository, env=environment, capture_output=True, text=True, timeout=300,
            preexec_fn=HEAR_CTRL_C,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_ascii_terminal_gets_question_marks_not_a_traceback(repository, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    process = start(repository, "generate", "cat", "--model", str(tiny_model), "-o", f"{tmp_path}/")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert "48?48 pixels" in out


def test_a_reader_that_leaves_is_no_error(repository, tiny_model):
    process = start(repository, "words", "--model", str(tiny_model))
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=300) == 0
