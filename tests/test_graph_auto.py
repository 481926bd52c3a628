"""``Auto`` where steps are captured: what a capture takes is not what a forward costs."""

from __future__ import annotations

import pytest
import torch
from graph_fakes import FakeCapture, allow
from graph_toys import used
from toys import ToyBackbone, draw

from ssd_core import AR, Auto, Generation, auto
from ssd_core.engine import Engine


def test_captures_do_not_count_as_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are right and width costs nothing: as few steps as without graphs, but for those that take them in."""
    backbone, fake = ToyBackbone(12, 12, dtype=torch.float64, layers=1), FakeCapture()
    allow(fake, backbone)
    feed, forwards = Engine._feed, []

    def fed(engine: Engine, *arguments: object) -> int:
        forwards.append(1)
        return feed(engine, *arguments)  # type: ignore[arg-type]

    def seconds() -> float:
        """One a forward; the plain step before a capture, the captures and comparisons take much longer."""
        return len(forwards) + 50.0 * (len(fake.log) - fake.log.count("replay"))

    monkeypatch.setattr(Engine, "_feed", fed)
    monkeypatch.setattr(auto, "clock_of", lambda device: seconds)
    right = draw(backbone, AR(), graphs="off").tokens
    plain = draw(backbone, Auto(), start=right, graphs="off")
    runs = [draw(backbone, Auto(), start=right) for _ in range(3)]
    assert all(used(run) and torch.equal(run.tokens, right) for run in runs)
    assert all(forwards_of(run) <= 1.5 * forwards_of(plain) for run in runs)


def forwards_of(result: Generation) -> int:
    return result.report.total_forwards
