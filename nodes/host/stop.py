"""The Stop button."""

from __future__ import annotations

import comfy.model_management as management

Stopped: type[BaseException] = management.InterruptProcessingException


def poll() -> bool:
    """Raises ComfyUI's own exception when the user pressed Stop; else False, so that it can serve as ``should_stop``.

    The exception must reach ComfyUI as it is: that is how it tells a stop from a failure.
    """
    management.throw_exception_if_processing_interrupted()
    return False
