"""Every family's steps as graphs: no step of theirs waits for the host, and replays draw what the steps do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graph_fakes import FakeCapture, allow, spoil_scratch

from benchmarks.gpu_shapes import PROMPT, TOY, random_backbone, random_heads
from ssd_core import AR, Generation, Rolling, Rounds, RowsEvent, Sampling, generate, load_backbone, load_heads
from ssd_core.graphs import GraphsChoice
from ssd_core.preview import Preview
from ssd_core.schedule import Schedule

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", list(TOY))
def test_big_models_steps_can_be_captured(name: str) -> None:
    """The library's own classes of Janus, Lumina and Emu3 at toy size, under the published schedule and exactly."""
    shape = TOY[name]
    backbone, heads = random_backbone(shape, CPU, torch.float64), random_heads(shape, CPU, torch.float64)
    fake = FakeCapture()
    kept = allow(fake, backbone, heads)
    fake.damage = lambda number: spoil_scratch(kept)
    schedules: list[Schedule] = [AR(), shape.paper, Rolling(2)]
    for schedule in schedules:
        drawn = [
            generate(backbone, PROMPT, heads=heads, schedule=schedule, grid=shape.check_grid, seed=4, graphs=graphs)
            for graphs in ("off", "auto")
        ]
        assert torch.equal(drawn[0].tokens, drawn[1].tokens)
        assert not drawn[1].report.graphs.startswith("off"), drawn[1].report.graphs


def test_the_embedded_models_steps_can_be_captured(tiny_model: Path) -> None:
    backbone = load_backbone(tiny_model)
    heads = load_heads(backbone, tiny_model / "heads.safetensors")
    allow(FakeCapture(), backbone, heads)
    for schedule in (Rolling(2), Rounds(1)):
        drawn = [
            generate(
                backbone, "a red heart", heads=heads, schedule=schedule, sampling=Sampling(2.0), batch=2, graphs=graphs
            )
            for graphs in ("off", "auto")
        ]  # fmt: skip
        assert torch.equal(drawn[0].tokens, drawn[1].tokens)
        assert not drawn[1].report.graphs.startswith("off"), drawn[1].report.graphs


def test_a_live_view_decodes_pixels_between_captured_steps(tiny_model: Path) -> None:
    """What it asks of the device falls into no capture, and the pictures are the same."""
    backbone = load_backbone(tiny_model)
    heads = load_heads(backbone, tiny_model / "heads.safetensors")
    fake = FakeCapture()
    allow(fake, backbone, heads)
    looks: list[int] = []

    def watched(graphs: GraphsChoice) -> Generation:
        preview = Preview(backbone, (6, 6), 1, clock=lambda: 0.0)  # looks cost nothing, so each event has one
        preview.begin()

        def show(event: RowsEvent) -> None:
            if preview.rows(event)["images"][0]["picture"]:
                looks.append(fake.captures)

        return generate(backbone, "cat", heads=heads, schedule=Rolling(2), seed=4, on_rows=show, graphs=graphs)

    plain = watched("off")
    looks.clear()
    for _ in range(2):
        graphed = watched("auto")
        assert torch.equal(graphed.tokens, plain.tokens)
        assert torch.equal(graphed.images, plain.images)
        assert not graphed.report.graphs.startswith("off"), graphed.report.graphs
    assert looks[0] < fake.captures  # there were captures to come
