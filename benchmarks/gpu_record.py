"""The benchmark's JSON file: written after every figure, taken up again by ``--resume``."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any, Literal

import torch

from ssd_core import SSDError

FORMAT = 2
Status = Literal["done", "partial", "failed", "skipped"]
"""``partial``: being measured, or cut off; ``--resume`` measures it anew, like ``failed``."""
Data = dict[str, Any]


class Record:
    """``sections``: name -> {status, seconds, reason, data}; ``facts``: device, driver, versions, settings."""

    def __init__(self, path: Path, facts: Data) -> None:
        self.path = path
        self.facts = facts
        self.sections: dict[str, Data] = {}

    @classmethod
    def start(cls, path: Path, facts: Data) -> Record:
        """A new file. Raises SSDError when there is one already (figures of a rented device are not
        overwritten) or no folder for it."""
        if path.exists():
            raise SSDError(f"{path} exists already; go on with it by --resume, or give another --json")
        if not path.absolute().parent.is_dir():
            raise SSDError(
                f"there is no folder {path.absolute().parent} for {path.name}; make it, or give another --json"
            )
        record = cls(path, facts)
        record.write()
        return record

    @classmethod
    def resume(cls, path: Path, facts: Data) -> Record:
        """What ``path`` holds. Raises SSDError when it is missing, damaged, or from another device or software."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found, sections = content["facts"], content["sections"]
            version, entries = content["format"], {name: dict(entry) for name, entry in sections.items()}
        except FileNotFoundError as error:
            raise SSDError(f"there is no {path} to resume; start without --resume") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SSDError(f"cannot resume {path} ({type(error).__name__}: {error}); start a new file") from error
        if version != FORMAT:
            raise SSDError(f"{path} has format {version}, expected {FORMAT}; start a new file with another --json")
        differ = [key for key in facts if found.get(key) != facts[key]]
        if differ:
            told = "; ".join(f"{key}: got {found.get(key)!r}, now {facts[key]!r}" for key in sorted(differ))
            raise SSDError(f"{path} was measured elsewhere ({told}); start a new file with another --json")
        record = cls(path, facts)
        record.sections = entries
        return record

    def status(self, section: str) -> Status | None:
        entry = self.sections.get(section)
        return None if entry is None else entry["status"]

    def data(self, section: str) -> Data:
        """What the section measured so far, empty if nothing."""
        data: Data = self.sections.get(section, {}).get("data", {})
        return data

    def put(self, section: str, status: Status, data: Data, seconds: float, reason: str = "") -> None:
        """Stores a section and writes the file."""
        entry = {"status": status, "seconds": round(seconds, 2), "reason": reason, "data": data}
        self.sections[section] = entry
        self.write()

    def write(self) -> None:
        """Atomic: a run that is cut off leaves the file of the moment before."""
        content = {"format": FORMAT, "facts": self.facts, "sections": self.sections}
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(self.path)


def facts_of(device: torch.device, toy: bool, dtype: torch.dtype) -> Data:
    """Device, driver and versions; everything that must be the same for figures to stand in one table."""
    try:
        import transformers

        release = transformers.__version__
    except ImportError:
        release = "none"
    facts: Data = {
        "device": platform.processor() or platform.machine(),
        "device_bytes": None,
        "driver": None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": None,
        "transformers": release,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "dtype": str(dtype).removeprefix("torch."),
        "toy": toy,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "device": properties.name, "device_bytes": properties.total_memory, "driver": _driver(),
            "cudnn": torch.backends.cudnn.version(),
        }  # fmt: skip
    return facts


def _driver() -> str | None:
    """The NVIDIA driver's version as nvidia-smi tells it, None without that tool."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip()
