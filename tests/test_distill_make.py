"""From a plan to a heads file: what is refused before anything is drawn, what goes on, what is never done twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from toys import ToyBackbone, toy_heads

from ssd_core import SSDError, StopRequested
from ssd_core.distill import Distilled, HeadsPlan, TrainSettings, make_heads, plan_heads
from ssd_core.distill import make as making
from ssd_core.distill import room as rooms
from ssd_core.distill.estimate import RESERVE
from ssd_core.distill.log import read_log, thinned
from ssd_core.distill.samples import begun_batch, read_samples
from ssd_core.distill.session import Wanted, train_file
from ssd_core.distill.state import STATE_FILE
from ssd_core.distill.summary import made_text
from ssd_core.heads import SpatialHeads, read_heads_spec, save_heads, save_new_heads

SETTINGS = TrainSettings(steps=10, batch=4, micro_batch=4, learning_rate=1e-3, kl_weight=0.5)
PROMPTS = ["ab", "c"]


@pytest.fixture(scope="module")
def toy() -> ToyBackbone:
    return ToyBackbone(4, 5, sharpness=1.0, padded=True)


def plan_of(toy: ToyBackbone, **changed: object) -> HeadsPlan:
    choices: dict[str, object] = {
        "pictures": 16, "horizontal": (1,), "vertical": (1, 2), "settings": SETTINGS, **changed,
    }  # fmt: skip
    return plan_heads(toy, PROMPTS, **choices)  # type: ignore[arg-type]


def make(toy: ToyBackbone, plan: HeadsPlan, folder: Path, **changed: object) -> Distilled:
    options: dict[str, object] = {"work": folder / "w", "minutes": 1.0, **changed}
    return make_heads(toy, plan, folder / "heads" / "h.safetensors", **options)  # type: ignore[arg-type]


def start_file(toy: ToyBackbone, path: Path, neighbours: int = 0, **spec: object) -> Path:
    """Random heads for these very weights, or with another spec."""
    heads = toy_heads(toy, 1, 2, neighbours)
    heads.spec = replace(heads.spec, backbone="toy", fingerprint=toy.fingerprint, **spec)  # type: ignore[arg-type]
    save_heads(heads, path)
    return path


def nothing_drawn(*arguments: object, **options: object) -> None:
    raise AssertionError("it draws")


# --- one call ------------------------------------------------------------------------------------------------------


def test_one_call_from_prompts_to_heads(toy: ToyBackbone, tmp_path: Path) -> None:
    """Draws, trains and writes; a stop while drawing leaves what was drawn; progress only moves forward."""
    plan = plan_of(toy)
    with pytest.raises(StopRequested):
        make(toy, plan, tmp_path, should_stop=lambda: True)
    shares: list[float] = []
    made = make(toy, plan, tmp_path, on_draw=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 16  # in the middle of a batch too
    assert (made.steps, made.pictures, made.stopped, made.reused, made.left_out) == (10, 15, False, False, ())
    assert made.path == tmp_path / "heads" / "h.safetensors"
    assert made.heads.spec.vertical == (1, 2)
    assert "10 steps on 15 pictures" in made_text(made)


def test_finished_heads_are_not_made_again(toy: ToyBackbone, tmp_path: Path, monkeypatch) -> None:
    """The same plan and minutes: the file is loaded, though nothing but the file is left. Others train."""
    plan = plan_of(toy)
    first = make(toy, plan, tmp_path)
    monkeypatch.setattr(making, "collect", nothing_drawn)
    again = make(toy, plan, tmp_path, work=tmp_path / "elsewhere")
    assert (again.path, again.reused, again.steps, again.pictures) == (first.path, True, 10, 15)
    assert again.acceptance == pytest.approx(first.acceptance, abs=1e-4)
    assert again.heads.spec.notes == read_heads_spec(first.path).notes
    assert "made by an earlier run" in made_text(again)
    monkeypatch.undo()
    longer = make(toy, plan, tmp_path, minutes=2.0)  # its training is over, so it only writes
    other = make(toy, plan_of(toy, seed=1), tmp_path, work=tmp_path / "other")
    assert [longer.path.name, other.path.name] == ["h_2.safetensors", "h_3.safetensors"]
    assert not longer.reused
    assert read_heads_spec(first.path).notes["run"] == {"mark": plan.mark, "minutes": 1.0, "stopped": False}


def test_a_stopped_file_is_replaced_by_the_finished_one(toy: ToyBackbone, tmp_path: Path) -> None:
    plan, steps = plan_of(toy), []
    made = make(
        toy, plan, tmp_path, on_step=lambda info: steps.append(info.step), should_stop=lambda: len(steps) > 4
    )  # fmt: skip
    assert (made.stopped, made.steps) == (True, 4)
    assert read_heads_spec(made.path).notes["run"]["stopped"] is True  # type: ignore[index,call-overload]
    steps.clear()
    done = make(toy, plan, tmp_path, on_step=lambda info: steps.append(info.step))
    assert steps == [5, 6, 7, 8, 9, 10, 10]  # it went on where it was
    assert (done.path, done.stopped, done.steps) == (made.path, False, 10)
    assert [path.name for path in made.path.parent.iterdir()] == ["h.safetensors"]


@pytest.mark.parametrize("kind", ["no heads at all", "heads of another run"])
def test_a_file_of_others_is_never_replaced(toy: ToyBackbone, tmp_path: Path, kind: str) -> None:
    """Also when it appears while heads are being made."""
    other = tmp_path / "heads" / "h.safetensors"

    def appear(share: float) -> None:
        if not other.exists():
            if kind == "no heads at all":
                other.write_bytes(b"mine")
            else:
                start_file(toy, other)

    made = make(toy, plan_of(toy), tmp_path, on_draw=appear)
    assert made.path.name == "h_2.safetensors"
    assert sorted(path.name for path in made.path.parent.iterdir()) == ["h.safetensors", "h_2.safetensors"]
    assert kind != "no heads at all" or other.read_bytes() == b"mine"


def test_a_taken_name_gets_the_next_free_number(toy: ToyBackbone, tmp_path: Path) -> None:
    names = [save_new_heads(toy_heads(toy, 1, 1), tmp_path / "a.b.safetensors").name for _ in range(3)]
    assert names == ["a.b.safetensors", "a.b_2.safetensors", "a.b_3.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("end", [0, 1])
def test_a_stop_before_the_first_step_writes_no_heads(toy: ToyBackbone, tmp_path: Path, end: int) -> None:
    """Pictures stay, an untrained file does not come to be, and the next call makes the heads."""
    plan, steps, samples = plan_of(toy), [], tmp_path / "w" / "samples"
    with pytest.raises(StopRequested):
        make(
            toy, plan, tmp_path, on_step=lambda info: steps.append(info.step),
            should_stop=lambda: len(list(samples.glob("*.safetensors"))) == 2 and len(steps) >= end,
        )  # fmt: skip
    assert list((tmp_path / "heads").iterdir()) == []
    assert not list(tmp_path.rglob(STATE_FILE))
    assert len(list(read_samples(samples, toy.fingerprint))) == 2
    assert make(toy, plan, tmp_path).steps == 10


def test_pictures_are_shared_by_trainings_from_other_heads(toy: ToyBackbone, tmp_path: Path, monkeypatch) -> None:
    """Once one of them has begun the pictures stay as they are, or it could not go on."""
    steps: list[int] = []
    make(toy, plan_of(toy), tmp_path, on_step=lambda i: steps.append(i.step), should_stop=lambda: len(steps) > 3)
    monkeypatch.setattr(making, "collect", nothing_drawn)
    second = plan_of(toy, start_from=start_file(toy, tmp_path / "start.safetensors"))
    assert second.mark != plan_of(toy).mark
    made = make(toy, second, tmp_path)
    assert (made.path.name, made.heads.spec.neighbours) == ("h_2.safetensors", 0)
    assert make(toy, plan_of(toy), tmp_path).path.name == "h.safetensors"


# --- plans ---------------------------------------------------------------------------------------------------------


def test_the_mark_tells_plans_apart(toy: ToyBackbone, tmp_path: Path) -> None:
    start = start_file(toy, tmp_path / "start.safetensors")
    plans = [
        plan_of(toy), plan_of(toy, seed=1), plan_of(toy, pictures=17), plan_of(toy, vertical=(1,)),
        plan_of(toy, neighbours=0), plan_of(toy, start_from=start),
        plan_of(toy, settings=replace(SETTINGS, learning_rate=2e-3)), plan_of(ToyBackbone(4, 5, seed=3)),
        plan_heads(toy, ["c", "ab"], pictures=16, horizontal=(1,), vertical=(1, 2), settings=SETTINGS),
    ]  # fmt: skip
    assert len({plan.mark for plan in plans}) == len(plans)
    same = [plan_of(toy), plan_of(toy, settings=replace(SETTINGS, micro_batch=1, checkpoint_minutes=1.0))]
    assert {plan.mark for plan in same} == {plans[0].mark}


def test_neighbours_are_those_of_the_start_file(toy: ToyBackbone, tmp_path: Path) -> None:
    assert plan_of(toy).wanted.neighbours == 1
    for neighbours in (0, 1):
        start = start_file(toy, tmp_path / f"{neighbours}.safetensors", neighbours)
        assert plan_of(toy, start_from=start).wanted.neighbours == neighbours


def test_what_cannot_work_is_refused_before_anything_is_drawn(toy: ToyBackbone, tmp_path: Path) -> None:
    wide = ToyBackbone(4, 5, hidden=24)
    start = start_file(toy, tmp_path / "start.safetensors")
    with pytest.raises(SSDError, match=r"features of width 16 .* has width 24"):
        plan_of(wide, start_from=start)
    with pytest.raises(SSDError, match="vertical heads with 0 neighbours, expected 1"):
        plan_of(toy, start_from=start, neighbours=1)
    with pytest.raises(SSDError, match="there is no heads file"):
        plan_of(toy, start_from=tmp_path / "gone.safetensors")
    with pytest.raises(SSDError, match="no prompts"):
        plan_heads(toy, [])
    with pytest.raises(SSDError, match="at least 2 pictures"):
        plan_of(toy, pictures=1)
    with pytest.raises(SSDError, match="cannot draw 9x9"):
        plan_of(toy, grids=[(9, 9)])
    with pytest.raises(SSDError, match="pictures of 4x5 codes are too small for vertical 4"):
        plan_of(toy, vertical=(1, 4))
    with pytest.raises(SSDError, match=r"2\*\*64 - 1"):
        plan_of(toy, seed=2**64)
    with pytest.raises(SSDError, match="some minutes"):
        make(toy, plan_of(toy), tmp_path, minutes=float("nan"))


def test_a_folder_that_takes_no_file_is_refused_before_anything_is_drawn(toy: ToyBackbone, tmp_path: Path) -> None:
    (tmp_path / "heads").write_bytes(b"a file, no folder")
    with pytest.raises(SSDError, match=r"cannot write .*; choose another name or folder"):
        make(toy, plan_of(toy), tmp_path, on_draw=nothing_drawn)
    with pytest.raises(SSDError, match="cannot write"):
        make_heads(toy, plan_of(toy), tmp_path / ("x" * 300), work=tmp_path / "w", minutes=1.0)


def test_the_seed_reaches_pictures_and_training(toy: ToyBackbone, tmp_path: Path) -> None:
    """The largest seed goes round to 0; the training's choices hang on it too."""
    plan = plan_of(toy, seed=2**64 - 3, settings=None)
    assert plan.settings.seed == 2**64 - 3
    make(toy, replace(plan, settings=replace(plan.settings, steps=2), timed=False), tmp_path)
    firsts = []
    for path in sorted((tmp_path / "w" / "samples").glob("*.safetensors")):
        with safe_open(str(path), framework="np") as file:
            firsts.append(int(file.metadata()["seed"]))
    assert firsts == [2**64 - 3, 5]
    orders = [TrainSettings(seed=seed).step_choice(0, 100).pictures for seed in (0, 1, 2**63, 2**64 - 1)]
    assert len({tuple(order) for order in orders}) >= 3  # 64 bits are folded into torch's 63


