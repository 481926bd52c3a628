"""Train SSD Heads: what reaches the trainer, and how a stop leaves things."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image


class Trainer:
    """Stands for `ssd_core.distill`: notes what it was asked for and writes a file."""

    def __init__(self):
        self.stop_at = "training"
        self.calls = []
        self.gradients = []

    def make_heads(self, backbone, prompts, out, *, work, on_draw, on_step, should_stop, **settings):
        self.calls.append((list(prompts), out, work, settings))
        self.gradients.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        work.mkdir(parents=True, exist_ok=True)
        (work / "kept").write_bytes(b"")
        on_draw(1, 2)
        if should_stop() and self.stop_at == "drawing":
            raise self.stop_requested
        on_draw(2, 2)
        on_step(SimpleNamespace(progress=0.5))
        out.write_bytes(b"heads")
        return SimpleNamespace(path=out, stopped=should_stop())


@pytest.fixture
def train(pack, comfy, monkeypatch):
    """Calls `host.training.make_heads` with a trainer in the decoder's place."""
    training = pack("host.training")
    pack("host.folders").register()
    trainer = Trainer()

    class StopRequested(Exception):  # noqa: N818 - its name in ssd_core
        pass

    trainer.stop_requested = StopRequested
    parts = {
        "": SimpleNamespace(StopRequested=StopRequested),
        "distill": trainer,
        "distill.prompts": SimpleNamespace(starter_prompts=lambda backbone: ["starter"]),
        "distill.estimate": SimpleNamespace(quick_memory=lambda backbone, grids: 12345),
        "distill.log": SimpleNamespace(plot=lambda log, size: Image.new("RGB", size)),
    }
    monkeypatch.setattr(training, "core", lambda name="": parts[name])
    monkeypatch.setattr(training.models, "make_resident", lambda *arguments: comfy.loads.append(arguments))
    handle = SimpleNamespace(key=("backbone", "stamp"), module="model")
    progress = pack("host.progress").ShareProgress()

    def call(prompts=(), name="mine", **changed):
        wanted = {"grid": (4, 4), "pictures": 3, "minutes": 1.0, "seed": 5, "start_from": None, **changed}
        return training.make_heads(handle, prompts, name, progress, **wanted)

    call.trainer = trainer
    return call


def test_heads_are_made_out_of_inference_mode_and_the_work_is_cleared_away(train, comfy):
    with torch.inference_mode():
        made, plot = train(["a cat"])
    assert train.trainer.gradients == [(True, False)]
    ((prompts, out, work, settings),) = train.trainer.calls
    assert prompts == ["a cat"]
    assert out == made.path == comfy.base / "models" / "ssd_heads" / "mine.safetensors"
    assert settings == {"grids": [(4, 4)], "pictures": 3, "minutes": 1.0, "seed": 5, "start_from": None}
    assert not work.exists()
    assert (plot.dtype, plot.ndim, plot.shape[3]) == (torch.float32, 4, 3)
    assert comfy.loads[0][2] == 12345
    values = [value for value, _ in comfy.progress]
    assert values == sorted(values)
    assert comfy.progress[-1][0] == comfy.progress[-1][1]
    assert any(picture is not None for picture in comfy.shown)


def test_without_prompts_the_starter_prompts_are_drawn(train):
    train([])
    assert train.trainer.calls[0][0] == ["starter"]


@pytest.mark.parametrize(("moment", "file"), [("drawing", False), ("training", True)])
def test_a_stop_ends_the_run_keeps_the_work_and_once_it_trained_the_heads(train, pack, comfy, moment, file):
    train.trainer.stop_at = moment
    comfy.stop = True
    with pytest.raises(pack("host.stop").Stopped):
        train(["a cat"])
    work, out = Path(train.trainer.calls[0][2]), Path(train.trainer.calls[0][1])
    assert (work / "kept").exists()
    assert out.exists() == file
    assert comfy.stop is False  # the next run is not stopped
    train(["a cat"])
    assert train.trainer.calls[1][2] == work


def test_other_settings_never_go_on_with_this_work(train):
    train(["a cat"])
    for changed in ({"seed": 6}, {"pictures": 4}, {"grid": (4, 8)}, {"start_from": Path("x")}):
        train(["a cat"], **changed)
    train(["a dog"])
    folders = [call[2] for call in train.trainer.calls]
    assert len(set(folders)) == len(folders)
