"""`--graphs` reaches every run, and reports say what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ssd_core
from ssd_core import compare
from ssd_core.cli import bench, main, setup
from ssd_core.summary import comparison_text, report_text


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `generate` was told, by the commands and by `compare`."""
    told: list[str] = []

    def noting(*arguments: Any, **settings: Any) -> ssd_core.Generation:
        told.append(settings["graphs"])
        return ssd_core.generate(*arguments, **settings)

    for module in (setup, bench, compare):
        monkeypatch.setattr(module, "generate", noting)
    return told


@pytest.mark.parametrize(
    ("option", "text"), [([], "off: the device is cpu"), (["--graphs", "off"], "off: switched off")]
)
def test_generate_takes_the_choice_and_tells_what_came_of_it(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str], text: str
) -> None:
    file = str(tmp_path / "x.png")
    assert main(["generate", "cat", "--size", "4x4", "--json", "-o", file, "--model", str(tiny_model), *option]) == 0
    assert json.loads(capsys.readouterr().out)["graphs"] == text


@pytest.mark.parametrize("choice", ["auto", "off"])
def test_comparisons_and_benches_pass_the_choice_on(
    tiny_model: Path, tmp_path: Path, choices: list[str], choice: str
) -> None:
    own = ["--model", str(tiny_model), "--graphs", choice, "--size", "4x4"]
    assert main(["generate", "cat", "--compare", "--repeats", "1", "-o", str(tmp_path / "x.png"), *own]) == 0
    assert choices == [choice] * 4  # two warm-ups and two runs
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "cat"}\n', encoding="utf-8")
    choices.clear()
    assert main(["bench", str(prompts), "--images", "1", "-o", str(tmp_path / "out"), *own]) == 0
    assert choices == [choice] * 2
    timings = json.loads((tmp_path / "out" / "timings-ar.json").read_text(encoding="utf-8"))
    assert timings["settings"]["graphs"] == choice


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_another_word_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "cat", "--graphs", "on"]) == 2
    assert "--graphs" in capsys.readouterr().err


def test_reports_tell_of_graphs_where_there_could_be_any(tiny_model: Path) -> None:
    backbone = ssd_core.load_backbone(tiny_model)
    comparison = compare.compare(backbone, "cat", grid=(4, 4))
    texts = [report_text(comparison.ssd), comparison_text(comparison)]
    assert not any("graphs" in text for text in texts)
    comparison.ssd.report.settings["device"] = "cuda:0"
    comparison.ssd.report.graphs = "7 graphs (0 of them new), 90 replays"
    for text in (report_text(comparison.ssd), comparison_text(comparison)):
        assert "  graphs     7 graphs (0 of them new), 90 replays" in text.splitlines()
