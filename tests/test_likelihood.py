"""How likely a picture is under plain decoding, against decoding token by token."""

from __future__ import annotations

import pytest
import torch
from toys import ToyBackbone, make_engine

from ssd_core import AR, Sampling, generate
from ssd_core.distill.likelihood import likelihood
from ssd_core.draft import NoDrafter
from ssd_core.sampling import guide, truncate


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(guidance=2.5), Sampling(2.0, 0.8)])
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
    found = likelihood(backbone, tokens, ["ab"], sampling)
    assert found.nll.shape == found.excluded.shape == (1,)
    assert abs(float(found.nll) - float(expected)) < 1e-6  # the mean is kept in float32
    assert float(found.excluded) == 0


@pytest.mark.parametrize("truncation", [{"top_k": 3}, {"top_p": 0.5}, {"temperature": 0.0}, {"temperature": 1e-7}])
def test_what_truncation_excludes_is_counted_and_priced_by_the_whole_law(truncation: dict[str, float]) -> None:
    """Pictures drawn freely: the excluded codes are those that a truncated run could not have drawn."""
    backbone = ToyBackbone(3, 4, dtype=torch.float64, sharpness=1.0)
    drawn = [generate(backbone, "ab", schedule=AR(), seed=seed, sampling=Sampling()).tokens for seed in range(8)]
    tokens, prompts = torch.cat(drawn), ["ab"] * 8
    free = likelihood(backbone, tokens, prompts, Sampling())
    bound = likelihood(backbone, tokens, prompts, Sampling(**truncation))  # type: ignore[arg-type]
    assert torch.allclose(bound.nll, free.nll)
    assert 0.1 < float(bound.excluded.mean()) < 0.95
    allowed = generate(backbone, "ab", schedule=AR(), seed=1, sampling=Sampling(**truncation)).tokens  # type: ignore[arg-type]
    assert float(likelihood(backbone, allowed, ["ab"], Sampling(**truncation)).excluded) == 0  # type: ignore[arg-type]


def test_codes_that_the_backbone_itself_excludes() -> None:
    """Minus infinity on both sides of guidance must not become NaN, as it does not in decoding."""
    backbone = ToyBackbone(2, 3, dtype=torch.float64)
    logits = backbone.logits

    def without_the_first(features: torch.Tensor) -> torch.Tensor:
        return logits(features).index_fill(-1, torch.tensor([0]), -torch.inf)

    backbone.logits = without_the_first  # type: ignore[method-assign]
    guided = Sampling(guidance=2.0)
    tokens = generate(backbone, "ab", schedule=AR(), sampling=guided).tokens
    assert (tokens > 0).all()
    found = likelihood(backbone, tokens, ["ab"], guided)
    assert found.nll.isfinite().all()
    assert float(found.excluded) == 0
