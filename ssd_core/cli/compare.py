"""`generate --compare`: the same seed by plain decoding and by SSD."""

from __future__ import annotations

import json

from ..compare import compare as compare_decoders
from ..summary import comparison_text
from ..writing import write
from .arguments import GenerateOptions
from .draw import prepare_outputs, save
from .progress import ProgressBar
from .rows_gif import RowsRecorder
from .setup import load, schedule_of

_REPEATS = 3


def compare(options: GenerateOptions) -> None:
    """Draw with both decoders, write both pictures and print what SSD gained."""
    target = prepare_outputs(options)
    setup = load(options)
    with ProgressBar(options.progress) as bar:
        # No progress while a run is timed: plain decoding would pay most, it has an event for every code.
        comparison = compare_decoders(
            setup.backbone,
            setup.prompt,
            schedule=schedule_of(options),
            repeats=options.repeats or _REPEATS,
            note=bar.note,
            **setup.settings(),
        )
        gif = None
        if options.rows_gif is not None:
            bar.note("compare: drawing once more for the animation")
            recorder = RowsRecorder()
            setup.draw(schedule_of(options), recorder.on_rows)
            gif = recorder.gif_bytes(setup.backbone)
    files = save(setup, comparison.ssd, target)
    files += save(setup, comparison.plain, target, beside=files)
    if options.rows_gif is not None and gif is not None:
        files.append(write(options.rows_gif, gif))
    if options.json:
        print(json.dumps(comparison.to_dict(), allow_nan=False))
    else:
        print(comparison_text(comparison, files))
