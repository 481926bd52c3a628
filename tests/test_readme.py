"""README tells the truth: its commands parse, its Python runs, its error texts exist, its links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

import dev
from ssd_core.cli.arguments import GenerateOptions, parse
from ssd_core.families.emoji import EmojiBackbone
from ssd_core.families.loaders import load_backbone

DOCUMENTS = ("README.md", "CONTRIBUTING.md")
INSTALL = {"cd ComfyUI/custom_nodes", "git clone https://github.com/OWNER/spatial-speculative-decoding"}
"""All commands that are not Python's: how the extension gets into ComfyUI by hand."""


def blocks(repository: Path, language: str) -> list[str]:
    """The fenced code blocks of one language in the documents."""
    texts = [(repository / name).read_text(encoding="utf-8") for name in DOCUMENTS]
    found = [block for text in texts for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]
    assert found
    return found


def commands(repository: Path, start: list[str]) -> list[list[str]]:
    """The arguments of every shell command that begins with `start`."""
    lines = [shlex.split(line, comments=True) for block in blocks(repository, "bash") for line in block.splitlines()]
    others = {shlex.join(line) for line in lines if line and line[0] not in ("python", "python3")}
    assert others <= INSTALL
    found = [line[len(start) :] for line in lines if line[: len(start)] == start]
    assert found
    return found


def test_dev_commands_exist(repository):
    named = commands(repository, ["python3", "dev.py"])
    assert {"demo", "test"} <= {arguments[0] for arguments in named} <= set(dev.COMMANDS)


def test_command_lines_are_accepted(repository):
    for arguments in commands(repository, ["python", "-m", "ssd_core"]):
        parse(arguments)


def test_prompts_and_sizes_are_known_to_the_embedded_model(repository):
    backbone = load_backbone()
    assert isinstance(backbone, EmojiBackbone)
    for arguments in commands(repository, ["python", "-m", "ssd_core"]):
        options = parse(arguments)
        if isinstance(options, GenerateOptions):
            for prompt in options.prompts:
                backbone.prompt_rows([prompt], "", options.size or backbone.default_grid, guided=True)
    backbone.prompt_rows([dev.DEMO_PROMPT], "", backbone.default_grid, guided=True)


def test_python_block_runs_and_prints_what_it_says(repository, capsys):
    for block in blocks(repository, "python"):
        exec(compile(block, "README.md", "exec"), {})  # our own text, the very thing to test
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("torch.Size([1, ")
    forwards = int(last.split("]) ")[1].split()[0])
    rows, cols = load_backbone().default_grid
    assert forwards < rows * cols


def test_error_texts_of_the_troubleshooting_table_exist(repository):
    files = [repository / "dev.py", *(repository / "ssd_core").rglob("*.py"), *(repository / "nodes").rglob("*.py")]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    # What Python puts together from several literals and values stands apart in the source.
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    section = (repository / "README.md").read_text(encoding="utf-8").split("## Troubleshooting")[1].split("\n## ")[0]
    messages = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(messages) > 5
    foreign = "No module named 'torch'"
    for message in messages:
        if message != foreign:
            for part in filter(None, (piece.strip() for piece in message.split("…"))):
                assert part in source, f"{part!r} of {message!r} is said nowhere"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_local_links_and_pictures_exist(repository, name):
    text = (repository / name).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert [target for target in targets if not (repository / target).exists()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_to_sections_lead_somewhere(repository, name):
    text = (repository / name).read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    headings = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


@pytest.mark.parametrize("name", [*DOCUMENTS, "recipes/emoji_scenes/README.md"])
def test_modules_that_are_run_exist(repository, name):
    text = (repository / name).read_text(encoding="utf-8")
    named = set(re.findall(r"python -m ((?:benchmarks|recipes|ssd_core)(?:\.\w+)*)", text))
    assert [module for module in sorted(named) if importlib.util.find_spec(module) is None] == []


def test_no_figure_is_left_open(repository):
    assert not re.search(r"@@|NUMBERS|figures: filled from", (repository / "README.md").read_text(encoding="utf-8"))
