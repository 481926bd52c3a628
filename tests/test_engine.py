"""The engine's manners: batches, guidance rows, forced tokens, errors, stopping, threads and global state."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import ToyBackbone, draw, make_engine, toy_heads

from ssd_core import AR, Generation, Jacobi, Rolling, Rounds, RowsEvent, Sampling, SSDError, StopRequested
from ssd_core.draft import CopyDrafter, HeadsDrafter
from ssd_core.heads import SpatialHeads
from ssd_core.schedule import Schedule

DOUBLE = torch.float64
SCHEDULES: dict[str, Schedule] = {
    "ar": AR(),
    "ar maximal": AR("maximal"),
    "rolling": Rolling(),
    "rolling tokens": Rolling(window_tokens=5),
    "rolling maximal": Rolling(2, coupling="maximal"),
    "rolling tolerant": Rolling(3, tolerance=3.0),
    "rounds fused": Rounds(2),
    "rounds separate": Rounds(1, commit="separate"),
    "rounds staged": Rounds(2, 2, 1),
    "rounds gumbel": Rounds(3, coupling="gumbel"),
    "rounds none": Rounds(0),
    "jacobi": Jacobi(7),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def setup(**options: Any) -> tuple[ToyBackbone, SpatialHeads]:
    backbone = ToyBackbone(4, 6, dtype=DOUBLE, **options)
    return backbone, toy_heads(backbone)


def same(a: Generation, b: Generation) -> bool:
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.images, b.images)


@every_schedule
@pytest.mark.parametrize("options", [{}, {"padded": True, "end_of_line": False}], ids=str)
def test_image_k_of_a_batch_is_the_single_image(schedule: Schedule, options: dict[str, Any]) -> None:
    backbone, heads = setup(**options)
    prompts, sampling = ["a", "bcd", "efgab"], Sampling(2.0, 0.9, 9, 0.97)
    for drafts in (heads, None):
        batch = draw(backbone, schedule, prompts, heads=drafts, sampling=sampling, seed=2**64 - 2)
        for k, prompt in enumerate(prompts):
            single = draw(backbone, schedule, prompt, heads=drafts, sampling=sampling, seed=(2**64 - 2 + k) % 2**64)
            assert torch.equal(batch.tokens[k], single.tokens[0])
            assert torch.equal(batch.images[k], single.images[0])
        assert len({tuple(image.flatten().tolist()) for image in batch.tokens}) > 1


def test_one_prompt_for_the_batch_is_a_list_of_it() -> None:
    backbone, heads = setup()
    many = draw(backbone, Rolling(), "abc", batch=3, heads=heads)
    assert same(many, draw(backbone, Rolling(), ["abc"] * 3, heads=heads))


@every_schedule
def test_guidance_doubles_the_rows(schedule: Schedule) -> None:
    """Guidance 1 feeds one row an image, anything else two; an unguided run never embeds the negative prompt."""
    backbone, heads = setup()
    fed: list[int] = []
    backbone.decoder.register_forward_hook(lambda _module, inputs, _output: fed.append(len(inputs[0])))
    for guidance, rows in ((1.0, 1), (3.0, 2), (0.0, 2)):
        fed.clear()
        got = draw(backbone, schedule, batch=3, heads=heads, sampling=Sampling(guidance))
        assert set(fed) == {3 * rows}
        assert len(fed) == got.report.total_forwards


def test_guidance_weights_mean_what_they_say() -> None:
    """Weight 0 is the negative prompt's picture, and with the prompt as negative any weight is no guidance."""
    backbone, _ = setup()
    swapped = draw(backbone, AR(), "abc", negative="gf", sampling=Sampling(0.0))
    assert torch.equal(swapped.tokens, draw(backbone, AR(), "gf").tokens)
    agreed = draw(backbone, AR(), "abc", negative="abc", sampling=Sampling(4.0))
    assert torch.equal(agreed.tokens, draw(backbone, AR(), "abc").tokens)


@every_schedule
@pytest.mark.parametrize("heads", [True, False], ids=["heads", "copies"])
def test_forced_tokens_stay_where_the_grid_says(schedule: Schedule, heads: bool) -> None:
    """At every event the stream has its end-of-line tokens in place, codes elsewhere; none is ever fed elsewhere."""
    backbone = ToyBackbone(4, 5)
    drafter = HeadsDrafter(backbone, toy_heads(backbone)) if heads else CopyDrafter()
    forced = torch.arange(24) % 6 == 5
    streams: list[Tensor] = []
    engine, _ = make_engine(
        backbone, drafter, schedule, batch=2, on_rows=lambda _event: streams.append(engine.state.tokens.clone())
    )
    engine.run(backbone.prompt_rows(["a", "b"], "", (4, 5), False))
    assert len(streams) > 4
    for stream in streams:
        assert bool((stream[:, forced] == backbone.codes).all())
        assert bool((stream[:, ~forced] < backbone.codes).all())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("name", "blame"),
    [
        ("decoder.layers.0.attention.qkv.weight", "decoder layer 0 of 2"),
        ("decoder.layers.1.mlp.down.weight", "decoder layer 1 of 2"),
        ("embedding.weight", "input embeddings"),
        ("head.weight", "output head"),
    ],
)
def test_damaged_weights_are_blamed(name: str, blame: str, value: float) -> None:
    backbone = ToyBackbone(2, 3)
    backbone.get_parameter(name).data[:] = value
    with pytest.raises(SSDError, match=rf"NaN or infinity.*{blame}.*float32"):
        draw(backbone, Rolling())


