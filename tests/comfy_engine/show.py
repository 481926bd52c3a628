"""`dev.py comfy`: a real ComfyUI with this extension, to look at in a browser."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

import dev

from .build import build
from .server import ComfyServer, ServerError


def main(arguments: list[str]) -> int:
    """Build if needed, start, tell where it is, wait for Ctrl-C. What is not ours goes to ComfyUI's main.py."""
    parser = argparse.ArgumentParser(prog="dev.py comfy", description=__doc__, allow_abbrev=False)
    parser.add_argument("--base", type=Path, help="folder for models, input and output (default: beside the engine)")
    parser.add_argument("--port", type=int, default=8188)
    parser.add_argument("--newest-frontend", action="store_true", help="not the frontend that this ComfyUI pins")
    options, rest = parser.parse_known_args(arguments)
    engine = build()
    base = (options.base or engine.home / "base").resolve()
    server = ComfyServer(
        engine,
        base,
        frontend=engine.newest_frontend if options.newest_frontend else None,
        port=options.port,
        cpu=not dev.has_nvidia(),
        more_options=rest,
        log_to_console=True,
    )
    signal.signal(signal.SIGTERM, interrupt)  # so that the server ends with us
    try:
        with server:
            dev.say(f"ComfyUI runs at {server.url} ; its models, input and output are in {base} ; Ctrl-C ends it")
            return server.wait()
    except KeyboardInterrupt:
        dev.say("ComfyUI has ended")
        return 0
    except ServerError as error:
        raise dev.DevError(str(error)) from None


def interrupt(*_: Any) -> None:
    """End as Ctrl-C would."""
    raise KeyboardInterrupt
