"""The live widget in the real ComfyUI: both renderers, the server's own frontend and the newest one."""

from __future__ import annotations

import io
import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
from comfy_engine.client import Client, Prompt
from comfy_engine.graphs import comparison, picture
from comfy_page import ComfyPage
from PIL import Image

pytestmark = pytest.mark.browser

SURFACES = list(itertools.product(["pinned", "newest"], ["classic", "nodes 2.0"]))
# Where the frontend matters less, one surface of each kind.
BOTH_RENDERERS = [("pinned", "classic"), ("newest", "nodes 2.0")]
IDLE = "The picture appears here row by row."
# ComfyUI answers a prompt that it knows from its cache, without events.
seeds = itertools.count(9000)


def new_picture(**sampler: Any) -> Prompt:
    """A picture of 24 rows that the server has not drawn before."""
    prompt = picture(**{"grid": "24x24", "seed": next(seeds), **sampler})
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
    ids = page.load_prompt(new_picture())
    sampler = ids["sampler"]
    fixed_seed(page)
    before = page.workflow()
    idle = page.look(sampler)
    assert (idle["text"], idle["painted"], idle["role"]) == (IDLE, 0, "img")
    assert idle["shown"]

    page.hold(6)
    page.run()
    page.wait_for(sampler, r"^row ([7-9]|[12]\d)/24 .* tokens/s · .* left$", shown=True)
    early = page.settled(sampler)
    page.hold(14)
    page.wait_for(sampler, r"^row (1[5-9]|2\d)/24 .* left$")
    later = page.settled(sampler)
    page.screenshot(f"{frontend} {renderer} during")
    for seen in (early, later):
        assert seen["colours"] >= 4, "sky may be all there is so far"
        rows = int(re.match(r"row (\d+)/", seen["text"])[1]) - 1  # that are final; up to four more are drafted
        # A row's edge is rarely a pixel's: here the picture is some hundred pixels high, and a part of one is painted.
        assert 1 - (rows + 4) / 24 - 0.02 < seen["ground"] < 1 - rows / 24 + 0.02, seen
    page.release()
    page.wait_for(sampler, r"^24 rows · \d+ forwards · \d+ % accepted · \d+\.\d× fewer than plain · .* tokens/s · ")
    end = page.settled(sampler)
    page.screenshot(f"{frontend} {renderer} end")
    assert end["label"] == end["text"]
    assert end["ground"] < 0.01
    assert end["colours"] > early["colours"]
    assert difference(page.widget_picture(sampler), output_picture(page, ids["image"])) < 6

    after = page.workflow()
    assert ours(after) == ours(before), "nothing of the run is saved"
    assert "data:image" not in json.dumps(after)
    assert "ssd_live" not in json.dumps(after)
    queued = page.page.evaluate("async () => JSON.stringify((await app.graphToPrompt()).output)")
    assert "SSDSampler" in queued
    assert "ssd_live" not in queued
    assert abs(len(json.dumps(after)) - len(json.dumps(before))) < 200, "PreviewImage may note its size, no more"


