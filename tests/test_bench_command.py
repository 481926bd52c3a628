"""`bench`: folders as GenEval's and DPG-Bench's evaluators read them, taken up again after a kill at any point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench_calls import LINES, geneval, tree
from PIL import Image

import ssd_core
from ssd_core import AR, HorizontalMTP, Jacobi, Rolling, Rounds
from ssd_core.cli import bench as command
from ssd_core.cli import bench_files
from ssd_core.cli.bench_decoders import read_decoder
from ssd_core.cli.bench_prompts import BenchPrompt


def pictures(tiny_model: Path, prompt: str, seeds: range, schedule: ssd_core.Schedule) -> list[np.ndarray]:
    """The library's own pictures, one call each."""
    backbone = ssd_core.load_backbone(tiny_model)
    heads = ssd_core.load_heads(backbone, tiny_model / "heads.safetensors")
    drawn = [ssd_core.generate(backbone, prompt, heads=heads, schedule=schedule, seed=seed) for seed in seeds]
    return [(result.images[0] * 255).round().byte().numpy() for result in drawn]


@pytest.mark.parametrize("batch", ["1", "2", "3"])
def test_geneval_layout(bench, prompts_file, tiny_model, tmp_path, batch):
    """Each prompt's line and pictures, picture k of prompt i with seed + i*n + k, whatever the batch."""
    code, out, err = bench(
        prompts_file, "--images", "3", "--seed", "5", "--batch", batch, "--decoders", "ar", "rounds:rounds=1", "--json"
    )
    assert (code, err) == (0, "")
    for folder, schedule in {"ar": AR(), "rounds-rounds-1": Rounds(rounds=1)}.items():
        seen = geneval(tmp_path / "out" / folder)
        assert {index: metadata for index, (metadata, _) in seen.items()} == dict(enumerate(map(json.loads, LINES)))
        for index, prompt in enumerate(("a red cat", "a dog")):
            first = 5 + 3 * index
            expected = pictures(tiny_model, prompt, range(first, first + 3), schedule)
            assert len(seen[index][1]) == 3
            assert all(np.array_equal(a, b) for a, b in zip(seen[index][1], expected, strict=True))
    found = json.loads(out)
    assert found["ar"]["pictures"] == 6
    assert found["ar"]["forwards"] == 36
    assert found["rounds-rounds-1"]["forwards"] < 20


def test_timings_tell_every_picture(bench, prompts_file, tmp_path):
    assert bench(prompts_file, "--images", "3", "--batch", "2", "--decoders", "exact")[0] == 0
    content = json.loads((tmp_path / "out" / "timings-exact.json").read_text())
    assert content["settings"]["schedule"]["window_rows"] == 1
    assert content["settings"]["dtype"] == "float32"
    known = [picture for entry in content["prompts"].values() for picture in entry["pictures"]]
    assert [(p["seed"], p["batch"]) for p in known] == [(0, 2), (1, 2), (2, 1), (3, 2), (4, 2), (5, 1)]
    # The first call of a process and a batch size is slow.
    assert [p["warm"] for p in known] == [False, False, False, True, True, True]
    assert all(p["seconds"] > p["pixel_seconds"] > 0 and p["forwards"] > 0 for p in known)
    assert all((p["threads"], p["torch"]) == (torch.get_num_threads(), torch.__version__) for p in known)


def test_the_summary_covers_the_prompts_of_the_call(bench, prompts_file, tmp_path):
    """Not what lies in the folder besides; and pairs of pictures, though decoders have different numbers of them."""
    call = "--images", "2", "--json", "--decoders"
    assert bench(prompts_file, *call, "ar")[0] == 0
    timings = tmp_path / "out" / "timings-ar.json"
    content = json.loads(timings.read_text())
    for picture in content["prompts"]["1"]["pictures"]:
        picture["seconds"] = 1e6
    for picture in content["prompts"]["0"]["pictures"]:
        picture["seconds"], picture["warm"] = 3.0, True
    timings.write_text(json.dumps(content))
    assert bench(prompts_file, *call, "exact", "--limit", "1")[0] == 0
    timings = tmp_path / "out" / "timings-exact.json"
    content = json.loads(timings.read_text())
    first, second = content["prompts"]["0"]["pictures"]
    first["seconds"], second["seconds"] = 0.1, 1.5
    timings.write_text(json.dumps(content))
    found = json.loads(bench(prompts_file, *call, "ar", "exact", "--limit", "1")[1])
    assert found["ar"] == {"pictures": 2, "warm": True, "seconds": 3.0, "forwards": 36}
    assert (found["exact"]["pictures"], found["exact"]["seconds"]) == (2, 1.5)
    assert (found["exact"]["pairs"], found["exact"]["pairs_warm"], found["exact"]["speedup"]) == (1, True, 2.0)
    assert found["exact"]["forwards_ratio"] == pytest.approx(36 / second["forwards"], abs=1e-4)