# --- drawing -------------------------------------------------------------------------------------------------------


def test_fitting_heads_draft_the_training_pictures(toy: ToyBackbone, tmp_path: Path) -> None:
    """Exact mode from the start file draws the very pictures of plain decoding; heads of other weights do not draft."""
    fitting = start_file(toy, tmp_path / "fits.safetensors")
    foreign = start_file(toy, tmp_path / "foreign.safetensors")
    heads = toy_heads(toy, 1, 2)
    heads.spec = replace(heads.spec, backbone="toy", fingerprint="other")
    save_heads(heads, foreign)
    tokens, decoders = [], []
    for number, start in enumerate((None, fitting, foreign)):
        folder = tmp_path / str(number)
        make(toy, plan_of(toy, start_from=start), folder)
        tokens.append(torch.cat([shard.tokens for shard in read_samples(folder / "w" / "samples", toy.fingerprint)]))
        with safe_open(str(next((folder / "w" / "samples").glob("*.safetensors"))), framework="np") as file:
            decoders.append(file.metadata()["schedule"])
    assert decoders == ["ar", "rolling", "ar"]
    assert torch.equal(tokens[0], tokens[1])
    assert torch.equal(tokens[0], tokens[2])


def test_drawing_ends_with_its_time(toy: ToyBackbone, tmp_path: Path, monkeypatch) -> None:
    """One batch at least; none is begun that would end well after the time."""
    made = make(toy, plan_of(toy, pictures=64), tmp_path, minutes=1e-6)
    assert made.pictures == 7  # one batch of eight, one picture of them held out


