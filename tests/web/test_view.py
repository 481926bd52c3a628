"""The widget's element in a real browser, fed with made-up events: what lies on its canvas, pixel by pixel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.browser

ROWS = COLS = 24
GROUND = (0x16, 0x17, 0x1A)
TAKE = """
async ([seq, accepted, options]) => { fake.take(await fake.event(seq, accepted, options)); await fake.painted() }
"""


class FakePage:
    """A page with one view on it (tests/web/fixtures)."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def take(self, seq: int, accepted: int, **options: Any) -> None:
        """One event of a run, see fixtures/page.js; returns when it is painted."""
        self.page.evaluate(TAKE, [seq, accepted, options])

    def unit(self) -> float:
        """Device pixels of the canvas per CSS pixel."""
        return float(self.page.evaluate("fake.view.canvas.width / fake.view.stage.clientWidth"))

    def colour(self, row: int, col: int) -> tuple[int, ...]:
        """The colour in the middle of a cell."""
        return tuple(
            self.page.evaluate(
                """async ([row, col, rows, cols]) => {
                    const { arrange } = await import("/web/js/live/layout.js");
                    const { canvas, stage, shown } = fake.view;
                    const unit = Math.max(Math.round(canvas.width / stage.clientWidth), 1);
                    const runs = shown.map((run) => ({ ...run, count: run.tiles.length }));
                    const size = { w: canvas.width, h: canvas.height };
                    const [group] = arrange(runs, size, { gap: 4 * unit, label: 16 * unit });
                    const at = group.tiles[0];
                    const x = at.x + Math.floor(((col + 0.5) * at.w) / cols);
                    const y = at.y + Math.floor(((row + 0.5) * at.h) / rows);
                    return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3);
                }""",
                [row, col, ROWS, COLS],
            )
        )

    def stop_clock(self) -> None:
        """From now on time passes for the page's scripts by `pass_time` alone, however long anything takes."""
        self.page.evaluate(
            "() => { const at = performance.now(); window.later = 0; performance.now = () => at + window.later }"
        )

    def pass_time(self, ms: int) -> None:
        self.page.evaluate("async ms => { window.later += ms; await fake.painted() }", ms)

    def text(self) -> str:
        """The line under the picture."""
        return str(self.page.evaluate("fake.view.text.textContent"))


def drawn(row: int, col: int) -> tuple[int, int, int]:
    """The colour of a cell of the made-up picture (see `drawn` in fixtures/page.js)."""
    return int(row * 255 / ROWS + 0.5), int(col * 255 / COLS + 0.5), 128


def near(got: tuple[int, ...], expected: tuple[float, ...], tolerance: float = 3) -> bool:
    return all(abs(a - b) <= tolerance for a, b in zip(got, expected, strict=True))


@pytest.fixture
def fake(chromium: Any, repository_url: str, request: pytest.FixtureRequest) -> Iterator[FakePage]:
    options = getattr(request, "param", {})
    page = chromium.new_page(viewport={"width": 400, "height": 440}, **options)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{repository_url}/tests/web/fixtures/page.html")
    page.wait_for_function("window.fake")
    page.evaluate("fake.painted()")  # until then the canvas has a browser's own size
    yield FakePage(page)
    page.close()
    assert errors == []


@pytest.mark.parametrize("fake", [{"device_scale_factor": 1}, {"device_scale_factor": 2.5}], indirect=True)
def test_final_drafted_and_empty_cells(fake: FakePage) -> None:
    accepted = 10 * COLS + 6
    fake.take(5, accepted, pictureRows=8)
    for row, col in [(0, 0), (5, 20), (7, 12)]:
        assert near(fake.colour(row, col), drawn(row, col), 12), "true pixels (a JPEG)"
    for row, col in [(8, 0), (9, 23), (10, 5)]:
        assert fake.colour(row, col) == drawn(row, col), "final, not yet in the picture: the very mosaic"
    for row, col in [(10, 12), (11, 3), (12, 5)]:
        dimmed = tuple(0.4 * full + 0.6 * dark for full, dark in zip(drawn(row, col), GROUND, strict=True))
        assert near(fake.colour(row, col), dimmed), "drafted: dimmed"
    for row, col in [(12, 7), (13, 0), (23, 23)]:
        assert fake.colour(row, col) == GROUND, "not drafted"


def test_the_canvas_has_the_pixels_of_the_device(fake: FakePage) -> None:
    assert fake.unit() == 1
    fake.page.evaluate("document.querySelector('#box').style.transform = 'scale(2)'")  # a graph that is zoomed in
    fake.page.evaluate("fake.view.invalidate(); fake.painted()")
    assert fake.unit() == 2
    fake.page.evaluate("document.querySelector('#box').style.transform = 'scale(0.3)'")
    fake.page.evaluate("fake.view.invalidate(); fake.painted()")
    assert fake.unit() == 1


