"""ComfyUI's own progress bar: one step a row."""

from __future__ import annotations

from comfy.utils import ProgressBar


class RowProgress:
    """Counts rows. Every update is also a place where ComfyUI raises its exception for Stop."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._bar = ProgressBar(rows)
        self._done = 0
        self._bar.update_absolute(0, rows)

    def reached(self, rows: int) -> None:
        """Rows that are final by now, in all images; one step for each, and the bar only moves forward."""
        while self._done < rows:
            self._done += 1
            self._bar.update_absolute(self._done, self._rows)
