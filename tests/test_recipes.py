"""Recipe and shipped model speak the same language: words, prompts, positions; captions say what a scene holds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from recipes.emoji_scenes import heads
from recipes.emoji_scenes.captions import KINDS, draw_spec
from recipes.emoji_scenes.model import encode_prompts, rotary_of
from recipes.emoji_scenes.scene import place
from ssd_core import load_backbone, load_heads
from ssd_core.distill.samples import Samples, collect
from ssd_core.families.emoji import EmojiBackbone
from ssd_core.transformer import rope_table


def backbone() -> EmojiBackbone:
    loaded = load_backbone()
    assert isinstance(loaded, EmojiBackbone)
    return loaded


def test_prompts_are_encoded_as_in_training() -> None:
    """Every caption of the grammar gets the ids at run time that it had in training; none has an unknown word."""
    rng = random.Random(5)
    captions = [draw_spec(rng).caption for _ in range(500)] + [""]
    trained = encode_prompts(captions)
    ids = backbone().prompt_ids(captions, "", (24, 24), guided=False)
    assert torch.equal(ids[:, : trained.shape[1]], trained)


def test_positions_are_those_of_training() -> None:
    """Rope tables over prompt and stream equal the training side's, for every grid."""
    model = backbone()
    for grid in model.grids:
        positions = torch.cat((model.prompt_positions(), model.stream_positions(grid)))
        run_time = rope_table(positions, model.decoder.spec.head_dim, model.rope_theta)
        trained = rotary_of(*grid)
        for mine, theirs in zip(run_time, trained, strict=True):
            assert torch.equal(mine[: len(theirs)], theirs)


def test_scenes_keep_what_their_captions_say() -> None:
    """Boxes lie inside the grid, do not overlap, and stand as the relation says."""
    rng = random.Random(6)
    for number in range(200):
        spec = draw_spec(rng, list(KINDS)[number % len(KINDS)])
        rows, cols = ((16, 16), (24, 24), (24, 32))[number % 3]
        boxes = place(spec, rows, cols, rng)
        assert len(boxes) == len(spec.things)
        cells = [
            {(y, x) for y in range(box.row, box.row + box.size) for x in range(box.col, box.col + box.size)}
            for box in boxes
        ]
        assert all(0 <= y < rows and 0 <= x < cols for part in cells for y, x in part)
        assert sum(map(len, cells)) == len(set().union(*cells))
        if spec.relation:
            (down, across), (other_down, other_across) = boxes[0].centre, boxes[1].centre
            holds = {
                "left of": across < other_across,
                "right of": across > other_across,
                "above": down < other_down,
                "below": down > other_down,
            }
            assert holds[spec.relation]


def test_the_heads_are_made_by_distillation(tiny_model: Path, tmp_path: Path, monkeypatch) -> None:
    """The recipe adds scenes and settings to `ssd_core.distill`: its file is one that `distill train` would write."""
    tiny = load_backbone(tiny_model)
    for name, count in (("train", 6), ("held_out", 2)):
        collect(tiny, ["a cat"] * count, tmp_path / name, grid=(6, 6), seed=count, batch=4)
    scenes = Samples(torch.zeros(3, 6, 6, dtype=torch.int64), ["two cats"] * 3)
    monkeypatch.setattr(heads, "load_backbone", lambda: tiny)
    monkeypatch.setattr(heads, "rendered_scenes", lambda backbone, scenes_wanted: [scenes])
    monkeypatch.setattr(heads, "LOGS", tmp_path / "logs")
    out = tmp_path / "heads.safetensors"
    heads.train(tmp_path, scenes=3, minutes=0.02, neighbours=1, out=out)
    spec = load_heads(tiny, out).spec
    assert (spec.horizontal, spec.vertical, spec.neighbours) == ((1, 2, 3, 4, 5), (1, 2, 3), 1)
    training: Any = spec.notes["training"]
    assert (training["pictures"], training["settings"]["kl_weight"]) == (9, 1.0)
    assert training["steps"] == len((tmp_path / "logs" / "heads.csv").read_text().splitlines()) - 3  # title, two ends
    assert spec.notes["licence"] == "Apache-2.0"
