"""ComfyUI's page in a real browser, as the tests of the live widget need it."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from comfy_engine.client import Prompt
from PIL import Image

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY = (
    "window.app?.graph?.nodes.length && window.app.extensionManager?.setting"
    " && window.app.extensionManager.workflow?.activeWorkflow"
)
# What the page complains of without us: hosts that it may not reach, files that this old server does not have.
NOISE = re.compile(
    r"Failed to load resource|Content Security Policy|Content Securit|core workflow templates|Jobs API|fetch jobs"
    r"|Failed to fetch|reading 'id'\)\s+at onChange|frame-ancestors|net::ERR_|cleanup event listeners for graph"
)
OURS = re.compile(r"ssd\.js|/live/|ssd\.rows|ssd_live")

# What the widget of a node shows. The canvas is read as pixels: `ground` is the share of the first picture that is
# still the dark ground, `colours` how many colours a coarse look finds.
LOOK = """
id => {
    const path = String(id).split(":");
    let graph = app.rootGraph ?? app.graph;
    for (const step of path.slice(0, -1)) graph = graph.getNodeById(Number(step)).subgraph;
    const node = graph.getNodeById(Number(path.at(-1)));
    const element = node?.widgets?.find((widget) => widget.name === "ssd_live")?.element;
    if (!element) return null;
    const canvas = element.querySelector("canvas");
    const text = element.querySelector(".ssd-live-text").textContent;
    const box = canvas.getBoundingClientRect();
    const seen = { text, label: canvas.getAttribute("aria-label"), role: canvas.getAttribute("role"),
                   width: canvas.width, height: canvas.height, shown: canvas.isConnected && box.width > 0,
                   left: box.left, top: box.top, right: box.right, bottom: box.bottom };
    if (canvas.width < 2 || canvas.height < 2) return { ...seen, ground: null, colours: 0, painted: 0 };
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set();
    let [ground, painted] = [0, 0];
    for (let i = 0; i < data.length; i += 4) {
        if (data[i + 3] === 0) continue;
        painted += 1;
        if (data[i] === 0x16 && data[i + 1] === 0x17 && data[i + 2] === 0x1a) ground += 1;
        if (i % 68 === 0) colours.add((data[i] >> 4) * 256 + (data[i + 1] >> 4) * 16 + (data[i + 2] >> 4));
    }
    return { ...seen, ground: painted ? ground / painted : null, colours: colours.size, painted };
}
"""


def numbered(prompt: Prompt) -> tuple[Prompt, dict[str, str]]:
    """The prompt with numbers as node ids, as the page gives them, and the number of each name."""
    ids = {name: str(number) for number, name in enumerate(prompt, start=1)}

    def linked(value: Any) -> Any:
        return [ids[value[0]], value[1]] if isinstance(value, list) else value

    nodes = {
        ids[name]: {**node, "inputs": {key: linked(value) for key, value in node["inputs"].items()}}
        for name, node in prompt.items()
    }
    return nodes, ids


def placed(workflow: dict[str, Any]) -> dict[str, Any]:
    """The saved workflow with its nodes in columns, each right of those that it hangs on."""
    before: dict[int, list[int]] = {node["id"]: [] for node in workflow["nodes"]}
    for _, source, _, target, *_ in workflow["links"]:
        before[target].append(source)

    def column(node: int) -> int:
        return 1 + max(map(column, before[node]), default=-1)

    low: dict[int, float] = {}
    for node in workflow["nodes"]:
        at = column(node["id"])
        node["pos"] = [at * 480, low.get(at, 0.0)]
        low[at] = node["pos"][1] + node["size"][1] + 100
    return workflow


class ComfyPage:
    """One browser tab with ComfyUI. `page` is Playwright's."""

    def __init__(self, page: Any, url: str, nodes_2: bool, artifacts: Path) -> None:
        self.page = page
        self.url = url
        self.nodes_2 = nodes_2
        self.artifacts = artifacts
        self.complaints: list[str] = []
        page.on("console", lambda message: self._complain(message.type, message.text))
        page.on("pageerror", lambda error: self._complain("error", str(error)))

    def _complain(self, kind: str, text: str) -> None:
        ours = kind in ("error", "warning") and OURS.search(text)
        if ours or (kind == "error" and not NOISE.search(text)):
            self.complaints.append(f"{kind}: {text[:600]}")

    # --- the page --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Load the page in its renderer, with nothing in the way."""
        settings = {
            "Comfy.TutorialCompleted": True,
            "Comfy.VueNodes.Enabled": self.nodes_2,
            "Comfy.Minimap.Visible": False,
            "Comfy.Workflow.WarnBeforeExit": False,
        }
        self._post("/settings", settings)
        self.page.goto(self.url)
        self.ready()

    def ready(self) -> None:
        """Wait until the page can be used."""
        self.page.wait_for_function(READY)
        self.pause(1.0)
        self.page.keyboard.press("Escape")

    def close(self) -> None:
        """Stop what still runs here, so that the next test finds an idle server, and close the window."""
        for path, body in (("/queue", {"clear": True}), ("/interrupt", {}), ("/probe/hold", {})):
            self._post(path, body)
        self.page.context.close()
        self._wait_empty(time.sleep)

    def _post(self, path: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=60).close()

    def pause(self, seconds: float) -> None:
        """Let the page go on."""
        self.page.wait_for_timeout(seconds * 1000)

    def load(self, workflow: dict[str, Any]) -> None:
        """Open a saved workflow."""
        self.page.evaluate("workflow => app.loadGraphData(workflow)", workflow)
        self.settle()

    def load_prompt(self, prompt: Prompt) -> dict[str, str]:
        """Open a graph made from a prompt; the node ids by name."""
        nodes, ids = numbered(prompt)
        self.page.evaluate("nodes => app.loadApiJson(nodes, 'test')", nodes)
        self.pause(0.3)
        self.load(placed(self.workflow()))
        return ids

    def settle(self) -> None:
        """Everything in view and drawn."""
        self.pause(0.8)
        self.page.keyboard.press("Escape")
        self.fit()

    def fit(self) -> None:
        """Bring the whole graph into view."""
        self.page.evaluate(
            """() => {
                const boxes = app.canvas.graph.nodes.map((node) => [...node.pos, ...node.size]);
                const left = Math.min(...boxes.map((b) => b[0])), right = Math.max(...boxes.map((b) => b[0] + b[2]));
                const top = Math.min(...boxes.map((b) => b[1])), low = Math.max(...boxes.map((b) => b[1] + b[3]));
                const { clientWidth: w, clientHeight: h } = app.canvas.canvas;
                const scale = Math.min((w - 120) / (right - left), (h - 160) / (low - top + 40), 1);
                app.canvas.ds.scale = scale;
                app.canvas.ds.offset = [90 / scale - left, 110 / scale - top + 30];
                app.canvas.setDirty(true, true);
            }"""
        )
        self.pause(0.4)

    def screenshot(self, name: str) -> Path:
        """Keep a picture of the page."""
        self.artifacts.mkdir(parents=True, exist_ok=True)
        path = self.artifacts / f"{name}.png"
        self.page.screenshot(path=path)
        return path

    # --- runs ------------------------------------------------------------------------------------------------------

    def hold(self, row: int, **which: str) -> None:
        """Runs of this server wait in their middle once `row` rows are final (comfy_engine/probe/hold.py)."""
        self._post("/probe/hold", {"row": row, **which})

    def release(self) -> None:
        """Let what waits go on."""
        self._post("/probe/hold", {})

    def run(self) -> None:
        """Press Run; returns when the server has taken the prompt."""
        self.page.evaluate("() => app.queuePrompt(0)")
        errors = self.page.evaluate("() => app.lastNodeErrors ?? {}")
        assert not errors, f"the server refused the prompt: {errors}"

    def look(self, node: str) -> dict[str, Any] | None:
        """What the widget of a node shows now; None if there is no such node or widget (see LOOK)."""
        seen: dict[str, Any] | None = self.page.evaluate(LOOK, node)
        return seen

    def settled(self, node: str) -> dict[str, Any]:
        """What the widget of a node shows when its marks have faded and its pictures are decoded.

        That is when two looks are alike that are six tenths of a second and two frames of the page apart.
        """
        before, end = None, time.monotonic() + 60
        while True:
            self.page.evaluate(
                """() => new Promise((done) => {
                    setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 600);
                })"""
            )
            seen = self.look(node)
            assert seen is not None
            if seen == before:
                return seen
            assert time.monotonic() < end, f"the widget does not come to rest: {before}, {seen}"
            before = seen

    def widget_picture(self, node: str) -> Image.Image:
        """What lies on the widget's canvas, cut to the part that is painted."""
        data = self.page.evaluate(
            """id => app.graph.getNodeById(Number(id)).widgets.find((widget) => widget.name === "ssd_live")
                     .element.querySelector("canvas").toDataURL("image/png")""",
            node,
        )
        image = Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))).convert("RGBA")
        return image.crop(image.getchannel("A").getbbox()).convert("RGB")

    def wait_for(self, node: str, condition: str, shown: bool = False, timeout: float = 240.0) -> dict[str, Any]:
        """Look again and again until the text under the picture matches `condition` (a regular expression).

        `shown`: and until the picture is painted where a person can see it.
        """
        self.wait_for_one([node], condition, shown, timeout)
        seen = self.look(node)
        assert seen is not None
        return seen

    def wait_for_one(self, nodes: Sequence[str], condition: str, shown: bool = False, timeout: float = 240.0) -> str:
        """Like `wait_for` with several nodes: the first one that fits."""
        end = time.monotonic() + timeout
        looks: dict[str, dict[str, Any] | None] = {}
        while time.monotonic() < end:
            looks = {node: self.look(node) for node in nodes}
            for node, seen in looks.items():
                if seen and re.search(condition, seen["text"]) and (not shown or (seen["shown"] and seen["painted"])):
                    return node
            if any(seen and "failed at" in seen["text"] for seen in looks.values()):
                break
            self.pause(0.03)
        self.screenshot("timeout")
        raise AssertionError(f"the widgets show {looks}, expected {condition!r} within {timeout:.0f} s")

    def wait_until(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Ask again and again, until it is so."""
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, f"it is not so after {timeout:.0f} s"
            self.pause(0.05)

    def wait_idle(self) -> None:
        """Wait until the server has nothing left to do."""
        self._wait_empty(self.pause)

    def _wait_empty(self, pause: Callable[[float], None], timeout: float = 240.0) -> None:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            with urllib.request.urlopen(f"{self.url}/prompt", timeout=60) as answer:
                if json.load(answer)["exec_info"]["queue_remaining"] == 0:
                    return
            pause(0.1)
        raise TimeoutError(f"the server still has work after {timeout:.0f} s")

    def workflow(self) -> dict[str, Any]:
        """The workflow as it would be saved."""
        saved: dict[str, Any] = self.page.evaluate("() => JSON.parse(JSON.stringify(app.graph.serialize()))")
        return saved


def artifacts_folder(fallback: Path) -> Path:
    """Where screenshots go: the folder that SSD_ARTIFACTS names, or a temporary one."""
    wish = os.environ.get("SSD_ARTIFACTS")
    return Path(wish).expanduser().resolve() if wish else fallback
