"""The published models and how they are fetched: only when asked, through huggingface-hub, files that can be loaded.

Nothing else in this package touches the network.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from .errors import SSDError

_TEXT = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")
_WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
_ABOUT = ("README.md", "LICENSE*")


@dataclass(frozen=True)
class Part:
    """Files of one repository. ``into``: folder below the model's. ``makes``: the file that the part is fetched for and
    is converted into; where it exists already the part is not needed."""

    repository: str
    files: tuple[str, ...]
    into: str = ""
    makes: str | None = None


@dataclass(frozen=True)
class Published:
    """A published model; ``folder`` is its name under ``models/ar_backbones``."""

    folder: str
    parts: tuple[Part, ...]
    licence: str


_DEEPSEEK = (
    "DeepSeek Model License, commercial use allowed with restrictions on use "
    "(https://github.com/deepseek-ai/Janus/blob/main/LICENSE-MODEL)"
)
_CHAMELEON = (
    "Chameleon Research License of the base model, non-commercial "
    "(https://huggingface.co/GAIR/Anole-7b-v0.1/blob/main/LICENSE.txt)"
)
_APACHE = "Apache-2.0 (https://www.apache.org/licenses/LICENSE-2.0)"
VQGAN_CKPT = "tokenizer/vqgan.ckpt"

PUBLISHED = {
    "janus-pro-1b": Published(
        "Janus-Pro-1B", (Part("deepseek-community/Janus-Pro-1B", (*_TEXT, *_WEIGHTS, *_ABOUT)),), _DEEPSEEK
    ),
    "janus-pro-7b": Published(
        "Janus-Pro-7B", (Part("deepseek-community/Janus-Pro-7B", (*_TEXT, *_WEIGHTS, *_ABOUT)),), _DEEPSEEK
    ),
    "lumina-mgpt-7b-768": Published(
        "Lumina-mGPT-7B-768",
        (
            Part("Alpha-VLLM/Lumina-mGPT-7B-768", (*_TEXT, *_WEIGHTS, *_ABOUT)),
            Part("GAIR/Anole-7b-v0.1", (VQGAN_CKPT,), makes="vqgan.safetensors"),
        ),
        _CHAMELEON,
    ),
    "emu3-gen": Published(
        "Emu3-Gen",
        (
            Part("BAAI/Emu3-Gen", (*_TEXT, *_WEIGHTS, *_ABOUT, "emu3.tiktoken", "emu3_vision_tokens.txt")),
            Part("BAAI/Emu3-VisionTokenizer", ("config.json", *_WEIGHTS, *_ABOUT), into="Emu3-VisionTokenizer"),
        ),
        _APACHE,
    ),
    "emu3-gen-hf": Published("Emu3-Gen-hf", (Part("BAAI/Emu3-Gen-hf", (*_TEXT, *_WEIGHTS, *_ABOUT)),), _APACHE),
}


@dataclass(frozen=True)
class Offer:
    """What a download would bring: ``sizes``: repository -> (number of files, bytes); ``free``: bytes on the disk."""

    name: str
    model: Published
    target: Path
    parts: tuple[Part, ...]
    sizes: dict[str, tuple[int, int]]
    free: int

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.sizes.values())


def models_folder() -> Path:
    """``models/ar_backbones`` of the ComfyUI that this extension lies in, else below the current folder."""
    extension = Path(__file__).resolve().parents[1]
    if extension.parent.name == "custom_nodes":
        return extension.parent.parent / "models" / "ar_backbones"
    return Path("models") / "ar_backbones"


def offer(name: str, root: Path | None = None) -> Offer:
    """Asks the hub for files and sizes; nothing is downloaded.

    Raises SSDError for an unknown name, without a network, and when a repository has changed beyond recognition.
    """
    if name not in PUBLISHED:
        raise SSDError(f"there is no model {name!r} to download; choose one of {', '.join(PUBLISHED)}")
    model = PUBLISHED[name]
    target = (models_folder() if root is None else root) / model.folder
    parts = tuple(part for part in model.parts if part.makes is None or not (target / part.makes).is_file())
    sizes = {part.repository: _size(part) for part in parts}
    place = next(path for path in (target.resolve(), *target.resolve().parents) if path.is_dir())
    return Offer(name, model, target, parts, sizes, shutil.disk_usage(place).free)


def download(wanted: Offer) -> Path:
    """Fetches the files; what is complete from an earlier call is kept and a broken file continued.

    Returns the model's folder. Raises SSDError when the disk is too small or the download fails.
    """
    have = sum(path.stat().st_size for path in wanted.target.rglob("*") if path.is_file())
    if wanted.bytes - have > wanted.free:
        raise SSDError(
            f"{wanted.name} needs {gigabytes(wanted.bytes - have)} more, {wanted.target} has "
            f"{gigabytes(wanted.free)} free; make room or choose another folder with --into"
        )
    hub = _hub()
    for part in wanted.parts:
        try:
            hub.snapshot_download(part.repository, local_dir=wanted.target / part.into, allow_patterns=list(part.files))
        except Exception as error:  # the library's own, its HTTP library's and the system's: no common base
            raise SSDError(
                f"{part.repository} could not be downloaded ({_first_line(error)}); run the same command again, it "
                "continues where it stopped"
            ) from error
    return wanted.target


def gigabytes(size: int) -> str:
    """``4.18 GB``; small sizes in MB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _size(part: Part) -> tuple[int, int]:
    """Number and bytes of a part's files on the hub."""
    try:
        info = _hub().HfApi().model_info(part.repository, files_metadata=True)
    except Exception as error:  # as in `download`
        raise SSDError(
            f"the hub did not answer for {part.repository} ({_first_line(error)}); check the network, and for a model "
            "that asks for it accept its terms on the page and run `hf auth login`"
        ) from error
    sizes = {item.rfilename: item.size or 0 for item in info.siblings or ()}
    wanted = {name: size for name, size in sizes.items() if any(fnmatch(name, pattern) for pattern in part.files)}
    if not any(name.endswith((".safetensors", ".ckpt")) for name in wanted):
        raise SSDError(
            f"{part.repository} has none of the files {', '.join(part.files)} with weights any more; "
            "a newer release of this extension may know where they went"
        )
    return len(wanted), sum(wanted.values())


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise SSDError(
            f"downloading needs huggingface-hub, which cannot be imported here ({error}); `pip install huggingface-hub`"
        ) from error
    return huggingface_hub


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