# --- memory and disk -----------------------------------------------------------------------------------------------


def training(toy: ToyBackbone, wanted: Wanted) -> float:
    plan = replace(plan_of(toy), wanted=wanted)
    return rooms._training_bytes(toy, plan, wanted, 1) + RESERVE


def test_fewer_pictures_are_drawn_at_once_where_memory_is_short(toy: ToyBackbone, tmp_path: Path, monkeypatch) -> None:
    """The pictures are the same; a folder that was begun keeps its shards whatever is free later."""
    plan = plan_of(toy)
    monkeypatch.setattr(rooms, "_training_bytes", lambda *arguments: 0)
    need = {batch: rooms._drawing_bytes(toy, plan, None, batch) + RESERVE for batch in (1, 3, 8)}
    assert rooms.pictures_at_once(toy, plan, None, need[3]) == 3
    wishes: list[int] = []
    pictures = []
    for name, free in (("all", need[8]), ("few", need[3])):
        make(toy, plan, tmp_path / name, make_room=lambda wish, free=free: wishes.append(wish) or free)
        shards = list(read_samples(tmp_path / name / "w" / "samples", toy.fingerprint))
        pictures.append([shard.tokens for shard in shards])
    assert [len(shard) for shard in pictures[1]] == [3, 3, 3, 3, 3, 1]
    assert torch.equal(torch.cat(pictures[0]), torch.cat(pictures[1]))
    assert wishes == [need[8], need[8]]
    polls = 0

    def stop() -> bool:
        nonlocal polls
        polls += 1
        return polls > 40  # in the second shard

    with pytest.raises(StopRequested):
        make(toy, plan, tmp_path / "begun", make_room=lambda wish: need[8], should_stop=stop)
    make(toy, plan, tmp_path / "begun", make_room=lambda wish: need[3])
    assert begun_batch(tmp_path / "begun" / "w" / "samples", (4, 5)) == 8
    shards = list(read_samples(tmp_path / "begun" / "w" / "samples", toy.fingerprint))
    assert torch.equal(torch.cat([shard.tokens for shard in shards]), torch.cat(pictures[0]))
    with pytest.raises(SSDError, match=r"drawing a picture takes up to .* free on cpu"):
        make(toy, plan, tmp_path / "none", make_room=lambda wish: need[1] - 1)


