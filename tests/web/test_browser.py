"""The live widget in the real ComfyUI: both renderers, the server's own frontend and the newest one."""

from __future__ import annotations

import io
import itertools
import json
import time
from typing import Any

import numpy as np
import pytest
from comfy_engine.client import Client, Prompt
from comfy_engine.graphs import NO_HEADS, comparison, picture
from comfy_page import ComfyPage
from PIL import Image

pytestmark = pytest.mark.browser

SURFACES = list(itertools.product(["pinned", "newest"], ["classic", "nodes 2.0"]))
# Where the frontend matters less, one surface of each kind.
BOTH_RENDERERS = [("pinned", "classic"), ("newest", "nodes 2.0")]
IDLE = "The picture appears here row by row."
# ComfyUI answers a prompt that it knows from its cache, without events.
seeds = itertools.count(int(time.time()))


def slow_picture(**sampler: Any) -> Prompt:
    """A picture that takes a while: drafted by copying the row above, 24 rows."""
    prompt = picture(**{"grid": "24x24", "heads": NO_HEADS, "seed": next(seeds), **sampler})
    del prompt["report"]
    return prompt


def output_picture(page: ComfyPage, node: str) -> Image.Image:
    """The picture that the server saved for a PreviewImage in the newest prompt."""
    client = Client(page.url)
    try:
        history = client.get("/history?max_items=1")
        (entry,) = history.values()
        (saved,) = entry["outputs"][node]["images"]
        return Image.open(io.BytesIO(client.view(saved))).convert("RGB")
    finally:
        client.close()


def difference(one: Image.Image, other: Image.Image) -> float:
    """Mean difference of two pictures, 0..255, at the size of the first."""
    resized = other.resize(one.size, Image.Resampling.BICUBIC)
    return float(np.abs(np.asarray(one, np.int16) - np.asarray(resized, np.int16)).mean())


