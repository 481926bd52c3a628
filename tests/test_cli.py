"""The command line on a tiny model: files, reports, mistakes, Ctrl-C."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open

import ssd_core
from ssd_core.cli import main, setup, threads
from ssd_core.cli.arguments import GenerateOptions, parse
from ssd_core.cli.main import _smaller


@pytest.fixture
def cli(tiny_model: Path, capsys: pytest.CaptureFixture[str]):
    """Runs a command on the tiny model; returns exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--model", str(tiny_model)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- pictures ------------------------------------------------------------------------------------------------------


def test_picture_has_the_size_the_settings_and_the_pixels_of_the_library_call(cli, tiny_model, tmp_path):
    code, out, _ = cli("generate", "a red cat", "--seed", "5", "--size", "4x6", "-o", str(tmp_path / "cat.png"))
    assert code == 0
    assert "seed 5" in out
    assert names(tmp_path) == ["cat.png"]
    image = Image.open(tmp_path / "cat.png")
    assert image.size == (48, 32)  # PIL says width, height; the grid is rows, columns
    settings = json.loads(image.text["ssd"])
    assert image.text["Description"] == settings["prompt"] == "a red cat"
    assert (settings["seed"], settings["grid"], settings["decoder"]) == (5, [4, 6], "auto")
    assert settings["schedule"]["tolerance"] == 0
    assert settings["sampling"]["guidance"] == 2.0
    assert settings["version"] == ssd_core.__version__

    backbone = ssd_core.load_backbone(tiny_model)
    expected = ssd_core.generate(backbone, "a red cat", seed=5, grid=(4, 6), schedule=ssd_core.AR()).images[0]
    shown = torch.tensor(list(image.tobytes())).reshape(32, 48, 3)
    assert torch.equal(shown, (expected * 255).round().long())


def test_settings_reach_the_decoder(cli, tmp_path):
    options = (
        ["--decoder", "ar", "--temperature", "0", "--top-k", "3", "--top-p", "0.5", "--cfg", "1"],
        ["--mode", "rounds", "--rounds", "3", "--rows-per-block", "2", "--dtype", "bfloat16"],
        ["--window-rows", "2", "--tolerance", "1.5", "--heads", "none"],
    )
    reports = []
    for extra in options:
        code, out, _ = cli("generate", "cat", "--json", "-o", str(tmp_path / "x.png"), *extra)
        assert code == 0
        reports.append(json.loads(out))
    ar, rounds, rolling = reports
    assert ar["decoder"] == "ar"
    assert ar["settings"]["sampling"] == {"guidance": 1.0, "temperature": 0.0, "top_k": 3, "top_p": 0.5}
    assert rounds["decoder"] == "rounds"
    assert (rounds["settings"]["schedule"]["rounds"], rounds["settings"]["schedule"]["rows_per_block"]) == (3, 2)
    assert rounds["settings"]["dtype"] == "bfloat16"
    assert rolling["settings"]["schedule"]["window_rows"] == 2
    assert rolling["settings"]["schedule"]["tolerance"] == 1.5
    assert rolling["settings"]["drafts"] == "left"


def test_every_decoder_and_drafter_has_its_option(cli, tmp_path):
    cases = (
        (["--drafts", "left"], "auto", "left", {}),
        (["--mode", "auto"], "auto", "heads", {}),
        (["--mode", "rolling", "--drafts", "random"], "rolling", "random", {"window_rows": 1}),
        (["--mode", "rounds", "--drafts", "copy", "--rows-per-block", "5"], "rounds", "copy", {"rows_per_block": 5}),
        (["--decoder", "sjd"], "jacobi", "random", {"window_tokens": 32}),
        (["--decoder", "sjd", "--jacobi-window", "8", "--drafts", "heads"], "jacobi", "heads", {"window_tokens": 8}),
        (["--decoder", "mtp"], "mtp", "heads", {"rounds": 1}),
        (["--decoder", "mtp", "--rounds", "2"], "mtp", "heads", {"rounds": 2}),
    )
    for extra, decoder, drafts, schedule in cases:
        code, out, err = cli("generate", "cat", "--json", "-o", str(tmp_path / "x.png"), *extra)
        assert (code, err) == (0, ""), extra
        report = json.loads(out)
        assert (report["decoder"], report["settings"]["drafts"]) == (decoder, drafts)
        assert schedule.items() <= report["settings"]["schedule"].items()