def test_half_precision_overflow_gets_a_dtype_hint() -> None:
    backbone = ToyBackbone(2, 3, dtype=torch.float16)
    backbone.decoder.layers[1].get_parameter("mlp.down.weight").data *= 60000
    with pytest.raises(SSDError, match=r"layer 1 of 2.*float16.*bfloat16 or float32"):
        draw(backbone, AR())


@pytest.mark.parametrize("direction", ["horizontal", "vertical"])
def test_damaged_heads_are_blamed(direction: str) -> None:
    backbone, heads = setup()
    heads.get_parameter(f"{direction}.1.down.weight").data[0, 0] = math.nan
    with pytest.raises(SSDError, match=r"NaN or infinity.*(spatial |the )heads"):
        draw(backbone, Rolling(), heads=heads)


class Masked(ToyBackbone):
    """Excludes the codes from ``first`` on; at positions after the first row it may exclude all."""

    first = 4

    def logits(self, features: Tensor) -> Tensor:
        logits = super().logits(features)
        logits[..., self.first :] = -torch.inf
        return logits


@every_schedule
def test_excluded_codes_are_never_drawn(schedule: Schedule) -> None:
    backbone = Masked(4, 5, dtype=DOUBLE)
    for sampling in (Sampling(), Sampling(3.0), Sampling(0.5, 2.0, 3, 0.9), Sampling(2.0, 0.0)):
        tokens = draw(backbone, schedule, heads=toy_heads(backbone), sampling=sampling, batch=3).tokens
        assert int(tokens.max()) < 4


def test_everything_excluded_is_an_error() -> None:
    backbone = Masked(4, 5)
    backbone.first = 0
    for guidance in (1.0, 2.0):
        with pytest.raises(SSDError, match="every code of one position is excluded"):
            draw(backbone, Rolling(), sampling=Sampling(guidance))


@every_schedule
@pytest.mark.parametrize("after", [0, 1, 4])
def test_should_stop_stops_within_a_forward(schedule: Schedule, after: int) -> None:
    """After the answer True no further forward starts, and the next run is as if nothing had been."""
    backbone, heads = setup()
    before = draw(backbone, schedule, heads=heads)
    fed: list[int] = []
    hook = backbone.decoder.register_forward_hook(lambda *_: fed.append(1))
    with pytest.raises(StopRequested):
        draw(backbone, schedule, heads=heads, should_stop=lambda: len(fed) >= after)
    assert len(fed) == after
    hook.remove()
    assert same(draw(backbone, schedule, heads=heads), before)


@every_schedule
@pytest.mark.parametrize("kind", ["drafted", "corrected", "accepted"])
def test_an_exception_in_a_hook_leaves_nothing_behind(schedule: Schedule, kind: str) -> None:
    backbone, heads = setup()
    before = draw(backbone, schedule, heads=heads)

    def fail(event: RowsEvent) -> None:
        if event.kind == kind and event.accepted[0] > 0:
            raise ZeroDivisionError("mine")

    if kind == "drafted" and isinstance(schedule, AR):
        assert same(draw(backbone, schedule, heads=heads, on_rows=fail), before)  # nothing is ever drafted
        return
    if kind == "corrected" and schedule == Rounds(0):
        schedule, before = Rounds(1), draw(backbone, Rounds(1), heads=heads)
    with pytest.raises(ZeroDivisionError, match="mine"):
        draw(backbone, schedule, heads=heads, on_rows=fail)
    assert same(draw(backbone, schedule, heads=heads), before)


def test_two_threads_on_one_backbone() -> None:
    backbone, heads = setup()
    jobs: list[Callable[[], Generation]] = [
        lambda: draw(backbone, Rolling(2), heads=heads, sampling=Sampling(2.0), seed=1, batch=2),
        lambda: draw(backbone, Rounds(2), heads=heads, seed=2),
        lambda: draw(backbone, AR(), "gg", seed=3),
    ]
    alone = [job() for job in jobs]
    for _ in range(2):
        with ThreadPoolExecutor(len(jobs)) as pool:
            together = [future.result() for future in [pool.submit(job) for job in jobs]]
        assert all(same(a, b) for a, b in zip(together, alone, strict=True))


@every_schedule
def test_global_state_is_left_alone(schedule: Schedule) -> None:
    """Random state is neither read nor moved; default dtype, grad mode, thread count and the weights stay."""
    backbone, heads = setup()
    weights = {name: tensor.clone() for name, tensor in [*backbone.state_dict().items(), *heads.state_dict().items()]}
    torch.manual_seed(1)
    first = draw(backbone, schedule, heads=heads)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    facts = (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_num_threads(),
    )
    second = draw(backbone, schedule, heads=heads)
    assert same(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert facts == (
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads()
    )  # fmt: skip
    assert all(torch.equal(weights[n], t) for n, t in [*backbone.state_dict().items(), *heads.state_dict().items()])
    second.tokens.add_(1)  # results are ordinary tensors, not inference tensors that refuse to be written
    assert not second.tokens.is_inference()
    assert not second.images.is_inference()
