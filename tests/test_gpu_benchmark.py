"""The GPU benchmark's script at toy size on the CPU: refusals, sections, resuming, the file, the tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_fakes import Clock

from benchmarks import gpu, gpu_speed
from benchmarks.gpu_budget import Budget
from benchmarks.gpu_models import Models
from benchmarks.gpu_record import Record
from benchmarks.gpu_shapes import FULL, TOY, empty_backbone
from benchmarks.gpu_span import forwards_of
from benchmarks.gpu_targets import Target, targets
from ssd_core import AR

CPU = torch.device("cpu")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(*arguments: str) -> int:
    return gpu.main(["--device", "cpu", "--toy", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "sees no CUDA device"),
        (["--device", "cpu"], "would take hours"),
        (["--device", "mps", "--toy"], "expected cuda, or cpu with --toy"),
        (["--device", "nonsense", "--toy"], "got device 'nonsense'"),
        (
            ["--device", "cpu", "--toy", "--section", "everything"],
            "no section 'everything'; choose from device, emu3-",
        ),
        (["--device", "cpu", "--toy", "--resume", "everything"], "no section 'everything'"),
        (["--device", "cpu", "--toy", "--json", "nowhere/r.json"], "there is no folder"),
        (["--device", "cpu", "--toy", "--resume"], "there is no r.json to resume"),
        (["--device", "cpu", "--toy", "--layers", "1"], "at least 2"),
        (["--device", "cpu", "--toy", "--budget", "0"], "seconds above 0"),
        (["--device", "cpu", "--toy", "--section", "device", "--resume", "moves"], "exclude each other"),
    ],
)
def test_refusals(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r.json"
    assert gpu.main(["--json", "r.json", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not path.exists()  # the right command may follow


def check_schema(content: dict[str, Any]) -> None:
    """What anything that reads the file may rely on."""
    assert content["format"] == 2
    assert content["facts"].keys() >= {"device", "driver", "torch", "cuda", "transformers", "dtype", "toy"}
    for entry in content["sections"].values():
        assert entry.keys() == {"status", "seconds", "reason", "data"}
        for check in entry["data"].get("checks", {}).values():
            assert check.keys() == {"passed", "detail"}
    for name, entry in content["sections"].items():
        for line in entry["data"].get("lines", {}).values():
            assert line["ms_per_forward"] > 0, name
            assert all(len(samples) == line["repeats"] for samples in line["ms"].values())
            assert (line["picture_s"] is None) == (line["forwards"] is None)


def test_two_sections_then_the_rest_of_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sections alone, resumed, and the figures in file and table; fewer layers are said to be extrapolated."""
    path = tmp_path / "r.json"
    common = ["--json", str(path), "--budget", "8"]
    assert run(*common, "--section", "device", "--section", "janus-parts") == 0
    assert run(*common, "--resume", "--section", "janus-speed", "--layers", "2") == 0
    out = capsys.readouterr().out
    content = json.loads(path.read_text())
    check_schema(content)
    assert list(content["sections"]) == ["device", "janus-parts", "janus-speed"]
    assert all(entry["status"] == "done" for entry in content["sections"].values())
    speed = content["sections"]["janus-speed"]["data"]
    assert speed["layers"] == [2, 1]
    assert "EXTRAPOLATED to 3 layers from measurements with 2 and 1" in out
    assert speed["lines"]["SSD as published, eager"]["extrapolated"] == ["picture from spans", "layers from 1 and 2"]
    assert speed["lines"]["AR, eager"]["picture_s"] > 0
    assert "| drafting a row | 8 |" in out
    for name in ("K = 1", "1 row"):
        start = rf"^Attention of a forward, {name}, \d+ keys, masked, ms: torch's choice \d"
        assert re.search(start, out, re.MULTILINE)


def test_parts_need_the_bandwidth_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", str(tmp_path / "r.json"), "--section", "janus-parts") == 1
    assert "section janus-parts failed: SSDError: the copy bandwidth is not measured yet" in capsys.readouterr().out


@pytest.fixture
def bench(tmp_path: Path, clock: Clock) -> gpu.Bench:
    record = Record.start(tmp_path / "r.json", {"device": "x"})
    return gpu.Bench(Models(TOY, CPU, torch.float32, None), record, True, clock)


def replace_section(monkeypatch: pytest.MonkeyPatch, run: Callable[[gpu.Bench, str], Any]) -> None:
    monkeypatch.setattr(gpu.Bench, "_section", lambda self, name: lambda allowed, save: run(self, name))