def ours(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    """Our nodes as they are saved."""
    return [node for node in workflow["nodes"] if node["type"].startswith("SSD")]


def fixed_seed(page: ComfyPage) -> None:
    """Keep the seed after a run, so that only the run itself could change the saved workflow."""
    page.page.evaluate(
        """() => {
            for (const node of app.graph.nodes) {
                const control = node.widgets?.find((widget) => widget.name === "control_after_generate");
                if (control) control.value = "fixed";
            }
        }"""
    )


@pytest.mark.parametrize(("frontend", "renderer"), SURFACES)
def test_the_picture_grows(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    ids = page.load_prompt(slow_picture())
    sampler = ids["sampler"]
    fixed_seed(page)
    before = page.workflow()
    idle = page.look(sampler)
    assert (idle["text"], idle["painted"], idle["role"]) == (IDLE, 0, "img")
    assert idle["shown"]

    page.run()
    early = page.wait_for(sampler, r"^row [67]/24 ")
    later = page.wait_for(sampler, r"^row 1[3-8]/24 .* left$")
    page.screenshot(f"{frontend} {renderer} during")
    for seen, least, most in [(early, 0.55, 0.85), (later, 0.1, 0.6)]:
        assert seen["colours"] > 5
        assert least < seen["ground"] < most, seen
    end = page.wait_for(sampler, r"^24 rows · \d+ forwards · \d+ % accepted · \d+\.\d× fewer than plain · ")
    page.pause(0.5)
    end = page.look(sampler)
    page.screenshot(f"{frontend} {renderer} end")
    assert end["label"] == end["text"]
    assert end["ground"] < 0.01
    assert end["colours"] > early["colours"]
    assert difference(page.widget_picture(sampler), output_picture(page, ids["image"])) < 6

    after = page.workflow()
    assert ours(after) == ours(before), "nothing of the run is saved"
    assert "data:image" not in json.dumps(after)
    assert abs(len(json.dumps(after)) - len(json.dumps(before))) < 200, "PreviewImage may note its size, no more"


@pytest.mark.parametrize(("frontend", "renderer"), SURFACES)
def test_a_template_is_opened_and_run(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    page.page.evaluate("() => app.extensionManager.command.execute('Comfy.BrowseTemplates')")
    card = page.page.get_by_test_id("template-workflow-text_to_image")
    card.locator("img").first.wait_for(timeout=60_000)
    page.page.wait_for_function(
        """() => document.querySelector("[data-testid='template-workflow-text_to_image'] img").naturalWidth === 640""",
        timeout=60_000,
    )
    page.screenshot(f"{frontend} {renderer} templates")
    card.locator("img").first.click()
    page.page.wait_for_function("() => app.graph.nodes.some((node) => node.type === 'SSDSampler')", timeout=60_000)
    page.settle()
    sampler = page.page.evaluate("() => String(app.graph.nodes.find((node) => node.type === 'SSDSampler').id)")
    page.page.evaluate(
        """([id, seed]) => {
            app.graph.getNodeById(Number(id)).widgets.find((widget) => widget.name === "seed").value = seed;
        }""",
        [sampler, next(seeds)],
    )
    assert page.look(sampler)["text"] == IDLE
    page.run()
    page.wait_for(sampler, r"^row \d+/24 .* left$", shown=True)
    page.screenshot(f"{frontend} {renderer} template during")
    page.wait_for(sampler, r"^24 rows .* fewer than plain", shown=True)
    page.pause(0.3)
    assert page.look(sampler)["ground"] < 0.01


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_the_wheel_over_the_picture_zooms_the_graph(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(slow_picture())["sampler"]
    seen = page.look(sampler)
    page.page.mouse.move((seen["left"] + seen["right"]) / 2, (seen["top"] + seen["bottom"]) / 2)
    before = page.page.evaluate("app.canvas.ds.scale")
    page.page.mouse.wheel(0, -240)
    page.pause(0.5)
    assert page.page.evaluate("app.canvas.ds.scale") > before * 1.05


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_the_page_is_loaded_again_in_the_middle_of_a_run(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(slow_picture())["sampler"]
    page.run()
    page.wait_for(sampler, r"^row [23]/24 ")
    page.pause(1.0)  # the page keeps the workflow for a reload with a delay
    page.page.reload()
    page.ready()
    page.fit()
    seen = page.wait_for(sampler, r"^(row \d+/24 .* left$|24 rows)")
    page.screenshot(f"{frontend} {renderer} after reload")
    assert seen["text"].startswith("row "), "too late: the run was over before the page was back"
    assert page.wait_for(sampler, r"^24 rows")["label"].startswith("24 rows")
    page.pause(0.3)
    assert page.look(sampler)["ground"] < 0.01


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_two_samplers_in_one_graph(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    prompt = slow_picture(positive="two apples on a beach")
    other = slow_picture(positive="a cat at night")
    prompt["sampler 2"], prompt["image 2"] = other["sampler"], other["image"]
    prompt["image 2"]["inputs"]["images"] = ["sampler 2", 0]
    ids = page.load_prompt(prompt)
    nodes = [ids["sampler"], ids["sampler 2"]]
    page.run()
    running: list[str] = []
    end = time.monotonic() + 240
    while time.monotonic() < end:
        looks = {node: page.look(node) for node in nodes}
        busy = [node for node in nodes if looks[node]["text"].startswith("row ")]
        assert len(busy) <= 1, looks
        running += [node for node in busy if node not in running]
        if all(seen["text"].startswith("24 rows") for seen in looks.values()):
            break
        page.pause(0.05)
    assert sorted(running) == sorted(nodes), "each one was seen at work"
    page.pause(0.3)
    page.screenshot(f"{frontend} {renderer} two samplers")
    for node, image in zip(nodes, [ids["image"], ids["image 2"]], strict=True):
        assert difference(page.widget_picture(node), output_picture(page, image)) < 6
    assert difference(page.widget_picture(nodes[0]), page.widget_picture(nodes[1])) > 10


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_inside_a_subgraph(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    ids = page.load_prompt(slow_picture())
    outer = page.page.evaluate(
        """id => {
            const { node } = app.graph.convertToSubgraph(new Set([app.graph.getNodeById(Number(id))]));
            return String(node.id);
        }""",
        ids["sampler"],
    )
    page.pause(0.5)
    inner = page.page.evaluate("id => String(app.graph.getNodeById(Number(id)).subgraph.nodes[0].id)", outer)
    sampler = f"{outer}:{inner}"
    page.run()
    page.wait_for(sampler, r"^row \d+/24 ")
    page.page.evaluate("id => app.canvas.setGraph(app.graph.getNodeById(Number(id)).subgraph)", outer)
    page.settle()
    page.wait_for(sampler, r"^row \d+/24 .* left$", shown=True)
    page.screenshot(f"{frontend} {renderer} subgraph")
    page.wait_for(sampler, r"^24 rows", shown=True)
    page.pause(0.3)
    assert page.look(sampler)["ground"] < 0.01


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_copied_collapsed_and_deleted_during_a_run(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(slow_picture())["sampler"]
    page.run()
    page.wait_for(sampler, r"^row [3-9]/24 ")
    copy = page.page.evaluate(
        """id => {
            const copy = app.graph.getNodeById(Number(id)).clone();
            copy.pos = [0, 900];
            app.graph.add(copy);
            return String(copy.id);
        }""",
        sampler,
    )
    page.page.evaluate("id => app.graph.getNodeById(Number(id)).collapse()", sampler)
    page.pause(0.5)
    assert page.look(copy)["text"] == IDLE, "a copy has no run of its own"
    assert not page.look(sampler)["shown"]
    page.page.evaluate("id => app.graph.getNodeById(Number(id)).collapse()", sampler)
    page.wait_for(sampler, r"^row \d+/24 .* left$", shown=True)
    page.page.evaluate("id => app.graph.remove(app.graph.getNodeById(Number(id)))", sampler)
    page.pause(0.2)
    assert page.look(sampler) is None
    assert page.page.evaluate("document.querySelectorAll('.ssd-live').length") == 1, "the copy's, no other"
    page.wait_idle()
    assert page.look(copy)["text"] == IDLE


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_other_pages_and_other_workflows_stay_quiet(open_page: Any, frontend: str, renderer: str) -> None:
    prompt = slow_picture()
    other_page = open_page(frontend, renderer)
    quiet = other_page.load_prompt(prompt)["sampler"]
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(prompt)["sampler"]
    saved = page.workflow()
    page.run()
    page.wait_for(sampler, r"^row \d/24 ")
    assert other_page.look(quiet)["text"] == IDLE, "another page is not told"

    page.load({**saved, "id": "00000000-1111-4222-8333-444444444444"})
    page.pause(0.5)
    assert page.look(sampler)["text"] == IDLE, "another workflow with a node of the same number"
    page.load(saved)
    assert page.wait_for(sampler, r"^(row \d+/24|24 rows)"), "back in the workflow that runs"
    page.wait_for(sampler, r"^24 rows")
    assert other_page.look(quiet)["text"] == IDLE


@pytest.mark.parametrize("frontend", ["pinned", "newest"])
def test_the_renderer_changes_during_a_run(open_page: Any, frontend: str) -> None:
    page = open_page(frontend, "classic")
    sampler = page.load_prompt(slow_picture(grid="32x32"))["sampler"]
    page.run()
    page.wait_for(sampler, r"^row \d+/32 .* left$")
    for nodes_2 in (True, False):
        page.page.evaluate("on => app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)", nodes_2)
        page.pause(1.0)
        page.fit()
        seen = page.wait_for(sampler, r"^row \d+/32 .* left$", shown=True)
        page.screenshot(f"{frontend} renderer changed to {'nodes 2.0' if nodes_2 else 'classic'}")
        assert 0.03 < seen["ground"] < 0.98


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_stop(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(slow_picture())["sampler"]
    page.run()
    page.wait_for(sampler, r"^row [3-9]/24 .* left$")
    page.page.evaluate("fetch('/interrupt', { method: 'POST' })")
    page.wait_for(sampler, r"^stopped at row \d+/24 ")
    page.pause(0.5)
    seen = page.look(sampler)
    assert 0.2 < seen["ground"] < 0.95, "what was drawn stays"


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_a_comparison_shows_both_runs(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    prompt = comparison(seed=next(seeds))
    del prompt["report"]
    compare = page.load_prompt(prompt)["compare"]
    page.run()
    first = page.wait_for(compare, r"^plain: row \d+/16 · .* left$")
    assert "fewer" not in first["text"]
    page.wait_for(compare, r"^plain: 16 rows .*\nssd: row \d+/16 ")
    page.screenshot(f"{frontend} {renderer} comparison")
    page.wait_for(compare, r"^plain: 16 rows .*\nssd: 16 rows .* fewer than plain")
    page.pause(0.3)
    assert page.look(compare)["ground"] < 0.01


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_a_batch_is_tiled(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(slow_picture(batch_size=5, grid="16x16"))["sampler"]
    page.run()
    page.wait_for(sampler, r"^row \d+/16 · 5 pictures \(first 4 shown\) · ")
    page.wait_for(sampler, r"^16 rows · 5 pictures")
    page.pause(0.3)
    page.screenshot(f"{frontend} {renderer} batch")
    assert page.look(sampler)["ground"] < 0.01