def test_first_pictures_are_marked_in_the_summary(bench, prompts_file):
    call = prompts_file, "--images", "2", "--batch", "2", "--decoders", "ar", "exact"
    lines = bench(*call, "--limit", "1")[1].splitlines()
    assert [line.endswith("(first pictures, warm-up included)") for line in lines] == [True, True, False]
    assert " x faster, " in lines[1]
    assert "warm-up" not in bench(*call, output="both prompts")[1]


def test_dpg_layout(bench, tiny_model, tmp_path):
    """Nothing but pictures in the folder, named like their prompts_file, in the evaluator's four squares."""
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "7.txt").write_text("a red cat\n")
    (texts / "part_2-b.txt").write_text("a dog")
    code, _, err = bench(texts, "--layout", "dpg", "--decoders", "ar", "--size", "6x6")
    assert (code, err) == (0, "")
    folder = tmp_path / "out" / "ar"
    assert sorted(file.name for file in folder.iterdir()) == ["7.png", "part_2-b.png"]
    side = 48
    for index, (name, prompt) in enumerate({"7": "a red cat", "part_2-b": "a dog"}.items()):
        page = Image.open(folder / f"{name}.png")
        assert page.size == (2 * side, 2 * side)
        boxes = [(0, 0, side, side), (side, 0, 2 * side, side), (0, side, side, 2 * side), (side, side, 96, 96)]
        expected = pictures(tiny_model, prompt, range(4 * index, 4 * index + 4), AR())
        for box, picture in zip(boxes, expected, strict=True):
            assert np.array_equal(np.asarray(page.crop(box)), picture)