def test_several_prompts_and_batches_give_one_picture_each(cli, tmp_path):
    code, out, _ = cli("generate", "a cat", "a dog", "--seed", "3", "--json", "-o", f"{tmp_path}/two/")
    assert code == 0
    assert names(tmp_path / "two") == ["a-cat-3.png", "a-dog-4.png"]
    assert json.loads(out)["files"] == [str(tmp_path / "two" / name) for name in ("a-cat-3.png", "a-dog-4.png")]

    code, _, _ = cli("generate", "cat", "--batch", "2", "-o", str(tmp_path / "pic.png"))
    assert code == 0
    assert names(tmp_path) == ["pic-1.png", "pic-2.png", "two"]
    assert [json.loads(Image.open(tmp_path / f"pic-{k}.png").text["ssd"])["seed"] for k in (1, 2)] == [0, 1]


def test_unquoted_words_are_one_prompt():
    def prompts(*arguments: str) -> list[str]:
        options = parse(["generate", *arguments])
        assert isinstance(options, GenerateOptions)
        return options.prompts

    assert prompts("a", "red", "heart") == ["a red heart"]
    assert prompts("a cat", "dog") == ["a cat", "dog"]
    assert prompts("cat") == ["cat"]


def test_a_folder_never_loses_a_picture_and_a_file_is_overwritten(cli, tmp_path):
    for _ in range(3):
        assert cli("generate", "cat", "-o", str(tmp_path))[0] == 0
    assert names(tmp_path) == ["cat-0-2.png", "cat-0-3.png", "cat-0.png"]
    assert cli("generate", "cat", "-o", str(tmp_path), "--compare", "--repeats", "1")[0] == 0
    assert {"cat-0-4.png", "cat-0-4-ar.png"} <= set(names(tmp_path))
    file = tmp_path / "one.png"
    file.write_bytes(b"old")
    assert cli("generate", "cat", "-o", str(file))[0] == 0
    assert file.read_bytes() == (tmp_path / "cat-0.png").read_bytes()


def test_tokens_file_holds_the_codes_and_the_settings(cli, tiny_model, tmp_path):
    file = tmp_path / "deep" / "t.safetensors"
    assert cli("generate", "cat", "dog on grass", "-o", f"{tmp_path}/", "--tokens-out", str(file))[0] == 0
    with safe_open(str(file), "pt") as stored:
        tokens, metadata = stored.get_tensor("tokens"), stored.metadata()
    expected = ssd_core.generate(ssd_core.load_backbone(tiny_model), ["cat", "dog on grass"], schedule=ssd_core.AR())
    assert torch.equal(tokens, expected.tokens)
    assert json.loads(metadata["ssd"])["prompts"] == ["cat", "dog on grass"]


def test_gif_grows_from_gray_to_the_finished_picture(cli, tmp_path):
    gif, png = tmp_path / "rows.gif", tmp_path / "cat.png"
    assert cli("generate", "cat", "--decoder", "ar", "--rows-gif", str(gif), "-o", str(png))[0] == 0
    animation = Image.open(gif)
    assert animation.n_frames > 6
    first = animation.convert("RGB")
    assert first.size == (48, 48)
    assert first.crop((0, 8, 48, 48)).getcolors() == [(40 * 48, (128, 128, 128))]  # nothing below the first row yet
    animation.seek(animation.n_frames - 1)
    last, finished = (torch.tensor(list(i.convert("RGB").tobytes())) for i in (animation, Image.open(png)))
    assert (last - finished).abs().float().mean() < 4  # a GIF has 256 colours


# --- reports -------------------------------------------------------------------------------------------------------


def test_json_report_is_one_object_with_the_figures(cli, tmp_path):
    code, out, err = cli("generate", "cat", "--json", "-o", f"{tmp_path}/")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["total_forwards"] == sum(report["forwards"].values()) <= 36
    assert sum(report["auto"]["windows"].values()) == report["total_forwards"]
    assert report["grid"] == [6, 6]
    assert 0 <= report["acceptance"] <= 1


def test_compare_json_has_exactly_the_promised_keys_and_exact_mode_keeps_its_word(cli, tmp_path):
    code, out, _ = cli(
        "generate", "two dogs", "--compare", "--json", "--repeats", "1", "--mode", "rolling", "-o", f"{tmp_path}/"
    )
    figures = json.loads(out)
    assert code == 0
    assert set(figures) == {"ar", "ssd", "speedup", "forwards_ratio", "equal_tokens"}
    assert set(figures["ar"]) == {"seconds", "forwards"}
    assert set(figures["ssd"]) == {"seconds", "forwards", "acceptance"}
    assert figures["ar"]["forwards"] == 36
    assert figures["forwards_ratio"] == 36 / figures["ssd"]["forwards"] > 1
    assert figures["speedup"] == figures["ar"]["seconds"] / figures["ssd"]["seconds"]
    assert figures["equal_tokens"] == 1.0
    assert names(tmp_path) == ["two-dogs-0-ar.png", "two-dogs-0.png"]


