"""The matrix script's own judgement; the environments it builds need a network and minutes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import tiny_janus
import transformers_matrix as matrix


def result(release: str) -> dict[str, object]:
    tokens = {"janus/original": [[1, 2, 3]], "janus/transformers": [[1, 2, 3]]}
    return {"transformers": release, "ours": tokens, "theirs": {"janus/transformers": [[1, 2, 3]]}}


def test_differences_are_named() -> None:
    results = {release: copy.deepcopy(result(release)) for release in ("4.50.3", "5.24.0")}
    assert matrix.compare(results) == []
    results["5.24.0"]["ours"]["janus/original"][0][1] = 9  # type: ignore[index]
    assert matrix.compare(results) == ["janus/original: transformers 5.24.0 gives other tokens than 4.50.3"]
    del results["5.24.0"]["ours"]["janus/original"]  # type: ignore[attr-defined]
    assert len(matrix.compare(results)) == 1
    results = {"5.24.0": result("5.24.0")}
    results["5.24.0"]["theirs"]["janus/transformers"] = [[1, 2, 4]]  # type: ignore[index]
    assert matrix.compare(results) == [
        "janus/transformers: generate of transformers 5.24.0 gives other tokens than ours"
    ]


def test_this_release_draws_what_its_generate_draws(tmp_path: Path) -> None:
    tiny_janus.write_both(tmp_path / "janus")
    got = matrix.draw_all(tmp_path)
    assert got["ours"].keys() == {"janus/original", "janus/transformers"}
    assert got["theirs"].keys() == {"janus/transformers"}
    assert matrix.compare({str(got["transformers"]): got}) == []
    assert {len(tokens) for tokens in got["ours"]["janus/original"]} == {64}


def test_environments_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is ready is used as it is; its name says which release it holds."""
    place = tmp_path / "transformers-4.57.x"
    place.mkdir()
    (place / "ready").touch()
    monkeypatch.setattr(matrix.venv, "create", lambda *_, **__: pytest.fail("made anew"))
    assert matrix.environment("==4.57.*", tmp_path).is_relative_to(place)
