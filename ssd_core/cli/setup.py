"""From checked options to loaded parts: backbone, heads, schedule, sampling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..auto import Auto
from ..engine import OnRows
from ..errors import SSDError
from ..families.base import Backbone
from ..families.loaders import load_backbone
from ..generation import Generation, generate
from ..heads import SpatialHeads
from ..load import load_heads
from ..noise import image_seeds
from ..sampling import Sampling
from ..schedule import AR, HorizontalMTP, Jacobi, Rounds, Schedule, default_schedule
from .arguments import GenerateOptions, mode_of
from .parser import DEFAULT_MODEL
from .threads import choose_threads

HEADS_FILE = "heads.safetensors"


@dataclass(frozen=True)
class Setup:
    """All that a run needs besides the schedule."""

    options: GenerateOptions
    backbone: Backbone
    heads: SpatialHeads | None
    sampling: Sampling

    @property
    def prompt(self) -> str | list[str]:
        """One prompt for the whole batch, or one for each picture."""
        prompts = self.options.prompts
        return prompts[0] if len(prompts) == 1 else prompts

    def settings(self) -> dict[str, Any]:
        """The options as keyword arguments of `generate`, the schedule aside."""
        options = self.options
        return {
            "heads": self.heads,
            "drafts": options.drafts or "auto",
            "sampling": self.sampling,
            "seed": options.seed,
            "batch": options.batch,
            "grid": options.size,
            "negative": options.negative,
            "graphs": options.graphs,
        }

    def draw(self, schedule: Schedule, on_rows: OnRows | None = None) -> Generation:
        """One `generate` call with the options' prompts, seed and size."""
        return generate(self.backbone, self.prompt, schedule=schedule, on_rows=on_rows, **self.settings())

    def pictures(self) -> list[tuple[str, int]]:
        """Prompt and seed of every picture of a run, in order."""
        options = self.options
        prompts = options.prompts * options.batch
        return list(zip(prompts, image_seeds(options.seed, len(prompts)), strict=True))


def load(options: GenerateOptions) -> Setup:
    """Load backbone and heads. Raises SSDError for what is missing, damaged or unusable here."""
    backbone = load_model(options.model, options.device, options.dtype, options.threads)
    wishes = {
        "guidance": options.guidance,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
    }
    sampling = replace(backbone.default_sampling, **_given(wishes))
    if options.negative and sampling.guidance_rows == 1:
        raise SSDError("--negative works through guidance, got guidance 1 (off); give --cfg above 1")
    heads = None if options.decoder == "ar" else chosen_heads(backbone, options.model, options.heads)
    return Setup(options, backbone, heads, sampling)


def schedule_of(options: GenerateOptions) -> Schedule:
    """The schedule that `--decoder`, `--mode` and their settings name."""
    if options.decoder == "ar":
        return AR()
    if options.decoder == "sjd":
        return Jacobi(**_given({"window_tokens": options.jacobi_window}))
    if options.decoder == "mtp":
        return HorizontalMTP(**_given({"rounds": options.rounds}))
    mode = mode_of(options)
    if mode == "auto":
        return Auto()
    if mode == "rounds":
        return Rounds(
            **_given({"rounds": options.rounds, "rows_per_block": options.rows_per_block, "commit": options.commit})
        )
    default = default_schedule(torch.device(options.device).type)
    return replace(default, **_given({"window_rows": options.window_rows, "tolerance": options.tolerance}))


def load_model(model: str, device: str, dtype: str, threads: int | None) -> Backbone:
    """The backbone, with the CPU threads set first: those asked for, or as many as help."""
    where = _usable(device)
    if threads is not None:
        torch.set_num_threads(threads)
    elif where.type == "cpu":
        torch.set_num_threads(choose_threads())
    return load_backbone(model, device=where, dtype=dtype)


def chosen_heads(backbone: Backbone, model: str, heads: str | None) -> SpatialHeads | None:
    """The named heads file; by default what lies beside the model, or none (a neighbouring code is then copied)."""
    if heads == "none":
        return None
    if heads is not None:
        return load_heads(backbone, heads)
    if model == DEFAULT_MODEL:
        return load_heads(backbone)
    beside = Path(model) / HEADS_FILE
    return load_heads(backbone, beside) if beside.is_file() else None


def _given(wishes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wishes.items() if value is not None}


def _usable(name: str) -> torch.device:
    """The torch device of that name, if a tensor can be made on it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:  # torch raises either, by the kind of device
        reason = str(error).splitlines()[0][:160]
        raise SSDError(f"--device: got {name!r}, which torch cannot use here ({reason}); try --device cpu") from error
    return device