def test_compare_text_names_speedup_and_share_of_equal_tokens(cli, tmp_path):
    code, out, _ = cli("generate", "cat", "--compare", "--mode", "rounds", "--repeats", "1", "-o", f"{tmp_path}/")
    assert code == 0
    assert "speed-up" in out
    assert "% of the codes are those of plain decoding" in out
    assert "100.0%" not in out  # maximal coupling draws another picture


def test_the_report_says_what_auto_chose(cli, tmp_path):
    out = cli("generate", "cat", "-o", f"{tmp_path}/")[1]
    assert "ssd auto, exact" in out
    assert re.search(r"^  auto +(windows|plain steps)", out, re.MULTILINE)


@pytest.mark.parametrize("extra", [["--decoder", "sjd"], ["--decoder", "mtp"], ["--mode", "auto", "--drafts", "copy"]])
def test_compare_takes_every_decoder(cli, tmp_path, extra):
    code, out, _ = cli("generate", "cat", "--compare", "--repeats", "1", "-o", f"{tmp_path}/", *extra)
    assert code == 0
    label = extra[1] if extra[0] == "--decoder" else "ssd"
    assert re.search(rf"^  {label} .* s +\d+ forwards", out, re.MULTILINE)
    assert ("100.0% of the codes" in out) == (label == "ssd")
    assert names(tmp_path) == ["cat-0-ar.png", "cat-0.png"]


def test_progress_bar_only_when_asked_or_on_a_terminal(cli, tmp_path):
    quiet = cli("generate", "cat", "-o", f"{tmp_path}/")[2]
    shown = cli("generate", "cat", "-o", f"{tmp_path}/", "--progress")[2]
    assert quiet == ""
    assert "forwards" in shown
    assert shown.endswith("\r")


@pytest.mark.parametrize(
    ("torch_would_use", "seconds", "chosen"), [(4, {1: 1.0, 4: 0.5}, 4), (4, {1: 1.0, 4: 0.95}, 1), (1, {}, 1)]
)
def test_threads_are_many_only_where_that_is_clearly_faster(monkeypatch, torch_would_use, seconds, chosen):
    asked = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: torch_would_use)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(threads, "_seconds", lambda count: seconds[count])
    assert threads.choose_threads() == chosen
    assert asked == ([torch_would_use] if seconds else [])  # the probe leaves torch's own number behind


def test_words_lists_what_the_model_knows(cli):
    code, out, _ = cli("words")
    assert code == 0
    assert out.split() == ["blue", "cat", "dog", "grass", "heart", "red", "two"]
    assert json.loads(cli("words", "--json")[1]) == out.split()


