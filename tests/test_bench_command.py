"""`bench`: folders as GenEval's and DPG-Bench's evaluators read them, taken up again after a kill at any point."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ssd_core
from ssd_core import AR, HorizontalMTP, Jacobi, Rolling, Rounds
from ssd_core.cli import bench as command
from ssd_core.cli import bench_files, main
from ssd_core.cli.bench_decoders import read_decoder
from ssd_core.heads import save_heads

LINES = ['{"prompt": "a red cat", "tag": "colors", "include": [{"class": "cat", "count": 1}]}', '{"prompt": "a dog"}']


@pytest.fixture
def cli(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs `bench` on the tiny model into ``tmp_path``; returns exit code, stdout, stderr."""

    def run(prompts: Path, *arguments: str, output: str = "out") -> tuple[int, str, str]:
        code = main(["bench", str(prompts), "-o", str(tmp_path / output), "--model", str(tiny_model), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def geneval(folder: Path) -> dict[int, tuple[dict, list[np.ndarray]]]:
    """What the evaluator sees: folders of digits, one JSON object each, pictures whose names begin with digits."""
    found = {}
    for sub in folder.iterdir():
        if sub.is_dir() and sub.name.isdigit():
            metadata = json.loads((sub / "metadata.jsonl").read_text(encoding="utf-8"))
            files = [file for file in sorted((sub / "samples").iterdir()) if re.match(r"\d+\.png", file.name)]
            found[int(sub.name)] = metadata, [np.asarray(Image.open(file)) for file in files]
    return found


def pictures(tiny_model: Path, prompt: str, seeds: range, schedule: ssd_core.Schedule) -> list[np.ndarray]:
    """The library's own pictures, one call each."""
    backbone = ssd_core.load_backbone(tiny_model)
    heads = ssd_core.load_heads(backbone, tiny_model / "heads.safetensors")
    drawn = [ssd_core.generate(backbone, prompt, heads=heads, schedule=schedule, seed=seed) for seed in seeds]
    return [(result.images[0] * 255).round().byte().numpy() for result in drawn]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but the timings, whose seconds differ."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("timings-")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize("batch", ["1", "2", "3"])
def test_geneval_layout(cli, prompts, tiny_model, tmp_path, batch):
    """Each prompt's line and pictures, picture k of prompt i with seed + i*n + k, whatever the batch."""
    code, out, err = cli(
        prompts, "--images", "3", "--seed", "5", "--batch", batch, "--decoders", "ar", "rounds:rounds=1", "--json"
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


def test_timings_tell_every_picture(cli, prompts, tmp_path):
    assert cli(prompts, "--images", "3", "--batch", "2", "--decoders", "exact")[0] == 0
    content = json.loads((tmp_path / "out" / "timings-exact.json").read_text())
    assert content["settings"]["schedule"]["window_rows"] == 1
    assert content["settings"]["dtype"] == "float32"
    known = [picture for entry in content["prompts"].values() for picture in entry["pictures"]]
    assert [(p["seed"], p["batch"]) for p in known] == [(0, 2), (1, 2), (2, 1), (3, 2), (4, 2), (5, 1)]
    # The first call of a process and a batch size is slow.
    assert [p["warm"] for p in known] == [False, False, False, True, True, True]
    assert all(p["seconds"] > p["pixel_seconds"] > 0 and p["forwards"] > 0 for p in known)
    assert all((p["threads"], p["torch"]) == (torch.get_num_threads(), torch.__version__) for p in known)


def test_the_summary_covers_the_prompts_of_the_call(cli, prompts, tmp_path):
    """Not what lies in the folder besides; and pairs of pictures, though decoders have different numbers of them."""
    call = "--images", "2", "--json", "--decoders"
    assert cli(prompts, *call, "ar")[0] == 0
    timings = tmp_path / "out" / "timings-ar.json"
    content = json.loads(timings.read_text())
    for picture in content["prompts"]["1"]["pictures"]:
        picture["seconds"] = 1e6
    for picture in content["prompts"]["0"]["pictures"]:
        picture["seconds"], picture["warm"] = 3.0, True
    timings.write_text(json.dumps(content))
    assert cli(prompts, *call, "exact", "--limit", "1")[0] == 0
    timings = tmp_path / "out" / "timings-exact.json"
    content = json.loads(timings.read_text())
    first, second = content["prompts"]["0"]["pictures"]
    first["seconds"], second["seconds"] = 0.1, 1.5
    timings.write_text(json.dumps(content))
    found = json.loads(cli(prompts, *call, "ar", "exact", "--limit", "1")[1])
    assert found["ar"] == {"pictures": 2, "warm": True, "seconds": 3.0, "forwards": 36}
    assert (found["exact"]["pictures"], found["exact"]["seconds"]) == (2, 1.5)
    assert (found["exact"]["pairs"], found["exact"]["pairs_warm"], found["exact"]["speedup"]) == (1, True, 2.0)
    assert found["exact"]["forwards_ratio"] == pytest.approx(36 / second["forwards"], abs=1e-4)


def test_first_pictures_are_marked_in_the_summary(cli, prompts):
    call = prompts, "--images", "2", "--batch", "2", "--decoders", "ar", "exact"
    lines = cli(*call, "--limit", "1")[1].splitlines()
    assert [line.endswith("(first pictures, warm-up included)") for line in lines] == [True, True, False]
    assert " x faster, " in lines[1]
    assert "warm-up" not in cli(*call, output="both prompts")[1]


def test_dpg_layout(cli, tiny_model, tmp_path):
    """Nothing but pictures in the folder, named like their prompts, in the evaluator's four squares."""
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "7.txt").write_text("a red cat\n")
    (texts / "part_2-b.txt").write_text("a dog")
    code, _, err = cli(texts, "--layout", "dpg", "--decoders", "ar", "--size", "6x6")
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


def test_dpg_prompts_from_jsonl(cli, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a dog", "id": "a1"}\n{"prompt": "a cat", "id": 12}\n')
    assert cli(file, "--layout", "dpg", "--images", "1", "--decoders", "exact")[0] == 0
    assert sorted(f.name for f in (tmp_path / "out" / "exact").iterdir()) == ["12.png", "a1.png"]
    assert Image.open(tmp_path / "out" / "exact" / "12.png").size == (48, 48)


def kill_at_write(monkeypatch, last: int) -> None:
    """Ctrl-C instead of write number ``last``."""
    left, write = last, bench_files.write

    def stopping(path: Path, data: bytes) -> Path:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return write(path, data)

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


def test_a_kill_at_any_write_is_made_good_by_the_same_call(cli, prompts, tmp_path, monkeypatch):
    """Stopped before each file in turn; what the next call leaves is what an undisturbed call leaves."""
    wanted = ("--images", "2", "--decoders", "ar", "exact", "--seed", "3")
    assert cli(prompts, *wanted, output="whole")[0] == 0
    whole = tree(tmp_path / "whole")
    writes = 2 * 2 * (1 + 2 + 1)  # decoders, prompts; the line, two pictures, the timings
    for last in range(writes + 1):
        with monkeypatch.context() as patch:
            kill_at_write(patch, last)
            assert cli(prompts, *wanted, output=f"cut-{last}")[0] == (130 if last < writes else 0)
        assert cli(prompts, *wanted, output=f"cut-{last}")[0] == 0
        assert tree(tmp_path / f"cut-{last}") == whole
        timings = json.loads((tmp_path / f"cut-{last}" / "timings-exact.json").read_text())
        assert list(timings["prompts"]) == ["0", "1"]


def test_changed_lines_are_renewed_without_drawing_whenever_that_is_killed(cli, prompts, tmp_path, monkeypatch):
    """GenEval's evaluator needs the whole line, while pictures hang on its prompt alone."""
    wanted = ("--images", "1", "--decoders", "ar", "exact")
    assert cli(prompts, *wanted, output="whole")[0] == 0
    poor = tmp_path / "poor.jsonl"
    poor.write_text('{"prompt": "a red cat"}\n{"prompt":"a dog"}\n')
    writes = 2 * 2  # decoders, prompts
    for last in range(writes + 1):
        assert cli(poor, *wanted, output=f"cut-{last}")[0] == 0
        assert json.loads((tmp_path / f"cut-{last}/ar/00000/metadata.jsonl").read_text()) == {"prompt": "a red cat"}
        with monkeypatch.context() as patch:
            drawn = watch_generate(patch)
            with monkeypatch.context() as cut:
                kill_at_write(cut, last)
                assert cli(prompts, *wanted, output=f"cut-{last}")[0] == (130 if last < writes else 0)
            assert cli(prompts, *wanted, output=f"cut-{last}")[0] == 0
            assert drawn == []
        assert tree(tmp_path / f"cut-{last}") == tree(tmp_path / "whole")


@pytest.mark.parametrize("decoder", ["sjd:window_tokens=8", "mtp", "rolling:drafts=copy", "rounds:drafts=left"])
def test_other_decoders_draw_what_the_library_draws(cli, prompts, tiny_model, tmp_path, decoder):
    assert cli(prompts, "--images", "1", "--limit", "1", "--decoders", decoder)[0] == 0
    chosen = read_decoder(decoder)
    (_, (seen,)) = geneval(tmp_path / "out" / chosen.folder)[0]
    backbone = ssd_core.load_backbone(tiny_model)
    heads = ssd_core.load_heads(backbone, tiny_model / "heads.safetensors")
    schedule = chosen.schedule("cpu")
    drawn = ssd_core.generate(backbone, "a red cat", heads=heads, schedule=schedule, drafts=chosen.drafts)
    assert np.array_equal(seen, (drawn.images[0] * 255).round().byte().numpy())


def test_only_what_is_missing_is_drawn(cli, prompts, tmp_path, monkeypatch):
    assert cli(prompts, "--images", "2", "--decoders", "ar")[0] == 0
    before = tree(tmp_path / "out")
    drawn = watch_generate(monkeypatch)
    assert cli(prompts, "--images", "2", "--decoders", "ar")[0] == 0
    assert drawn == []
    (tmp_path / "out" / "ar" / "00001" / "metadata.jsonl").unlink()
    assert cli(prompts, "--images", "2", "--decoders", "ar")[0] == 0
    assert drawn == []
    assert tree(tmp_path / "out") == before
    (tmp_path / "out" / "ar" / "00001" / "samples" / "0001.png").unlink()
    assert cli(prompts, "--images", "2", "--decoders", "ar")[0] == 0
    assert drawn == ["a dog", "a dog"]
    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--seed", "1"], "seed 0, now it is 1"),
        (["--images", "3"], "images 1"),
        (["--cfg", "1"], "sampling"),
        (["--size", "4x4"], "grid [6, 6], now it is [4, 4]"),
        (["--batch", "2"], "batch 1, now it is 2"),
    ],
)
def test_other_settings_are_refused(cli, prompts, tmp_path, change, named):
    """Pictures of two kinds must not end up in one folder."""
    assert cli(prompts, "--images", "1", "--decoders", "ar")[0] == 0
    before = tree(tmp_path / "out")
    code, _, err = cli(prompts, *(["--images", "1"] if change[0] != "--images" else []), "--decoders", "ar", *change)
    assert code == 2
    assert named in err
    assert err.count("\n") == 1
    assert tree(tmp_path / "out") == before


def test_other_heads_under_the_same_name_are_refused(cli, prompts, tiny_model, tmp_path):
    """A picture of fixed rounds hangs on its heads: pictures of two heads must not end up in one folder."""
    file = tmp_path / "my-heads.safetensors"
    call = prompts, "--images", "1", "--limit", "1", "--decoders", "rounds:rounds=1", "--heads", str(file)
    heads = ssd_core.load_heads(ssd_core.load_backbone(tiny_model), tiny_model / "heads.safetensors")
    save_heads(heads, file)
    assert cli(*call)[0] == 0
    assert cli(*call)[0] == 0
    heads.vertical["1"].mix.weight.mul_(1.5)
    save_heads(heads, file)
    code, _, err = cli(*call)
    assert code == 2
    assert re.search(r"was drawn with heads weights [0-9a-f]{16}, now it is weights [0-9a-f]{16}; give -o", err)


def test_other_prompts_are_refused(cli, prompts, tmp_path):
    """Before any line is renewed: prompt 0 stays as it was too."""
    assert cli(prompts, "--images", "1", "--decoders", "ar")[0] == 0
    before = tree(tmp_path / "out")
    prompts.write_text('{"prompt": "a red cat"}\n{"prompt": "a blue cat"}\n')
    code, _, err = cli(prompts, "--images", "1", "--decoders", "ar")
    assert code == 2
    assert "'a dog' as prompt 1, got 'a blue cat'" in err
    assert tree(tmp_path / "out") == before


def test_another_name_of_a_drawn_prompt_is_refused(cli, tmp_path):
    """DPG-Bench's evaluator would score the picture of the old name too."""
    file, call = tmp_path / "p.jsonl", ("--layout", "dpg", "--images", "1", "--decoders", "ar")
    file.write_text('{"prompt": "a dog", "id": "a1"}\n')
    assert cli(file, *call)[0] == 0
    file.write_text('{"prompt": "a dog", "id": "a2"}\n')
    code, _, err = cli(file, *call)
    assert code == 2
    assert re.search(r"line 1: .*timings-ar.json has prompt 0 under the name 'a1', got 'a2'; give -o another", err)
    assert err.count("\n") == 1
    assert list(tree(tmp_path / "out")) == ["ar/a1.png"]


def test_a_name_that_the_timings_do_not_tell_is_taken_as_it_is(cli, tmp_path):
    file, call = tmp_path / "p.jsonl", ("--layout", "dpg", "--images", "1", "--decoders", "ar")
    file.write_text('{"prompt": "a dog", "id": "a1"}\n')
    assert cli(file, *call)[0] == 0
    timings = tmp_path / "out" / "timings-ar.json"
    content = json.loads(timings.read_text())
    assert content["prompts"]["0"].pop("name") == "a1"
    timings.write_text(json.dumps(content))
    assert cli(file, *call)[0] == 0


def test_names_do_not_matter_to_geneval(cli, tmp_path):
    """A folder of texts gives its prompts no names there, so a list of the same texts goes on."""
    texts, file = tmp_path / "texts", tmp_path / "p.jsonl"
    texts.mkdir()
    (texts / "a.b.txt").write_text("a dog")
    file.write_text('{"prompt": "a dog"}\n')
    for prompts in (texts, file):
        assert cli(prompts, "--images", "1", "--decoders", "ar")[0] == 0
    assert [metadata for metadata, _ in geneval(tmp_path / "out" / "ar").values()] == [{"prompt": "a dog"}]


def test_a_longer_list_goes_on(cli, prompts, tmp_path):
    assert cli(prompts, "--images", "1", "--decoders", "ar", "--limit", "1")[0] == 0
    assert set(geneval(tmp_path / "out" / "ar")) == {0}
    assert cli(prompts, "--images", "1", "--decoders", "ar")[0] == 0
    assert set(geneval(tmp_path / "out" / "ar")) == {0, 1}


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ('{"prompt": "a cat"}\n{"prompt": 3}', [], "line 2: expected a text under \"prompt\", got 3"),
        ('{"prompt": "a cat"}\n\n{"prompt": ""}', [], "line 3: expected a text"),
        ('{"prompt": "a cat"}\n{"prompt: }', [], "line 2: no JSON"),
        ('["a cat"]', [], "line 1: got list, expected an object"),
        ('{"prompt": "a cat"}\n{"prompt": "a zebra"}', [], "line 2: "),
        ("", [], "holds no prompts"),
        ('{"prompt": "a cat"}', ["--layout", "dpg"], "line 1: expected the picture's name under \"id\""),
        ('{"prompt": "a cat", "id": "a.b"}', ["--layout", "dpg"], "line 1: got the name 'a.b'"),
        ('{"prompt": "a cat", "id": "../x"}', ["--layout", "dpg"], "line 1: got the name '../x'"),
        ('{"prompt": "a cat", "id": 1}\n{"prompt": "a", "id": "1"}', ["--layout", "dpg"], "line 2: the id '1' is also"),
        ('{"prompt": "a cat", "id": 1}', ["--layout", "dpg", "--images", "2"], "expected 4 or 1"),
        ('{"prompt": "a cat", "id": 1}', ["--layout", "dpg", "--size", "4x6"], "expected a square"),
        ('{"prompt": "a cat"}', ["--decoders", "fast"], "got 'fast', expected one of ar, rolling, rounds"),
        ('{"prompt": "a cat"}', ["--decoders", "ar", "ar"], "got ar twice"),
        ('{"prompt": "a cat"}', ["--decoders", "rounds:rows=2"], "expected SETTING=VALUE with one of rounds"),
        ('{"prompt": "a cat"}', ["--decoders", "rounds:rounds=1.5"], "expected a whole number"),
        ('{"prompt": "a cat"}', ["--decoders", "rounds:commit=never"], "expected fused or separate"),
        ('{"prompt": "a cat"}', ["--decoders", "rolling:drafts=best"], "expected auto or heads or left"),
        ('{"prompt": "a cat"}', ["--decoders", "ar:drafts=left"], "with one of coupling for ar"),
        ('{"prompt": "a cat"}', ["--decoders", "rolling:window_rows=0"], "window_rows must be at least 1"),
        ('{"prompt": "a cat"}', ["--decoders", "exact:window_rows=2"], "exact takes no settings"),
        ('{"prompt": "a cat"}', ["--size", "5x5"], "5x5"),
        ('{"prompt": "a cat"}', ["--decoders", "ar", "mtp", "--heads", "none"], "--decoders: mtp: these drafts need"),
        ('{"prompt": "a cat"}', ["--decoders", "ar", "rounds:rows_per_block=5"], "needs vertical heads 1 to 5"),
        ('{"prompt": "a cat"}', ["--decoders", "ar", "rolling:drafts=heads", "--heads", "none"], "need a heads file"),
        ('{"prompt": "a cat"}', ["--decoders", "ar", "janus-paper", "--heads", "none"], "janus-paper is the paper's"),
        ('{"prompt": "a cat"}', ["--decoders", "ar", "emu3-paper", "--heads", "none"], "emu3-paper is the paper's"),
        ('{"prompt": "a cat"}', ["--negative", "a dog", "--cfg", "1"], "--negative works through guidance"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_draw_nothing(cli, tmp_path, text, arguments, message):
    file = tmp_path / "p.jsonl"
    file.write_text(text, encoding="utf-8")
    code, out, err = cli(file, "--decoders", "ar", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_decoder_that_cannot_work_adds_nothing_to_a_folder(cli, prompts, tmp_path):
    """Not even the pictures of the others that are still to be drawn."""
    call = prompts, "--images", "1", "--heads", "none"
    assert cli(*call, "--limit", "1", "--decoders", "ar")[0] == 0
    before = tree(tmp_path / "out"), (tmp_path / "out" / "timings-ar.json").read_bytes()
    assert cli(*call, "--decoders", "ar", "mtp")[0] == 2
    assert (tree(tmp_path / "out"), (tmp_path / "out" / "timings-ar.json").read_bytes()) == before


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
def test_settings_tell_who_drafted(cli, prompts, tiny_model, tmp_path, decoder, heads, drafts):
    """And which heads, if they did."""
    call = "--images", "1", "--limit", "1", "--decoders", decoder, *(["--heads", "none"] if heads == "none" else [])
    assert cli(prompts, *call)[0] == 0
    settings = json.loads(next((tmp_path / "out").glob("timings-*.json")).read_text())["settings"]
    assert settings["drafts"] == drafts
    assert settings["heads"].startswith("weights ") == (drafts == "heads")


def test_files_that_are_no_prompts(cli, tmp_path):
    (tmp_path / "bad.jsonl").write_bytes(b'{"prompt": "\xff"}')
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "1.txt").write_text(" \n")
    for path, message in {
        "bad.jsonl": "UTF-8",
        "empty": "no .txt files",
        "blank": "is empty",
        "none": "No such",
    }.items():
        code, _, err = cli(tmp_path / path)
        assert code == 2
        assert message in err


def test_a_strange_timings_file_is_not_overwritten(cli, prompts, tmp_path):
    (tmp_path / "out").mkdir()
    for content in ("{", "[1]", '{"settings": 1, "prompts": {}}'):
        (tmp_path / "out" / "timings-ar.json").write_text(content)
        code, _, err = cli(prompts, "--decoders", "ar")
        assert code == 2
        assert "is no timings file of bench" in err
        assert (tmp_path / "out" / "timings-ar.json").read_text() == content


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
