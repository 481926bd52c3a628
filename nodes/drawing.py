"""What the sampler and Compare Decoders share: their widgets, and getting everything ready to draw."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import grid as grids
from .core import core
from .host import memory, models
from .host.models import BackboneHandle, HeadsHandle
from .link_types import Backbone, Heads
from .link_types import Verification as VerificationLink
from .settings import GRAPHS, OWN, SEED_MAX, Verification, check_choice, sampling

_OWN = " -1 is the backbone's own setting."


def required_inputs(grid_tooltip: str = grids.TOOLTIP) -> list[io.Input]:
    """The widgets before the sampler's own, in their frozen order."""
    return [
        Backbone.Input("backbone", tooltip="The model that draws."),
        io.String.Input(
            "positive",
            multiline=True,
            dynamic_prompts=True,
            default="two apples on a beach",
            tooltip=(
                "What to draw. The built-in backbone knows a few dozen words (python -m ssd_core words lists them) and "
                "refuses others by name."
            ),
        ),
        io.String.Input(
            "negative",
            multiline=True,
            dynamic_prompts=True,
            default="",
            tooltip="What to steer away from; it counts only with cfg other than 1.",
        ),
        io.Int.Input(
            "seed",
            default=0,
            min=0,
            max=SEED_MAX,
            control_after_generate=True,
            tooltip="Picture k of a batch is the single picture of seed + k. The same seed draws the same picture.",
        ),
        io.Float.Input(
            "cfg",
            default=float(OWN),
            min=-1.0,
            max=100.0,
            step=0.1,
            round=0.01,
            tooltip="Guidance: how closely to follow the prompt; 1 is off and costs half as much." + _OWN,
        ),
        io.Float.Input(
            "temperature",
            default=float(OWN),
            min=-1.0,
            max=10.0,
            step=0.05,
            round=0.001,
            tooltip="How freely codes are drawn: 0 always takes the likeliest, 1 follows the model." + _OWN,
        ),
        io.Int.Input(
            "top_k",
            default=OWN,
            min=-1,
            max=1_000_000,
            tooltip="Draw only among the k likeliest codes; 0 is off." + _OWN,
        ),
        io.Float.Input(
            "top_p",
            default=float(OWN),
            min=-1.0,
            max=1.0,
            step=0.01,
            round=0.001,
            tooltip="Draw only among the likeliest codes that together have this probability; 1 is off." + _OWN,
        ),
        io.String.Input("grid", default=grids.AUTO, tooltip=grid_tooltip),
        io.Int.Input(
            "batch_size",
            default=1,
            min=1,
            max=64,
            tooltip="Pictures of the same prompt, drawn together with the seeds seed, seed + 1, and so on.",
        ),
    ]


def optional_inputs() -> list[io.Input]:
    """Who drafts, and how drafts are checked."""
    return [
        Heads.Input(
            "heads",
            optional=True,
            tooltip=(
                "From Load SSD Heads, for the same backbone. Not connected: a neighbouring code is copied as the guess."
            ),
        ),
        VerificationLink.Input(
            "verification",
            optional=True,
            tooltip="From Verification Rounds. Not connected: exact, the very picture of plain decoding.",
        ),
    ]


def graphs_input() -> io.Input:
    """The last widget: optional, so that workflows saved without it keep loading."""
    return io.Combo.Input(
        "graphs",
        options=list(GRAPHS),
        default=GRAPHS[0],
        optional=True,
        tooltip=(
            "auto: on an NVIDIA GPU, steps are captured as CUDA graphs once and replayed, which spares the time of "
            "launching them; the first picture with new settings takes longer. They hold GPU memory until the model is "
            "unloaded. off: never. The report says whether graphs were used."
        ),
    )


def make_ready(
    backbone: BackboneHandle,
    heads: HeadsHandle | None,
    verification: Verification | None,
    *,
    cfg: float,
    temperature: float,
    top_k: int,
    top_p: float,
    grid: tuple[int, int],
    batch: int,
    graphs: str,
) -> dict[str, Any]:
    """Brings the weights to the device; the settings of ``generate`` that hang on them, ready to pass on."""
    check_choice("graphs", graphs, GRAPHS)
    model = backbone.module
    chosen = sampling(model, cfg, temperature, top_k, top_p)
    schedule = (verification or Verification()).schedule(memory.compute_device().type)
    window = schedule.window(model.stream(model.check_grid(grid)))
    need = core("memory").memory_of(model, model.dtype, grid, batch, chosen.guidance_rows, window)
    models.make_resident(backbone, heads, need.cache + need.working)
    return {
        "heads": None if heads is None else heads.module,
        "schedule": schedule,
        "sampling": chosen,
        "grid": grid,
        "batch": batch,
        "graphs": graphs,
    }