# --- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "unicorn"], "'unicorn'"),
        (["cat", "--size", "5x5"], "choose one of 6x6"),
        (["cat", "--size", "24"], "'24', expected rows x columns"),
        (["cat", "--cfg", "nan"], "--cfg: got 'nan', expected a number from 0 up"),
        (["cat", "--temperature", "-1"], "--temperature"),
        (["cat", "--top-p", "0"], "above 0 and at most 1"),
        (["cat", "--top-k", "1.5"], "whole number from 0 up"),
        (["cat", "--seed", str(2**64)], f"from 0 to {2**64 - 1}"),
        (["cat", "--batch", "0"], "whole number from 1 to 10000"),
        (["cat", "--tolerance", "inf"], "--tolerance"),
        (["cat", "--rounds", "2"], "--rounds has no meaning with --mode auto; drop it or use --mode rolling or"),
        (["cat", "--window-rows", "2", "--rounds", "2"], "--rounds has no meaning with --mode rolling; drop it or use"),
        (["cat", "--mode", "auto", "--window-rows", "2"], "--window-rows has no meaning with --mode auto"),
        (
            ["cat", "--jacobi-window", "8"],
            "--jacobi-window has no meaning with --mode auto; drop it or use --decoder sjd",
        ),
        (["cat", "--decoder", "sjd", "--jacobi-window", "0"], "whole number from 1 up"),
        (["cat", "--decoder", "sjd", "--tolerance", "2"], "--tolerance has no meaning with --decoder sjd"),
        (["cat", "--decoder", "mtp", "--drafts", "left"], "--drafts has no meaning with --decoder mtp"),
        (["cat", "--decoder", "mtp", "--heads", "none"], "1D-MTP needs a heads file, got none"),
        (["cat", "--decoder", "mtp", "--rounds", "0"], "at least 1 token and 1 round, got 5 and 0"),
        (["cat", "--decoder", "ar", "--drafts", "left"], "--drafts has no meaning with --decoder ar"),
        (["cat", "--drafts", "heads", "--heads", "none"], "--drafts heads needs heads, got --heads none"),
        (["cat", "--drafts", "best"], "'best'"),
        (["cat", "--mode", "rounds", "--window-rows", "2"], "use --mode rolling"),
        (["cat", "--decoder", "ar", "--mode", "rounds"], "use --decoder ssd"),
        (["cat", "--decoder", "ar", "--compare"], "drop one of them"),
        (["cat", "--decoder", "ar", "--heads", "x.safetensors"], "--heads has no meaning with --decoder ar"),
        (["cat", "--repeats", "2"], "--repeats has no meaning without --compare"),
        (["a cat", "a dog", "--batch", "2"], "got 2 prompts and --batch 2"),
        (["cat", "--negative", "dog", "--cfg", "1"], "--cfg above 1"),
        (["cat", "-o", "cat.jpg"], "'cat.jpg', expected a name ending in .png"),
        (["cat", "-o", ".png"], "'.png', expected a name ending in .png"),
        (["cat", "-o", ""], "-o: got an empty name"),
        (["cat", "-o", "~nobody-of-that-name/x.png"], "whose home folder is not known"),
        (["cat", "-o", "x.png", "--tokens-out", "x-ar.png", "--compare"], "name one file; give each its own"),
        (["a cat", "a dog", "-o", "y.png", "--rows-gif", "y-2.png"], "name one file; give each its own"),
        (["cat", "-o", "x.png", "--rows-gif", "./x.png"], "name one file; give each its own"),
        (["cat", "--tokens-out", "x", "--rows-gif", "x"], "name one file; give each its own"),
        (["cat", "--threads", "100000"], "--threads: got '100000', expected a whole number from 1 to"),
        (["cat", "--seed", "\u0663"], "expected a whole number"),
        (["cat \udcff"], "'\\udcff'"),
        (["cat", "--cfg", "1e38"], "guidance must be from 0 to"),
        (["cat", "--device", "abacus"], "'abacus'"),
        (["cat", "--device", "meta"], "'meta', which torch cannot use here"),
        (["cat", "--heads", "nowhere.safetensors"], "nowhere.safetensors"),
        (["cat", "--frobnicate"], "--frobnicate"),
        ([], "PROMPT"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(cli, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("generate", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_drawn(cli, tmp_path, monkeypatch):
    def refuse(self, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(setup, "load_model", lambda *_: pytest.fail("the model was loaded"))
    monkeypatch.setattr(Path, "open", refuse)  # a test may run as root, who may write everywhere
    for arguments in (["-o", f"{tmp_path}/x.png"], ["-o", f"{tmp_path}/"]):
        code, _, err = cli("generate", "cat", *arguments)
        assert (code, err) == (2, f"error: {tmp_path}: Permission denied\n")


def test_a_folder_in_the_way_and_a_missing_model_are_one_line(cli, capsys, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for arguments in (["-o", f"{tmp_path}/file/x.png"], ["-o", f"{tmp_path}/", "--rows-gif", str(tmp_path)]):
        code, _, err = cli("generate", "cat", *arguments)
        assert code == 2
        assert err.startswith(f"error: {tmp_path}")
        assert err.count("\n") == 1
    assert names(tmp_path) == ["file"]
    assert main(["generate", "cat", "--model", str(tmp_path), "-o", f"{tmp_path}/"]) == 2
    assert "config.json" in capsys.readouterr().err


def test_running_out_of_memory_is_one_line_and_other_bugs_are_not_hidden(cli, tmp_path, monkeypatch):
    def too_big(*_: object, **__: object) -> None:
        torch.empty(10**14)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(setup, "generate", too_big)
    code, out, err = cli("generate", "cat", "-o", f"{tmp_path}/")
    assert (code, out) == (2, "")
    assert err == "error: out of memory; draw fewer pictures at once (--batch) or smaller ones (--size)\n"
    assert "--micro-batch 1" in _smaller(parse(["distill", "train", "x", "-o", "y"]))
    monkeypatch.setattr(setup, "generate", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        cli("generate", "cat", "-o", f"{tmp_path}/")


def test_a_failed_write_leaves_no_half_file_and_the_old_one_untouched(cli, tmp_path, monkeypatch):
    file = tmp_path / "cat.png"
    file.write_bytes(b"old")

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", fail)
    code, _, err = cli("generate", "cat", "-o", str(file))
    assert (code, err) == (2, f"error: {file}: No space left on device\n")
    assert names(tmp_path) == ["cat.png"]
    assert file.read_bytes() == b"old"
    assert cli("generate", "cat", "-o", f"{tmp_path}/new/")[0] == 2
    assert names(tmp_path / "new") == []
