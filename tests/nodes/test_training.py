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
        self.reused = False
        self.plans = []
        self.calls = []
        self.gradients = []
        self.rooms = []
        self.steps = 1
        self.step = lambda: None

    def plan_heads(self, backbone, prompts, **choices):
        self.plans.append((list(prompts), choices))
        return SimpleNamespace(training_folder=lambda work: work / f"training-{choices['start_from']}")

    def make_heads(self, backbone, plan, out, *, work, minutes, make_room, on_draw, on_step, should_stop):
        self.calls.append((out, work, minutes))
        self.gradients.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        history = {"loss vertical 1": [[1.0, 0.5]]}
        made = SimpleNamespace(
            path=out, stopped=False, reused=self.reused, left_out=("vertical 3",),
            heads=SimpleNamespace(spec=SimpleNamespace(notes={"history": history})),
        )  # fmt: skip
        if self.reused:
            return made
        self.rooms.append(make_room(12345))
        for folder in (work / "samples", plan.training_folder(work)):
            folder.mkdir(parents=True, exist_ok=True)
        on_draw(0.5)
        if should_stop() and self.stop_at == "drawing":
            raise self.stop_requested("stopped while drawing")
        on_draw(1.0)
        for step in range(self.steps):
            on_step(SimpleNamespace(progress=(step + 1) / (self.steps + 1)))
            self.step()
        if should_stop() and self.stop_at == "before the first step":
            raise self.stop_requested("stopped before its first step")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(b"heads")
        made.stopped = should_stop()
        return made


@pytest.fixture
def train(pack, comfy, monkeypatch):
    """Calls `host.training.make_heads` with a trainer in the decoder's place."""
    training = pack("host.training")
    pack("host.folders").register()
    trainer = Trainer()

    class StopRequested(Exception):  # noqa: N818 - its name in ssd_core
        pass

    trainer.stop_requested = StopRequested
    trainer.drawn = []

    def plot(points, size):
        trainer.drawn.append(points)
        trainer.plot()
        return Image.new("RGB", size)

    trainer.plot = lambda: None
    parts = {
        "": SimpleNamespace(StopRequested=StopRequested),
        "distill": trainer,
        "distill.prompts": SimpleNamespace(starter_prompts=lambda backbone: ["starter"]),
        "distill.log": SimpleNamespace(plot=plot, read_log=lambda path: str(path), LOG_FILE="log.csv"),
    }
    monkeypatch.setattr(training, "core", lambda name="": parts[name])
    monkeypatch.setattr(training.models, "make_resident", lambda *arguments: comfy.loads.append(arguments))
    handle = SimpleNamespace(key=("backbone", "stamp"), module=SimpleNamespace(device=torch.device("cpu")))
    progress = pack("host.progress").ShareProgress()

    def call(prompts=(), name="mine", **changed):
        wanted = {"grid": (4, 4), "pictures": 3, "minutes": 1.0, "seed": 5, "start_from": None, **changed}
        return training.make_heads(handle, prompts, name, progress, **wanted)

    call.trainer, call.training = trainer, training
    return call


def test_heads_are_made_out_of_inference_mode_and_the_work_is_cleared_away(train, comfy):
    with torch.inference_mode():
        made, plot = train(["a cat"])
    assert train.trainer.gradients == [(True, False)]
    ((out, work, minutes),) = train.trainer.calls
    assert out == made.path == comfy.base / "models" / "ssd_heads" / "mine.safetensors"
    assert minutes == 1.0
    assert train.trainer.plans == [(["a cat"], {"grids": [(4, 4)], "pictures": 3, "seed": 5, "start_from": None})]
    assert not work.exists()
    assert (plot.dtype, plot.ndim, plot.shape[3]) == (torch.float32, 4, 3)
    values = [value for value, _ in comfy.progress]
    assert values == sorted(values)
    assert comfy.progress[-1][0] == comfy.progress[-1][1]
    assert any(picture is not None for picture in comfy.shown)


def test_room_is_made_through_comfyui_and_what_is_free_is_told(train, comfy):
    comfy.free = 4321
    train(["a cat"])
    assert comfy.loads[0][1:] == (None, 12345)
    assert train.trainer.rooms == [4321.0]


def test_without_prompts_the_starter_prompts_are_drawn(train):
    train([])
    assert train.trainer.plans[0][0] == ["starter"]


@pytest.mark.parametrize(("moment", "file"), [("drawing", False), ("before the first step", False), ("training", True)])
def test_a_stop_ends_the_run_keeps_the_work_and_once_it_trained_the_heads(train, pack, comfy, moment, file):
    train.trainer.stop_at = moment
    comfy.stop = True
    with pytest.raises(pack("host.stop").Stopped):
        train(["a cat"])
    out, work, _ = train.trainer.calls[0]
    assert (work / "samples").exists()
    assert out.exists() == file
    assert comfy.stop is False  # the next run is not stopped
    train(["a cat"])
    assert train.trainer.calls[1][:2] == (out, work)


def test_pictures_of_other_settings_are_not_used_and_those_of_other_start_files_are(train):
    train(["a cat"])
    train(["a cat"], start_from=Path("x"))
    for changed in ({"seed": 6}, {"pictures": 4}, {"grid": (4, 8)}):
        train(["a cat"], **changed)
    train(["a dog"])
    folders = [call[1] for call in train.trainer.calls]
    assert folders[0] == folders[1]
    assert len(set(folders)) == len(folders) - 1


def test_pictures_stay_while_another_training_of_them_is_under_way(train, pack, comfy):
    comfy.stop = True
    with pytest.raises(pack("host.stop").Stopped):
        train(["a cat"])
    work = train.trainer.calls[0][1]
    train(["a cat"], start_from="x")
    assert sorted(path.name for path in work.iterdir()) == ["samples", "training-None"]
    train(["a cat"])
    assert not work.exists()


def test_heads_that_were_made_before_are_plotted_from_their_file(train, comfy):
    train.trainer.reused = True
    made, plot = train(["a cat"])
    assert made.reused
    assert plot.shape[0] == 1
    assert train.trainer.drawn == [{"loss vertical 1": [[1.0, 0.5]]}]
    assert comfy.loads == []  # nothing to make room for
    assert comfy.progress[-1][0] == comfy.progress[-1][1]


def test_the_live_plot_takes_a_small_share_of_the_time(train, monkeypatch):
    """Each takes 3 s of 1 s steps: the next one comes 60 s later."""
    now = [0.0]

    def pass_time(seconds):
        now[0] += seconds

    monkeypatch.setattr(train.training, "time", SimpleNamespace(monotonic=lambda: now[0]))
    train.trainer.plot = lambda: pass_time(3.0)
    train.trainer.step = lambda: pass_time(1.0)
    train.trainer.steps = 200
    train(["a cat"])
    assert len(train.trainer.drawn) == 4 + 1  # and the last one, from the file


def test_the_bar_is_told_of_what_can_be_seen(pack, comfy):
    progress = pack("host.progress").ShareProgress()
    for number in range(10_000):
        progress.reached(number / 100_000)
    assert len(comfy.progress) <= 102
    progress.reached(0.05, "picture")
    assert comfy.shown[-1] == ("JPEG", "picture", 512)
