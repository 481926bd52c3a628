"""The Stop button."""

from __future__ import annotations

from typing import NoReturn

import comfy.model_management as management

Stopped: type[BaseException] = management.InterruptProcessingException


def poll() -> bool:
    """Raises ComfyUI's own exception when the user pressed Stop; else False, so that it can serve as ``should_stop``.

    The exception must reach ComfyUI as it is: that is how it tells a stop from a failure.
    """
    management.throw_exception_if_processing_interrupted()
    return False


def asked() -> bool:
    """Whether the user pressed Stop; unlike ``poll`` it leaves ComfyUI's mark, so that ``poll`` can raise later."""
    return bool(management.processing_interrupted())


def end() -> NoReturn:
    """Ends the run as Stop does, whether or not ComfyUI's mark is still there."""
    poll()
    raise Stopped