def test_the_most_useful_heads_are_trained_where_memory_is_short(toy: ToyBackbone, tmp_path: Path, monkeypatch) -> None:
    plan = plan_of(toy, horizontal=(1, 2))
    monkeypatch.setattr(rooms, "_drawing_bytes", lambda *arguments: 0)
    free = training(toy, Wanted((1,), (1,), 1))
    steps: list[int] = []
    stopped = make(
        toy, plan, tmp_path, make_room=lambda wish: free, on_step=lambda info: steps.append(info.step),
        should_stop=lambda: len(steps) > 3,
    )  # fmt: skip
    spec = stopped.heads.spec
    assert (spec.horizontal, spec.vertical) == ((1,), (1,))
    assert stopped.left_out == ("horizontal 2", "vertical 2")
    assert "left out, as memory did not hold all heads: horizontal 2, vertical 2" in made_text(stopped)
    # What was begun goes on with its heads, with more memory and not with less.
    with pytest.raises(SSDError, match="the heads that this training began with take up to"):
        make(toy, plan, tmp_path, make_room=lambda wish: free - 10)
    done = make(toy, plan, tmp_path, make_room=lambda wish: 10 * free)
    assert (done.path, done.heads.spec.horizontal, done.steps) == (stopped.path, (1,), 10)
    again = make(toy, plan, tmp_path)
    assert (again.reused, again.left_out) == (True, stopped.left_out)
    with pytest.raises(SSDError, match="training vertical 1 alone takes up to"):
        make(toy, plan, tmp_path / "none", make_room=lambda wish: RESERVE, on_draw=nothing_drawn)


