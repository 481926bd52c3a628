"""`bench` refuses what would mix pictures of two kinds or cannot work, before anything is drawn."""

from __future__ import annotations

import json
import re

import pytest
from bench_calls import geneval, tree

import ssd_core
from ssd_core.heads import save_heads


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
def test_other_settings_are_refused(bench, prompts_file, tmp_path, change, named):
    """Pictures of two kinds must not end up in one folder."""
    assert bench(prompts_file, "--images", "1", "--decoders", "ar")[0] == 0
    before = tree(tmp_path / "out")
    code, _, err = bench(
        prompts_file, *(["--images", "1"] if change[0] != "--images" else []), "--decoders", "ar", *change
    )
    assert code == 2
    assert named in err
    assert err.count("\n") == 1
    assert tree(tmp_path / "out") == before


def test_other_heads_under_the_same_name_are_refused(bench, prompts_file, tiny_model, tmp_path):
    """A picture of fixed rounds hangs on its heads: pictures of two heads must not end up in one folder."""
    file = tmp_path / "my-heads.safetensors"
    call = prompts_file, "--images", "1", "--limit", "1", "--decoders", "rounds:rounds=1", "--heads", str(file)
    heads = ssd_core.load_heads(ssd_core.load_backbone(tiny_model), tiny_model / "heads.safetensors")
    save_heads(heads, file)
    assert bench(*call)[0] == 0
    assert bench(*call)[0] == 0
    heads.vertical["1"].mix.weight.mul_(1.5)
    save_heads(heads, file)
    code, _, err = bench(*call)
    assert code == 2
    assert re.search(r"was drawn with heads weights [0-9a-f]{16}, now it is weights [0-9a-f]{16}; give -o", err)


def test_other_prompts_are_refused(bench, prompts_file, tmp_path):
    """Before any line is renewed: prompt 0 stays as it was too."""
    assert bench(prompts_file, "--images", "1", "--decoders", "ar")[0] == 0
    before = tree(tmp_path / "out")
    prompts_file.write_text('{"prompt": "a red cat"}\n{"prompt": "a blue cat"}\n')
    code, _, err = bench(prompts_file, "--images", "1", "--decoders", "ar")
    assert code == 2
    assert "'a dog' as prompt 1, got 'a blue cat'" in err
    assert tree(tmp_path / "out") == before


def test_another_name_of_a_drawn_prompt_is_refused(bench, tmp_path):
    """DPG-Bench's evaluator would score the picture of the old name too."""
    file, call = tmp_path / "p.jsonl", ("--layout", "dpg", "--images", "1", "--decoders", "ar")
    file.write_text('{"prompt": "a dog", "id": "a1"}\n')
    assert bench(file, *call)[0] == 0
    file.write_text('{"prompt": "a dog", "id": "a2"}\n')
    code, _, err = bench(file, *call)
    assert code == 2
    assert re.search(r"line 1: .*timings-ar.json has prompt 0 under the name 'a1', got 'a2'; give -o another", err)
    assert err.count("\n") == 1
    assert list(tree(tmp_path / "out")) == ["ar/a1.png"]


def test_a_name_that_the_timings_do_not_tell_is_taken_as_it_is(bench, tmp_path):
    file, call = tmp_path / "p.jsonl", ("--layout", "dpg", "--images", "1", "--decoders", "ar")
    file.write_text('{"prompt": "a dog", "id": "a1"}\n')
    assert bench(file, *call)[0] == 0
    timings = tmp_path / "out" / "timings-ar.json"
    content = json.loads(timings.read_text())
    assert content["prompts"]["0"].pop("name") == "a1"
    timings.write_text(json.dumps(content))
    assert bench(file, *call)[0] == 0


def test_names_do_not_matter_to_geneval(bench, tmp_path):
    """A folder of texts gives its prompts no names there, so a list of the same texts goes on."""
    texts, file = tmp_path / "texts", tmp_path / "p.jsonl"
    texts.mkdir()
    (texts / "a.b.txt").write_text("a dog")
    file.write_text('{"prompt": "a dog"}\n')
    for prompts in (texts, file):
        assert bench(prompts, "--images", "1", "--decoders", "ar")[0] == 0
    assert [metadata for metadata, _ in geneval(tmp_path / "out" / "ar").values()] == [{"prompt": "a dog"}]


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
        ('{"prompt": "a cat"}', ["--decoders", "ar", "mtp", "--heads", "none"], "--decoders: mtp: 1D-MTP needs"),
        ('{"prompt": "a cat"}', ["--decoders", "ar", "rounds:rows_per_block=5"], "needs vertical heads 1 to 5"),
        ('{"prompt": "a cat"}', ["--decoders", "ar", "rolling:drafts=heads", "--heads", "none"], "need a heads file"),
        ('{"prompt": "a cat"}', ["--decoders", "ar", "janus-paper", "--heads", "none"], "janus-paper is the paper's"),
        ('{"prompt": "a cat"}', ["--decoders", "ar", "emu3-paper", "--heads", "none"], "emu3-paper is the paper's"),
        ('{"prompt": "a cat"}', ["--negative", "a zebra"], "--negative: "),
        ('{"prompt": "a cat"}', ["--decoders", "rolling:window_rows=2,window_rows=3"], "sets something twice"),
        (
            '{"prompt": "a cat"}',
            ["--decoders", "rolling:window_rows=2,tolerance=4", "rolling:tolerance=4,window_rows=2"],
            "got rolling-window-rows-2-tolerance-4.0 twice",
        ),
        ('{"prompt": "a cat"}', ["--negative", "a dog", "--cfg", "1"], "--negative works through guidance"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_draw_nothing(bench, tmp_path, text, arguments, message):
    file = tmp_path / "p.jsonl"
    file.write_text(text, encoding="utf-8")
    code, out, err = bench(file, "--decoders", "ar", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_decoder_that_cannot_work_adds_nothing_to_a_folder(bench, prompts_file, tmp_path):
    """Not even the pictures of the others that are still to be drawn."""
    call = prompts_file, "--images", "1", "--heads", "none"
    assert bench(*call, "--limit", "1", "--decoders", "ar")[0] == 0
    before = tree(tmp_path / "out"), (tmp_path / "out" / "timings-ar.json").read_bytes()
    assert bench(*call, "--decoders", "ar", "mtp")[0] == 2
    assert (tree(tmp_path / "out"), (tmp_path / "out" / "timings-ar.json").read_bytes()) == before


def test_files_that_are_no_prompts(bench, tmp_path):
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
        code, _, err = bench(tmp_path / path)
        assert code == 2
        assert message in err


def test_a_strange_timings_file_is_not_overwritten(bench, prompts_file, tmp_path):
    (tmp_path / "out").mkdir()
    for content in ("{", "[1]", '{"settings": 1, "prompts": {}}'):
        (tmp_path / "out" / "timings-ar.json").write_text(content)
        code, _, err = bench(prompts_file, "--decoders", "ar")
        assert code == 2
        assert "is no timings file of bench" in err
        assert (tmp_path / "out" / "timings-ar.json").read_text() == content