def test_corrected_cells_are_marked_and_fade(fake: FakePage) -> None:
    fake.stop_clock()
    fake.take(5, 240)
    fake.pass_time(600)
    calm, paints = fake.colour(10, 1), fake.page.evaluate("fake.view.paints")
    fake.page.wait_for_timeout(200)
    fake.pass_time(200)
    assert fake.page.evaluate("fake.view.paints") == paints, "nothing moves: nothing is painted"
    fake.take(6, 240)
    assert fake.colour(10, 1) != calm
    fake.pass_time(600)
    assert fake.colour(10, 1) == calm


def test_idle_running_done(fake: FakePage) -> None:
    assert fake.text() == "The picture appears here row by row."
    fake.take(50, 301)
    assert fake.text() == "row 13/24 · 50 forwards · 71 % accepted · 6.0× fewer than plain · 158 tokens/s · 2.1 s left"
    assert fake.page.evaluate("fake.view.canvas.getAttribute('aria-label')") == fake.text()
    assert fake.page.evaluate("fake.view.canvas.getAttribute('role')") == "img"
    fake.take(60, 576, pictureRows=24, more={"kind": "end", "status": "done"})
    assert fake.text().startswith("24 rows · 60 forwards")
    assert near(fake.colour(23, 23), drawn(23, 23), 12)


def test_looking_back_over_a_finished_run(fake: FakePage) -> None:
    for seq, accepted in enumerate([0, 144, 288, 432]):
        fake.take(seq, accepted)
    fake.take(9, 576, pictureRows=24, more={"kind": "end", "status": "done"})
    box = fake.page.locator(".ssd-live-stage").bounding_box()
    middle = box["y"] + box["height"] / 2
    fake.page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    fake.page.evaluate("fake.painted()")
    assert fake.text().startswith("row 7/24"), fake.text()
    assert near(fake.colour(2, 2), drawn(2, 2), 12)
    assert fake.colour(20, 2) == GROUND
    fake.page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 10)
    fake.page.evaluate("fake.painted()")
    assert fake.text().startswith("24 rows")
    assert near(fake.colour(20, 2), drawn(20, 2), 12)


def test_hidden_views_are_painted_when_they_come_back(fake: FakePage) -> None:
    fake.page.evaluate("document.querySelector('#box').style.display = 'none'")  # a collapsed node
    fake.page.evaluate("async () => { fake.take(await fake.event(5, 240)) }")
    fake.page.wait_for_timeout(200)
    before = fake.page.evaluate("fake.view.paints")
    fake.page.evaluate("document.querySelector('#box').style.display = ''")
    fake.page.wait_for_function("before => fake.view.paints > before", arg=before)
    fake.page.evaluate("fake.painted()")
    assert near(fake.colour(3, 3), drawn(3, 3), 12)


def test_a_view_that_is_gone_does_nothing(fake: FakePage) -> None:
    fake.take(5, 240)
    fake.page.evaluate("fake.view.disconnect(); fake.view.root.remove()")
    paints = fake.page.evaluate("fake.view.paints")
    fake.page.evaluate("async () => { fake.take(await fake.event(6, 300)) }")
    fake.page.wait_for_timeout(300)
    assert fake.page.evaluate("fake.view.paints") == paints
    fake.page.evaluate("document.querySelector('#box').append(fake.view.root); fake.view.connect()")
    fake.page.evaluate("fake.painted()")
    assert fake.text().startswith("row 13/24"), "and can come back"


def test_many_events_cost_one_painting_a_frame(fake: FakePage, record_property: Any) -> None:
    """A burst is dropped to what the page can show; one painting of four pictures takes a few milliseconds."""
    cost = fake.page.evaluate(
        """async () => {
            const event = await fake.event(1000, 301, { count: 4 });
            fake.take(event);
            await fake.painted();
            const before = fake.view.paints;
            const began = performance.now();
            let taken = 0;
            while (performance.now() - began < (taken > 500 ? 1000 : 60_000)) {
                for (let i = 0; i < 20; i += 1) {
                    event.seq += 1;
                    taken += fake.take(structuredClone(event)) ? 1 : 0;
                }
                await new Promise((resolve) => setTimeout(resolve, 4));
            }
            const seconds = (performance.now() - began) / 1000;
            return { taken, paints: (fake.view.paints - before) / seconds };
        }"""
    )
    assert cost["taken"] > 500
    assert cost["paints"] <= 75
    # The least of many: other programs only add.
    milliseconds = fake.page.evaluate("Math.min(...Array.from({ length: 20 }, () => fake.paintCost(5)))")
    record_property("milliseconds a painting, four pictures", milliseconds)
    assert milliseconds < 15, milliseconds
