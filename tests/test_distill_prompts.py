"""Prompts for distillation: every file format, the starters, and how a plan is drawn from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ssd_core import SSDError, load_backbone
from ssd_core.distill.prompts import STARTER_FILE, check_prompts, plan_prompts, read_prompts, starter_prompts

GOOD = {
    "a.txt": "\ufeffa cat\n\n  a dog, on grass \n",
    "b.jsonl": '{"prompt": "a cat"}\n\n"a dog, on grass"\n',
    "c.jsonl": '{"id": 1, "caption": "a cat"}\n{"text": "a dog, on grass"}\n',
    "d.csv": 'id,prompt\n1,a cat\n2,"a dog, on grass"\n',
    "e.csv": 'a cat\n"a dog, on grass"\n',
    "f.CSV": 'Text,score\na cat,1\n"a dog, on grass",2\n',
}


@pytest.mark.parametrize("name", GOOD)
def test_every_format_gives_the_same_prompts(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(GOOD[name], encoding="utf-8")
    assert read_prompts(path) == ["a cat", "a dog, on grass"]


@pytest.mark.parametrize("name", ["a.txt", "b.jsonl", "c.csv"])
def test_only_line_ends_end_lines(tmp_path: Path, name: str) -> None:
    """Unicode knows more separators than files do; JSON writes them as they are."""
    prompts = [f"a cat{odd}on grass" for odd in "\u2028\u2029\u0085\x0c"]
    lines = [json.dumps(prompt, ensure_ascii=False) if name == "b.jsonl" else prompt for prompt in prompts]
    (tmp_path / name).write_bytes("\r\n".join(lines).encode())
    assert read_prompts(tmp_path / name) == prompts


BAD = {
    "a.txt": ("\n \n", "holds no prompts"),
    "b.jsonl": ('"a cat"\n{"prompt": \n', "line 2: not JSON"),
    "c.jsonl": ('{"words": "a cat"}\n', "line 1: expected a text or an object"),
    "d.jsonl": ('{"prompt": 3}\n', "line 1: expected a text"),
    "e.csv": ("id,words\n1,a cat\n", "columns id, words; name the one with the prompts 'prompt'"),
    "f.csv": ("id,prompt\n1\n", "row 1: got 1 columns, expected 2"),
    "g.csv": ('prompt\n"a cat\n', "not a csv table"),
    "h.md": ("a cat\n", "from a .txt, .jsonl or .csv file, got 'h.md'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    text, message = BAD[name]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SSDError) as caught:
        read_prompts(path)
    assert message in str(caught.value)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("ein Löwe\n".encode("latin-1"))
    with pytest.raises(SSDError, match="not UTF-8"):
        read_prompts(path)


def test_starters_suit_the_backbone(tiny_model: Path) -> None:
    """The embedded model's are in its words, varied, and the same each time; a smaller vocabulary has fewer of them."""
    backbone = load_backbone()
    prompts = starter_prompts(backbone)
    check_prompts(backbone, prompts, "starters")
    assert prompts == starter_prompts(backbone)
    used = {word for prompt in prompts for word in prompt.replace("grey", "gray").split()}
    assert set(backbone.words()) - {word.removesuffix("s") for word in used} - used == set()  # type: ignore[attr-defined]
    assert len(set(prompts)) > 300
    tiny = load_backbone(tiny_model)
    check_prompts(tiny, starter_prompts(tiny), "starters")
    lines = read_prompts(STARTER_FILE)
    assert len(lines) == len(set(lines)) >= 400


def test_an_unreadable_prompt_is_named_by_number(tiny_model: Path) -> None:
    with pytest.raises(SSDError, match=r"prompt 2 of list\.txt \('a zebra'\).*'zebra'"):
        check_prompts(load_backbone(tiny_model), ["a cat", "a zebra"], "list.txt")


def test_a_longer_plan_begins_with_the_shorter_one() -> None:
    """Pictures can be added later; every prompt comes round before one comes again; a tenth is empty."""
    prompts = [f"prompt {n}" for n in range(50)]
    plan = plan_prompts(prompts, 1000, seed=3, empty=0.1)
    assert plan[:130] == plan_prompts(prompts, 130, seed=3, empty=0.1)
    assert plan[:50] != plan_prompts(prompts, 50, seed=4, empty=0.1)
    for start in range(0, 1000, 50):
        named = [prompt for prompt in plan[start : start + 50] if prompt]
        assert len(named) == len(set(named))
    assert 70 <= plan.count("") <= 130
    assert "" not in plan_prompts(prompts, 200, seed=3, empty=0.0)
