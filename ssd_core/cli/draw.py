"""`generate`: draw, write the files, report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import SSDError
from ..generation import Generation
from ..report import RowsEvent
from ..summary import report_text
from ..tokens import save_tokens, tokens_of
from ..version import __version__
from ..writing import check_folder, write
from .arguments import GenerateOptions
from .files import Target, picture_name, png_bytes
from .progress import ProgressBar
from .rows_gif import RowsRecorder
from .setup import Setup, load, schedule_of

PLAIN_MARK = "-ar"
"""Behind the name of plain decoding's picture."""


def draw(options: GenerateOptions) -> None:
    """Draw the prompts once and print a report (text or JSON)."""
    target = prepare_outputs(options)
    setup = load(options)
    recorder = RowsRecorder() if options.rows_gif else None
    with ProgressBar(options.progress) as bar:

        def on_rows(event: RowsEvent) -> None:
            bar.on_rows(event)
            if recorder is not None:
                recorder.on_rows(event)

        result = setup.draw(schedule_of(options), on_rows)
    files = save(setup, result, target)
    if recorder is not None and options.rows_gif is not None:
        files.append(write(options.rows_gif, recorder.gif_bytes(setup.backbone)))
    if options.json:
        report = {**result.report.to_dict(), "files": [str(file) for file in files]}
        print(json.dumps(report, allow_nan=False))
    else:
        print(report_text(result, files))


def prepare_outputs(options: GenerateOptions) -> Target:
    """Read `-o` and create the folders of all outputs, so that a bad path fails before the drawing."""
    target = Target.read(options.output)
    more = [file for file in (options.tokens_out, options.rows_gif) if file is not None]
    pictures = _picture_files(options, target) if target.is_file and more else []
    names = [file.resolve() for file in [*more, *pictures]]
    if len(set(names)) < len(names):
        raise SSDError("two of -o, --tokens-out and --rows-gif name one file; give each its own")
    target.make_folder()
    for file in more:
        file.parent.mkdir(parents=True, exist_ok=True)
        check_folder(file.parent)
        if file.is_dir():
            raise IsADirectoryError(21, "is a folder, expected a file name", str(file))
    return target


def _picture_files(options: GenerateOptions, target: Target) -> list[Path]:
    """What `save` will write where `-o` names a file."""
    of = len(options.prompts) * options.batch
    marks = ["", PLAIN_MARK] if options.compare else [""]
    return [target.file(number, of, mark) for mark in marks for number in range(1, of + 1)]


def save(setup: Setup, result: Generation, target: Target, beside: Sequence[Path] = ()) -> list[Path]:
    """Write every picture, and the tokens if asked for. `beside`: the files of the pictures that these, plain
    decoding's, belong to and are named after."""
    pictures = setup.pictures()
    mark = PLAIN_MARK if beside else ""
    files = []
    for number, (prompt, seed) in enumerate(pictures, start=1):
        data = png_bytes(result.images[number - 1], prompt, settings_of(result, prompt, seed))
        name = beside[number - 1].stem if beside else picture_name(prompt, seed)
        files.append(target.save(data, name, number, len(pictures), mark))
    if setup.options.tokens_out is not None and not mark:
        files.append(save_tokens(setup.options.tokens_out, tokens_of(result)))
    return files


def settings_of(result: Generation, prompt: str, seed: int) -> dict[str, Any]:
    """What it takes to draw one picture again."""
    settings = {**tokens_of(result).info, "prompt": prompt, "seed": seed, "version": __version__}
    del settings["prompts"]
    return settings
