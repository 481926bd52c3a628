"""The mistake that the ComfyUI layer itself finds; the decoder has its own, ``ssd_core.SSDError``."""


class NodeError(Exception):
    """A mistake the user can mend. The message says what was got, what was expected and what to do next."""
