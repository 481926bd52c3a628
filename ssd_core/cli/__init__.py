"""The command line: `generate` draws, `words` lists what the model knows.

It parses, calls `generate()` and writes files; how a picture is decoded it does not know.
"""

from .main import main

__all__ = ["main"]