def test_dpg_prompts_from_jsonl(bench, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('\ufeff{"prompt": "a dog", "id": "a1"}\n{"prompt": "a cat", "id": 12, "note": "\u2028"}\n', "utf-8")
    assert bench(file, "--layout", "dpg", "--images", "1", "--decoders", "exact")[0] == 0
    assert sorted(f.name for f in (tmp_path / "out" / "exact").iterdir()) == ["12.png", "a1.png"]
    assert Image.open(tmp_path / "out" / "exact" / "12.png").size == (48, 48)


def test_a_killed_process_leaves_only_pictures_where_all_files_are_taken_for_such(tmp_path, monkeypatch):
    """What is being written lies elsewhere until it is whole; SIGKILL would leave it there."""
    folder = bench_files.PictureFolder(tmp_path / "exact", "dpg")
    seen = []

    def renamed(self, target):
        seen.append((self.parent, target.name, list(target.parent.iterdir())))
        return replace(self, target)

    replace = Path.replace
    monkeypatch.setattr(Path, "replace", renamed)
    folder.save(0, BenchPrompt("a cat", "7", "", ""), [np.zeros((8, 8, 3), np.uint8)])
    assert seen == [(tmp_path, "7.png", [])]


def kill_at_write(monkeypatch, last: int) -> None:
    """Ctrl-C instead of write number ``last``."""
    left, write = last, bench_files.write

    def stopping(path: Path, data: bytes, **options: Any) -> Path:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return write(path, data, **options)

    monkeypatch.setattr(bench_files, "write", stopping)


def watch_generate(monkeypatch) -> list[str]:
    """The prompts that are drawn from now on, a call each."""
    drawn: list[str] = []
    generate = command.generate

    def counting(backbone, prompt, **settings):
        drawn.append(prompt)
        return generate(backbone, prompt, **settings)

    monkeypatch.setattr(command, "generate", counting)
    return drawn


def test_a_kill_at_any_write_is_made_good_by_the_same_call(bench, prompts_file, tmp_path, monkeypatch):
    """Stopped before each file in turn; what the next call leaves is what an undisturbed call leaves."""
    wanted = ("--images", "2", "--decoders", "ar", "exact", "--seed", "3")
    assert bench(prompts_file, *wanted, output="whole")[0] == 0
    whole = tree(tmp_path / "whole")
    writes = 2 * 2 * (1 + 2 + 1)  # decoders, prompts; the line, two pictures, the timings
    for last in range(writes + 1):
        with monkeypatch.context() as patch:
            kill_at_write(patch, last)
            assert bench(prompts_file, *wanted, output=f"cut-{last}")[0] == (130 if last < writes else 0)
        assert bench(prompts_file, *wanted, output=f"cut-{last}")[0] == 0
        assert tree(tmp_path / f"cut-{last}") == whole
        timings = json.loads((tmp_path / f"cut-{last}" / "timings-exact.json").read_text())
        assert list(timings["prompts"]) == ["0", "1"]


def test_changed_lines_are_renewed_without_drawing_whenever_that_is_killed(bench, prompts_file, tmp_path, monkeypatch):
    """GenEval's evaluator needs the whole line, while pictures hang on its prompt alone."""
    wanted = ("--images", "1", "--decoders", "ar", "exact")
    assert bench(prompts_file, *wanted, output="whole")[0] == 0
    poor = tmp_path / "poor.jsonl"
    poor.write_text('{"prompt": "a red cat"}\n{"prompt":"a dog"}\n')
    writes = 2 * 2  # decoders, prompts
    for last in range(writes + 1):
        assert bench(poor, *wanted, output=f"cut-{last}")[0] == 0
        assert json.loads((tmp_path / f"cut-{last}/ar/00000/metadata.jsonl").read_text()) == {"prompt": "a red cat"}
        with monkeypatch.context() as patch:
            drawn = watch_generate(patch)
            with monkeypatch.context() as cut:
                kill_at_write(cut, last)
                assert bench(prompts_file, *wanted, output=f"cut-{last}")[0] == (130 if last < writes else 0)
            assert bench(prompts_file, *wanted, output=f"cut-{last}")[0] == 0
            assert drawn == []
        assert tree(tmp_path / f"cut-{last}") == tree(tmp_path / "whole")


@pytest.mark.parametrize("decoder", ["sjd:window_tokens=8", "mtp", "rolling:drafts=copy", "rounds:drafts=left"])
def test_other_decoders_draw_what_the_library_draws(bench, prompts_file, tiny_model, tmp_path, decoder):
    assert bench(prompts_file, "--images", "1", "--limit", "1", "--decoders", decoder)[0] == 0
    chosen = read_decoder(decoder)
    (_, (seen,)) = geneval(tmp_path / "out" / chosen.folder)[0]
    backbone = ssd_core.load_backbone(tiny_model)
    heads = ssd_core.load_heads(backbone, tiny_model / "heads.safetensors")
    schedule = chosen.schedule("cpu")
    drawn = ssd_core.generate(backbone, "a red cat", heads=heads, schedule=schedule, drafts=chosen.drafts)
    assert np.array_equal(seen, (drawn.images[0] * 255).round().byte().numpy())


def test_only_what_is_missing_is_drawn(bench, prompts_file, tmp_path, monkeypatch):
    assert bench(prompts_file, "--images", "2", "--decoders", "ar")[0] == 0
    before = tree(tmp_path / "out")
    drawn = watch_generate(monkeypatch)
    assert bench(prompts_file, "--images", "2", "--decoders", "ar")[0] == 0
    assert drawn == []
    (tmp_path / "out" / "ar" / "00001" / "metadata.jsonl").unlink()
    assert bench(prompts_file, "--images", "2", "--decoders", "ar")[0] == 0
    assert drawn == []
    assert tree(tmp_path / "out") == before
    (tmp_path / "out" / "ar" / "00001" / "samples" / "0001.png").unlink()
    assert bench(prompts_file, "--images", "2", "--decoders", "ar")[0] == 0
    assert drawn == ["a dog", "a dog"]
    assert tree(tmp_path / "out") == before


def test_a_longer_list_goes_on(bench, prompts_file, tmp_path):
    assert bench(prompts_file, "--images", "1", "--decoders", "ar", "--limit", "1")[0] == 0
    assert set(geneval(tmp_path / "out" / "ar")) == {0}
    assert bench(prompts_file, "--images", "1", "--decoders", "ar")[0] == 0
    assert set(geneval(tmp_path / "out" / "ar")) == {0, 1}


@pytest.mark.parametrize(
    ("decoder", "heads", "drafts"),
    [
        ("ar", "own", "none"),
        ("exact", "own", "heads"),
        ("janus-paper", "own", "heads"),
        ("sjd:window_tokens=8", "own", "random"),
        ("rounds:rounds=1,drafts=left", "own", "left"),
        ("exact", "none", "left"),
        ("rounds:rounds=1", "none", "copy"),
    ],
)
def test_settings_tell_who_drafted(bench, prompts_file, tiny_model, tmp_path, decoder, heads, drafts):
    """And which heads, if they did."""
    call = "--images", "1", "--limit", "1", "--decoders", decoder, *(["--heads", "none"] if heads == "none" else [])
    assert bench(prompts_file, *call)[0] == 0
    settings = json.loads(next((tmp_path / "out").glob("timings-*.json")).read_text())["settings"]
    assert settings["drafts"] == drafts
    assert settings["heads"].startswith("weights ") == (drafts == "heads")


def test_decoders_by_name():
    assert read_decoder("rolling:window_rows=2,tolerance=4.5").schedule("cpu") == Rolling(2, tolerance=4.5)
    assert read_decoder("rolling:window_tokens=16").schedule("cpu") == Rolling(window_tokens=16)
    assert read_decoder("exact").schedule("cpu") == Rolling(1)
    assert read_decoder("exact").schedule("cuda") == Rolling(3)
    assert read_decoder("lumina-paper").schedule("cuda") == Rounds(
        rounds=5, rows_per_block=2, incremental_rounds=4, commit="separate"
    )
    assert read_decoder("sjd:window_tokens=16,coupling=gumbel").schedule("cpu") == Jacobi(16, coupling="gumbel")
    assert read_decoder("mtp:tokens=3").schedule("cpu") == HorizontalMTP(3)
    drafts = read_decoder("rolling:drafts=copy,window_rows=2")
    assert (drafts.schedule("cpu"), drafts.drafts) == (Rolling(2), "copy")
    assert drafts.folder == "rolling-window-rows-2-drafts-copy"
    assert read_decoder("rolling:window_rows=2,tolerance=4.5").folder == "rolling-window-rows-2-tolerance-4.5"
