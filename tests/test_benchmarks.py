"""The benchmark scripts measure what they say: likelihood against token-by-token decoding, tables that add up."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from toys import ToyBackbone, make_engine

from benchmarks import decoders, likelihood, quality
from ssd_core import AR, Rolling, Sampling
from ssd_core.draft import NoDrafter
from ssd_core.sampling import guide, truncate


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(guidance=2.5), Sampling(2.0, 0.8, top_k=6)])
def test_likelihood_equals_decoding(sampling: Sampling) -> None:
    """-log p recomputed in one forward equals the one under the distributions that decoding drew from."""
    backbone = ToyBackbone(3, 4, dtype=torch.float64)
    engine, _ = make_engine(backbone, NoDrafter(), AR(), sampling=sampling, seed=2)
    tokens = engine.run(backbone.prompt_rows(["ab"], "", (3, 4), sampling.guidance_rows == 2))
    at = engine.state.stream.code_positions
    seen = truncate(
        guide(backbone.logits(engine.state.features[:, 0, at]), sampling.guidance, sampling.guidance_rows)[0], sampling
    )
    expected = -seen.log_softmax(-1).gather(-1, tokens.flatten()[:, None]).mean()
    measured = likelihood.negative_log_likelihood(backbone, tokens, ["ab"], sampling)
    assert measured.shape == (1,)
    assert abs(float(measured) - float(expected)) < 1e-9


def test_excluded_tokens_cost_a_fixed_price() -> None:
    backbone = ToyBackbone(2, 2, dtype=torch.float64)
    measured = likelihood.negative_log_likelihood(
        backbone, torch.zeros(1, 2, 2, dtype=torch.int64), ["a"], Sampling(top_k=1)
    )
    assert float(measured) <= -math.log(1e-9)
    assert math.isfinite(float(measured))


def test_decoder_table() -> None:
    """Plain decoding is its own reference, exact mode equals it, and the markdown has a line per decoder."""
    backbone = ToyBackbone(4, 5)
    table = {"plain AR": (AR(), None), "exact": (Rolling(window_rows=2), None)}
    rows = decoders.measure(backbone, table, ["ab", "c"], (4, 5), repeat=2)
    summary = {row["decoder"]: row for row in decoders.summary(rows)}
    assert summary["plain AR"]["fewer"] == summary["plain AR"]["faster"] == summary["plain AR"]["equal"] == 1
    assert summary["exact"]["equal"] == 1
    assert summary["exact"]["pictures"] == 4
    assert summary["exact"]["nll"] == pytest.approx(summary["plain AR"]["nll"])
    assert len(decoders.markdown(list(summary.values())).splitlines()) == 4


def test_bootstrap_interval() -> None:
    """The interval holds the mean and shrinks with the sample; a constant has none."""
    values = torch.linspace(0, 1, 50, dtype=torch.float64).numpy()
    low, high = quality.interval(values)
    assert low < 0.5 < high
    assert 0.1 < high - low < 0.25
    assert quality.interval(values * 0 + 3) == (3, 3)


@pytest.mark.slow
def test_scripts_run_on_the_embedded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command lines that the README names, at their smallest."""
    out = tmp_path / "figures.json"
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    arguments = ["decoders", "--prompts", "1", "--grid", "16x16", "--only", "fused, r=1", "--json", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    decoders.main()
    assert [row["decoder"] for row in json.loads(out.read_text())["decoders"]] == ["plain AR", "rounds, fused, r=1"]
    arguments = ["quality", "--count", "4", "--batch", "4", "--grid", "16x16", "--only", "r=1", "--json", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    quality.main()
    assert set(json.loads(out.read_text())["rounds, fused, r=1"]) >= {"nll", "exact_set", "all_asked"}
