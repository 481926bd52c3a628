"""Makes the pictures of the widget from real runs: workflows/*.jpg (what the template browser shows) and
docs/images/widget.png (README).

`PYTHONPATH=.:tests python -m comfy_pictures` in the repository root, with `pip install -e '.[dev,comfy]'` done. Names
of workflows as arguments limit it to these; README's picture comes with `text_to_image`. Workflows whose models are
not at hand are shown before a run.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from comfy_engine.build import build
from comfy_engine.fixtures import PROBE
from comfy_engine.server import ComfyServer, chromium
from comfy_page import ARGUMENTS, ComfyPage
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import dev

WORKFLOWS = dev.ROOT / "workflows"
WIDGET = dev.ROOT / "docs" / "images" / "widget.png"
THUMBNAIL = 640  # longest side
GROUND = (0x1C, 0x1C, 0x1C)
NEED_MODELS = ("janus_pro", "lumina_mgpt", "emu3")
MARGIN = 24  # CSS pixels around the graph
# The page's own bars would lie over the graph.
BARE = """
.side-tool-bar-container, .side-toolbar-container, .workflow-tabs-container, .comfyui-body-top, .comfyui-body-left,
.actionbar-container, .graph-canvas-panel [class*="absolute"], .p-toast, .comfy-menu, .p-panel
{ visibility: hidden !important; }
"""
BARE_ON = """
css => document.head.append(Object.assign(document.createElement("style"), { id: "bare", textContent: css }))
"""
BOX = """
() => {
    const boxes = app.graph.nodes.map((node) => [...node.pos, ...node.size]);
    const { scale, offset } = app.canvas.ds;
    const title = 40;
    const left = Math.min(...boxes.map((b) => b[0])), right = Math.max(...boxes.map((b) => b[0] + b[2]));
    const top = Math.min(...boxes.map((b) => b[1])) - title, low = Math.max(...boxes.map((b) => b[1] + b[3]));
    const at = app.canvas.canvas.getBoundingClientRect();
    return { x: (left + offset[0]) * scale + at.left, y: (top + offset[1]) * scale + at.top,
             width: (right - left) * scale, height: (low - top) * scale };
}
"""
OTHER_SEED = """
id => { app.graph.getNodeById(Number(id)).widgets.find((widget) => widget.name === "seed").value += 1000 }
"""


def open_page(browser: Browser, server: ComfyServer) -> ComfyPage:
    """A large window in Nodes 2.0."""
    window = browser.new_context(viewport={"width": 2200, "height": 1500}, device_scale_factor=2)
    page = ComfyPage(window.new_page(), server.url, True, Path(tempfile.gettempdir()))
    page.open()
    return page


def load(page: ComfyPage, name: str) -> list[str]:
    """Open a shipped workflow; the ids of its sampling nodes."""
    workflow: dict[str, Any] = json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8"))
    page.load(workflow)
    return [str(node["id"]) for node in workflow["nodes"] if node["type"] in ("SSDSampler", "SSDCompareDecoders")]


def graph_picture(page: ComfyPage) -> Image.Image:
    """The graph as it is on the screen, nothing else."""
    page.page.mouse.move(1100, 1495)  # over nothing that opens
    page.page.evaluate(BARE_ON, BARE)
    page.page.evaluate("() => { app.canvas.ds.offset[1] += 80 / app.canvas.ds.scale; app.canvas.setDirty(true, true) }")
    page.pause(0.5)
    box = page.page.evaluate(BOX)
    clip = {
        "x": max(box["x"] - MARGIN, 0),
        "y": max(box["y"] - MARGIN, 0),
        "width": box["width"] + 2 * MARGIN,
        "height": box["height"] + 2 * MARGIN,
    }
    image = Image.open(io.BytesIO(page.page.screenshot(clip=clip))).convert("RGB")
    page.page.evaluate("() => document.querySelector('#bare').remove()")
    return image


def beside(images: list[Image.Image]) -> Image.Image:
    """Pictures of one height in a row, with gaps."""
    height = min(image.height for image in images)
    scaled = [image.resize((round(image.width * height / image.height), height)) for image in images]
    gap = height // 24
    row = Image.new("RGB", (sum(image.width + gap for image in scaled) - gap, height), GROUND)
    left = 0
    for image in scaled:
        row.paste(image, (left, 0))
        left += image.width + gap
    return row


def save_thumbnail(image: Image.Image, name: str) -> None:
    """workflows/NAME.jpg; template cards are square and show the whole picture."""
    scale = THUMBNAIL / max(image.size)
    size = (round(image.width * scale), round(image.height * scale))
    image.resize(size, Image.Resampling.LANCZOS).save(WORKFLOWS / f"{name}.jpg", quality=88, optimize=True)


def make_thumbnail(browser: Browser, server: ComfyServer, name: str) -> None:
    """What the sampling nodes of a workflow show after its run; its graph where its model is not at hand."""
    page = open_page(browser, server)
    nodes = load(page, name)
    if name in NEED_MODELS:
        save_thumbnail(graph_picture(page), name)
    else:
        page.run()
        for node in nodes:
            page.wait_for(node, r"^\d+ rows[^\n]*$|\nssd: \d+ rows", timeout=900)
        page.pause(1.0)
        save_thumbnail(beside([page.widget_picture(node) for node in nodes]), name)
    page.close()


def make_growing(browser: Browser, server: ComfyServer) -> None:
    """The first workflow in the middle of its run, README's picture; beside its end, the workflow's own."""
    name = "text_to_image"
    page = open_page(browser, server)
    (sampler,) = load(page, name)
    page.page.evaluate(OTHER_SEED, sampler)  # the first run of a server learns the colours of the codes
    page.run()
    page.wait_for(sampler, r"^\d+ rows", timeout=900)
    page.close()
    page = open_page(browser, server)
    (sampler,) = load(page, name)
    page.hold(14)
    page.run()
    page.wait_for(sampler, r"^row 1[5-9]/", shown=True)
    page.pause(1.0)
    growing = page.widget_picture(sampler)
    graph_picture(page).quantize(256, dither=Image.Dither.FLOYDSTEINBERG).save(WIDGET, optimize=True)
    page.release()
    page.wait_for(sampler, r"^\d+ rows", timeout=900)
    page.pause(1.0)
    save_thumbnail(beside([growing, page.widget_picture(sampler)]), name)
    page.close()


def main(wanted: list[str]) -> int:
    """Make the wanted pictures, all of them if none is named."""
    engine = build()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        for name in wanted or sorted(path.stem for path in WORKFLOWS.glob("*.json")):
            # A server each: what one workflow has drawn would come out of the cache for the next, unseen.
            with (
                tempfile.TemporaryDirectory() as base,
                ComfyServer(engine, Path(base), frontend=engine.newest_frontend, custom_nodes=[PROBE]) as server,
            ):
                if name == "text_to_image":
                    make_growing(browser, server)
                else:
                    make_thumbnail(browser, server, name)
            print(name, flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
