"""`distill` from pictures to a heads file: killed and taken up again, on every family, by several processes."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from distill_worker import allow_small_sizes
from safetensors import safe_open
from safetensors.torch import load_file

from ssd_core import AR, Rolling, generate, load_backbone, load_heads
from ssd_core.cli import distill, main
from ssd_core.distill.state import STATE_FILE
from ssd_core.heads import HeadsSpec, SpatialHeads, read_heads_spec

TESTS = Path(__file__).resolve().parent
TRAIN = ["--steps", "40", "--batch", "4", "--lr", "1e-3", "--kl", "1", "--horizontal", "1", "2", "--vertical", "1"]


@pytest.fixture
def ssd(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Runs a command that must succeed; returns what it printed. Leaves torch's number of threads alone."""
    threads = torch.get_num_threads()

    def run(*arguments: object) -> str:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    yield run
    torch.set_num_threads(threads)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a mistake leaves on stderr."""
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def kill_when(ready: Callable[[], bool], *arguments: object) -> None:
    """Starts a command in a process of its own and kills it, without a chance to tidy up, as soon as ``ready``."""
    command = [sys.executable, str(TESTS / "distill_worker.py"), *map(str, arguments)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 600
    while not ready():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=300) == -signal.SIGKILL


def shards(folder: Path) -> dict[str, object]:
    """Tokens and metadata of every shard; reading fails for a damaged one."""
    found: dict[str, object] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="np") as file:
            found[path.name] = file.get_tensor("tokens").tolist(), file.metadata()
    return found


def steps_of(folder: Path) -> int:
    with safe_open(str(folder / STATE_FILE), framework="pt") as file:
        return int(json.loads(file.metadata()["progress"])["steps"])


def heads_in(state: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in load_file(state / STATE_FILE).items() if name.startswith("heads.")}


def whole_way(ssd: Callable[..., str], model: list[object], size: str, prompt: str, prompts: Path, work: Path) -> str:
    """Collect, kill, resume, train, kill, resume, evaluate, generate. Returns what `evaluate` printed."""
    one, whole, out = work / "killed", work / "whole", work / "heads.safetensors"
    collect = ["distill", "collect", *model, "--size", size, "--pictures", 40, "--batch", 2, "--prompts", prompts]
    kill_when(lambda: len(list(one.glob("*.safetensors"))) >= 2, *collect, "-o", one)
    assert 2 <= len(shards(one)) < 20
    said = ssd(*collect, "-o", one)
    left = int(re.search(r"40 pictures, (\d+) still to draw, about \d+(?:\.\d)? (?:s|min) of drawing", said)[1])  # type: ignore[index]
    assert left in range(2, 40, 2)
    ssd(*collect, "-o", whole)
    assert shards(one) == shards(whole)
    assert len(shards(one)) == 20

    train = ["distill", "train", *model, one, *TRAIN, "--micro-batch", 2]
    uninterrupted = ssd(*train, "-o", work / "straight.safetensors")
    assert "memory:" in uninterrupted
    state = work / "heads.training"
    kill_when(
        lambda: (state / STATE_FILE).exists() and steps_of(state) >= 3,
        *train, "-o", out, "--checkpoint-minutes", 0.0001,
    )  # fmt: skip
    assert 3 <= steps_of(state) < 40
    assert not out.exists()
    ssd(*train, "-o", out)
    straight, resumed = heads_in(work / "straight.training"), heads_in(state)
    assert max(float((straight[name] - resumed[name]).abs().max()) for name in straight) == 0
    assert (state / "log.png").stat().st_size > 1000

    before = out.read_bytes()
    said = ssd("distill", "evaluate", *model, out, "--size", size, "--pictures", 1, "--prompts", prompts)
    notes = read_heads_spec(out).notes
    assert set(notes["recommended"]) == {"preset", "window_rows", "tolerance"}  # type: ignore[call-overload]
    assert out.read_bytes() != before
    assert set(notes["acceptance"]) == {"horizontal 1", "horizontal 2", "vertical 1"}  # type: ignore[call-overload]

    arguments = ["generate", prompt, *model, "--size", size, "--seed", 3, "--json"]
    used = json.loads(ssd(*arguments, "--heads", out, "--tokens-out", work / "a", "-o", work / "a.png"))
    plain = json.loads(ssd(*arguments, "--decoder", "ar", "--tokens-out", work / "b", "-o", work / "b.png"))
    assert (used["settings"]["drafts"], plain["settings"]["drafts"]) == ("heads", "none")
    assert torch.equal(load_file(work / "a")["tokens"], load_file(work / "b")["tokens"])
    assert used["total_forwards"] <= plain["total_forwards"]
    return said


@pytest.mark.slow
@pytest.mark.parametrize("family", ["emoji", "janus", "lumina", "emu3"])
def test_every_family_goes_the_whole_way(
    family: str, ssd: Callable[..., str], tiny_model: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a red cat"}\n"a cat"\n')
    folder, size = tmp_path / "model", "4x6"
    if family == "emoji":
        folder = tiny_model
    elif family == "janus":
        from tiny_janus import write_transformers

        pytest.importorskip("transformers.models.janus", reason="this transformers has no Janus to write a model with")
        folder, size = write_transformers(folder, side=4), "4x4"
    elif family == "lumina":
        from lumina_files import write_tiny_lumina

        allow_small_sizes(monkeypatch.setattr)
        write_tiny_lumina(folder)
    else:
        folder = request.getfixturevalue("emu3_folders").hf
    said = whole_way(ssd, ["--model", folder, "--threads", 1], size, "a red cat", prompts, tmp_path)
    for line in ("horizontal", "vertical", "plain", "exact, 1 rows", "recommended: "):
        assert line in said


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks after torch was imported")
def test_drawing_and_training_may_be_killed_before_any_file_operation(tmp_path: Path) -> None:
    """See ``killed_anywhere``: every place in turn; shards, state and heads end up as in an uninterrupted run."""
    command = [sys.executable, str(TESTS / "killed_anywhere.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    places = [int(number) for number in done.stdout.split()]
    assert places[0] >= 3 * 4  # each shard is opened, given its mode and renamed; folder and index
    assert places[1] >= 3 * 8  # best heads, state, plot and log of every step


@pytest.mark.slow
def test_the_embedded_models_heads_learn(ssd: Callable[..., str], tmp_path: Path) -> None:
    """A short run on the real model, fixed seeds: pictures never seen are foreseen far better than at the beginning.

    The vertical head, which decoding leans on; a new head copies what it reads, and of so few pictures a horizontal one
    hardly learns more than that.
    """
    samples, unseen, out = tmp_path / "s", tmp_path / "unseen", tmp_path / "heads.safetensors"
    one = ["--threads", 1]
    for folder, pictures, seed in ((samples, 24, 0), (unseen, 4, 10**6)):
        ssd(
            "distill", "collect", "-o", folder, "--pictures", pictures, "--size", "16x16", "--mode", "exact",
            "--seed", seed, *one,
        )  # fmt: skip
    ssd(
        "distill", "train", samples, "-o", out, "--held-out", unseen, "--steps", 80, "--lr", "1e-3", "--kl", 1,
        "--micro-batch", 8, "--vertical", 1, "--horizontal", "--neighbours", 1, *one,
    )  # fmt: skip
    with (tmp_path / "heads.training" / "log.csv").open(newline="") as file:
        measured = [float(row["acceptance vertical 1"]) for row in csv.DictReader(file) if row["acceptance vertical 1"]]
    notes: Any = read_heads_spec(out).notes
    assert notes["acceptance"]["vertical 1"] == pytest.approx(max(measured), abs=1e-4)
    assert max(measured) > measured[0] + 0.08
    said = json.loads(ssd("distill", "evaluate", out, "--pictures", 1, "--size", "16x16", "--json", "--no-write", *one))
    assert "recommended" not in read_heads_spec(out).notes
    by_name = {row["name"]: row for row in said["schedules"]}
    assert by_name["plain"]["equal"] == by_name["exact, 2 rows"]["equal"] == 1.0
    assert by_name["exact, 2 rows"]["forwards"] < by_name["plain"]["forwards"] / 2


@pytest.mark.slow
def test_two_processes_make_the_heads_of_one(ssd: Callable[..., str], tiny_model: Path, tmp_path: Path) -> None:
    """torchrun splits drawing and training; the pictures are equal and the heads equal but for the order of sums."""
    collect = ["distill", "collect", "--model", tiny_model, "--pictures", 24, "--batch", 4, "--threads", 1]
    train = [
        "distill", "train", "--model", tiny_model, tmp_path / "one", *TRAIN, "--micro-batch", 2, "--threads", 1,
    ]  # fmt: skip
    ssd(*collect, "-o", tmp_path / "one")
    ssd(*train, "-o", tmp_path / "one.safetensors")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ssd_core"]
    for arguments in ([*collect, "-o", tmp_path / "two"], [*train, "-o", tmp_path / "two.safetensors"]):
        command = [*run, *map(str, arguments)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900, cwd=TESTS.parent)
        assert done.returncode == 0, done.stderr
    assert shards(tmp_path / "one") == shards(tmp_path / "two")
    one, two = heads_in(tmp_path / "one.training"), heads_in(tmp_path / "two.training")
    start = SpatialHeads(HeadsSpec(16, (1, 2), (1,))).state_dict()
    moved = max(float((one[f"heads.{name}"] - tensor).abs().max()) for name, tensor in start.items())
    apart = max(float((one[name] - two[name]).abs().max()) for name in one)
    assert apart < 1e-4 < 1e-2 < moved
    assert read_heads_spec(tmp_path / "two.safetensors").notes["training"]["processes"] == 2  # type: ignore[index]


def test_a_partial_set_goes_from_training_to_its_recommended_preset(
    tiny_model: Path, tmp_path: Path, ssd: Callable[..., str]
) -> None:
    """Vertical heads 1 and 2 alone; what `evaluate` recommends is in the loaded heads and makes a schedule."""
    model, out = ["--model", tiny_model, "--threads", 1], tmp_path / "heads.safetensors"
    ssd("distill", "collect", *model, "-o", tmp_path / "s", "--pictures", 8)
    ssd("distill", "train", *model, tmp_path / "s", "-o", out, "--steps", 2, "--vertical", 1, 2, "--horizontal")
    said = ssd("distill", "evaluate", *model, out, "--pictures", 1)
    backbone = load_backbone(tiny_model)
    heads = load_heads(backbone, out)
    assert (heads.spec.horizontal, heads.spec.vertical) == ((), (1, 2))
    wish: Any = heads.spec.notes["recommended"]
    assert f"recommended: {wish['preset']}, {wish['window_rows']} rows, tolerance {wish['tolerance']:g}" in said
    assert wish["preset"] == ("balanced" if wish["tolerance"] else "exact")
    schedule = Rolling(window_rows=wish["window_rows"], tolerance=wish["tolerance"])
    drawn = generate(backbone, "a cat", heads=heads, schedule=schedule, seed=3)
    assert drawn.report.settings["drafts"] == "heads"
    plain = generate(backbone, "a cat", schedule=AR(), seed=3)
    assert wish["tolerance"] or torch.equal(drawn.tokens, plain.tokens)


def test_ctrl_c_writes_the_best_heads_so_far(tiny_model: Path, tmp_path: Path, ssd: Callable[..., str]) -> None:
    ssd("distill", "collect", "--model", tiny_model, "--pictures", 8, "-o", tmp_path / "s", "--threads", 1)
    out = tmp_path / "heads.safetensors"
    command = [
        sys.executable, "-m", "ssd_core", "distill", "train", "--model", tiny_model, tmp_path / "s", "-o", out,
        "--minutes", 5, "--vertical", 1, "--horizontal", 1, "--threads", 1,
    ]  # fmt: skip
    process = subprocess.Popen(
        list(map(str, command)), env=environment(), cwd=TESTS.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    while not process.stdout.readline().startswith("step 1 "):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "stopping" in err
    assert "stopped; " in said
    assert read_heads_spec(out).vertical == (1,)


def test_ctrl_c_before_the_first_step_writes_no_heads(
    tiny_model: Path, tmp_path: Path, ssd: Callable[..., str], capsys, monkeypatch
) -> None:
    ssd("distill", "collect", "--model", tiny_model, "--pictures", 8, "-o", tmp_path / "s", "--threads", 1)
    monkeypatch.setattr(distill, "_gentle_stop", lambda: nullcontext(lambda: True))
    out = tmp_path / "heads.safetensors"
    assert main(["distill", "train", "--model", str(tiny_model), str(tmp_path / "s"), "-o", str(out)]) == 130
    assert "before its first step; no heads were written" in capsys.readouterr().err
    assert not out.exists()


def test_estimates_come_without_the_work(tiny_model: Path, tmp_path: Path, ssd: Callable[..., str]) -> None:
    """Of what is still to draw: nothing when all is there, a part's own share for a part."""
    collect = ["distill", "collect", "--model", tiny_model, "-o", tmp_path / "s", "--pictures", 24, "--threads", 1]
    said = ssd(*collect, "--size", "6x6", "--size", "4x6", "--estimate")
    assert re.fullmatch(r"(\dx6: 24 pictures, about \d+(?:\.\d)? (?:s|min) of drawing, 0\.0 MB on disk\n){2}", said)
    assert shards(tmp_path / "s") == {}
    said = ssd(*collect, "--shard", "2/3")
    assert said.startswith("6x6: 24 pictures, 8 to draw in part 2 of 3, about ")
    assert ssd(*collect, "--estimate").startswith("6x6: 24 pictures, 16 still to draw, about ")
    ssd(*collect)
    assert ssd(*collect, "--estimate") == "6x6: 24 pictures, all there\n"
    said = ssd("distill", "train", "--model", tiny_model, tmp_path / "s", "-o", tmp_path / "h", "--estimate")
    assert said.startswith("memory: ")
    assert not (tmp_path / "h").exists()


