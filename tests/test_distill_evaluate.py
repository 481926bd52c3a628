"""Evaluation: figures against a plain recount, schedules that partial sets allow, what is recommended, memory."""

from __future__ import annotations

import pytest
import torch
from copying_rows import CopyingBackbone
from toys import ToyBackbone, copying_heads, toy_heads

from ssd_core import AR, Rolling, Rounds, Sampling, SSDError, generate
from ssd_core.distill.acceptance import expected_acceptance
from ssd_core.distill.evaluate import (
    Measured,
    acceptance_table,
    candidates,
    evaluate,
    recommend,
    schedules_table,
)
from ssd_core.distill.likelihood import likelihood
from ssd_core.distill.samples import Samples
from ssd_core.heads import HeadsSpec, SpatialHeads


def test_acceptance_is_the_overlap_of_the_distributions() -> None:
    """Recounted position by position from single features, with guidance and top-k, edges and neighbours included."""
    backbone = ToyBackbone(3, 4, padded=True, dtype=torch.float64)
    heads = toy_heads(backbone, 1, 2, neighbours=1)
    sampling = Sampling(guidance=2.0, top_k=5)
    drawn = generate(backbone, ["ab", "c"], schedule=AR(), sampling=sampling, seed=4)
    found = expected_acceptance(backbone, heads, [Samples(drawn.tokens, ["ab", "c"])], sampling)

    def target(features: list[torch.Tensor]) -> torch.Tensor:
        conditional, unconditional = (backbone.logits(f).float() for f in features)
        mixed = unconditional + 2.0 * (conditional - unconditional)
        kept = mixed.topk(5).indices
        return torch.zeros(11).scatter(0, kept, mixed[kept].softmax(0))

    overlaps: dict[str, list[float]] = {}
    for tokens, text in zip(drawn.tokens, ("ab", "c"), strict=True):
        sides = [backbone.prompt_ids(text), backbone.prompt_ids("")]
        stream = backbone.stream((3, 4)).blank(1)[0]
        stream[backbone.stream((3, 4)).code_positions] = tokens.flatten()
        h = [[backbone.true_feature(side, stream[:at]) for at in range(15)] for side in sides]
        e = backbone.embed(stream)
        for y in range(3):
            for x in range(4):
                at = y * 5 + x
                for direction, offset in (("horizontal", 1), ("vertical", 1), ("vertical", 2)):
                    source = at - (offset if direction == "horizontal" else 5 * offset)
                    if source < 0 or (direction == "horizontal" and x < offset):
                        continue
                    around = [source]
                    if direction == "vertical":
                        around = [source - (x > 0), source, source + (x < 3)]
                    drafts = [
                        heads.head(direction, offset)(
                            torch.cat([side[i] for i in around]), torch.cat([e[i] for i in around])
                        )
                        for side in h
                    ]
                    q, p = target(drafts), target([side[at] for side in h])
                    overlaps.setdefault(f"{direction} {offset}", []).append(float(torch.minimum(p, q).sum()))
    assert set(found) == set(overlaps)
    for name, values in overlaps.items():
        assert abs(found[name] - sum(values) / len(values)) < 1e-5


def test_likelihood_of_known_pictures() -> None:
    """On the row-copying backbone a copied row costs nothing and a changed code costs what its logit says."""
    backbone = CopyingBackbone(3, 4)
    tokens = torch.tensor([[[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]], [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5]]])
    nll = likelihood(backbone, tokens, ["a", "b"], Sampling()).nll
    first_row = 4 * torch.tensor(11.0).log()
    assert torch.allclose(nll[0], first_row / 12, atol=1e-4)
    assert torch.allclose(nll[1], (first_row + 14.0) / 12, atol=1e-3)


def test_only_schedules_that_the_heads_can_draft_for() -> None:
    def names(horizontal: tuple[int, ...], vertical: tuple[int, ...]) -> set[str]:
        return set(candidates(SpatialHeads(HeadsSpec(8, horizontal, vertical)), (3, 4)))

    rolling = {f"{kind}, {rows} rows" for kind in ("exact", "balanced") for rows in (1, 2, 3)}
    rounds = {f"rounds, r = {r}" for r in (0, 1, 2, 6)}
    assert names((1, 2, 3, 4, 5), (1,)) == {"plain"} | rolling | rounds
    assert names((1, 2, 3, 4, 5), (1, 2)) == {"plain"} | rolling | rounds | {"staged, b = 5, i = 4"}
    assert names((1,), (1, 3)) == {"plain"} | rolling | rounds
    assert names((), (1,)) == names((1,), ()) == names((2,), (1,)) == names((1,), (2,)) == {"plain"} | rolling
    short = candidates(SpatialHeads(HeadsSpec(8, (1, 2, 4), (1,))), (3, 4))["rounds, r = 2"]
    assert short == Rounds(rounds=2, first_row_block=2)


def test_evaluation_of_perfect_and_of_useless_heads() -> None:
    backbone = CopyingBackbone(4, 5)
    perfect = evaluate(backbone, copying_heads(backbone, 0, 1), ["a", "b"], seed=3)
    assert perfect.acceptance["vertical 1"] > 0.6  # all rows but the second, whose source row has no feature yet
    rows = {row.name: row for row in perfect.schedules}
    assert rows["plain"].forwards == 20
    assert rows["exact, 2 rows"].forwards < 12
    assert rows["exact, 4 rows"].equal == rows["exact, 1 rows"].equal == 1.0
    useless = evaluate(backbone, toy_heads(backbone, 0, 1), ["a", "b"], seed=3)
    assert len(evaluate(backbone, toy_heads(backbone, 0, 1), ["a", "b"], seed=2**64 - 1).schedules) > 1
    with pytest.raises(SSDError, match="seed must be from 0"):
        evaluate(backbone, toy_heads(backbone, 0, 1), ["a"], seed=2**64)
    assert useless.acceptance["vertical 1"] < perfect.acceptance["vertical 1"] - 0.3
    assert {row.name: row for row in useless.schedules}["exact, 2 rows"].equal == 1.0
    text = schedules_table(perfect) + acceptance_table(perfect.acceptance)
    assert "exact, 2 rows" in text
    assert f"{perfect.acceptance['vertical 1']:.3f}" in text
    notes = perfect.notes()
    assert notes["recommended"] == perfect.recommended
    assert notes["evaluation"]["forwards"]["plain"] == 20  # type: ignore[index]
    with pytest.raises(SSDError, match="no prompts"):
        evaluate(backbone, toy_heads(backbone), [])


def test_the_fastest_faithful_schedule_is_recommended() -> None:
    def row(schedule: object, seconds: float, nll: float) -> Measured:
        return Measured("", schedule, 10, seconds, nll, 1.0, None)  # type: ignore[arg-type]

    plain, exact = row(AR(), 9.0, 2.0), row(Rolling(2), 3.0, 2.3)  # few pictures: exact mode's own noise is no drift
    near, far = row(Rolling(3, tolerance=4.0), 2.0, 1.85), row(Rolling(4, tolerance=4.0), 1.0, 1.7)
    rounds = row(Rounds(rounds=1), 0.5, 2.0)
    little = row(Rolling(4, tolerance=4.0), 2.6, 2.0)  # too little faster to give the exact picture up
    wish = {"preset": "exact", "window_rows": 2, "tolerance": 0.0}
    assert recommend([plain, exact, little, rounds]) == wish
    assert recommend([plain, exact, far, rounds]) == wish
    assert recommend([plain, exact, far, near, rounds]) == {
        "preset": "balanced", "window_rows": 3, "tolerance": 4.0,
    }  # fmt: skip
