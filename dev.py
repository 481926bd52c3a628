"""Sets the project up, draws with it and tests it, on any system with Python >= 3.10 and pip.

    python3 dev.py setup     make the environment, nothing else
    python3 dev.py demo      draw a picture with the embedded model and compare SSD with plain decoding
    python3 dev.py comfy     start a real ComfyUI with this extension (builds one in a cache folder, about 2 GB, once)
    python3 dev.py test      run the tests (--quick: not the slow ones; --comfy: those in a real ComfyUI and in a
                             browser; --all: all of them)
    python3 dev.py check     ruff, ruff format and mypy

What follows the command's own options is handed on: `dev.py demo "a cat on grass" --seed 5`, `dev.py test -k stream`.
Without such arguments the tests that need no server run in up to four processes.

Where it installs: nowhere if the running interpreter has everything; otherwise in `.venv` beside this file. If the
running interpreter already has torch, `.venv` sees that torch instead of installing a second one.
The standard library is all this file may use, and it must at least parse on old Pythons to say what is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
OLDEST_PYTHON = (3, 10)
# The release that the tests and the published figures were made with. requirements.txt allows every one from 2.5 on.
TESTED_TORCH = "torch==2.13.0"
# PyPI's Linux wheels for x86-64 carry several GB of CUDA libraries; this is PyTorch's own index without them.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DEMO_PROMPT = "a rocket at night"
DEMO_FILE = ROOT / "demo" / "picture.png"
INHERIT = "inherited.pth"
# Processes for the tests that need no server, at most: each takes about 1 GB. Tests in ComfyUI share one server.
TEST_PROCESSES = min(4, os.cpu_count() or 1)
# pytest's -m for each switch of `test`; without a switch pyproject.toml's default counts.
TEST_SWITCHES = {
    "--quick": "not (slow or comfy or browser or gpu)",
    "--comfy": "comfy or browser",
    "--all": "not gpu",
}


class DevError(Exception):
    """Something the reader can mend: one clear sentence, no traceback."""


# --- what is wanted, what is there ---------------------------------------------------------------------------------


def run_requirements(root: Path = ROOT) -> list[str]:
    """The lines of requirements.txt without comments and blanks."""
    lines = (
        line.split("#")[0].strip() for line in (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    )
    return [line for line in lines if line]


def extra_requirements(name: str, root: Path = ROOT) -> list[str]:
    """An extra of pyproject.toml, read without tomllib because Python 3.10 has none."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    table = re.search(r"^\[project\.optional-dependencies\]\n(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    block = re.search(rf"^{name} = \[\n(.*?)^\]", table.group(1), re.MULTILINE | re.DOTALL) if table else None
    if block is None:
        raise DevError(f"pyproject.toml has no list `{name}` under [project.optional-dependencies]; restore it")
    return re.findall(r'"([^"]+)"', block.group(1))


def release(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13): the release numbers without trailing zeros, so that 2.4 equals 2.4.0."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def project_name(requirement: str) -> str:
    """`torch>=2.4` -> `torch`."""
    return re.split(r"[<>=!~ \[;]", requirement, maxsplit=1)[0]


def is_met(requirement: str, version: str | None) -> bool:
    """Whether an installed version meets a requirement as ours are written: `name`, or `name>=1.2,<2`."""
    if version is None:
        return False
    limits = requirement[len(project_name(requirement)) :]
    for limit in filter(None, limits.split(",")):
        match = re.fullmatch(r"(>=|<)([\d.]+)", limit.strip())
        if match is None:
            raise DevError(f"requirement {requirement!r}: expected only >= and < limits; dev.py reads no others")
        at_least = release(version) >= release(match.group(2))
        if at_least != (match.group(1) == ">="):
            return False
    return True


def version_here(name: str) -> str | None:
    """The version of a package in this interpreter, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing_here(requirements: list[str]) -> list[str]:
    """The requirements that the running interpreter does not meet."""
    return [item for item in requirements if not is_met(item, version_here(project_name(item)))]


def missing_in(python: Path, requirements: list[str]) -> list[str]:
    """The requirements that another interpreter does not meet."""
    code = "import dev, json, sys; print(json.dumps(dev.missing_here(sys.argv[1:])))"
    done = subprocess.run(
        [str(python), "-c", code, *requirements], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return list(json.loads(done.stdout))


# --- installing ----------------------------------------------------------------------------------------------------


def has_nvidia() -> bool:
    """Whether an NVIDIA driver answers; without one the CUDA build of torch is several GB for nothing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    return subprocess.run([tool, "-L"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def torch_attempts(system: str, machine: str, nvidia: bool, wish: str | None) -> list[list[str]]:
    """pip arguments to try in turn until one installs torch.

    The tested release comes first, an open range second (for Pythons that the tested release has no build for). On
    Linux x86-64 without an NVIDIA driver the CPU index is asked before PyPI, briefly: behind a firewall it is silent.
    `--no-deps` keeps everything but torch itself coming from PyPI.
    """
    specs = [wish] if wish else [TESTED_TORCH, "torch>=2.5"]
    if system == "Linux" and machine in ("x86_64", "AMD64") and not nvidia:
        quick = ["--index-url", CPU_INDEX, "--timeout", "15", "--retries", "1", "--no-deps"]
        return [[*where, spec] for spec in specs for where in (quick, [])]
    return [[spec] for spec in specs]


def pip(python: Path) -> list[str]:
    """The pip that installs for `python`: its own, or ours aimed at it where Debian ships venv without pip."""
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    own = subprocess.run([str(python), "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    command = (
        [str(python), "-m", "pip"] if own.returncode == 0 else [sys.executable, "-m", "pip", "--python", str(python)]
    )
    return [*command, "--disable-pip-version-check", "--no-input", *quiet, "install"]


def install_torch(python: Path) -> None:
    """Install torch, the CPU build where sensible; SSD_TORCH_SPEC (e.g. `torch==2.6.0`) overrules the version."""
    attempts = torch_attempts(platform.system(), platform.machine(), has_nvidia(), os.environ.get("SSD_TORCH_SPEC"))
    for number, arguments in enumerate(attempts):
        if number and CPU_INDEX in attempts[number - 1]:
            say(f"{CPU_INDEX} did not give {arguments[-1]}; trying PyPI, whose Linux build can be several GB")
        say(f"installing {arguments[-1]}" + (" (CPU build)" if CPU_INDEX in arguments else ""))
        if subprocess.run([*pip(python), *arguments]).returncode == 0:
            return
    raise DevError(
        f"torch could not be installed for Python {platform.python_version()} (pip's reason is above); install torch "
        "yourself as https://pytorch.org says and run this again, or name a version in SSD_TORCH_SPEC"
    )


def install(python: Path, requirements: list[str]) -> None:
    """Bring `python`'s environment to `requirements`, touching nothing that already meets them."""
    missing = missing_in(python, requirements)
    if any(project_name(item) == "torch" for item in missing):
        install_torch(python)
    # pip checks all of them, not only the missing: torch's own needs are still open after --no-deps.
    say("installing " + (", ".join(project_name(item) for item in missing) or "nothing new"))
    if subprocess.run([*pip(python), *requirements]).returncode != 0:
        raise DevError(
            "pip could not install the requirements (its reason is above); check the network and run this again"
        )


# --- choosing the environment --------------------------------------------------------------------------------------


def venv_python() -> Path:
    """The interpreter of `.venv`."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def inherited_paths() -> list[str]:
    """The running interpreter's package folders, if it has a torch worth sharing with `.venv`."""
    if missing_here([item for item in run_requirements() if project_name(item) == "torch"]):
        return []
    return [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]


def has_ensurepip() -> bool:
    """Whether venv can bring pip; Debian's python3 may lack that, and the outer pip then installs (see `pip`)."""
    return importlib.util.find_spec("ensurepip") is not None


def make_venv(inherited: list[str]) -> None:
    """An empty `.venv` that also sees the inherited package folders (after its own)."""
    say(f"making {VENV}")
    without_pip = [] if has_ensurepip() else ["--without-pip"]
    if subprocess.run([sys.executable, "-m", "venv", "--clear", *without_pip, str(VENV)]).returncode != 0:
        raise DevError("python -m venv failed (its reason is above); on Debian or Ubuntu: apt install python3-venv")
    if inherited:
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        done = subprocess.run([str(venv_python()), "-c", code], stdout=subprocess.PIPE, text=True, check=True)
        Path(done.stdout.strip(), INHERIT).write_text("\n".join(inherited) + "\n", encoding="utf-8")


def prepare(extras: list[str], standalone: bool) -> Path:
    """The interpreter to run with, its environment installed as far as needed."""
    requirements = run_requirements() + [item for extra in extras for item in extra_requirements(extra)]
    if Path(sys.prefix).resolve() == VENV.resolve():
        if missing_here(requirements):
            install(Path(sys.executable), requirements)
        return Path(sys.executable)
    if not standalone and not missing_here(requirements):
        return Path(sys.executable)
    if not venv_python().exists() or (standalone and any(VENV.rglob(INHERIT))):
        make_venv([] if standalone else inherited_paths())
    # What was installed is written down, so that the next run need not ask pip.
    stamp = VENV / "installed.json"
    done = json.loads(stamp.read_text(encoding="utf-8")) if stamp.exists() else {}
    if done.get("python") != sys.version or not set(requirements) <= set(done.get("requirements", [])):
        install(venv_python(), requirements)
        stamp.write_text(json.dumps({"python": sys.version, "requirements": requirements}), encoding="utf-8")
    return venv_python()


# --- commands ------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """A line of our own among pip's and pytest's."""
    print(f"dev.py: {text}", flush=True)


def run(python: Path, *arguments: str) -> int:
    """Run `python -m …` in the repository; its exit code (128 + signal number if a signal ended it)."""
    code = subprocess.run([str(python), "-m", *arguments], cwd=ROOT).returncode
    return code if code >= 0 else 128 - code


def demo(python: Path, rest: list[str]) -> int:
    """Draw one prompt by plain decoding and by SSD; the command line prints the files and the speed-up."""
    own_prompt = any(not item.startswith("-") for item in rest[:1])
    prompt = [] if own_prompt else [DEMO_PROMPT]
    # Ours first: where an option comes twice the last one counts.
    return run(python, "ssd_core", "generate", "--compare", "-o", str(DEMO_FILE), *prompt, *rest)


def comfy(python: Path, rest: list[str]) -> int:
    """A real ComfyUI in the foreground; tests/comfy_engine builds and starts it, with a Python of its own."""
    sys.modules.setdefault("dev", sys.modules[__name__])  # it imports this file, which may run as __main__
    sys.path.insert(0, str(ROOT / "tests"))
    return int(importlib.import_module("comfy_engine.show").main(rest))


def test(python: Path, rest: list[str]) -> int:
    """pytest, with the tests that a switch chooses; without one those that need no server, browser or GPU.

    In several processes only where that is sure to be faster and wanted: no server, nothing else handed to pytest.
    """
    chosen = [switch for switch in TEST_SWITCHES if switch in rest]
    if len(chosen) > 1:
        raise DevError(f"got several of {', '.join(TEST_SWITCHES)}; expected one at most")
    marks = ["-m", TEST_SWITCHES[chosen[0]]] if chosen else []
    own = [item for item in rest if item not in TEST_SWITCHES]
    spread = not own and chosen in ([], ["--quick"]) and TEST_PROCESSES > 1
    processes = ["-n", str(TEST_PROCESSES), "--dist", "worksteal"] if spread else []
    return run(python, "pytest", *marks, *processes, *own)


def check(python: Path, rest: list[str]) -> int:
    """The linter, the formatter and the type checker, all three even if the first complains."""
    codes = [run(python, "ruff", "check", *rest), run(python, "ruff", "format", "--check"), run(python, "mypy")]
    return max(codes)


def extras_of(command: str, rest: list[str]) -> list[str]:
    """The extras of pyproject.toml that a command needs."""
    if command == "test":
        return ["dev", "comfy"] if {"--all", "--comfy"} & set(rest) else ["dev"]
    return ["dev"] if command == "check" else []


COMMANDS = {"setup": None, "demo": demo, "comfy": comfy, "test": test, "check": check}


def main(arguments: list[str]) -> int:
    """Parse, prepare, run. Returns the exit code."""
    if sys.version_info < OLDEST_PYTHON:
        print(f"dev.py: got Python {platform.python_version()}, expected 3.10 or newer; run it with a newer python3")
        return 2
    parser = argparse.ArgumentParser(
        prog="dev.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("command", choices=sorted(COMMANDS))
    parser.add_argument(
        "--standalone", action="store_true", help="use a .venv of its own even if torch is here already"
    )
    options, rest = parser.parse_known_args(arguments)
    try:
        action = COMMANDS[options.command]
        if action is comfy:  # needs nothing here: ComfyUI has an environment of its own
            return comfy(Path(sys.executable), rest)
        python = prepare(extras_of(options.command, rest), options.standalone)
        if action is None:
            say(f"ready: {python}")
            return 0
        return action(python, rest)
    except DevError as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