def test_mistakes_are_one_line(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ssd) -> None:
    model = ["--model", tiny_model]
    collect, train = ["distill", "collect", *model, "-o", tmp_path / "s"], ["distill", "train", *model, tmp_path / "s"]
    out = ["-o", tmp_path / "h.safetensors"]
    bad = tmp_path / "bad.txt"
    bad.write_text("a cat\na zebra\n")
    assert "--heads has no meaning with --mode ar" in refused(capsys, *collect, "--heads", "none")
    assert "got '3/2', expected a part" in refused(capsys, *collect, "--shard", "3/2")
    assert "prompt 2 of" in refused(capsys, *collect, "--prompts", bad)
    assert "cannot draw 5x5" in refused(capsys, *collect, "--size", "5x5")
    assert "no sample shards" in refused(capsys, *train, *out)
    assert "expected a whole number from 1" in refused(capsys, *train, *out, "--vertical", "0")
    assert "there are no heads to train" in refused(capsys, *train, *out, "--vertical", "--horizontal")
    assert "after steps or after minutes" in refused(capsys, *train, *out, "--steps", 3, "--minutes", 1)
    assert "there is no heads file" in refused(capsys, "distill", "evaluate", *model, tmp_path / "none")
    ssd(*collect, "--pictures", 4, "--threads", 1)
    assert "batch 8, now 2" in refused(capsys, *collect, "--pictures", 4, "--batch", 2)
    small = refused(capsys, *train, *out, "--vertical", 1, 6, "--threads", 1)
    assert "pictures of 6x6 codes are too small for vertical 6" in small
    assert "weights" in refused(capsys, "distill", "train", tmp_path / "s", *out)  # the embedded model's are others
    assert "is a folder" in refused(capsys, *train, "-o", tmp_path, "--threads", 1)


def test_torchrun_and_parts_by_hand_exclude_each_other(tiny_model, tmp_path, capsys, monkeypatch) -> None:
    collect = ["distill", "collect", "--model", tiny_model, "-o", tmp_path / "s"]
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert "use one of them" in refused(capsys, *collect, "--shard", "1/2")
    monkeypatch.setenv("RANK", "2")
    assert "got RANK 2 of WORLD_SIZE 2" in refused(capsys, *collect)
