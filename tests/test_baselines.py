"""SJD and 1D-MTP, the decoders SSD is compared with, and drafts without heads: equal to the slow reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from reference import Reference
from toys import ToyBackbone, draw, make_engine, toy_heads

from ssd_core import AR, HorizontalMTP, Jacobi, Rolling, Rounds, Sampling, SSDError
from ssd_core.draft import HeadsDrafter, LeftDrafter
from ssd_core.drafts import DRAFTS, choose_drafter

DOUBLE = torch.float64
GUIDED = Sampling(2.0, 0.9, 9, 0.95)
OPTIONS: list[dict[str, Any]] = [{}, {"end_of_line": False}, {"padded": True, "axes": 2}]
UNTRAINED = ("left", "copy", "random")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("coupling", ["maximal", "gumbel"])
@pytest.mark.parametrize("drafts", UNTRAINED)
def test_jacobi_equals_the_reference(options: dict[str, Any], coupling: Any, drafts: Any) -> None:
    """Tokens, forwards and acceptance: a window as wide as a row and a half, and one of two positions."""
    backbone = ToyBackbone(4, 4, dtype=DOUBLE, **options)
    for seed, window in enumerate((2, 7)):
        reference = Reference(backbone, "abc", GUIDED, seed, drafts=drafts)
        want = reference.rolling(window_tokens=window, coupling=coupling)
        got = draw(backbone, Jacobi(window, coupling), seed=seed, sampling=GUIDED, drafts=drafts)
        assert got.tokens[0].tolist() == want.tolist()
        assert got.report.total_forwards == reference.steps + (drafts == "random")
        assert got.report.acceptance == pytest.approx(reference.kept / reference.judged)
        assert set(got.report.acceptance_by_direction) == {drafts}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("window", [1, 3, 16, 96])
def test_jacobi_with_gumbel_coupling_is_plain_decoding(options: dict[str, Any], window: int) -> None:
    backbone = ToyBackbone(4, 5, dtype=DOUBLE, **options)
    want = draw(backbone, AR(), ["a", "bcd"], sampling=GUIDED, seed=3).tokens
    for drafts in UNTRAINED:
        got = draw(backbone, Jacobi(window, "gumbel"), ["a", "bcd"], sampling=GUIDED, seed=3, drafts=drafts)
        assert torch.equal(got.tokens, want)


@pytest.mark.parametrize("coupling", ["maximal", "gumbel"])
@pytest.mark.parametrize("end_of_line", [True, False])
@pytest.mark.parametrize("block", [(5, 1), (3, 2), (1, 1), (2, 3)])
def test_horizontal_mtp_equals_the_reference(block: tuple[int, int], end_of_line: bool, coupling: Any) -> None:
    backbone = ToyBackbone(4, 6, dtype=DOUBLE, end_of_line=end_of_line)
    heads = toy_heads(backbone)
    schedule = HorizontalMTP(*block, coupling)
    got = draw(backbone, schedule, batch=2, seed=7, heads=heads, sampling=GUIDED)
    for image in range(2):
        reference = Reference(backbone, "abc", GUIDED, 7 + image, heads)
        want = reference.horizontal_mtp(*block, coupling)
        assert got.tokens[image].tolist() == want.tolist()
    assert set(got.report.acceptance_by_direction) == {"horizontal"}


@pytest.mark.parametrize("size", [(4, 6), (1, 1), (5, 1), (1, 7), (3, 2)])
@pytest.mark.parametrize("end_of_line", [True, False])
def test_forwards_of_horizontal_mtp(size: tuple[int, int], end_of_line: bool) -> None:
    """A row costs a forward per block; the first code comes with the prompt. In a batch as for one."""
    rows, cols = size
    backbone = ToyBackbone(*size, end_of_line=end_of_line)
    heads = toy_heads(backbone)
    report = draw(backbone, HorizontalMTP(3), heads=heads, batch=8).report
    blocks = math.ceil((cols - 1) / 3) if cols > 1 else 1
    assert report.total_forwards == rows * blocks + (cols > 1)


def test_rounds_settle_horizontal_mtp() -> None:
    """As many rounds as a block has codes are plain decoding; one round is another picture."""
    backbone = ToyBackbone(4, 6, dtype=DOUBLE)
    heads = toy_heads(backbone)
    want = draw(backbone, AR(), batch=3).tokens
    assert torch.equal(draw(backbone, HorizontalMTP(3, 4, "gumbel"), batch=3, heads=heads).tokens, want)
    assert not torch.equal(draw(backbone, HorizontalMTP(3, 1, "gumbel"), batch=3, heads=heads).tokens, want)


@pytest.mark.parametrize("schedule", [Jacobi(5), Jacobi(5, "gumbel"), HorizontalMTP(4), HorizontalMTP(2, 2, "gumbel")])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_image_k_of_a_batch_is_the_single_image(schedule: Jacobi | HorizontalMTP, options: dict[str, Any]) -> None:
    backbone = ToyBackbone(4, 6, dtype=DOUBLE, **options)
    heads, prompts = toy_heads(backbone), ["a", "bcd", "efgab"]
    batch = draw(backbone, schedule, prompts, heads=heads, sampling=GUIDED, seed=2**64 - 2)
    for k, prompt in enumerate(prompts):
        single = draw(backbone, schedule, prompt, heads=heads, sampling=GUIDED, seed=(2**64 - 2 + k) % 2**64)
        assert torch.equal(batch.tokens[k], single.tokens[0])


@pytest.mark.parametrize("keep", [1, 3])
def test_kept_rows(keep: int) -> None:
    """Behind kept rows both go on; what is kept stays."""
    backbone = ToyBackbone(5, 4, dtype=DOUBLE)
    start = draw(backbone, AR(), seed=1).tokens
    for schedule in (Jacobi(6), HorizontalMTP(2)):
        got = draw(backbone, schedule, seed=9, heads=toy_heads(backbone), start=start, keep_rows=keep).tokens
        assert torch.equal(got[:, :keep], start[:, :keep])
        assert not torch.equal(got, start)
    want = draw(backbone, AR(), seed=9, start=start, keep_rows=keep).tokens
    got = draw(backbone, Jacobi(6, "gumbel"), seed=9, start=start, keep_rows=keep).tokens
    assert torch.equal(got, want)


def test_neighbours_are_copied() -> None:
    """Three rows drafted at once behind a first row 1 2 3 4 and the code 5: what stands where, forced tokens aside."""
    drafted = {}
    for name in ("left", "copy"):
        backbone = ToyBackbone(4, 4)
        drafter = choose_drafter(name, backbone, None, Rolling(4), backbone.stream((4, 4)), None)
        engine, _ = make_engine(backbone, drafter, Rolling(4))
        state = engine.state
        state.tokens[0, [0, 1, 2, 3, 5]] = torch.tensor([1, 2, 3, 4, 5])
        state.accept(0, 6)
        drafter.extend(state, [19], engine._coupling, engine._corrector.draft_weights)
        drafted[name] = state.stream.to_grid(state.tokens)[0].tolist()
        assert state.drafted == [20]
    assert drafted["left"] == [[1, 2, 3, 4], [5, 5, 5, 5], [5, 5, 5, 5], [5, 5, 5, 5]]
    assert drafted["copy"] == [[1, 2, 3, 4], [5, 2, 3, 4], [5, 2, 3, 4], [5, 2, 3, 4]]


def test_random_drafts_differ_by_seed_and_place() -> None:
    backbone = ToyBackbone(6, 8)
    drafter = choose_drafter("random", backbone, None, Jacobi(64), backbone.stream((6, 8)), None)
    pictures = []
    for seed in (0, 0, 1):
        engine, _ = make_engine(backbone, drafter, Jacobi(64), seed=seed)
        drafter.extend(engine.state, [54], engine._coupling, engine._corrector.draft_weights)
        pictures.append(engine.state.stream.to_grid(engine.state.tokens))
    assert torch.equal(pictures[0], pictures[1])
    assert (pictures[0] == pictures[2]).float().mean() < 0.4
    assert len(pictures[0].unique()) > 7


def test_who_drafts_by_default() -> None:
    backbone = ToyBackbone(4, 6)
    heads = toy_heads(backbone)
    cases: list[tuple[Any, Any, str]] = [
        (Rolling(), heads, "heads"), (Rolling(), None, "left"), (Rounds(2), None, "copy"), (Jacobi(), heads, "random"),
        (AR(), heads, "none"), (HorizontalMTP(), heads, "heads"),
    ]  # fmt: skip
    for schedule, given, name in cases:
        assert draw(backbone, schedule, heads=given).report.settings["drafts"] == name
    assert draw(backbone, Jacobi(), heads=heads, drafts="heads").report.settings["drafts"] == "heads"
    assert isinstance(choose_drafter("left", backbone, heads, Rolling(), backbone.stream((4, 6)), None), LeftDrafter)
    assert isinstance(choose_drafter("auto", backbone, heads, Rounds(), backbone.stream((4, 6)), None), HeadsDrafter)


def test_settings_that_cannot_work() -> None:
    backbone = ToyBackbone(4, 6)
    start = draw(backbone, AR()).tokens
    cases: list[tuple[dict[str, Any], str]] = [
        ({"drafts": "best"}, f"drafts must be one of {', '.join(DRAFTS)}, got 'best'"),
        ({"drafts": "heads"}, "need a heads file, got none"),
        ({"drafts": "left", "start": start}, "the codes to start from are the draft, got drafts 'left' too"),
        ({"schedule": HorizontalMTP()}, "1D-MTP needs a heads file, got none; .* choose auto"),
        ({"schedule": HorizontalMTP(), "drafts": "copy"}, "1D-MTP drafts with horizontal heads, got drafts 'copy'"),
        ({"schedule": HorizontalMTP(5), "heads": toy_heads(backbone, 3)}, "heads 1 to 5, .* use fewer tokens a step"),
    ]
    for options, message in cases:
        with pytest.raises(SSDError, match=message):
            draw(backbone, **{"schedule": Rolling(), **options})
    for make in (lambda: Jacobi(0), lambda: HorizontalMTP(0), lambda: HorizontalMTP(2, 0), lambda: Jacobi(4, "other")):  # type: ignore[arg-type]
        with pytest.raises(SSDError, match=r"at least 1|coupling must be"):
            make()
