"""The live view: what it shows is what is there, and it keeps to its share of the time."""

from __future__ import annotations

import base64
import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ssd_core import AR, Backbone, Generation, Rolling, RowsEvent, generate, load_backbone, load_heads
from ssd_core.preview import MOST_IMAGES, SHARE, Preview, _paces


def pixels_of(url: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    kind, data = url.split(";base64,")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert image.get_format_mimetype() == kind.removeprefix("data:")
    return np.asarray(image.convert("RGB"))


def watch(backbone: Backbone, share_of_time: float, **options: Any) -> tuple[list[RowsEvent], list[Any], Generation]:
    """Runs with a view whose clock says that every look at it costs ``share_of_time`` of the elapsed seconds."""
    now = 0.0
    elapsed = 0.0

    def clock() -> float:
        nonlocal now
        now += share_of_time * elapsed
        return now

    grid = options.get("grid", backbone.default_grid)
    preview = Preview(backbone, grid, options.get("batch", 1), options.get("keep_rows", 0), clock)
    seen: list[RowsEvent] = []
    shown = [preview.begin()]

    def on_rows(event: RowsEvent) -> None:
        nonlocal elapsed
        event = replace(event, elapsed=0.005 * event.forwards)  # not the machine's own time
        elapsed = event.elapsed
        seen.append(event)
        shown.append(preview.rows(event))

    result = generate(backbone, "cat", on_rows=on_rows, **options)
    shown.append(preview.end("done", result))
    json.dumps(shown, allow_nan=False)
    return seen, shown, result


def test_events_say_what_the_decoder_said(tiny_model: Path) -> None:
    backbone = load_backbone(tiny_model)
    heads = load_heads(backbone, tiny_model / "heads.safetensors")
    seen, shown, result = watch(backbone, 0.0, heads=heads, schedule=Rolling(2), batch=2, seed=4)
    assert [event["kind"] for event in shown] == ["begin", *["rows"] * len(seen), "end"]
    for event, told in zip(seen, shown[1:-1], strict=True):
        assert told["forwards"] == event.forwards
        assert told["plain_forwards"] == 36
        for index, image in enumerate(told["images"]):
            codes = event.codes[index].flatten()
            assert image["accepted"] == event.accepted[index]
            assert image["drafted"] == int((codes >= 0).sum())
            assert image["changed"] == event.changed[index].flatten().nonzero()[:, 0].tolist()
            assert pixels_of(image["mosaic"]).shape == (6, 6, 3)
            if image["picture"]:
                rows = image["picture"]["rows"]
                assert rows <= event.rows_accepted[index]
                assert pixels_of(image["picture"]["data"]).shape == (8 * rows, 48, 3)
    last = shown[-1]
    assert last["status"] == "done"
    assert last["eta"] is None
    for index, image in enumerate(last["images"]):
        assert image["picture"]["rows"] == 6
        got = pixels_of(image["picture"]["data"]).astype(float)
        want = result.images[index].numpy() * 255
        assert np.abs(got - want).mean() < 12  # JPEG


def test_grown_rows_are_the_pictures_own() -> None:
    """With time enough the rows shown before the end are close to those of the finished picture."""
    backbone = load_backbone()
    _, shown, result = watch(backbone, 0.0, schedule=Rolling(1), heads=load_heads(backbone), grid=(16, 16), seed=3)
    pictures = [event["images"][0]["picture"] for event in shown[1:-1] if event["images"][0]["picture"]]
    assert [picture["rows"] for picture in pictures] == sorted({picture["rows"] for picture in pictures})
    assert len(pictures) >= 8
    want = result.images[0].numpy() * 255
    for picture in pictures:
        got = pixels_of(picture["data"]).astype(float)
        assert got.shape == (8 * picture["rows"], 128, 3)
        error = np.abs(got - want[: len(got)]).mean(axis=(1, 2))  # of each pixel row
        assert error.mean() < 8
        assert error[:-16].sum() <= 4 * len(error[:-16])  # the last two rows stand on drafts


def test_mosaic_cells_have_the_mean_colour_of_what_they_show() -> None:
    backbone = load_backbone()
    seen, shown, result = watch(backbone, 0.0, schedule=AR(), grid=(16, 16), seed=3)
    got = pixels_of(shown[-2]["images"][0]["mosaic"]).astype(float)
    cells = result.images[0].unflatten(0, (16, 8)).unflatten(2, (16, 8)).mean((1, 3)).numpy() * 255
    assert np.abs(got - cells).mean() < 12
    half = next(i for i, event in enumerate(seen) if event.accepted[0] == 128)
    mosaic = pixels_of(shown[1 + half]["images"][0]["mosaic"])
    assert mosaic[9:].max() == 0  # nothing is drafted there
    assert mosaic[:8].max() > 0


@pytest.mark.parametrize("cost", [0.5, 10.0])
def test_a_slow_pixel_decoder_means_fewer_updates(tiny_model: Path, cost: float) -> None:
    """The clock makes every decoding cost a multiple of the whole budget: one look at most is taken before the end."""
    backbone = load_backbone(tiny_model)
    assert cost > SHARE
    _, shown, _ = watch(backbone, cost, schedule=AR())
    looks = sum(bool(image["picture"]) for event in shown[:-1] for image in event["images"])
    assert looks <= 1
    assert shown[-1]["images"][0]["picture"]["rows"] == 6


def test_other_programs_do_not_use_up_the_share(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While others have the processor, on one thread, nothing counts as spent."""
    backbone = load_backbone(tiny_model)
    decode = backbone.decode_pixels

    def waiting(codes: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2)
        return decode(codes)

    monkeypatch.setattr(backbone, "decode_pixels", waiting)
    Preview(backbone, (6, 6), 1).begin()
    assert _paces[backbone] * backbone.codes < 0.1


def test_a_begin_that_failed_is_made_up_for(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in one run must not spoil the live view of the next."""
    backbone = load_backbone(tiny_model)

    def full(codes: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as short:
        short.setattr(backbone, "decode_pixels", full)
        with pytest.raises(torch.OutOfMemoryError):
            watch(backbone, 0.0)
    _, shown, _ = watch(backbone, 0.0)
    assert any(image["picture"] for event in shown[:-1] for image in event["images"])


def test_kept_rows_are_no_gain(tiny_model: Path) -> None:
    backbone = load_backbone(tiny_model)
    start = torch.zeros(1, 6, 6, dtype=torch.int64)
    _, shown, _ = watch(backbone, 0.0, schedule=AR(), start=start, keep_rows=3)
    assert shown[-1]["plain_forwards"] == 18
    assert shown[-1]["fewer"] == pytest.approx(18 / shown[-1]["forwards"])
    assert shown[1]["fewer"] is None  # only the kept rows are there


def test_a_stopped_run_keeps_what_it_had(tiny_model: Path) -> None:
    backbone = load_backbone(tiny_model)
    preview = Preview(backbone, (6, 6), 1)
    preview.begin()
    assert preview.end("failed")["images"] == []
    events: list[RowsEvent] = []
    generate(backbone, "cat", schedule=AR(), on_rows=events.append)
    before = preview.rows(events[20])
    end = preview.end("stopped")
    assert (end["kind"], end["status"], end["eta"]) == ("end", "stopped", None)
    assert end["images"][0]["accepted"] == before["images"][0]["accepted"]
    assert end["images"][0]["mosaic"] == before["images"][0]["mosaic"]


def test_large_batches_show_the_first_few(tiny_model: Path) -> None:
    _, shown, _ = watch(load_backbone(tiny_model), 0.0, schedule=Rolling(1), batch=MOST_IMAGES + 2)
    assert {len(event["images"]) for event in shown[1:]} == {MOST_IMAGES}
    assert shown[0]["batch"] == MOST_IMAGES + 2
