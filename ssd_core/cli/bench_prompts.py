"""`bench`: prompts from a JSONL file or from a folder of text files."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import SSDError
from ..families.base import Backbone


@dataclass(frozen=True)
class BenchPrompt:
    """A prompt, the name its picture must have where the evaluator goes by names (else None), the line it came from
    as one JSON object, and where that was."""

    text: str
    name: str | None
    line: str
    place: str


def read_prompts(path: Path, named: bool, limit: int | None) -> list[BenchPrompt]:
    """The prompts of a JSONL file or of a folder of .txt files, at most ``limit``.

    ``named``: every prompt needs a file name, unique and safe; else none gets one. Raises SSDError that names the line.
    """
    if path.is_dir():
        prompts = [_of_text(file, named) for file in sorted(path.glob("*.txt"))[:limit]]
        if not prompts:
            raise SSDError(f"{path} holds no .txt files; expected one prompt in each, or give a JSONL file")
        return prompts
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise SSDError(
            f"{path} is no text in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    prompts = [_of_line(line, f"{path}, line {number}", named) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise SSDError(f"{path} holds no prompts; expected one JSON object a line")
    prompts = prompts[:limit]
    if named:
        _check_unique(prompts)
    return prompts


def check_readable(prompts: list[BenchPrompt], backbone: Backbone) -> None:
    """Raises SSDError with the line of the first prompt that the backbone cannot read."""
    for prompt in prompts:
        try:
            backbone.check_prompt(prompt.text)
        except SSDError as error:
            raise SSDError(f"{prompt.place}: {error}") from error


def _of_text(file: Path, named: bool) -> BenchPrompt:
    try:
        text = file.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise SSDError(
            f"{file} is no text in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    if not text:
        raise SSDError(f"{file} is empty, expected a prompt")
    line = json.dumps({"id": file.stem, "prompt": text}, ensure_ascii=False)
    if not named:
        return BenchPrompt(text, None, line, str(file))
    _check_name(file.stem, str(file))
    return BenchPrompt(text, file.stem, line, str(file))


def _of_line(line: str, place: str, named: bool) -> BenchPrompt:
    try:
        content = json.loads(line)
    except (RecursionError, ValueError) as error:
        raise SSDError(f'{place}: no JSON ({error}); expected an object such as {{"prompt": "a cat"}}') from error
    if not isinstance(content, dict):
        raise SSDError(f'{place}: got {type(content).__name__}, expected an object such as {{"prompt": "a cat"}}')
    text, name = content.get("prompt"), content.get("id")
    if not isinstance(text, str) or not text.strip():
        raise SSDError(f'{place}: expected a text under "prompt", got {text!r}')
    if not named:
        return BenchPrompt(text, None, line.strip(), place)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise SSDError(f'{place}: expected the picture\'s name under "id", got {name!r}; --layout dpg goes by names')
    _check_name(str(name), place)
    return BenchPrompt(text, str(name), line.strip(), place)


def _check_name(name: str, place: str) -> None:
    """DPG-Bench's evaluator takes the name up to its first dot."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
        raise SSDError(f"{place}: got the name {name!r}, expected letters, digits, - and _ (no dot: it would be cut)")


def _check_unique(prompts: list[BenchPrompt]) -> None:
    seen: dict[str | None, str] = {}
    for prompt in prompts:
        if prompt.name in seen:
            raise SSDError(f"{prompt.place}: the id {prompt.name!r} is also that of {seen[prompt.name]}; use each once")
        seen[prompt.name] = prompt.place