def test_out_of_memory_is_tried_again_with_fewer_layers(
    bench: gpu.Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(self: gpu.Bench, name: str) -> dict[str, Any]:
        layers = self.models.layers("janus")
        if layers > 2:
            raise torch.OutOfMemoryError("no memory")
        return {"layers": layers}

    replace_section(monkeypatch, work)
    bench.run(["janus-checks"], Budget(100, gpu.WEIGHTS, clock))
    assert bench.record.status("janus-checks") == "done"
    assert bench.record.data("janus-checks") == {"layers": 2}


def test_a_failing_section_does_not_keep_others_from_running(
    bench: gpu.Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(self: gpu.Bench, name: str) -> dict[str, Any]:
        if name == "janus-checks":
            raise ValueError("broken")
        clock.now += 200
        return {"checks": {}}

    replace_section(monkeypatch, work)
    bench.run(["janus-checks", "moves", "allocators"], Budget(100, gpu.WEIGHTS, clock))
    statuses = {name: entry["status"] for name, entry in bench.record.sections.items()}
    assert statuses == {"janus-checks": "failed", "moves": "done", "allocators": "skipped"}
    assert bench.record.sections["janus-checks"]["reason"] == "ValueError: broken"
    assert bench.failed


def test_a_check_that_did_not_pass_fails_the_run(bench: gpu.Bench) -> None:
    bench.record.put("moves", "done", {"checks": {"a": {"passed": True, "detail": ""}}}, 1)
    assert not bench.failed
    bench.record.put("allocators", "done", {"checks": {"b": {"passed": False, "detail": ""}}}, 1)
    assert bench.failed


def figures(plain: tuple[float, int], published: tuple[float, int], fused: tuple[float, int]) -> dict[str, Any]:
    """(seconds a picture, forwards) of each graphed line."""
    names = ("AR, graphed", "SSD as published, graphed", "SSD, fused commit, graphed")
    lines = zip(names, (plain, published, fused), strict=True)
    return {name: {"picture_s": seconds, "forwards": forwards} for name, (seconds, forwards) in lines}


def test_targets_are_judged_from_the_figures() -> None:
    lines = figures((24.0, 8100), (2.4, 661), (2.0, 553)) | {
        "transformers, dynamic cache": {"picture_s": 90.0, "forwards": 8100}
    }
    parts = {
        "widths": {"K = 1": {"graphed_ms": 1.0, "share": 0.9}, "1 row": {"graphed_ms": 1.0, "share": 0.6}},
        "drafting": {"in_ar_steps": {"graphed": 0.04}},
    }
    judged = {target.what: (target.got, target.reached) for target in targets(FULL["emu3"], {"lines": lines}, parts)}
    assert judged == {
        "Emu3 (paper): SSD as published, graphed × AR, graphed": (10.0, False),
        "Emu3 (paper): SSD, fused commit, graphed × AR, graphed": (12.0, True),
        "SSD as published, graphed × transformers' loop": (37.5, False),
        "SSD, fused commit, graphed × transformers' loop": (45.0, True),
        "share of copy bandwidth, K = 1": (0.9, True),
        "share of copy bandwidth, 1 row": (0.6, False),
        "drafting a row, in AR steps, at most": (0.04, True),
    }
    assert targets(FULL["emu3"], {}, {}) == []


@pytest.mark.parametrize(
    ("name", "ceilings", "words"),
    [
        ("janus", (7.2, 11.1), ("OUT OF REACH of this schedule", "MISSED")),
        ("lumina", (8.2, 10.3), ("MISSED", "MISSED")),
        ("emu3", (12.3, 14.6), ("MISSED", "MISSED")),
    ],
)
def test_targets_tell_what_forwards_allow(name: str, ceilings: tuple[float, float], words: tuple[str, str]) -> None:
    """The full models' forwards: with fused commit every target can be reached, as published Janus's cannot."""
    shape = FULL[name]
    stream = empty_backbone(shape).stream(shape.grid)
    counts = [forwards_of(s, stream) for s in (AR(), shape.paper, replace(shape.paper, commit="fused"))]
    lines = figures(*((1.0, count) for count in counts))  # type: ignore[arg-type, misc]
    judged = targets(shape, {"lines": lines}, {})
    assert [target.ceiling for target in judged] == [pytest.approx(value, abs=0.05) for value in ceilings]
    for target, word, ceiling in zip(judged, words, ceilings, strict=True):
        assert target.text().startswith(f"target {word}: {shape.preset}: ")
        assert f"{ceiling} at most" in target.text()


def test_forwards_counted_in_a_whole_picture_go_before_those_at_most() -> None:
    lines = figures((12.0, 600), (2.0, 80), (2.0, 60))
    lines["SSD, fused commit, graphed"] |= {"whole_s": 1.0, "whole_forwards": 50}
    target = targets(FULL["janus"], {"lines": lines}, {})[1]
    assert target == Target("Janus (paper): SSD, fused commit, graphed × AR, graphed", 8.0, 12.0, True, (600, 50))
    assert target.text().endswith(
        "12.00, wanted 8; 600 forwards over 50 give 12.0 at most, a forward may take 1.50 of plain decoding's time"
    )


@pytest.mark.slow
def test_everything_at_toy_size(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """The one command, on the CPU: every section ends well, and a second run with --resume measures nothing."""
    monkeypatch.setattr(gpu_speed, "SPAN_STEPS", 4)  # shorter and fewer spans: half the time
    monkeypatch.setattr(gpu_speed, "REPEATS", 2)
    path = tmp_path / "r.json"
    assert run("--json", str(path), "--budget", "180") == 0
    content = json.loads(path.read_text())
    check_schema(content)
    assert list(content["sections"]) == list(gpu.WEIGHTS)
    assert {entry["status"] for entry in content["sections"].values()} == {"done"}
    capsys.readouterr()
    assert run("--json", str(path), "--resume") == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert json.loads(path.read_text()) == content
    for shape in TOY.values():
        assert shape.title in told.out
