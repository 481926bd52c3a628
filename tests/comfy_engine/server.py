"""Runs a built ComfyUI on a free port with a folder of its own, this repository linked into its custom_nodes."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import dev

from .build import Engine

REPOSITORY = dev.ROOT
# ComfyUI makes module names out of folder names: a space, a dot and letters of another script must all do.
LINK_NAME = "spatial speculative.decoding 空間"
START_ATTEMPTS = 3


class ServerError(Exception):
    """The server did not start or is gone; the message ends with its log."""


class ComfyServer:
    """One ComfyUI process. `with ComfyServer(engine, folder) as server: ... server.url ...`.

    `base` holds everything it reads and writes (custom_nodes, models, input, output, user); it may be prepared before
    the start and looked at after the end. `custom_nodes` are linked in beside `extension` (this repository).
    """

    def __init__(
        self,
        engine: Engine,
        base: Path,
        *,
        frontend: Path | None = None,
        model_paths: Path | None = None,
        environment: Mapping[str, str] | None = None,
        custom_nodes: Sequence[Path] = (),
        extension: Path = REPOSITORY,
        link_name: str = LINK_NAME,
        port: int | None = None,
        cpu: bool = True,
        more_options: Sequence[str] = (),
        log_to_console: bool = False,
    ) -> None:
        self.engine = engine
        self.base = base
        self.log_file = base / "server.log"
        self.port = port
        self._options = ["--front-end-root", str(frontend)] if frontend else []
        self._options += ["--extra-model-paths-config", str(model_paths)] if model_paths else []
        self._options += [*(["--cpu"] if cpu else []), *more_options]
        self._log_to_console = log_to_console
        self._environment = {**os.environ, **(environment or {})}
        self._custom_nodes = {link_name: extension, **{folder.name: folder for folder in custom_nodes}}
        self._process: subprocess.Popen[bytes] | None = None

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 180.0) -> None:
        """Start it and wait until it answers. Raises ServerError."""
        for name in ("custom_nodes", "models", "input", "output", "user"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        for name, folder in self._custom_nodes.items():
            link(self.base / "custom_nodes" / name, folder)
        wanted = self.port
        if wanted and not is_free(wanted):
            raise ServerError(f"port {wanted} is in use, perhaps by another ComfyUI; choose another one")
        for attempt in range(START_ATTEMPTS):
            self.port = wanted or free_port()
            self._launch()
            try:
                self._wait(timeout)
                return
            except ServerError:
                self.stop()
                # Another program may have taken the free port in the meantime; any other failure would come again.
                if wanted or attempt + 1 == START_ATTEMPTS or "address already in use" not in self.log().lower():
                    raise

    def _launch(self) -> None:
        command = [str(self.engine.python), str(self.engine.main), "--port", str(self.port)]
        command += ["--base-directory", str(self.base), "--database-url", "sqlite:///:memory:"]
        command += ["--disable-api-nodes", "--disable-auto-launch", "--dont-print-server", *self._options]
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.engine.main.parent,
                env=self._environment,
                stdout=None if self._log_to_console else log,
                stderr=None if self._log_to_console else subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )

    def _wait(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if not self.alive:
                raise ServerError(f"ComfyUI ended while starting\n{self.log()}")
            try:
                with urllib.request.urlopen(f"{self.url}/system_stats", timeout=10) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise ServerError(f"ComfyUI did not answer within {timeout:.0f} s\n{self.log()}")

    def stop(self) -> None:
        """End it; nothing happens if it is not running."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> ComfyServer:
        try:
            self.start()
        except BaseException:  # Ctrl-C while it starts
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.stop()

    def wait(self) -> int:
        """Wait until it ends by itself; its exit code."""
        assert self._process is not None
        return self._process.wait()

    # --- looks -----------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """http://host:port, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def log(self, characters: int = 6000) -> str:
        """The end of what it printed."""
        if not self.log_file.exists():
            return ""
        return self.log_file.read_text(encoding="utf-8", errors="replace")[-characters:]

    def memory(self) -> int:
        """Resident memory in bytes; Linux only."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii", errors="replace")
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found.group(1)) * 1024


def _parent_death_signal() -> Callable[[], None] | None:
    """What a child calls to be ended when we are, even if we are killed and cannot end it; Linux only."""
    if sys.platform != "linux":
        return None
    control, set_death_signal = ctypes.CDLL(None).prctl, 1
    return lambda: control(set_death_signal, signal.SIGTERM)


end_with_parent = _parent_death_signal()


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether nobody listens on a port."""
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def link(place: Path, folder: Path) -> None:
    """Make `place` lead to `folder`; on Windows a junction, because links need a privilege there."""
    if place.is_symlink() or place.exists():
        return
    if os.name == "nt":
        command = ["cmd", "/c", "mklink", "/J", str(place), str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    else:
        place.symlink_to(folder, target_is_directory=True)


def chromium() -> str | None:
    """The path of an installed Chromium or Chrome, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next(filter(None, map(shutil.which, names)), None)
