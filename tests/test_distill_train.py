"""Training: exact resume, memory settings that change nothing, what is kept, and a task whose answer is known."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from copying_rows import CopyingBackbone
from safetensors.torch import load_file
from toys import ToyBackbone, randomise, toy_heads

from ssd_core import Rolling, SSDError, generate, load_heads
from ssd_core.distill import StepInfo, TrainSettings
from ssd_core.distill.acceptance import expected_acceptance
from ssd_core.distill.log import LOG_FILE, plot, read_log
from ssd_core.distill.samples import Samples, collect, read_samples
from ssd_core.distill.session import Wanted, split, train_file
from ssd_core.distill.state import STATE_FILE
from ssd_core.distill.train import train_heads
from ssd_core.heads import SpatialHeads, read_heads_spec, save_heads

SETTINGS = TrainSettings(steps=24, batch=4, micro_batch=4, learning_rate=1e-3, kl_weight=0.5, horizontal_rows=0.5)
SMALL = Wanted((1, 2), (1,), 1, licence="CC0", author="a test")


@pytest.fixture(scope="module")
def toy() -> ToyBackbone:
    return ToyBackbone(4, 5, sharpness=1.0, padded=True)


@pytest.fixture(scope="module")
def shards(toy: ToyBackbone, tmp_path_factory: pytest.TempPathFactory) -> list[Samples]:
    folder = tmp_path_factory.mktemp("samples")
    collect(toy, ["ab", "cde", "", "fab", "b"] * 4, folder, grid=(4, 5), seed=0, batch=8)
    return list(read_samples(folder, "toy-1"))


def weights(heads: SpatialHeads) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in heads.state_dict().items()}


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def trained(toy: ToyBackbone, shards: list[Samples], settings: TrainSettings) -> dict[str, torch.Tensor]:
    heads = toy_heads(toy, 2, 2, 1)
    train_heads(toy, heads, shards, settings)
    return weights(heads)


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(toy: ToyBackbone, shards: list[Samples], tmp_path) -> None:
    """Stopped twice at odd places: the heads are bit for bit those of one go."""
    whole = trained(toy, shards, SETTINGS)
    for end in (5, 17, 10**9):
        heads = toy_heads(toy, 2, 2, 1, seed=end % 7)  # whatever it begins with, the state counts
        if end == 5:
            heads = toy_heads(toy, 2, 2, 1)
        done: list[int] = []
        result = train_heads(
            toy, heads, shards, SETTINGS, lambda info, done=done: done.append(info.step), work=tmp_path,
            should_stop=lambda end=end, done=done: bool(done) and done[-1] >= end,
        )  # fmt: skip
        assert result.stopped == (end < 24)
    assert done == list(range(18, 25))
    assert furthest(whole, weights(heads)) == 0


def test_micro_batches_change_memory_only(toy: ToyBackbone, shards: list[Samples]) -> None:
    """One picture a forward, or four: the same heads but for rounding. The KL term is taken over all rows here."""
    settings = replace(SETTINGS, kl_positions=10**6)
    one, four = (trained(toy, shards, replace(settings, micro_batch=size)) for size in (1, 4))
    assert furthest(one, four) < 1e-4
    assert furthest(one, trained(toy, shards, replace(settings, seed=1))) > 1e-3


def test_heads_learn_independently(toy: ToyBackbone, shards: list[Samples]) -> None:
    """A head comes out the same whether others are trained beside it or not."""
    both, alone = toy_heads(toy, 2, 2), toy_heads(toy, 0, 1)
    alone.load_state_dict({name: both.state_dict()[name] for name in alone.state_dict()})
    for heads in (both, alone):
        train_heads(toy, heads, shards, SETTINGS)
    ours = {name: both.state_dict()[name] for name in alone.state_dict()}
    assert furthest(weights(alone), ours) == 0


def test_the_rates_are_the_papers() -> None:
    settings = TrainSettings(warmup=20)
    assert settings.rate(0, 0.0) == pytest.approx(1e-4 / 20)
    assert settings.rate(20, 0.0) == pytest.approx(1e-4)
    assert settings.rate(500, 0.5) == pytest.approx(5.5e-5)
    assert settings.rate(1000, 1.0) == pytest.approx(1e-5)
    assert TrainSettings(decay="linear").rate(100, 0.25) == pytest.approx(1e-4 - 0.25 * 9e-5)
    assert settings.last_step(100) == 38  # three epochs of 100 pictures, eight a step
    seen = [n for step in range(25) for n in settings.step_choice(step, 100).pictures]
    assert sorted(seen[:100]) == sorted(seen[100:]) == list(range(100))
    assert seen[:100] != seen[100:]
    dropped = torch.cat([settings.step_choice(step, 100).unconditional for step in range(500)])
    assert 0.08 < float(dropped.float().mean()) < 0.12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be above 0"),
        ({"steps": 3, "minutes": 1.0}, "both"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0"),
        ({"unconditional": 1.5}, "at most 1"),
        ({"decay": "step"}, "decay must be"),
        ({"warmup": -1}, "warmup must be at least 0"),
    ],
)
def test_settings_that_make_no_sense(change: dict[str, object], message: str) -> None:
    with pytest.raises(SSDError, match=message):
        TrainSettings(**change)  # type: ignore[arg-type]


def test_a_state_of_another_run_is_refused(toy: ToyBackbone, shards: list[Samples], tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=2)
    train_heads(toy, toy_heads(toy, 1, 1), shards, settings, work=tmp_path)

    def again(heads: SpatialHeads, pictures: list[Samples], settings: TrainSettings) -> None:
        train_heads(toy, heads, pictures, settings, work=tmp_path)

    with pytest.raises(SSDError, match=r"learning_rate 0\.001, now 0\.1"):
        again(toy_heads(toy, 1, 1), shards, replace(settings, learning_rate=0.1))
    with pytest.raises(SSDError, match=r"vertical \[1\], now \[1, 2\]"):
        again(toy_heads(toy, 1, 2), shards, settings)
    with pytest.raises(SSDError, match="trained on other pictures"):
        again(toy_heads(toy, 1, 1), shards[1:], settings)
    again(toy_heads(toy, 1, 1), shards, replace(settings, micro_batch=1))
    file = tmp_path / STATE_FILE
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(SSDError, match=r"cannot read the training state .* to begin again delete .*state\.safetensors"):
        again(toy_heads(toy, 1, 1), shards, settings)
    file.unlink()
    again(toy_heads(toy, 1, 1), shards, settings)


def test_heads_that_nothing_can_teach_are_refused(toy: ToyBackbone, shards: list[Samples]) -> None:
    with pytest.raises(SSDError, match="pictures of 4x5 codes are too small for horizontal 5, vertical 4"):
        train_heads(toy, toy_heads(toy, 5, 4), shards, SETTINGS)
    with pytest.raises(SSDError, match="no pictures to train on"):
        train_heads(toy, toy_heads(toy), [], SETTINGS)


def test_the_file_says_what_it_is(toy: ToyBackbone, shards: list[Samples], tmp_path: Path) -> None:
    """Licence, author, training data, acceptance; log and plot beside it; used by generate at once."""
    out = tmp_path / "heads.safetensors"
    infos: list[StepInfo] = []
    result = train_file(toy, shards, out, SMALL, SETTINGS, work=tmp_path / "work", on_step=infos.append)
    notes = read_heads_spec(out).notes
    assert (notes["licence"], notes["author"], notes["grids"]) == ("CC0", "a test", [[4, 5]])
    assert notes["training"]["pictures"] == 18  # type: ignore[index]
    assert notes["training"]["steps"] == result.steps == 24  # type: ignore[index]
    assert set(notes["acceptance"]) == {"horizontal 1", "horizontal 2", "vertical 1"}  # type: ignore[call-overload]
    assert [info.step for info in infos] == [*range(25), 24]
    last = infos[-1].measured
    assert last is not None
    with (tmp_path / "work" / LOG_FILE).open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 26
    assert float(rows[4]["loss vertical 1"]) == pytest.approx(infos[4].losses["vertical 1"], abs=1e-5)
    assert rows[4]["acceptance vertical 1"] == ""
    assert float(rows[-1]["acceptance vertical 1"]) == pytest.approx(last.acceptance["vertical 1"], abs=1e-5)
    assert float(rows[-1]["held-out loss vertical 1"]) == pytest.approx(last.losses["vertical 1"], abs=1e-5)
    picture = plot(read_log(tmp_path / "work" / LOG_FILE), (400, 300))
    assert picture.size == (400, 300)
    assert len(picture.getcolors(10**6) or ()) > 5
    run = generate(toy, "ab", heads=load_heads(toy, out), schedule=Rolling(window_rows=2))
    assert run.report.settings["drafts"] == "heads"
    assert result.path == out


def test_the_best_heads_are_kept_when_training_goes_wrong(toy: ToyBackbone, shards: list[Samples], tmp_path) -> None:
    """A learning rate that rises until it ruins the heads: the file holds those of before."""
    rising = replace(SETTINGS, steps=128, learning_rate=0.5, last_learning_rate=0.5, warmup=400, kl_weight=0.0)
    means: list[float] = []

    def note(info: StepInfo) -> None:
        if info.measured is not None:
            means.append(sum(info.measured.acceptance.values()) / 3)

    result = train_file(toy, shards, tmp_path / "h.safetensors", SMALL, rising, work=tmp_path / "w", on_step=note)
    assert means[-1] < max(means) - 0.02
    kept = load_heads(toy, tmp_path / "h.safetensors")
    measured = expected_acceptance(toy, kept, split(shards)[1])
    assert sum(measured.values()) / 3 == pytest.approx(max(means), abs=5e-3)  # the file is in float16
    assert result.acceptance["vertical 1"] == pytest.approx(measured["vertical 1"], abs=5e-3)


def test_divergence_is_said(toy: ToyBackbone, shards: list[Samples], tmp_path: Path) -> None:
    mad = replace(SETTINGS, learning_rate=1e30, warmup=0)
    with pytest.raises(SSDError, match=r"loss of .* is (nan|inf) in step \d+; .*learning rate"):
        train_heads(toy, toy_heads(toy, 1, 1), shards, mad, work=tmp_path)


def test_a_stop_keeps_what_there_is(toy: ToyBackbone, shards: list[Samples], tmp_path: Path) -> None:
    done: list[int] = []
    result = train_file(
        toy, shards, tmp_path / "h.safetensors", SMALL, SETTINGS, work=tmp_path / "w",
        on_step=lambda info: done.append(info.step), should_stop=lambda: len(done) > 7,  # the first one is step 0
    )  # fmt: skip
    assert (result.stopped, result.steps) == (True, 7)
    assert load_heads(toy, tmp_path / "h.safetensors").offsets("horizontal") == (1, 2)


def test_beginning_again_deletes_nothing_but_the_runs_own_files(
    toy: ToyBackbone, shards: list[Samples], tmp_path: Path
) -> None:
    out, work = tmp_path / "heads.safetensors", tmp_path / "work"
    first = train_file(toy, shards, out, SMALL, SETTINGS, work=work)
    (work / "thesis.txt").write_text("mine", encoding="utf-8")
    before = sorted(path.name for path in work.iterdir())
    with pytest.raises(SSDError):
        train_file(toy, shards, out, SMALL, SETTINGS, work=work, restart=True, start_from=tmp_path / "gone")
    assert sorted(path.name for path in work.iterdir()) == before
    again = train_file(toy, shards, out, SMALL, SETTINGS, work=work, restart=True)
    assert again.steps == first.steps
    assert (work / "thesis.txt").read_text(encoding="utf-8") == "mine"


def test_other_heads_of_the_start_file_stay(toy: ToyBackbone, shards: list[Samples], tmp_path: Path) -> None:
    """Heads trained in turn, where memory does not hold all: the second file has both, the first ones untouched."""
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    train_file(toy, shards, first, Wanted((), (1, 2), 1), SETTINGS, work=tmp_path / "a")
    train_file(toy, shards, second, Wanted((1,), (), 0), SETTINGS, work=tmp_path / "b", start_from=first)
    spec = read_heads_spec(second)
    assert (spec.horizontal, spec.vertical, spec.neighbours) == ((1,), (1, 2), 1)
    assert set(spec.notes["acceptance"]) == {"horizontal 1", "vertical 1", "vertical 2"}  # type: ignore[call-overload]
    old, new = load_file(first), load_file(second)
    assert all(torch.equal(old[name], new[name]) for name in old)
    with pytest.raises(SSDError, match="vertical heads with 1 neighbours, expected 0"):
        train_file(toy, shards, second, Wanted((), (1,), 0), SETTINGS, work=tmp_path / "c", start_from=first)
    other = ToyBackbone(4, 5, hidden=24)
    with pytest.raises(SSDError, match="width 16"):
        train_file(other, shards, second, Wanted((), (1,), 1), SETTINGS, work=tmp_path / "d", start_from=first)


def test_held_out_pictures_are_not_trained_on(shards: list[Samples]) -> None:
    training, held_out = split(shards)
    count = [sum(len(s.prompts) for s in part) for part in (shards, training, held_out)]
    assert count == [20, 18, 2]
    seen = {tuple(tokens.flatten().tolist()) for s in training for tokens in s.tokens}
    assert all(tuple(tokens.flatten().tolist()) not in seen for s in held_out for tokens in s.tokens)


def test_a_known_answer_is_learned(tmp_path: Path) -> None:
    """Every row equals the row above: vertical head 1, from random weights, is accepted 99 times of 100 and more."""
    backbone = CopyingBackbone(5, 6)
    collect(backbone, ["a", "b"] * 24, tmp_path / "samples", grid=(5, 6), seed=0, batch=16)
    shards = list(read_samples(tmp_path / "samples", backbone.fingerprint))
    assert all(torch.equal(s.tokens[:, 0], s.tokens[:, row]) for s in shards for row in range(1, 5))
    heads = SpatialHeads(Wanted((), (1,)).spec(backbone))
    randomise(heads, 3, 0.2)
    held_out = split(shards)[1]
    before = expected_acceptance(backbone, heads, held_out)["vertical 1"]
    train_heads(backbone, heads, split(shards)[0], TrainSettings(steps=400, learning_rate=5e-3, unconditional=0.0))
    after = expected_acceptance(backbone, heads, held_out)["vertical 1"]
    assert before < 0.5
    assert after >= 0.99
    save_heads(heads, tmp_path / "h.safetensors")
    run = generate(backbone, "a", heads=load_heads(backbone, tmp_path / "h.safetensors"), schedule=Rolling(2), seed=99)
    assert run.report.acceptance_by_direction["vertical"] >= 0.99


def test_bfloat16_autocast_trains_full_precision_weights(toy: ToyBackbone, shards: list[Samples]) -> None:
    heads = toy_heads(toy, 1, 1)
    before = expected_acceptance(toy, heads, shards)["vertical 1"]
    train_heads(toy, heads, shards, replace(SETTINGS, steps=100, autocast=True))
    assert next(heads.parameters()).dtype == torch.float32
    assert expected_acceptance(toy, heads, shards)["vertical 1"] > before + 0.03


def test_held_out_losses_are_the_training_loss_of_pictures_never_seen(toy: ToyBackbone, shards: list[Samples]) -> None:
    """Without the KL term and prompts dropped, what a step reports for its pictures is what is measured on them."""
    heads, infos = toy_heads(toy, 2, 1), []
    randomise(heads, 4, 0.1)
    settings = TrainSettings(steps=1, batch=20, micro_batch=20, unconditional=0.0, learning_rate=1e-3)
    train_heads(toy, heads, shards, settings, infos.append, held_out=shards)
    before, step, after = infos
    assert before.measured is not None
    assert after.measured is not None
    for name, loss in step.losses.items():
        assert before.measured.losses[name] == pytest.approx(loss, rel=1e-4)
        assert after.measured.losses[name] < loss
