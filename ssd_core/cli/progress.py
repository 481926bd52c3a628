"""One line on stderr that shows how far the rows have come."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

from ..report import RowsEvent

WIDTH = 16
REFRESH_SECONDS = 0.1


class ProgressBar:
    """Draws over its own line, at most ten times a second, and removes it at the end. Use as a context manager."""

    def __init__(self, wanted: bool | None, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty() if wanted is None else wanted
        self._last = -REFRESH_SECONDS
        self._length = 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw("")
        if self._shown:
            self._stream.write("\r")
            self._stream.flush()

    def on_rows(self, event: RowsEvent) -> None:
        """Show an event of `generate`, if the last one is long enough ago."""
        now = time.perf_counter()
        if self._shown and now - self._last >= REFRESH_SECONDS:
            self._last = now
            self._draw(line(event))

    def note(self, text: str) -> None:
        """Show a plain text instead of a bar."""
        self._draw(text)

    def _draw(self, text: str) -> None:
        if not self._shown:
            return
        text = text[: shutil.get_terminal_size().columns - 1]  # a wrapped line could not be drawn over
        self._stream.write("\r" + text.ljust(self._length))
        self._stream.flush()
        self._length = len(text)


def line(event: RowsEvent) -> str:
    """`rows 12/24 [########--------] 50%  31 forwards  acceptance 0.62  0.8 s left`; rows are the slowest picture's."""
    rows = event.codes.shape[1]
    share = sum(event.accepted) / (event.total * len(event.accepted))
    filled = int(share * WIDTH)
    parts = [
        f"rows {min(event.rows_accepted)}/{rows} [{'#' * filled}{'-' * (WIDTH - filled)}] {share:4.0%}",
        f"{event.forwards} forwards",
    ]
    if event.acceptance is not None:
        parts.append(f"acceptance {event.acceptance:.2f}")
    if share > 0:
        parts.append(f"{event.elapsed * (1 - share) / share:.1f} s left")
    return "  ".join(parts)
