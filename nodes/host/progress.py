"""ComfyUI's own progress bar."""

from __future__ import annotations

from typing import Any

from comfy.utils import ProgressBar


class RowProgress:
    """Counts rows, a step for each. Every update is also a place where ComfyUI raises its exception for Stop."""

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


class ShareProgress:
    """A share of the work, from 0 to 1, with a picture of how it goes."""

    _STEPS = 1000
    _SIDE = 512

    def __init__(self) -> None:
        self._bar = ProgressBar(self._STEPS)
        self._done = 0

    def reached(self, share: float, picture: Any = None) -> None:
        """``picture``: a PIL image that ComfyUI shows on the node, or None for the one that is there.

        The browser hears of it when the bar moves or there is a picture, not every time.
        """
        done = max(self._done, round(share * self._STEPS))
        if done == self._done and picture is None:
            return
        self._done = done
        preview = None if picture is None else ("JPEG", picture, self._SIDE)
        self._bar.update_absolute(self._done, self._STEPS, preview)
