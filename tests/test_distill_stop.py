"""What a stop leaves and how soon it works, and numbers that must not reach the heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toys import ToyBackbone, toy_heads

from ssd_core import SSDError, StopRequested, load_heads
from ssd_core.distill import StepInfo, TrainSettings
from ssd_core.distill import train as training
from ssd_core.distill.features import FeatureGrid, feature_grid
from ssd_core.distill.losses import head_loss, shifted
from ssd_core.distill.samples import Samples, collect, read_samples
from ssd_core.distill.session import Wanted, split, train_file
from ssd_core.distill.state import STATE_FILE, saved_steps
from ssd_core.distill.train import train_heads

SETTINGS = TrainSettings(steps=40, batch=4, micro_batch=1, learning_rate=1e-3, kl_weight=0.5)
SMALL = Wanted((1, 2), (1,), 1)
PICTURES = 20


@pytest.fixture(scope="module")
def toy() -> ToyBackbone:
    return ToyBackbone(4, 5, sharpness=1.0)


@pytest.fixture(scope="module")
def shards(toy: ToyBackbone, tmp_path_factory: pytest.TempPathFactory) -> list[Samples]:
    folder = tmp_path_factory.mktemp("samples")
    collect(toy, ["ab", "cde", "", "fab", "b"] * 4, folder, grid=(4, 5), seed=0, batch=8)
    return list(read_samples(folder, "toy-1"))


@pytest.fixture
def forwards(monkeypatch) -> list[int]:
    """Grows with every forward of the backbone in training; measuring is not counted."""
    seen: list[int] = []

    def counted(*arguments: object) -> FeatureGrid:
        seen.append(1)
        return feature_grid(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "feature_grid", counted)
    return seen


def test_a_stop_ends_the_step_it_comes_in(toy: ToyBackbone, shards: list[Samples], forwards, tmp_path: Path) -> None:
    """After two of a step's four micro-batches: the step is forgotten, and going on gives the heads of one go."""
    last = PICTURES + 3 * 4 + 2  # the spread of the channels takes a forward of each picture
    heads = toy_heads(toy, 2, 1, 1)
    result = train_heads(
        toy, heads, shards, replace(SETTINGS, steps=6), work=tmp_path, should_stop=lambda: len(forwards) >= last
    )
    assert (result.steps, result.stopped, len(forwards)) == (3, True, last)
    assert train_heads(toy, heads, shards, replace(SETTINGS, steps=6), work=tmp_path).steps == 6
    whole = toy_heads(toy, 2, 1, 1)
    train_heads(toy, whole, shards, replace(SETTINGS, steps=6))
    assert all(torch.equal(a, b) for a, b in zip(heads.parameters(), whole.parameters(), strict=True))


@pytest.mark.parametrize("count", [0, 7])
def test_a_stop_before_the_first_step_leaves_nothing(
    toy: ToyBackbone, shards: list[Samples], forwards, tmp_path: Path, count: int
) -> None:
    """Neither state nor heads; while the channels' spread is measured it works within one picture."""
    out = tmp_path / "h.safetensors"
    with pytest.raises(StopRequested, match="before its first step"):
        train_file(
            toy, shards, out, SMALL, SETTINGS, work=tmp_path / "w", should_stop=lambda: len(forwards) >= count
        )  # fmt: skip
    assert len(forwards) == count
    assert not out.exists()
    assert not (tmp_path / "w" / STATE_FILE).exists()


def slow(monkeypatch, seconds: float = -1.0) -> None:
    """Measuring counts as slow: after a stop nobody waits for it."""
    monkeypatch.setattr(training, "_STOP_SECONDS", seconds)


def test_after_a_stop_nothing_slow_is_measured(
    toy: ToyBackbone, shards: list[Samples], tmp_path: Path, monkeypatch
) -> None:
    """The file has the heads of step 32, which were measured, the state those of step 36."""
    slow(monkeypatch)
    infos: list[StepInfo] = []
    out, work = tmp_path / "h.safetensors", tmp_path / "w"

    def run(**options: object) -> object:
        return train_file(toy, shards, out, SMALL, SETTINGS, work=work, on_step=infos.append, **options)  # type: ignore[arg-type]

    result = run(should_stop=lambda: bool(infos) and infos[-1].step >= 36)
    measured = {info.step: info.measured.acceptance for info in infos if info.measured is not None}
    assert list(measured) == [0, 32]
    assert result.acceptance in measured.values()  # type: ignore[attr-defined]
    assert (result.steps, saved_steps(work)) == (36, 36)  # type: ignore[attr-defined]
    assert load_heads(toy, out).offsets("vertical") == (1,)
    infos.clear()
    assert run().steps == 40  # type: ignore[attr-defined]
    assert [info.step for info in infos] == [37, 38, 39, 40, 40]


