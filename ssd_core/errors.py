"""The two exceptions a caller meets: a mistake that can be mended, and a stop that was asked for."""

from __future__ import annotations

from collections.abc import Callable

ShouldStop = Callable[[], bool]
"""Asked now and then during long work; True ends it with StopRequested."""


class SSDError(Exception):
    """A mistake the user can mend. The message says what was got, what was expected and what to do next."""


class StopRequested(SSDError):  # noqa: N818 - a wish that was granted, not an error
    """``should_stop()`` returned True: the run ended early, nothing was written, the backbone is still usable."""