def test_the_disk_must_hold_the_training(toy: ToyBackbone, tmp_path: Path, monkeypatch) -> None:
    """Two states, the best heads in float32 and the file; what is there already counts."""
    plan = plan_of(toy)
    count = sum(p.numel() for p in SpatialHeads(plan.wanted.spec(toy)).parameters())
    usage = rooms.shutil.disk_usage(tmp_path)

    def free(size: int) -> None:
        monkeypatch.setattr(rooms.shutil, "disk_usage", lambda path: usage._replace(free=size))

    free(30 * count - 1)
    with pytest.raises(SSDError, match=r"will take up to .* for the training"):
        make(toy, plan, tmp_path, on_draw=nothing_drawn)
    free(30 * count)
    steps: list[int] = []
    make(toy, plan, tmp_path, on_step=lambda i: steps.append(i.step), should_stop=lambda: len(steps) > 3)
    written = sum(path.stat().st_size for path in (tmp_path / "w").rglob("*.safetensors") if "training" in str(path))
    assert written == pytest.approx(16 * count, rel=0.3)  # state and best heads, with their headers
    free(15 * count)
    assert make(toy, plan, tmp_path).steps == 10


def test_thinned_curves_keep_their_ends() -> None:
    line = [(float(i), 1 / (i + 3)) for i in range(1000)]
    thin = thinned({"loss vertical 1": line, "acceptance vertical 1": line[:2], "none": []}, 20)
    assert len(thin["loss vertical 1"]) == 20
    assert [thin["loss vertical 1"][i][0] for i in (0, -1)] == [0.0, 999.0]
    assert thin["acceptance vertical 1"] == [(0.0, 0.3333), (1.0, 0.25)]
    assert thin["none"] == []


def test_the_file_has_the_history_of_its_log(toy: ToyBackbone, tmp_path: Path) -> None:
    make(toy, plan_of(toy), tmp_path)
    (log,) = tmp_path.rglob("log.csv")
    history = read_heads_spec(tmp_path / "heads" / "h.safetensors").notes["history"]
    points = read_log(log)
    assert {name: [tuple(point) for point in line] for name, line in history.items()} == thinned(points)  # type: ignore[attr-defined]
    assert len(points["loss vertical 1"]) == 10


def test_plain_training_says_that_it_was_not_stopped(toy: ToyBackbone, tmp_path: Path) -> None:
    make(toy, plan_of(toy), tmp_path)
    shards = list(read_samples(tmp_path / "w" / "samples", toy.fingerprint))
    made = train_file(toy, shards, tmp_path / "h.safetensors", Wanted((1,), (1,)), SETTINGS, work=tmp_path / "x")
    assert read_heads_spec(made.path).notes["run"] == {"stopped": False}
