"""Just enough of ComfyUI for the parts of `nodes` that need no server.

The real ComfyUI runs the nodes in `tests/comfy`; these stand-ins only make single modules importable, and show what
the modules ask of ComfyUI.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

PACK = "trial_pack"

BUILT_IN = "emoji scenes (built in)"


class InterruptProcessingException(Exception):  # noqa: N818 - ComfyUI's own name
    """What ComfyUI raises for Stop."""


class ModelPatcher:
    """Owns a module, as ComfyUI's patcher does."""

    def __init__(self, model: Any, load_device: torch.device, offload_device: torch.device) -> None:
        self.model = model
        self.model.device = offload_device  # ComfyUI writes on the model it is given
        self.load_device = load_device
        self.callbacks: dict[str, list[Any]] = {}

    def add_callback(self, call_type: str, callback: Any) -> None:
        self.callbacks.setdefault(call_type, []).append(callback)

    def detach(self, unpatch_all: bool = True) -> None:
        """Takes the weights off the device, or (False) only lets go of them."""
        for callback in self.callbacks.get("on_detach_after", []):
            callback(self, unpatch_all)


class FakeComfy:
    """What the stand-ins were told, and what they tell."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.device = torch.device("cpu")
        self.bf16, self.fp16 = True, True
        self.args = SimpleNamespace()
        self.vram = SimpleNamespace(name="NORMAL_VRAM")
        self.free = 2**36
        self.stop = False
        self.polls = 0
        self.stop_at: int | None = None
        self.loads: list[tuple[list[Any], dict[str, Any]]] = []
        self.sent: list[tuple[str, dict[str, Any], str]] = []
        self.progress: list[tuple[int, int]] = []
        self.shown: list[Any] = []
        self.scaled: list[tuple[tuple[int, ...], int, int, str, str]] = []

    def modules(self) -> dict[str, ModuleType]:
        """Modules by name, ready for `sys.modules`."""
        made = {
            "comfy": {},
            "comfy.model_management": self._management(),
            "comfy.cli_args": {"args": self.args},
            "comfy.model_patcher": {"ModelPatcher": ModelPatcher},
            "comfy.patcher_extension": {"CallbacksMP": SimpleNamespace(ON_DETACH="on_detach_after")},
            "comfy.utils": {"ProgressBar": self._progress_bar(), "common_upscale": self._upscale},
            "comfy_execution": {},
            "comfy_execution.utils": {"get_executing_context": lambda: SimpleNamespace(prompt_id="p-1", node_id="9")},
            "folder_paths": self._folder_paths(),
            "server": {"PromptServer": SimpleNamespace(instance=self._server())},
        }
        modules = {}
        for name, content in made.items():
            modules[name] = ModuleType(name)
            modules[name].__dict__.update(content)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(modules[parent], child, modules[name])
        return modules

    def _management(self) -> dict[str, Any]:
        def throw_if_interrupted() -> None:
            self.polls += 1
            if self.stop or self.polls == self.stop_at:
                self.stop = False
                raise InterruptProcessingException

        return {
            "InterruptProcessingException": InterruptProcessingException,
            "throw_exception_if_processing_interrupted": throw_if_interrupted,
            "processing_interrupted": lambda: self.stop,
            "get_torch_device": lambda: self.device,
            "vram_state": self.vram,
            "unet_offload_device": lambda: torch.device("cpu"),
            "intermediate_device": lambda: torch.device("cpu"),
            "is_device_cpu": lambda device: device.type == "cpu",
            "should_use_bf16": lambda device: self.bf16,
            "should_use_fp16": lambda device: self.fp16,
            "get_free_memory": lambda device: self.free,
            "load_models_gpu": lambda models, **wishes: self.loads.append((models, wishes)),
        }

    def _upscale(self, samples: torch.Tensor, width: int, height: int, method: str, crop: str) -> torch.Tensor:
        self.scaled.append((tuple(samples.shape), width, height, method, crop))
        return torch.nn.functional.interpolate(samples, size=(height, width))

    def _progress_bar(self) -> type:
        progress, shown = self.progress, self.shown

        class ProgressBar:
            def __init__(self, total: int) -> None:
                self.total = total

            def update_absolute(self, value: int, total: int, preview: Any = None) -> None:
                progress.append((value, total))
                shown.append(preview)

        return ProgressBar

    def _server(self) -> Any:
        return SimpleNamespace(
            client_id="browser",
            last_prompt_id="p-0",
            send_sync=lambda event, data, client: self.sent.append((event, data, client)),
            add_on_prompt_handler=lambda handler: None,
        )

    def _folder_paths(self) -> dict[str, Any]:
        table: dict[str, tuple[list[str], set[str]]] = {}

        def add(name: str, path: str, is_default: bool = False) -> None:
            roots, _ = table.setdefault(name, ([], set()))
            if path in roots:
                return
            roots.insert(0, path) if is_default else roots.append(path)

        def names(name: str) -> list[str]:
            roots, suffixes = table[name]
            found = {
                os.path.relpath(file, root)  # with the system's separators, as ComfyUI gives them
                for root in roots
                for file in Path(root).rglob("*")
                if file.suffix in suffixes
            }
            return sorted(found)

        def full_path(name: str, wanted: str) -> str | None:
            for root in table[name][0]:
                if (Path(root) / wanted).is_file():
                    return str(Path(root) / wanted)
            return None

        def annotated(name: str) -> tuple[str, str | None]:
            if name.endswith("[output]"):
                return name[:-9], str(self.base / "output")
            return name, None

        return {
            "models_dir": str(self.base / "models"),
            "folder_names_and_paths": table,
            "add_model_folder_path": add,
            "get_folder_paths": lambda name: list(table[name][0]),
            "get_filename_list": names,
            "get_full_path": full_path,
            "annotated_filepath": annotated,
            "get_input_directory": lambda: str(self.base / "input"),
            "get_output_directory": lambda: str(self.base / "output"),
            "get_user_directory": lambda: str(self.base / "user"),
        }


@contextmanager
def pack_of(root: Path, fakes: dict[str, ModuleType], name: str = PACK) -> Iterator[Any]:
    """Loads the repository (or a copy of it) the way ComfyUI does; yields a function that imports `nodes.NAME`."""
    before = dict(sys.modules)
    sys.modules.update(fakes)
    spec = importlib.util.spec_from_file_location(name, root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    try:
        yield lambda module: importlib.import_module(f"{name}.nodes.{module}")
    finally:
        for module in set(sys.modules) - set(before):
            if module.split(".")[0] == name or module in fakes:
                del sys.modules[module]
        sys.modules.update({module: before[module] for module in fakes if module in before})