def test_a_stop_before_learned_heads_were_measured_keeps_their_state(
    toy: ToyBackbone, shards: list[Samples], tmp_path: Path, monkeypatch
) -> None:
    slow(monkeypatch)
    infos: list[StepInfo] = []
    out, work = tmp_path / "h.safetensors", tmp_path / "w"
    with pytest.raises(StopRequested, match="its state is kept"):
        train_file(
            toy, shards, out, SMALL, SETTINGS, work=work, on_step=infos.append,
            should_stop=lambda: bool(infos) and infos[-1].step >= 5,
        )  # fmt: skip
    assert (saved_steps(work), out.exists()) == (5, False)
    slow(monkeypatch, 60.0)
    stopped = train_file(
        toy, shards, out, SMALL, SETTINGS, work=work, on_step=infos.append,
        should_stop=lambda: infos[-1].step >= 9,
    )  # fmt: skip
    assert (stopped.steps, stopped.stopped, out.exists()) == (9, True, True)  # a quick measurement tells


def test_a_stop_while_measuring_works_within_one_picture(
    toy: ToyBackbone, shards: list[Samples], tmp_path: Path, monkeypatch
) -> None:
    """In the measurement of step 32, at its second picture."""
    held_out, infos, polls = split(shards)[1], [], 0
    slow(monkeypatch)

    def stop() -> bool:
        nonlocal polls
        polls += bool(infos) and infos[-1].step == 31
        return polls > 1 + 4 + 1  # before the step, its micro-batches, the first picture

    result = train_file(
        toy, split(shards)[0], tmp_path / "h.safetensors", SMALL, replace(SETTINGS, checkpoint_minutes=1e-9),
        work=tmp_path / "w", held_out=held_out, on_step=infos.append, should_stop=stop,
    )  # fmt: skip
    assert len(held_out[0].prompts) + len(held_out[-1].prompts) >= 2
    assert (result.stopped, result.steps) == (True, 32)
    assert [info.measured is None for info in infos[-2:]] == [False, True]


# --- numbers -------------------------------------------------------------------------------------------------------


def kl_gradient(backbone: ToyBackbone, tokens: torch.Tensor) -> torch.Tensor:
    """Of the KL term alone with respect to the head that predicts, in float32."""
    heads = toy_heads(ToyBackbone(16, 16), 0, 1).requires_grad_(True)
    samples = Samples(tokens, ["ab"] * len(tokens))
    inputs = shifted(feature_grid(backbone, samples, False), "vertical", 1, 0)
    scale = torch.full((backbone.hidden,), 1e9)  # leaves nothing of the other term
    head_loss(backbone, heads.head("vertical", 1), inputs, scale, 0.01, torch.arange(15), False).backward()
    return heads.head("vertical", 1).mix.weight.grad  # type: ignore[return-value]


def test_the_gradient_survives_an_output_head_in_float16() -> None:
    """The mean over 960 positions with a small weight: its gradient at a logit is below float16's smallest number."""
    tokens = torch.randint(0, 200, (4, 16, 16), generator=torch.Generator().manual_seed(0))
    options = {"codes": 200, "sharpness": 0.3}
    true = kl_gradient(ToyBackbone(16, 16, **options), tokens)
    half = kl_gradient(ToyBackbone(16, 16, dtype=torch.float16, **options), tokens)
    assert float((half - true).norm() / true.norm()) < 0.02


@pytest.mark.parametrize(("dtype", "hint"), [(torch.float32, "lower learning rate"), (torch.float16, "bfloat16")])
def test_a_gradient_that_is_no_number_never_reaches_the_heads(
    shards: list[Samples], dtype: torch.dtype, hint: str, monkeypatch
) -> None:
    """The loss is fine and its gradient is not: said by name, with what helps in this dtype, heads untouched."""
    backbone = ToyBackbone(4, 5, sharpness=1.0, dtype=dtype)
    heads = toy_heads(ToyBackbone(4, 5), 0, 1)
    before = [parameter.clone() for parameter in heads.parameters()]

    def broken(*arguments: object) -> torch.Tensor:
        loss = head_loss(*arguments)  # type: ignore[arg-type]
        loss.register_hook(lambda gradient: gradient * float("inf"))
        return loss

    monkeypatch.setattr(training, "head_loss", broken)
    with pytest.raises(SSDError, match=rf"the gradient of vertical 1 is (nan|inf) in step 1; .*{hint}"):
        train_heads(backbone, heads, shards, SETTINGS)
    assert all(torch.equal(a, b) for a, b in zip(before, heads.parameters(), strict=True))