@pytest.mark.parametrize(("frontend", "renderer"), SURFACES)
def test_a_template_is_opened_and_run(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    page.page.evaluate("() => app.extensionManager.command.execute('Comfy.BrowseTemplates')")
    card = page.page.get_by_test_id("template-workflow-text_to_image")
    card.locator("img").first.wait_for()
    page.page.wait_for_function(
        """() => document.querySelector("[data-testid='template-workflow-text_to_image'] img").naturalWidth === 640"""
    )
    page.screenshot(f"{frontend} {renderer} templates")
    card.locator("img").first.click()
    page.page.wait_for_function("() => app.graph.nodes.some((node) => node.type === 'SSDSampler')")
    page.settle()
    sampler = page.page.evaluate("() => String(app.graph.nodes.find((node) => node.type === 'SSDSampler').id)")
    page.page.evaluate(
        """([id, seed]) => {
            app.graph.getNodeById(Number(id)).widgets.find((widget) => widget.name === "seed").value = seed;
        }""",
        [sampler, next(seeds)],
    )
    assert page.look(sampler)["text"] == IDLE
    page.hold(8)
    page.run()
    page.wait_for(sampler, r"^row \d+/24 .* left$", shown=True)
    page.screenshot(f"{frontend} {renderer} template during")
    page.release()
    page.wait_for(sampler, r"^24 rows .* fewer than plain", shown=True)
    assert page.settled(sampler)["ground"] < 0.01


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_the_wheel_over_the_picture_zooms_the_graph(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(new_picture())["sampler"]
    seen = page.look(sampler)
    page.page.mouse.move((seen["left"] + seen["right"]) / 2, (seen["top"] + seen["bottom"]) / 2)
    before = page.page.evaluate("app.canvas.ds.scale")
    page.page.mouse.wheel(0, -240)
    page.page.wait_for_function("before => app.canvas.ds.scale > before * 1.05", arg=before)


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_the_page_is_loaded_again_in_the_middle_of_a_run(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(new_picture())["sampler"]
    page.hold(3)
    page.run()
    page.wait_for(sampler, r"^row ([4-9]|[12]\d)/24 .* left$")  # it is held: nothing is told until it is let go
    page.pause(1.0)  # the page keeps the workflow for a reload with a delay
    page.page.reload()
    page.ready()
    page.fit()
    assert page.look(sampler)["text"] == IDLE, "nothing is kept in the page, and the run waits"
    page.hold(12)
    page.wait_for(sampler, r"^row (1[3-9]|2\d)/24 .* left$", shown=True)
    seen = page.settled(sampler)
    page.screenshot(f"{frontend} {renderer} after reload")
    assert 0 <= seen["ground"] < 0.52
    assert seen["colours"] >= 4
    page.release()
    page.wait_for(sampler, r"^24 rows", shown=True)
    assert page.settled(sampler)["ground"] < 0.01


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_two_samplers_in_one_graph(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    prompt = new_picture(positive="two apples on a beach")
    other = new_picture(positive="a cat at night")
    prompt["sampler 2"], prompt["image 2"] = other["sampler"], other["image"]
    prompt["image 2"]["inputs"]["images"] = ["sampler 2", 0]
    ids = page.load_prompt(prompt)
    nodes = [ids["sampler"], ids["sampler 2"]]
    page.hold(4)
    page.run()
    first = page.wait_for_one(nodes, r"^row \d+/24 .* left$")  # ComfyUI chooses the order
    (second,) = (node for node in nodes if node != first)
    assert page.look(second)["text"] == IDLE, "one at a time"
    page.hold(4, node=second)
    page.wait_for(second, r"^row \d+/24 .* left$")
    page.wait_for(first, r"^24 rows")  # it keeps its picture
    page.release()
    for node in nodes:
        page.wait_for(node, r"^24 rows")
        page.settled(node)
    page.screenshot(f"{frontend} {renderer} two samplers")
    for node, image in zip(nodes, [ids["image"], ids["image 2"]], strict=True):
        assert difference(page.widget_picture(node), output_picture(page, image)) < 6
    assert difference(page.widget_picture(nodes[0]), page.widget_picture(nodes[1])) > 10


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_inside_a_subgraph(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    ids = page.load_prompt(new_picture())
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
    page.hold(5)
    page.run()
    page.wait_for(sampler, r"^row \d+/24 .* left$")
    page.page.evaluate("id => app.canvas.setGraph(app.graph.getNodeById(Number(id)).subgraph)", outer)
    page.pause(0.8)
    page.fit()
    page.wait_for(sampler, r"^row \d+/24 .* left$", shown=True)
    page.screenshot(f"{frontend} {renderer} subgraph")
    page.release()
    page.wait_for(sampler, r"^24 rows", shown=True)
    assert page.settled(sampler)["ground"] < 0.01


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_copied_collapsed_and_deleted_during_a_run(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(new_picture())["sampler"]
    page.hold(5)
    page.run()
    page.wait_for(sampler, r"^row \d+/24 .* left$")
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
    page.wait_until(lambda: not page.look(sampler)["shown"])
    assert page.look(copy)["text"] == IDLE, "a copy has no run of its own"
    page.page.evaluate("id => app.graph.getNodeById(Number(id)).collapse()", sampler)
    page.wait_for(sampler, r"^row \d+/24 .* left$", shown=True)
    page.page.evaluate("id => app.graph.remove(app.graph.getNodeById(Number(id)))", sampler)
    assert page.look(sampler) is None
    page.page.wait_for_function("document.querySelectorAll('.ssd-live').length === 1")  # the copy's, no other
    page.release()
    page.wait_idle()
    assert page.look(copy)["text"] == IDLE


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_other_pages_and_other_workflows_stay_quiet(open_page: Any, frontend: str, renderer: str) -> None:
    prompt = new_picture()
    other_page = open_page(frontend, renderer)
    quiet = other_page.load_prompt(prompt)["sampler"]
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(prompt)["sampler"]
    saved = page.workflow()
    page.hold(5)
    page.run()
    page.wait_for(sampler, r"^row \d+/24 .* left$")
    assert other_page.look(quiet)["text"] == IDLE, "another page is not told"

    page.load({**saved, "id": "00000000-1111-4222-8333-444444444444"})
    page.pause(0.5)
    assert page.look(sampler)["text"] == IDLE, "another workflow with a node of the same number"
    page.load(saved)
    page.wait_for(sampler, r"^row \d+/24 .* left$", shown=True)
    page.release()
    page.wait_for(sampler, r"^24 rows")
    assert other_page.look(quiet)["text"] == IDLE


@pytest.mark.parametrize("frontend", ["pinned", "newest"])
def test_the_renderer_changes_during_a_run(open_page: Any, frontend: str) -> None:
    page = open_page(frontend, "classic")
    sampler = page.load_prompt(new_picture())["sampler"]
    page.hold(4)
    page.run()
    page.wait_for(sampler, r"^row \d+/24 .* left$")
    for nodes_2, row in ((True, 9), (False, 15)):
        page.page.evaluate("on => app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)", nodes_2)
        page.pause(1.0)
        page.fit()
        page.hold(row)
        page.wait_for(sampler, rf"^row ({'|'.join(map(str, range(row + 1, 25)))})/24 .* left$", shown=True)
        seen = page.settled(sampler)
        page.screenshot(f"{frontend} renderer changed to {'nodes 2.0' if nodes_2 else 'classic'}")
        assert 0.03 < seen["ground"] < 0.98


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_stop(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(new_picture())["sampler"]
    page.hold(6)
    page.run()
    page.wait_for(sampler, r"^row ([7-9]|[12]\d)/24 .* left$")
    before = page.settled(sampler)
    page.page.evaluate("fetch('/interrupt', { method: 'POST' })")
    page.wait_for(sampler, r"^stopped at row \d+/24 ")
    seen = page.settled(sampler)
    assert seen["ground"] == pytest.approx(before["ground"], abs=0.02), "what was drawn stays"
    assert 0.05 < seen["ground"] < 0.8


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_a_comparison_shows_both_runs(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    prompt = comparison(seed=next(seeds))
    del prompt["report"]
    compare = page.load_prompt(prompt)["compare"]
    page.hold(4, label="plain")
    page.run()
    first = page.wait_for(compare, r"^plain: row \d+/16 · .* left$")
    assert "fewer" not in first["text"]
    page.hold(0, label="ssd")
    page.wait_for(compare, r"^plain: 16 rows .*\nssd: row \d+/16 ")
    page.screenshot(f"{frontend} {renderer} comparison")
    page.release()
    page.wait_for(compare, r"^plain: 16 rows .*\nssd: 16 rows .* fewer than plain")
    assert page.settled(compare)["ground"] < 0.01


@pytest.mark.parametrize(("frontend", "renderer"), BOTH_RENDERERS)
def test_a_batch_is_tiled(open_page: Any, frontend: str, renderer: str) -> None:
    page = open_page(frontend, renderer)
    sampler = page.load_prompt(new_picture(batch_size=5, grid="16x16"))["sampler"]
    page.hold(5)
    page.run()
    page.wait_for(sampler, r"^row \d+/16 · 5 pictures \(first 4 shown\) · .* left$")
    page.screenshot(f"{frontend} {renderer} batch")
    page.release()
    page.wait_for(sampler, r"^16 rows · 5 pictures")
    assert page.settled(sampler)["ground"] < 0.01
